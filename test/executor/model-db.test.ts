import { afterAll, beforeAll, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { openRun } from '../../src/domains/execution-runs/operation.ts'
import { emptyEntry } from '../../src/executor/scheduling-state.ts'
import {
  claimSite,
  commitSite,
  LeasePassedOn,
  loadEnds,
  loadRun,
  type CommitResult,
  type JournalEntry,
} from '../../src/executor/journal.ts'
import { openService, type TestService } from '../support/service.ts'
import { runsOf } from '../support/share.ts'
import { makeWorld, type World } from '../support/worlds.ts'
import { commit, endsAfter, laneOf, makeDb, Replaced, type ModelDb, type ModelTask } from './model-db.ts'

const site = 'local@here'
const runs = runsOf(8, 25)
const stepsPerRun = 20

let service: TestService
let world: World
beforeAll(async () => {
  // Without an engine nobody but the test writes the runs.
  service = await openService({ temporalAddress: '127.0.0.1:9' })
  const tasks = Array.from({ length: 6 }, (_, i) => ({ name: `t${String(i)}`, after: i === 5 ? ['t0'] : [] }))
  world = await makeWorld(service, { name: 'model', cores: [3], tasks })
})
afterAll(() => service[Symbol.asyncDispose]())

/** Whole numbers below `n`, one after the other, from a list that is made anew for each step. */
const diceOf = (numbers: readonly number[]) => {
  let next = 0
  return (n: number): number => (numbers[next++ % numbers.length] as number) % n
}
type Dice = ReturnType<typeof diceOf>

const someOf = <T>(items: readonly T[], dice: Dice, one: number): T[] => items.filter(() => dice(one) === 0)
const isOver = ({ status }: ModelTask): boolean => ['completed', 'failed', 'cancelled'].includes(status)

const endsOf = (tasks: readonly ModelTask[], dice: Dice): JournalEntry['ends'] =>
  tasks.map((task, k) => {
    const begun = task.handle !== null
    return {
      ...{ id: task.id, activityId: task.activity_id, attempt: task.attempt },
      status: (['completed', 'failed', 'failed', 'cancelled'] as const)[dice(4)] as 'completed',
      readyAt: 1 + dice(5),
      startedAt: dice(4) === 0 ? null : 5 + dice(5),
      finishedAt: 11 + dice(5),
      ...{
        runtimeSeconds: 1,
        queueSeconds: 1,
        overheadSeconds: 0,
        transferSeconds: 0,
        transferBytes: 0,
        cost: 0,
      },
      ...{
        cpuSeconds: null,
        peakMemoryBytes: null,
        measuredBy: 'none',
        manifest: null,
        siteQueueSeconds: null,
        place: null,
      },
      exitCode: dice(2),
      failureClass: null,
      failureReason: dice(2) === 0 ? null : 'no luck',
      externalId: dice(2) === 0 ? null : 'x',
      final: dice(2) === 0,
      order: 10 + 2 * k,
      heir: null,
      ...(begun || dice(2) === 0
        ? {}
        : { startOrder: 9 + 2 * k, name: `name-${task.id.replaceAll(':', '-')}` }),
    }
  })

/** A step as the scheduling might give it, and as none would: of tasks in any state. */
const entryOf = (db: ModelDb, dice: Dice): JournalEntry => {
  const all = [...db.tasks.values()]
  const entry = emptyEntry()
  entry.takenBack = someOf(all, dice, 6).map(({ id }) => id)
  const begun = someOf(all, dice, 4)
  entry.starts = begun.map(({ id }, k) => ({
    ...{
      id,
      name: `name-${id.replaceAll(':', '-')}`,
      readyAt: dice(5),
      startedAt: 5 + dice(5),
      order: 100 + k,
    },
  }))
  const others = all.filter((task) => !begun.includes(task))
  entry.ends = endsOf(someOf(others, dice, 3), dice)
  for (const end of entry.ends) {
    const heir = dice(3) === 0 ? others[dice(others.length)] : undefined
    // A lane goes to a task that is not over, and is no other's already.
    if (heir !== undefined && !isOver(heir) && !entry.ends.some(({ id }) => id === heir.id))
      end.heir = heir.id
  }
  const failed = new Set(entry.ends.filter(({ status }) => status === 'failed').map(({ id }) => id))
  entry.retries = all
    .filter(
      (task) =>
        task.latest && ((failed.has(task.id) && !isOver(task)) || task.status === 'failed') && dice(2) === 0,
    )
    .map(({ id, position, attempt }) => ({
      id: `${(db.tasks.get(id) as ModelTask).id.split(':').slice(0, 2).join(':')}:${String(attempt + 1)}`,
      ...{
        after: id,
        attempt: attempt + 1,
        userAttempts: 1 + dice(2),
        walltimeExtensions: dice(2),
        readyAt: 12,
        notBefore: 13 + position,
      },
    }))
  entry.states = someOf(all, dice, 3).map(({ id, handle }) => {
    const atSite = dice(5) === 0 ? handle === null : handle !== null
    return {
      id,
      atSite,
      ...(dice(2) === 0
        ? {}
        : { status: (atSite ? ['queued', 'running'] : ['ready', 'queued'])[dice(2)] as 'queued' }),
      ...(dice(2) === 0 ? {} : { readyAt: dice(5) }),
      ...(dice(2) === 0 ? {} : { queuedAt: dice(5) }),
      ...(dice(3) === 0 ? {} : { reason: ['', 'waits', 'waits for the site'][dice(3)] as string }),
      ...(dice(2) === 0 ? {} : { silentSince: dice(9) }),
      ...(dice(2) === 0 ? {} : { externalId: String(dice(9)) }),
    }
  })
  // Two intents of one step never want one lane.
  const lanes = ['core-0', 'core-1', 'core-2'].map(
    (core) => [`${world.name}-host-1`, core, 'default'] as const,
  )
  entry.intents = someOf(all, dice, 2).map(({ id }) => ({
    ...{
      id,
      name: `name-${id.replaceAll(':', '-')}`,
      directory: null,
      host: 'here',
      readyAt: dice(5),
      startedAt: 5 + dice(5),
    },
    ...(dice(3) === 0 ? { lanes: [], ahead: true } : { lanes: lanes.splice(0, dice(3)), ahead: false }),
  }))
  entry.leftovers =
    dice(8) === 0 ? [{ name: `left-${String(all[0]?.id)}-${String(dice(20))}`, words: 'no answer' }] : []
  return entry
}

const rowsText = `select id, attempt, latest, status, ahead, handle_name as handle, host_id as "hostId",
  ready_at, queued_at, started_at, finished_at, not_before,
    user_attempts, walltime_extensions, exit_code as "exitCode", failure_reason as "failureReason",
      external_id_at_site as "externalIdAtSite",
    metadata ->> 'queueReason' as "queueReason", (metadata ->> 'silentSince')::double precision as silent_since
  from task_executions where execution_run_id = $1 order by id collate "C"`

const recorded = async (runId: string) => {
  const [tasks, leases, events, [run]] = await Promise.all([
    service.db.prepared<any>('model_rows', rowsText, [runId]),
    service.db.prepared<any>(
      'model_leases',
      'select resource_id, core_id, slot_id, task_execution_id as id from lane_leases',
      [],
    ),
    service.db.prepared<any>(
      'model_events',
      'select sequence, event_type as type, aggregate_id as id from operation_events where kind = ' +
        `'execution-run' and operation_id = $1 and aggregate_type = 'activity_execution' order by sequence`,
      [runId],
    ),
    service.db.prepared<any>(
      'model_run',
      `select completed_activity_count as completed, failed_activity_count as failed, last_event_sequence as sequence,
         (select count(*) from site_leftovers l where l.execution_run_id = r.id) as leftovers
           from execution_runs r where id = $1`,
      [runId],
    ),
  ])
  return {
    tasks: tasks.map((task) => ({ ...task })),
    leases: leases
      .map((lease) => `${laneOf([lease.resource_id, lease.core_id, lease.slot_id])} ${lease.id as string}`)
      .sort(),
    events: events.map(({ sequence, type, id }) => `${String(sequence)} ${type as string} ${id as string}`),
    run: Object.fromEntries(Object.entries(run).map(([key, value]) => [key, Number(value)])),
  }
}

const keys = [
  'id',
  'attempt',
  'latest',
  'status',
  'ahead',
  'handle',
  'hostId',
  'ready_at',
  'queued_at',
  'started_at',
  'finished_at',
] as const
const moreKeys = [
  'not_before',
  'user_attempts',
  'walltime_extensions',
  'exitCode',
  'failureReason',
  'externalIdAtSite',
  'queueReason',
  'silent_since',
] as const

const modelled = (db: ModelDb) => ({
  tasks: [...db.tasks.values()]
    .sort((a, b) => (a.id < b.id ? -1 : 1))
    .map((task) => Object.fromEntries([...keys, ...moreKeys].map((key) => [key, task[key]]))),
  leases: [...db.leases].map(([lane, id]) => `${lane} ${id}`).sort(),
  events: db.events.map(({ sequence, type, id }) => `${String(sequence)} ${type} ${id}`),
  run: {
    completed: db.run.completed,
    failed: db.run.failed,
    sequence: db.run.sequence,
    leftovers: db.leftovers.size,
  },
})

/** What a step answers, without the order of what it acquired. */
const answerOf = ({ acquired, failed, ...answer }: CommitResult) => ({
  ...answer,
  acquired: [...acquired].sort(),
  failed: Number(failed),
})

test(`the model of the database is commit_site, over ${String(runs * stepsPerRun)} random steps`, async () => {
  const numbers = fc.sample(fc.array(fc.nat(5_039), { minLength: 997, maxLength: 997, size: 'max' }), {
    seed: 500,
    numRuns: runs * stepsPerRun,
  })
  let refusals = 0
  let acquired = 0
  for (let run = 0; run < runs; run++) {
    const runId = `model-${String(run)}`
    await service.db.prepared('model_free', 'delete from lane_leases', [])
    await service.post('/execution-runs/', { id: runId, schedulePlanId: world.planId, mode: 'real' })
    await openRun(service.db, { id: runId, generation: 1 })
    const { epoch } = await claimSite(service.db, runId, site, 'test')
    const loaded = await loadRun(service.db, runId, world.workflowVersionId)
    const db = makeDb(
      loaded.tasks.map((task) => ({
        ...task,
        ...{ latest: true, handle: null, handleStartedAt: null, hostId: null, queueReason: null },
        ...{ exitCode: null, failureReason: null, externalIdAtSite: null },
      })),
      [],
    )
    db.epochs.set(site, epoch)
    for (let step = 0; step < stepsPerRun; step++) {
      const dice = diceOf(numbers[run * stepsPerRun + step] as number[])
      const flag = dice(12)
      if (flag === 0) db.run.paused = !db.run.paused
      if (flag === 1 && step > 12) db.run.cancelled = true
      await service.db.prepared(
        'model_flags',
        'update execution_runs set paused = $2, cancel_requested_at = case when $3 then now() end where id = $1',
        [runId, db.run.paused, db.run.cancelled],
      )
      const entry = entryOf(db, dice)
      if (dice(15) === 0) {
        await expect(commitSite(service.db, runId, site, epoch - 1, entry)).rejects.toThrow(LeasePassedOn)
        expect(() => commit(db, site, epoch - 1, entry)).toThrow(Replaced)
      }
      // Given again as after a lost answer.
      for (let times = dice(3) === 0 ? 2 : 1; times > 0; times--) {
        const answer = await commitSite(service.db, runId, site, epoch, entry)
        expect(answerOf(answer)).toEqual(answerOf(commit(db, site, epoch, entry)))
        expect(await recorded(runId)).toEqual(modelled(db))
        const after = dice(2) === 0 ? 0 : db.run.sequence - dice(10)
        expect(await loadEnds(service.db, runId, after)).toEqual(endsAfter(db, after))
        acquired += answer.acquired.length
        refusals += Object.keys(answer.holders ?? {}).length
      }
    }
  }
  expect(acquired).toBeGreaterThan(8 * runs)
  expect(refusals).toBeGreaterThan(2 * runs)
}, 300_000)
