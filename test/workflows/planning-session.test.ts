import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { MockActivityEnvironment } from '@temporalio/testing'
import { z } from 'zod'
import { planningSessionActivities } from '../../activities/planning-session.ts'
import { raw, sql, type Db } from '../../src/db/sql.ts'
import { createSession } from '../../src/domains/planning-sessions/create-session.ts'
import { SessionDocument } from '../../src/domains/planning-sessions/schemas.ts'
import {
  beginAlgorithm,
  giveBackAttempt,
  recordProblem,
  recordProgress,
} from '../../src/domains/planning-sessions/store.ts'
import { openCompute, type Compute } from '../../src/compute/compute.ts'
import { violations } from '../schedulers/checker.ts'
import { sessionKind } from '../../src/domains/planning-sessions/operation.ts'
import { openLog } from '../../src/observability/log.ts'
import { openMetrics } from '../../src/observability/metrics.ts'
import { dispatchedOperation, openDispatcher } from '../../src/operations/dispatcher.ts'
import { readOperation } from '../../src/operations/records.ts'
import { until } from '../failures/programs.ts'
import { startPlanning, startPlanningWorker, type PlanningApp } from '../support/planning-app.ts'
import { planningDocuments, type PlanningDocuments } from '../support/planning-documents.ts'
import { quietReports } from '../support/quiet-reports.ts'
import { proved, runsOf } from '../support/share.ts'
import { startTemporal, type TestTemporal } from '../support/temporal.ts'

type Json = ReturnType<typeof JSON.parse>

let temporal: TestTemporal
let app: PlanningApp
let stopWorker: () => Promise<void>
/** Holds planning back until it resolves, so that a test can act while an algorithm runs. */
let gate: Promise<void> = Promise.resolve()

const held = (compute: Compute): Compute => ({
  ...compute,
  plan: async (request, watch) => {
    const signal = watch?.signal
    const aborted = new Promise<never>((_, reject) => {
      signal?.addEventListener('abort', () => {
        reject(signal.reason as Error)
      })
    })
    await Promise.race([gate, aborted])
    return compute.plan(request, watch)
  },
})

beforeAll(async () => {
  temporal = await startTemporal()
  app = await startPlanning(temporal)
  stopWorker = await startPlanningWorker(temporal, app.db, held)
}, 900_000)
afterAll(async () => {
  await stopWorker()
  await app.close()
  await temporal.stop()
})

const send = async (method: string, path: string, body?: unknown): Promise<Json> => {
  const answer = await app.call(method, path, body)
  if (answer.status >= 300) throw new Error(`${method} ${path}: ${answer.status} ${answer.text}`)
  return answer.body
}

/** Posts the documents; the workflow first, since profiles name its types. */
const post = async ({ workflow, environment, scope, topology }: PlanningDocuments): Promise<string> => {
  const { version } = await send('POST', '/workflow-definitions/', workflow)
  await send('POST', '/environments/', environment)
  await send('POST', '/execution-scopes/', scope)
  if (topology !== undefined) await send('POST', '/network-topologies/', topology)
  return version.id
}

const session = (documents: PlanningDocuments, workflowVersionId: string, more: object = {}): Json => ({
  id: `${documents.workflow.name}-session`,
  workflowVersionId,
  executionScopeId: documents.scope.id,
  networkTopologyId: documents.topology?.id ?? '',
  algorithms: [{ id: 'heft' }],
  ...more,
})

/** The checker's problem, from the documents that were posted and nothing else. */
const problemFrom = ({
  workflow,
  environment,
  topology,
}: PlanningDocuments): Parameters<typeof violations>[0] => {
  const { activities, dataDependencies } = workflow.spec
  const { resources, activityResourceProfiles } = environment
  const resourceAt = new Map(resources.map(({ id }, k) => [id, k]))
  const activityAt = new Map(activities.map(({ name }, k) => [name, k]))
  const cpus: Record<string, number> = { '500m': 0.5, '1': 1, '2': 2 }
  return {
    activities: activities.map(({ name, cpuLimit, memoryLimit, resourceSelector }) => ({
      id: name,
      cpu: cpus[cpuLimit]!,
      memoryBytes: Number(memoryLimit),
      ...(resourceSelector === undefined ? {} : { selector: resourceAt.get(resourceSelector)! }),
    })),
    edges: activities.flatMap(({ name, dependsOn }) =>
      dependsOn.map((parent) => ({
        from: activityAt.get(parent)!,
        to: activityAt.get(name)!,
        bytes: dataDependencies
          .filter((each) => each.producerActivity === parent && each.consumerActivity === name)
          .reduce((sum, { sizeBytes }) => sum + sizeBytes, 0),
      })),
    ),
    resources: resources.map((resource) => ({
      ...resource,
      lanes: resource.cpuCores,
      batch: resource.executionTarget === 'batch',
      opaque: resource.type === 'batch_queue',
      activeWindow:
        environment.version.costModel === 'active-window' || resource.executionTarget === 'provisioned',
    })),
    links: topology?.links.map((link) => ({
      ...link,
      source: resourceAt.get(link.sourceResourceId)!,
      target: resourceAt.get(link.targetResourceId)!,
    })),
    durations: activities.flatMap(({ activityType, simulation }) =>
      resources.map(({ id, computeSpeedup }) => {
        const profile = activityResourceProfiles.find(
          (each) => each.activityTypeId === `${workflow.name}-${activityType}` && each.resourceId === id,
        )
        return (
          profile?.runtimeSeconds ?? simulation.durationSeconds / (computeSpeedup > 0 ? computeSpeedup : 1)
        )
      }),
    ),
  }
}

const judgedFrom = (documents: PlanningDocuments, plan: Json): Parameters<typeof violations>[1] => ({
  assignments: plan.assignments.map((assignment: Json) => ({
    activity: documents.workflow.spec.activities.findIndex(({ name }) => name === assignment.externalId),
    resource: documents.environment.resources.findIndex(({ id }) => id === assignment.resourceId),
    coreIds: assignment.metadata.coreIds ?? (assignment.coreId === undefined ? [] : [assignment.coreId]),
    slotId: assignment.slotId ?? '',
    orderOnResource: assignment.orderOnResource,
    startAt: assignment.predictedStartAt,
    finishAt: assignment.predictedFinishAt,
    cost: assignment.predictedCost,
  })),
  makespanSeconds: plan.predicted.makespanSeconds,
  cost: plan.predicted.cost,
})

let number = 0
const fresh = (): PlanningDocuments =>
  fc.sample(planningDocuments(`case${++number}`), { numRuns: 1, seed: 1000 + number })[0]!

describe('a planning session', () => {
  test('any workflow on any scope: candidate, selection and plan agree, and a judge that knows only the documents finds no violation', async () => {
    let run = 0
    await fc.assert(
      fc.asyncProperty(planningDocuments('property'), async (generated) => {
        const documents = JSON.parse(
          JSON.stringify(generated).replaceAll('property', `property${++run}x`),
        ) as PlanningDocuments
        const versionId = await post(documents)
        const opened = await send('POST', '/planning-sessions/', session(documents, versionId))
        expect(opened).toMatchObject({ status: 'queued', progress: 0, candidateCount: 0 })
        const { body } = await app.ended(opened.id)
        expect(body.algorithmRuns[0].failureReason).toBeUndefined()
        expect(body.session).toMatchObject({
          status: 'completed',
          progress: 1,
          candidateCount: 1,
          defaultedDurations: 0,
        })
        const [listed] = await send('GET', `/planning-sessions/${opened.id}/candidates/`)
        expect(listed).toMatchObject({ rank: 1, feasible: true, paretoOptimal: true, dominated: false })
        const candidate = await send('GET', `/planning-sessions/${opened.id}/candidates/${listed.id}/`)
        const plan = await send('POST', `/planning-sessions/${opened.id}/candidates/${listed.id}/select/`)
        expect(plan.assignments).toEqual(candidate.plan.assignments)
        expect(await send('GET', `/schedule-plans/${plan.id}/`)).toEqual(plan)
        expect(violations(problemFrom(documents), judgedFrom(documents, plan))).toEqual([])
        // What the planner made passes the rules for what people make.
        const copy = {
          ...plan,
          id: `${plan.id}-copy`,
          assignments: plan.assignments.map((assignment: Json) => ({ ...assignment, id: '', planId: '' })),
        }
        expect((await send('POST', '/schedule-plans/import/', { plan: copy })).source).toBe('imported')
      }),
      { numRuns: runsOf(4, 15), seed: 7 },
    )
  })

  test('the judge is not blind: a changed price, size, speed or order is found', async () => {
    const documents = fc
      .sample(planningDocuments('judged', 14), { numRuns: 300, seed: 3 })
      .find(
        ({ topology, workflow, environment }) =>
          topology !== undefined &&
          workflow.spec.activities.length > 8 &&
          environment.resources.length === 2 + 1,
      )!
    const versionId = await post(documents)
    await send('POST', '/planning-sessions/', session(documents, versionId))
    await app.ended(session(documents, versionId).id)
    const [{ id }] = await send('GET', `/planning-sessions/judged-session/candidates/`)
    const { plan } = await send('GET', `/planning-sessions/judged-session/candidates/${id}/`)
    const judged = judgedFrom(documents, plan)
    const problem = problemFrom(documents)
    expect(violations(problem, judged)).toEqual([])
    const slower = { ...problem, durations: Array.from(problem.durations, (seconds) => seconds + 1) }
    const dearer = {
      ...problem,
      resources: problem.resources.map((resource) => ({
        ...resource,
        pricePerSecond: resource.pricePerSecond + 1,
      })),
    }
    const swapped = {
      ...judged,
      assignments: judged.assignments.map((assignment) => ({
        ...assignment,
        orderOnResource: -assignment.orderOnResource,
      })),
    }
    for (const [changed, schedule] of [
      [slower, judged],
      [dearer, judged],
      [problem, swapped],
    ] as const)
      expect(violations(changed, schedule)).not.toEqual([])
  })

  test('all algorithms of a session offer candidates: ranked by makespan and cost, each one selectable and valid', async () => {
    const documents = fresh()
    documents.environment.resources.forEach((resource, k) => (resource.pricePerSecond = k + 1))
    const versionId = await post(documents)
    const algorithms = [
      { id: 'heft' },
      { id: 'prism-cost', configuration: { beamWidth: 16, optionCount: 4 } },
      { id: 'prism-time', configuration: { beamWidth: 16, optionCount: 4 } },
    ]
    const opened = await send('POST', '/planning-sessions/', session(documents, versionId, { algorithms }))
    const { body } = await app.ended(opened.id)
    expect(body.session).toMatchObject({ status: 'completed', progress: 1, warnings: [] })
    const candidates = await send('GET', `/planning-sessions/${opened.id}/candidates/`)
    expect(candidates.map(({ rank }: Json) => rank)).toEqual(candidates.map((_: Json, k: number) => k + 1))
    expect(body.session.candidateCount).toBe(candidates.length)
    expect(body.algorithmRuns.map(({ candidateCount }: Json) => candidateCount)).toEqual(
      algorithms.map(({ id }) => candidates.filter(({ algorithm }: Json) => algorithm === id).length),
    )
    for (const { algorithm, objective } of candidates)
      expect(objective).toBe(algorithm === 'prism-cost' ? 'cost' : 'time')
    expect(new Set(candidates.map(({ fingerprint }: Json) => fingerprint)).size).toBe(candidates.length)
    const least = (of: 'makespanSeconds' | 'cost'): number =>
      Math.min(...candidates.map(({ predicted }: Json) => predicted[of]))
    const [first] = candidates
    expect(first).toMatchObject({
      paretoOptimal: true,
      predicted: { makespanSeconds: least('makespanSeconds') },
    })
    const cheapest = candidates.find(({ predicted }: Json) => predicted.cost === least('cost'))
    expect(cheapest).toMatchObject({ feasible: true, dominated: false })
    for (const { id } of candidates) {
      const plan = await send('POST', `/planning-sessions/${opened.id}/candidates/${id}/select/`)
      expect(violations(problemFrom(documents), judgedFrom(documents, plan))).toEqual([])
    }
    const { session: read } = await send('GET', `/planning-sessions/${opened.id}/`)
    expect(read.selectedCandidateId).toBe(candidates.at(-1).id)
  })

  test('a candidate shows its plan as its selection makes it, with the machines that are made for it', async () => {
    const documents = fresh()
    for (const resource of documents.environment.resources) {
      resource.executionTarget = 'provisioned'
      Object.assign(resource, { metadata: { capacityTargetId: resource.id } })
    }
    const versionId = await post(documents)
    const { id } = session(documents, versionId)
    await send('POST', '/planning-sessions/', session(documents, versionId))
    await app.ended(id)
    const [listed] = await send('GET', `/planning-sessions/${id}/candidates/`)
    const path = `/planning-sessions/${id}/candidates/${listed.id}/`
    const { createdAt: _shown, ...shown } = (await send('GET', path)).plan
    const { createdAt: _made, ...made } = await send('POST', `${path}select/`)
    expect(made.lifecycleActions.length).toBeGreaterThan(3)
    expect(Object.keys(made.metadata.cloudCost).length).toBeGreaterThan(0)
    expect(shown).toEqual(made)
  })

  test('a deadline or a budget that the schedule misses makes the candidate infeasible, and an infeasible one is not selected', async () => {
    const documents = fresh()
    documents.workflow.spec.activities[0]!.simulation.durationSeconds = 100
    documents.environment.activityResourceProfiles = []
    const versionId = await post(documents)
    const id = `${documents.workflow.name}-session`
    await send('POST', '/planning-sessions/', session(documents, versionId, { deadlineSeconds: 0.5 }))
    expect((await app.ended(id)).body.session).toMatchObject({ status: 'completed', deadlineSeconds: 0.5 })
    const [candidate] = await send('GET', `/planning-sessions/${id}/candidates/`)
    expect(candidate).toMatchObject({
      feasible: false,
      paretoOptimal: false,
      rank: 1,
      predicted: { feasible: false },
    })
    const refused = await app.call('POST', `/planning-sessions/${id}/candidates/${candidate.id}/select/`)
    expect([refused.status, refused.body.error]).toEqual([
      422,
      expect.stringContaining('beyond the deadline 0.5 s'),
    ])
    expect(
      (await send('GET', '/schedule-plans/')).filter((plan: Json) => plan.metadata?.planningSessionId === id),
    ).toEqual([])
  })

  test('selecting again is the same plan; an unknown candidate is 404; the plan of a selection cannot be deleted', async () => {
    const documents = fresh()
    const versionId = await post(documents)
    const { id } = session(documents, versionId)
    await send('POST', '/planning-sessions/', session(documents, versionId))
    await app.ended(id)
    const [candidate] = await send('GET', `/planning-sessions/${id}/candidates/`)
    const path = `/planning-sessions/${id}/candidates/${candidate.id}/select/`
    const answers = await Promise.all(Array.from({ length: 8 }, () => app.call('POST', path)))
    expect(answers.map(({ status }) => status)).toEqual(Array(8).fill(201))
    expect(new Set(answers.map(({ text }) => text)).size).toBe(1)
    const plan = answers[0]!.body
    expect(plan.id).toMatch(new RegExp(`^${id}-[0-9a-f]{12}$`))
    expect(plan).toMatchObject({ source: 'plugin', algorithm: 'heft', objective: 'time' })
    expect((await send('GET', `/planning-sessions/${id}/`)).session).toMatchObject({
      selectedCandidateId: candidate.id,
      selectedPlanId: plan.id,
    })
    expect(
      (await app.call('POST', `/planning-sessions/${id}/candidates/candidate-none/select/`)).status,
    ).toBe(404)
    expect((await app.call('GET', `/planning-sessions/${id}/candidates/candidate-none/`)).status).toBe(404)
    expect(
      (await app.call('POST', `/planning-sessions/none/candidates/${candidate.id}/select/`)).status,
    ).toBe(404)
    expect((await app.call('DELETE', `/schedule-plans/${plan.id}/`)).status).toBe(422)
  })

  test('a resource stays as it is while a candidate that can be selected is planned on it', async () => {
    const documents = fresh()
    const versionId = await post(documents)
    const { id } = session(documents, versionId)
    const spare = {
      ...documents.environment.resources[0],
      id: `${id}-spare`,
      name: 'spare',
      providerId: 'spare',
    }
    const added = { ...spare, environmentVersionId: documents.environment.version.id, schedulable: false }
    await send('POST', '/resources/', added)
    await send('POST', '/planning-sessions/', session(documents, versionId))
    await app.ended(id)
    const [{ id: candidateId }] = await send('GET', `/planning-sessions/${id}/candidates/`)
    const { plan } = await send('GET', `/planning-sessions/${id}/candidates/${candidateId}/`)
    const used = await send('GET', `/resources/${plan.assignments[0].resourceId}/`)
    const change = (resource: Json) =>
      app.call('POST', '/resources/', { ...resource, pricePerSecond: resource.pricePerSecond + 1 })
    const refused = await change(used)
    expect([refused.status, refused.body]).toMatchObject([
      422,
      {
        details: [{ path: 'id', message: expect.stringContaining(`planning session ${JSON.stringify(id)}`) }],
      },
    ])
    expect((await change(added)).status).toBe(201)
    await send('DELETE', `/planning-sessions/${id}/`)
    expect((await change(used)).status).toBe(201)
  })

  test('a session whose id was used before does not choose the plan of the deleted one', async () => {
    const documents = fresh()
    const versionId = await post(documents)
    const { id } = session(documents, versionId)
    const selected = async (more: object): Promise<Json> => {
      await send('POST', '/planning-sessions/', session(documents, versionId, more))
      await app.ended(id)
      const [candidate] = await send('GET', `/planning-sessions/${id}/candidates/`)
      return app.call('POST', `/planning-sessions/${id}/candidates/${candidate.id}/select/`)
    }
    const first = await selected({})
    expect([first.status, first.body.deadlineSeconds]).toEqual([201, 0])
    await send('DELETE', `/planning-sessions/${id}/`)
    const second = await selected({ deadlineSeconds: 1e6 })
    expect([second.status, second.body.error]).toEqual([422, expect.stringContaining(first.body.id)])
    await send('DELETE', `/schedule-plans/${first.body.id}/`)
    await send('DELETE', `/planning-sessions/${id}/`)
    expect((await selected({ deadlineSeconds: 1e6 })).body.deadlineSeconds).toBe(1e6)
  })

  test('a plan that is deleted while its candidate is selected again is made again', async () => {
    const documents = fresh()
    const versionId = await post(documents)
    const { id } = session(documents, versionId)
    const opened = async (): Promise<string> => {
      await send('POST', '/planning-sessions/', session(documents, versionId))
      await app.ended(id)
      const [candidate] = await send('GET', `/planning-sessions/${id}/candidates/`)
      return `/planning-sessions/${id}/candidates/${candidate.id}/select/`
    }
    const plan = await send('POST', await opened())
    await send('DELETE', `/planning-sessions/${id}/`)
    const path = await opened()
    const isWaiting = sql`select exists (select from pg_stat_activity where datname = current_database()
      and wait_event_type = 'Lock')`
    const selection = await app.db.transaction(async (tx) => {
      await tx.run(sql`delete from schedule_plans where id = ${plan.id}`)
      const answer = app.call('POST', path)
      await until('the selection that waits', 120, () => app.db.only(z.boolean(), isWaiting))
      return { answer }
    })
    const again = await selection.answer
    expect([again.status, again.body.id]).toEqual([201, plan.id])
    expect(await send('GET', `/schedule-plans/${plan.id}/`)).toEqual(again.body)
  })

  test('a workflow that fits nowhere fails the session with the activity and the reason', async () => {
    const documents = fresh()
    documents.workflow.spec.activities[0]!.memoryLimit = '1Ti'
    documents.environment.resources = documents.environment.resources.map((resource) => ({
      ...resource,
      // A batch target would take it.
      executionTarget: 'direct',
    }))
    const versionId = await post(documents)
    const { id } = session(documents, versionId)
    await send('POST', '/planning-sessions/', session(documents, versionId))
    const { session: ended, algorithmRuns } = (await app.ended(id)).body
    expect(ended).toMatchObject({ status: 'failed', candidateCount: 0 })
    expect(ended.failureReason).toMatch(
      /^no planning algorithm produced a valid candidate: heft: activity .*a0.* fits nowhere/,
    )
    expect(algorithmRuns[0]).toMatchObject({
      status: 'failed',
      failureReason: expect.stringContaining('bytes of memory'),
    })
    expect((await app.call('POST', `/planning-sessions/${id}/cancel/`)).body).toMatchObject({
      state: 'failed',
    })
  })

  test('while it plans the status is live; cancelling ends it, stays, and no candidate comes after', async () => {
    const documents = fresh()
    const versionId = await post(documents)
    const { id } = session(documents, versionId)
    let open: () => void = () => undefined
    gate = new Promise((resolve) => (open = resolve))
    try {
      await send('POST', '/planning-sessions/', session(documents, versionId))
      const detail = await until('the planning', 120, async () => {
        const answer = await send('GET', `/planning-sessions/${id}/`)
        return answer.live?.phase === 'planning' && answer
      })
      expect(detail).toMatchObject({
        session: { status: 'running' },
        algorithmRuns: [{ status: 'running' }],
        live: { phase: 'planning', algorithm: 'heft', ended: 0, total: 1 },
      })
      expect((await app.call('POST', `/planning-sessions/${id}/cancel/`)).status).toBe(204)
      expect((await app.call('POST', `/planning-sessions/${id}/cancel/`)).status).toBe(204)
    } finally {
      open()
      gate = Promise.resolve()
    }
    // The workflow ends by itself; nothing that it still does changes the record.
    await until(
      'the end of the workflow',
      120,
      async () => !(await app.engine.signal(sessionKind, id, 1, 'cancel')),
    )
    const { session: ended, algorithmRuns, live } = await send('GET', `/planning-sessions/${id}/`)
    expect([ended.status, ended.candidateCount, algorithmRuns[0].status, live]).toEqual([
      'cancelled',
      0,
      'cancelled',
      undefined,
    ])
    expect(await send('GET', `/planning-sessions/${id}/candidates/`)).toEqual([])
  })

  proved(
    'a cancelled session that no worker had taken leaves the next session of its id as it is',
    async () => {
      const documents = fresh()
      const versionId = await post(documents)
      const { id } = session(documents, versionId)
      await stopWorker()
      await send('POST', '/planning-sessions/', session(documents, versionId))
      await send('POST', `/planning-sessions/${id}/cancel/`)
      await send('DELETE', `/planning-sessions/${id}/`)
      await send('POST', '/planning-sessions/', session(documents, versionId))
      const dispatcher = openDispatcher(
        { db: app.db, engine: app.engine, metrics: openMetrics(undefined) },
        [dispatchedOperation(sessionKind)],
        openLog('error'),
      )
      stopWorker = await startPlanningWorker(temporal, app.db, held)
      const { body } = await app.ended(id)
      await dispatcher.stop()
      expect(body.session).toMatchObject({ status: 'completed', candidateCount: 1 })
    },
  )

  test('late activities of a deleted session do not reach the next session of its id', async () => {
    const documents = fresh()
    const versionId = await post(documents)
    const id = 'replaced'
    await using compute = openCompute({ threads: 1 })
    const run = <T>(work: () => Promise<T>): Promise<T> => new MockActivityEnvironment().run(work)
    // As if the engine had been away, so that nothing but this test works on it.
    const accept = async (): Promise<string> => {
      await createSession(app.db, SessionDocument.parse(session(documents, versionId, { id })))
      return (await readOperation(app.db, sessionKind, { id }))?.key ?? ''
    }
    const activities = planningSessionActivities({
      db: app.db,
      compute: {
        ...compute,
        plan: async (request, watch) => {
          const found = await compute.plan(request, watch)
          await send('POST', `/planning-sessions/${id}/cancel/`)
          await send('DELETE', `/planning-sessions/${id}/`)
          const next = await accept()
          await run(() => activities.openSession(id, next))
          await beginAlgorithm(app.db, { id, key: next }, 'heft')
          return found
        },
      },
      reports: quietReports(),
    })
    const first = await accept()
    await run(() => activities.openSession(id, first))
    await run(() => activities.planAlgorithm(id, 'heft', first))
    const before = await send('GET', `/planning-sessions/${id}/`)
    expect(before).toMatchObject({
      session: { status: 'running', progress: 0, candidateCount: 0 },
      algorithmRuns: [{ status: 'running', progress: 0 }],
    })

    const of = { id, key: first }
    expect(await run(() => activities.openSession(id, first))).toEqual([])
    await run(() => activities.planAlgorithm(id, 'heft', first))
    await run(() => activities.failAlgorithm(id, 'heft', 'late', first))
    expect(await recordProgress(app.db, of, 'heft', 0.5)).toBe(false)
    const estimate = before.algorithmRuns[0].estimate
    await recordProblem(app.db, of, 'heft', { defaultedDurations: 7, networkModel: 'cm02', estimate })
    await giveBackAttempt(app.db, of, 'heft', 1)
    expect(await run(() => activities.rankSession(id, first))).toEqual({})
    expect(await run(() => activities.failSession(id, 'late', first))).toEqual({})
    expect(await run(() => activities.cancelSession(id, first))).toBeUndefined()
    expect(await send('GET', `/planning-sessions/${id}/`)).toEqual(before)
    // A workflow of an earlier version knows no key.
    expect(await run(() => activities.cancelSession(id))).toBe('cancelled')
  })

  test('repeated activities change nothing; a problem that keeps killing its workers is given up', async () => {
    const documents = fresh()
    const versionId = await post(documents)
    const activities = planningSessionActivities({
      db: app.db,
      compute: { plan: () => Promise.reject(new Error('not to be asked')) } as unknown as Compute,
      reports: quietReports(),
    })
    const run = <T>(work: () => Promise<T>): Promise<T> => new MockActivityEnvironment().run(work)
    const done = session(documents, versionId, { id: 'done' })
    await send('POST', '/planning-sessions/', done)
    const before = (await app.ended('done')).body
    expect(await run(() => activities.openSession('done'))).toEqual([])
    await run(() => activities.planAlgorithm('done', 'heft'))
    expect(await run(() => activities.rankSession('done'))).toEqual({ status: 'completed' })
    expect((await app.ended('done')).body).toEqual(before)

    // As if the engine had been away, so that nothing but this test works on it.
    await createSession(app.db, SessionDocument.parse(session(documents, versionId, { id: 'deadly' })))
    expect(await run(() => activities.openSession('deadly'))).toEqual([{ algorithm: 'heft' }])
    for (let k = 0; k < 5; k++)
      expect((await beginAlgorithm(app.db, { id: 'deadly' }, 'heft'))?.attempts).toBe(k + 1)
    await run(() => activities.planAlgorithm('deadly', 'heft'))
    expect(await run(() => activities.rankSession('deadly'))).toEqual({
      status: 'failed',
      reason: expect.stringContaining('5 workers died'),
    })
    expect((await app.ended('deadly')).body.session.failureReason).toContain('5 workers died')
  })

  test('what a worker finds after its algorithm was given up is left out', async () => {
    const documents = fresh()
    const versionId = await post(documents)
    const id = 'overdue'
    await using compute = openCompute({ threads: 1 })
    const run = <T>(work: () => Promise<T>): Promise<T> => new MockActivityEnvironment().run(work)
    const activities = planningSessionActivities({
      db: app.db,
      compute: {
        ...compute,
        // As a worker that stood still while the others were given up.
        plan: async (request, watch) => {
          const found = await compute.plan(request, watch)
          await run(() => activities.failAlgorithm(id, 'heft', 'given up'))
          return found
        },
      },
      reports: quietReports(),
    })
    const algorithms = [{ id: 'heft' }, { id: 'prism-time' }]
    await createSession(app.db, SessionDocument.parse(session(documents, versionId, { id, algorithms })))
    await run(() => activities.openSession(id))
    await run(() => activities.planAlgorithm(id, 'heft'))
    expect(await send('GET', `/planning-sessions/${id}/candidates/`)).toEqual([])
    expect(await send('GET', `/planning-sessions/${id}/`)).toMatchObject({
      session: { status: 'running', candidateCount: 0 },
      algorithmRuns: [
        { algorithm: 'heft', status: 'failed', candidateCount: 0, failureReason: 'given up' },
        { algorithm: 'prism-time', status: 'queued' },
      ],
    })
  })

  test('an outage of the database is no failure of a session: neither of its planner nor of a step', async () => {
    const documents = fresh()
    const versionId = await post(documents)
    const away = Object.assign(new Error('the server is shutting down'), { code: '57P01' })
    const fault = new Error('a fault of the service')
    /** What each try meets, in order; behind them the real part answers. */
    const meets: { planner: Error[]; database: Error[] } = { planner: [], database: [] }
    await using compute = openCompute({ threads: 1 })
    const next = async (list: Error[]): Promise<void> => {
      const error = list.shift()
      if (error !== undefined) throw error
    }
    const activities = planningSessionActivities({
      db: new Proxy(app.db, {
        get: (db, key: keyof Db) => {
          const method = db[key]
          if (typeof method !== 'function') return method
          const bound = method.bind(db) as (...args: unknown[]) => Promise<unknown>
          return async (...args: unknown[]) => {
            if (key === 'transaction') await next(meets.database)
            return bound(...args)
          }
        },
      }),
      compute: {
        ...compute,
        plan: async (request, watch) => {
          await next(meets.planner)
          return compute.plan(request, watch)
        },
      },
      reports: quietReports(),
    })
    const run = <T>(work: () => Promise<T>): Promise<T> =>
      new MockActivityEnvironment({ attempt: 9 }).run(work)
    await createSession(app.db, SessionDocument.parse(session(documents, versionId, { id: 'outlived' })))
    await run(() => activities.openSession('outlived'))
    meets.planner = Array.from({ length: 7 }, () => away)
    for (let k = 0; k < 7; k++)
      await expect(run(() => activities.planAlgorithm('outlived', 'heft'))).rejects.toBe(away)
    await run(() => activities.planAlgorithm('outlived', 'heft'))

    meets.database = [away, fault, away, fault, away, fault, away, fault, away]
    for (const error of [...meets.database])
      await expect(run(() => activities.rankSession('outlived'))).rejects.toBe(error)
    meets.database = [fault]
    await expect(run(() => activities.rankSession('outlived'))).rejects.toThrow('in 5 tries')
    expect(await run(() => activities.rankSession('outlived'))).toEqual({ status: 'completed' })
  })

  test('a plan beyond the calendar names its longest activity; an id of 255 emoji plans and is selected', async () => {
    const documents = fresh()
    const { activities } = documents.workflow.spec
    for (const one of activities) one.simulation.durationSeconds = 1e9
    for (const one of documents.environment.resources) one.computeSpeedup = 1e-6
    documents.environment.activityResourceProfiles = []
    const versionId = await post(documents)
    await send('POST', '/planning-sessions/', session(documents, versionId, { id: 'beyond' }))
    const { session: beyond } = (await app.ended('beyond')).body as Json
    expect([beyond.status, beyond.failureReason]).toEqual([
      'failed',
      expect.stringMatching(
        /makespan .* is beyond the 100000000000 s .* longest activity is ".*check its duration/,
      ),
    ])

    const usual = fresh()
    const id = '😀'.repeat(255)
    const path = `/planning-sessions/${encodeURIComponent(id)}`
    await send('POST', '/planning-sessions/', session(usual, await post(usual), { id }))
    expect((await app.ended(id)).body).toMatchObject({ session: { id, status: 'completed' } })
    const [candidate] = await send('GET', `${path}/candidates/`)
    const { id: planId } = await send('POST', `${path}/candidates/${candidate.id as string}/select/`)
    const plan = await send('GET', `/schedule-plans/${encodeURIComponent(planId)}/`)
    expect(plan).toMatchObject({ id: planId, source: 'plugin' })
  })

  proved('a session with a step that keeps failing is given up: failed with its reason', async () => {
    const documents = fresh()
    const versionId = await post(documents)
    for (const statement of [
      `create function refused() returns trigger language plpgsql as
        $$ begin raise exception 'value out of range: overflow' using errcode = '22003'; end $$`,
      `create trigger refused before update on planning_candidates for each row
        when (new.planning_session_id = 'unrankable') execute function refused()`,
    ])
      await app.db.run(raw(statement))
    await send('POST', '/planning-sessions/', session(documents, versionId, { id: 'unrankable' }))
    const ended = (await app.ended('unrankable')).body as Json
    expect(ended.session).toMatchObject({
      status: 'failed',
      failureReason: expect.stringContaining('could not rank the candidates in 5 tries'),
    })
    expect(ended.live).toBeUndefined()
  })

  test('cancel against completion: one of them wins, and nothing moves afterwards', async () => {
    const documents = fresh()
    const versionId = await post(documents)
    const races = Array.from({ length: runsOf(12, 40) }, (_, k) => ({
      id: `race-${k}`,
      waitMs: (k * 7) % 60,
    }))
    const ends = await Promise.all(
      races.map(async ({ id, waitMs }) => {
        await send('POST', '/planning-sessions/', session(documents, versionId, { id }))
        await new Promise((resolve) => setTimeout(resolve, waitMs * 5))
        const cancelled = await app.call('POST', `/planning-sessions/${id}/cancel/`)
        const first = (await app.ended(id)).body
        return { id, cancelled, first }
      }),
    )
    await new Promise((resolve) => setTimeout(resolve, 1_000))
    for (const { id, cancelled, first } of ends) {
      const later = await send('GET', `/planning-sessions/${id}/`)
      expect({ session: later.session, algorithmRuns: later.algorithmRuns }).toEqual({
        session: first.session,
        algorithmRuns: first.algorithmRuns,
      })
      expect([cancelled.status, first.session.status]).toEqual(
        cancelled.status === 204 ? [204, 'cancelled'] : [409, 'completed'],
      )
    }
  })
})
