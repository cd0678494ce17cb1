import { NativeConnection, Worker } from '@temporalio/worker'
import { endActivities } from '../../activities/ends.ts'
import { planningSessionActivities } from '../../activities/planning-session.ts'
import type { Db } from '../../src/db/sql.ts'
import { planningSessionRoutes } from '../../src/domains/planning-sessions/routes.ts'
import { schedulePlanRoutes } from '../../src/domains/schedule-plans/routes.ts'
import { workflowDefinitionRoutes } from '../../src/domains/workflow-definitions/routes.ts'
import { openEngine } from '../../src/engine.ts'
import { openFeed } from '../../src/operations/feed.ts'
import { dataConverter } from '../../src/vault/data-converter.ts'
import { openCompute, type Compute } from '../../src/compute/compute.ts'
import { uses } from '../../src/uses.ts'
import { quietReports } from './quiet-reports.ts'
import type { Answer } from './client.ts'
import { inventoryRoutes } from './inventory-routes.ts'
import { openRoutes } from './open-routes.ts'
import { beforeNextLook } from './pace.ts'
import type { TestTemporal } from './temporal.ts'
import { workflowBundle } from './workflow-bundle.ts'

/** The discard port of this machine, on which no program listens. */
const nowhere = '127.0.0.1:9'
const taskQueue = 'planning-test'

/** All parts of planning behind the real kernel; without `temporal` the engine is unreachable. */
export const startPlanning = async (
  temporal?: TestTemporal,
  wrap: (compute: Compute) => Pick<Compute, 'simulate'> = (compute) => compute,
) => {
  const engine = openEngine({
    address: temporal?.address ?? nowhere,
    namespace: temporal?.namespace ?? 'default',
    taskQueue,
    dataConverter: dataConverter(undefined),
  })
  const app = await openRoutes((db, atClose) => {
    const compute = atClose.use(openCompute({ threads: 1 }))
    atClose.use(engine)
    return [
      ...inventoryRoutes()(db, atClose),
      ...workflowDefinitionRoutes({ db, uses }),
      ...schedulePlanRoutes({ db, compute: wrap(compute), uses }),
      ...planningSessionRoutes({
        db,
        engine,
        reports: quietReports(),
        feed: atClose.use(openFeed({ db, log: { warn: () => undefined } })),
      }),
    ]
  })
  return {
    ...app,
    engine,
    /** Polls a session until it is over. */
    ended: async (sessionId: string): Promise<Answer> => {
      const began = performance.now()
      for (;;) {
        const answer = await app.call('GET', `/planning-sessions/${encodeURIComponent(sessionId)}/`)
        const status = (answer.body as { session?: { status?: string } }).session?.status
        if (answer.status !== 200 || (status !== 'queued' && status !== 'running')) return answer
        if (performance.now() - began > 120_000)
          throw new Error(`session ${sessionId} is still ${status}: ${answer.text}`)
        await beforeNextLook(began)
      }
    },
  }
}

export type PlanningApp = Awaited<ReturnType<typeof startPlanning>>

/**
 * A worker in this process with the real workflow and activities, planning on real threads; the
 * returned function ends it.
 */
export const startPlanningWorker = async (
  temporal: TestTemporal,
  db: Db,
  wrap: (compute: Compute) => Compute = (compute) => compute,
): Promise<() => Promise<void>> => {
  const connection = await NativeConnection.connect({ address: temporal.address })
  const engine = openEngine({ ...temporal, taskQueue, dataConverter: dataConverter(undefined) })
  const compute = openCompute({ threads: 2 })
  const worker = await Worker.create({
    connection,
    namespace: temporal.namespace,
    taskQueue,
    workflowBundle: await workflowBundle(),
    dataConverter: dataConverter(undefined),
    activities: {
      ...planningSessionActivities({ db, compute: wrap(compute), reports: quietReports() }),
      ...endActivities({ engine }),
    },
  })
  const running = worker.run()
  return async () => {
    if (worker.getState() === 'RUNNING') worker.shutdown()
    await running
    await connection.close()
    await engine[Symbol.asyncDispose]()
    await compute[Symbol.asyncDispose]()
  }
}
