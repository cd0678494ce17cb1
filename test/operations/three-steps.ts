import { ApplicationFailure, Context } from '@temporalio/activity'
import { setTimeout as pause } from 'node:timers/promises'
import { z } from 'zod'
import { beating } from '../../activities/beating.ts'
import { readPage } from '../../src/db/rows.ts'
import { sql, type Db } from '../../src/db/sql.ts'
import type { OperationKind } from '../../src/operations/kind.ts'
import { dispatchOperation, operationRoutes, type OperationApi } from '../../src/operations/routes.ts'
import { listRoute } from '../../src/http/list-route.ts'
import { Reply, route, type Route } from '../../src/http/route.ts'
import type { Further } from '../../src/service.ts'

/** A kind of the tests: the costs of a new kind beside its steps. */
export const threeStepsTable = [
  `create table if not exists three_steps (id text primary key, generation integer not null default 1,
    status text not null default 'queued', dispatched_at timestamptz, cancel_requested_at timestamptz,
    cancel_actor text, cancel_reason text, failure_reason text, last_event_sequence bigint not null default 0,
    created_at timestamptz not null default now(), started_at timestamptz, finished_at timestamptz,
    step_ms integer not null, fails_at integer)`,
  'create table if not exists three_steps_done (id text, step integer, generation integer, primary key (id, step))',
]

export const threeStepsKind: OperationKind = {
  name: 'three-steps',
  workflow: 'threeSteps',
  noun: 'operation of three steps',
  table: 'three_steps',
  states: { accepted: 'queued', running: 'running' },
  events: 'three.steps',
  cancelEnds: 'accepted',
  pageSummary: (_db, id) => Promise.resolve({ line: `three steps of ${id}`, path: `/three-steps/${id}/` }),
  audit: (id, change) => ({ eventType: `three.steps.${change}`, externalId: id }),
  remove: (tx, id) => tx.run(sql`delete from three_steps_done where id = ${id}`).then(() => undefined),
}

const [text, number] = [z.string(), z.number()]
const Request = z.strictObject({ id: text.min(1), stepMs: z.int().default(50), failsAt: z.int().optional() })
const Facts = { id: text, status: text, generation: number, failureReason: text.optional(), done: number }
const ThreeSteps = z.object(Facts)
const columns = sql`t.id, t.status, t.generation, t.failure_reason, (select count(*) from three_steps_done d
  where d.id = t.id) as done`
const read = (db: Db, id: string) =>
  db.maybe(ThreeSteps, sql`select ${columns} from three_steps t where t.id = ${id}`)

const routes = (parts: Pick<OperationApi, 'db' | 'engine' | 'feed'>): Route[] => {
  const { db } = parts
  const path = '/three-steps/'
  const tag = 'three-steps'
  const api: OperationApi = { ...parts, kind: threeStepsKind, path, parameter: 'operationId', tag }
  const of = operationRoutes(api)
  const document = { schema: ThreeSteps, read: (id: string) => read(db, id) }
  return [
    listRoute('listThreeSteps', 'GET /three-steps/', {
      summary: 'Operations of three steps, newest first',
      item: ThreeSteps,
      read: (page) =>
        readPage(db, ThreeSteps, {
          select: columns,
          from: sql`three_steps t`,
          order: sql`t.created_at desc, t.id desc`,
          page,
        }),
    }),
    route('startThreeSteps', 'POST /three-steps/', {
      summary: 'Accept an operation of three steps',
      body: Request,
      response: ThreeSteps,
      status: 202,
      handle: async ({ body }) => {
        await db.run(
          sql`insert into three_steps (id, step_ms, fails_at)
            values (${body.id}, ${body.stepMs}, ${body.failsAt ?? null})`,
        )
        await dispatchOperation(api, { id: body.id, generation: 1 })
        const location = `${path}${encodeURIComponent(body.id)}/`
        return new Reply({ body: (await read(db, body.id))!, headers: { location } })
      },
    }),
    of.read({
      summary: 'One operation of three steps',
      response: z.object({ operation: ThreeSteps, live: z.object({ step: z.number() }).optional() }),
      read: async (id) => {
        const operation = await read(db, id)
        return operation && { document: { operation }, state: operation }
      },
    }),
    of.events(),
    of.cancel({ summary: 'Ask for its end', document }),
    of.retry({ summary: 'Open a failed one again', document }),
    of.remove({ summary: 'Delete one that is over' }),
  ]
}

const Settings = z.object({ stepMs: number, failsAt: number.optional() })

const activities = ({ db }: { db: Db }) => ({
  /** One step: takes its time, then is done once, whoever repeats it. */
  step: async (id: string, generation: number, step: number): Promise<void> => {
    const { stepMs, failsAt } = await db.one(
      Settings,
      sql`select step_ms, fails_at from three_steps where id = ${id}`,
    )
    await beating(() => pause(stepMs, undefined, { signal: Context.current().cancellationSignal }))
    if (failsAt === step && generation === 1)
      throw ApplicationFailure.nonRetryable(`step ${String(step)} was asked to fail`)
    await db.run(
      sql`insert into three_steps_done (id, step, generation) values (${id}, ${step}, ${generation})
        on conflict do nothing`,
    )
  },
  takeBack: async (id: string, _reason?: string): Promise<void> => {
    await db.run(sql`delete from three_steps_done where id = ${id}`)
  },
})
export type ThreeStepsActivities = ReturnType<typeof activities>

export const threeSteps: Further = { kinds: [threeStepsKind], routes, activities }
