import { createHash } from 'node:crypto'
import type { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import { notBuilt } from '../../not-built.ts'
import { missing, Refusal, unacceptable, type Problem } from '../../refusal.ts'
import type { Resource, ResourceRuntimeBinding, Runtime } from '../environments/schemas.ts'
import { withMasked } from '../environments/secrets.ts'
import {
  bindingsOfResources,
  connectionsOfVersions,
  connectionTypes,
  defaultClaims,
  profilesFor,
  resourcesOfVersions,
  runtimesByIds,
  storageMounts,
  versionsByIds,
} from '../environments/store.ts'
import { readExecutionScope } from '../execution-scopes/store.ts'
import { readNetworkTopology } from '../network-topologies/store.ts'
import { planAssignments, readPlan, type PlanHeader, type PlannedTask } from '../schedule-plans/store.ts'
import { plannedGraph } from '../schedule-plans/graph.ts'
import { networkModelOf, topologyWarnings } from '../schedule-plans/prediction.ts'
import type { PlannedLink } from '../schedule-plans/problem.ts'
import { namedRuntime, runtimeProblems } from '../schedule-plans/runtime-names.ts'
import { activityResolver, type WorkflowGraph } from '../workflow-definitions/graph.ts'
import { embedWorkflow, loadCommands } from '../workflow-definitions/store.ts'
import { chooseRuntimes, runtimeModeOf } from './admission.ts'
import type { RunMembers, RunRequest } from './schemas.ts'
import { withSiteDefaults, type Surroundings } from './site-defaults.ts'
import { builtDrivers, placer, placesOf, runsContainers, siteProblems, type Place, type SnapshotRuntime } from '../../executor/sites.ts'
import { insertRun, readRun } from './store.ts'

const hashOf = (value: unknown): string => createHash('sha256').update(JSON.stringify(value)).digest('hex')

/** Where the envelope's assignments differ from the stored plan's in activity, resource, core, slot or order. */
const differences = (
  sent: NonNullable<RunRequest['plan']>,
  stored: readonly PlannedTask[],
  activityOf: (id: string, path: string) => number | undefined,
): Problem[] => {
  const problems: Problem[] = []
  if (sent.assignments.length !== stored.length) {
    problems.push({
      path: 'plan.assignments',
      message: `has ${String(sent.assignments.length)} assignments, the stored plan ${String(stored.length)}; send the plan as it is stored or leave it out`,
    })
  }
  for (const [i, assignment] of sent.assignments.entries()) {
    const path = `plan.assignments.${String(i)}`
    const position = activityOf(assignment.activityId, `${path}.activityId`)
    const known = position === undefined ? undefined : stored[position]
    if (known === undefined) {
      problems.push({ path: `${path}.activityId`, message: `${JSON.stringify(assignment.activityId)} is no activity of the stored plan` })
      continue
    }
    const pairs = [
      ['resourceId', assignment.resourceId, known.resourceId],
      ['coreId', assignment.coreId, known.coreIds[0] ?? ''],
      ['slotId', assignment.slotId, known.slotId],
      ['orderOnResource', assignment.orderOnResource, known.orderOnResource],
    ] as const
    for (const [name, value, expected] of pairs) {
      if (value !== expected)
        problems.push({
          path: `${path}.${name}`,
          message: `is ${JSON.stringify(value)}, the stored plan has ${JSON.stringify(expected)}; store another plan to run it otherwise`,
        })
    }
  }
  return problems
}

/** Ids that an envelope must agree on with its own run and with the stored plan. */
const disagreements = (request: RunRequest, run: RunMembers, plan: PlanHeader): Problem[] => {
  const pairs: [string, string | undefined, string][] = [
    ['plan.id', request.plan?.id, run.schedulePlanId],
    ['plan.workflowVersionId', request.plan?.workflowVersionId, plan.workflowVersionId],
    ['plan.executionScopeId', request.plan?.executionScopeId, plan.executionScopeId],
    ['workflow.id', request.workflow?.id, plan.workflowVersionId],
    ['executionScope.id', request.executionScope?.id, plan.executionScopeId],
    ['networkTopology.id', plan.networkTopologyId === '' ? undefined : request.networkTopology?.id, plan.networkTopologyId],
  ]
  return pairs.flatMap(([path, value, expected]) =>
    value === undefined || value === expected
      ? []
      : [{ path, message: `is ${JSON.stringify(value)}, the run's plan has ${JSON.stringify(expected)}` }],
  )
}

/** What the runtimes' environments say; a runtime that was sent without its version is looked up in all versions of the scope. */
const surroundingsOf = async (
  tx: Db,
  runtimes: readonly z.output<typeof SnapshotRuntime>[],
  scopeVersionIds: readonly string[],
  { helperImage }: { helperImage: string },
): Promise<Surroundings> => {
  const versionOf = new Map(runtimes.map((runtime) => [runtime.id, runtime['environmentVersionId']]))
  const named = [...versionOf.values()].filter((id) => typeof id === 'string' && id !== '') as string[]
  const connections = await connectionsOfVersions(tx, [...new Set([...named, ...scopeVersionIds])])
  const claims = new Map((await defaultClaims(tx, [...versionOf.keys()])).map(({ runtimeId, ...claim }) => [runtimeId, claim]))
  return {
    helperImage,
    claimOf: (runtimeId) => claims.get(runtimeId),
    connectionsOf(runtimeId) {
      const version = versionOf.get(runtimeId)
      const own = typeof version === 'string' && version !== '' ? [version] : scopeVersionIds
      return connections.filter(({ versionId }) => own.includes(versionId))
    },
  }
}

/** Where a workflow that was sent has other activities than the plan: the run's tasks take the plan's positions. */
const otherPlaces = (planned: WorkflowGraph, sent: WorkflowGraph): Problem[] => {
  const resolve = activityResolver(sent)
  return planned.activities.flatMap((activity, i) => {
    const path = `workflow.activities.${String(i)}`
    if (resolve(activity.externalId, path) === i || resolve(activity.id, path) === i) return []
    const place = JSON.stringify(activity.externalId)
    return [
      { path, message: `is not ${place}, which the plan has at this place; send the activities in the order of the planned workflow` },
    ]
  })
}

/** The stored resources with the copies that came with a plan in their place. */
const withCopies = (stored: readonly Resource[], copies: readonly Resource[] = []): Resource[] => {
  const byId = new Map(stored.map((resource) => [resource.id, resource]))
  for (const copy of copies) byId.set(copy.id, copy)
  return [...byId.values()]
}

/**
 * What is wrong with the runtimes that assignments name, and those of them that were not sent with the run: a plan may name a runtime of
 * another mode than the run's, which an envelope of this mode leaves out.
 */
const namedRuntimes = async (
  tx: Db,
  given: {
    tasks: readonly PlannedTask[]
    runtimes: readonly Runtime[]
    bindings: readonly ResourceRuntimeBinding[]
    mode: string
    sent: boolean
  },
): Promise<{ problems: Problem[]; others: Runtime[] }> => {
  const named = given.tasks.map((task, i) => ({
    resourceId: task.resourceId,
    runtimeId: namedRuntime(task),
    path: `plan.assignments.${String(i)}`,
  }))
  const known = new Set(given.runtimes.map(({ id }) => id))
  const outside = [...new Set(named.flatMap(({ runtimeId }) => runtimeId ?? []))].filter((id) => !known.has(id))
  const others = outside.length === 0 ? [] : await runtimesByIds(tx, outside)
  const unfitting = new Set(others.filter(({ mode }) => mode !== runtimeModeOf(given.mode)).map(({ id }) => id))
  const stored =
    given.sent && unfitting.size > 0 ? await bindingsOfResources(tx, [...new Set(named.map(({ resourceId }) => resourceId))]) : []
  const bindings = [...stored.filter(({ runtimeId }) => unfitting.has(runtimeId)), ...given.bindings]
  return { problems: runtimeProblems(named, { runtimes: [...given.runtimes, ...others], bindings }), others }
}

/** How a run is simulated: under its own network model, else its plan's, else what its versions name. */
const simulated = (run: RunMembers, plan: PlanHeader, versions: readonly { networkModel?: string }[], topology: object | undefined) => {
  const networkModel = networkModelOf(run.networkModel ?? plan.networkModel, versions)
  return {
    networkModel,
    warnings: topologyWarnings('networkTopology', networkModel, (topology as { links: PlannedLink[] } | undefined)?.links),
  }
}

/**
 * Accepts a run in one transaction: admission with all reasons at once, then run, tasks and snapshot. The snapshot is what was sent
 * where something was sent, the store's otherwise; nothing that is embedded overwrites the store.
 * @throws Refusal 409 for a taken id, 422 with every reason, 503 for a mode or driver that is not available
 */
export const acceptRun = (
  db: Db,
  request: RunRequest,
  run: RunMembers,
  accepting: { hostId: string; actorId: string; helperImage: string },
): Promise<void> =>
  db.transaction(async (tx) => {
    if ((await readRun(tx, run.id)) !== undefined)
      throw new Refusal('conflict', `run.id: ${JSON.stringify(run.id)} is taken by another run; choose another id`, {
        details: [{ path: 'run.id', message: 'is taken by another run; choose another id' }],
      })
    if (run.mode === 'interactive') throw notBuilt('run.mode interactive', 'give real or simulation')
    if (run.simulator === 'simgrid') throw notBuilt('run.simulator simgrid', 'leave it out to use the built-in simulator')
    const plan = await readPlan(tx, run.schedulePlanId)
    if (plan === undefined)
      throw unacceptable([
        { path: 'run.schedulePlanId', message: `plan ${JSON.stringify(run.schedulePlanId)} does not exist; create or import it first` },
      ])

    const problems = disagreements(request, run, plan)
    const tasks = await planAssignments(tx, plan.id)
    const contentVersionId = request.workflow === undefined ? plan.contentVersionId : await embedWorkflow(tx, request.workflow)
    const planned = await plannedGraph(tx, plan.contentVersionId)
    const graph = contentVersionId === plan.contentVersionId ? planned : await plannedGraph(tx, contentVersionId)
    const activityOf = activityResolver(planned)
    if (request.plan !== undefined) problems.push(...differences(request.plan, tasks, activityOf))
    if (graph.activities.length !== tasks.length) {
      problems.push({
        path: 'workflow.activities',
        message: `has ${String(graph.activities.length)} activities, the plan places ${String(tasks.length)}; send the workflow that was planned`,
      })
    }
    if (graph !== planned && problems.length === 0) problems.push(...otherPlaces(planned, graph))
    if (problems.length > 0) throw unacceptable(problems)

    const scope = request.executionScope ?? plan.embedded?.executionScope ?? (await readExecutionScope(tx, plan.executionScopeId))
    if (scope === undefined) throw missing('execution scope', plan.executionScopeId)
    const versionIds = (scope as { environmentVersionIds: string[] }).environmentVersionIds
    const resources =
      request.resources ?? withCopies(await resourcesOfVersions(tx, versionIds), plan.embedded?.resources as Resource[] | undefined)
    const topology =
      request.networkTopology ??
      plan.embedded?.networkTopology ??
      (plan.networkTopologyId === '' ? undefined : await readNetworkTopology(tx, plan.networkTopologyId))
    const used = [...new Set(tasks.map((task) => task.resourceId))]
    // Secrets that older versions took into a configuration are used by nothing and kept out of the snapshot.
    const bindings = (request.runtimeBindings ?? (await bindingsOfResources(tx, used))).map(withMasked)
    const bound = [...new Set(bindings.map((binding) => binding.runtimeId))]
    let runtimes = (request.runtimes ?? (await runtimesByIds(tx, bound))).map(withMasked)
    const named = await namedRuntimes(tx, { tasks, runtimes, bindings, mode: run.mode, sent: request.runtimeBindings !== undefined })
    problems.push(...named.problems)
    const profiles =
      request.activityProfiles ?? (await profilesFor(tx, [...new Set(graph.activities.map((activity) => activity.typeId))], used))

    const known = new Set((resources as { id: string }[]).map((resource) => resource.id))
    for (const id of used)
      if (!known.has(id))
        problems.push({
          path: 'resources',
          message: `resource ${JSON.stringify(id)} is assigned by the plan and not among the resources that were sent`,
        })
    const services = graph.activities.filter((activity) => activity.kind !== 'task').map((activity) => activity.externalId)
    const chosen = chooseRuntimes({
      mode: run.mode,
      assignments: tasks.map((task) => ({
        activityId: task.activityId,
        resourceId: task.resourceId,
        runtimeId: namedRuntime(task),
      })),
      activities: graph.activities.map((activity) => ({
        id: activity.id,
        kind: activity.kind,
        capabilities: activity.capabilities,
        runtimeHint: activity.runtimeHint,
      })),
      runtimes: [...runtimes, ...named.others],
      bindings,
    })
    problems.push(...chosen.problems)
    if (problems.length > 0) throw unacceptable(problems)
    if (run.mode === 'real') {
      const pairs = new Set(tasks.map((task, i) => JSON.stringify([chosen.runtimeIds[i] ?? '', task.resourceId])))
      const placed = withSiteDefaults({ runtimes, bindings, used: pairs }, await surroundingsOf(tx, runtimes, versionIds, accepting))
      problems.push(...placed.problems)
      runtimes = placed.runtimes
    }
    const facts = { hostId: accepting.hostId, runtimes, resources, runtimeBindings: bindings }
    const placed = placer(facts)
    const pairs = tasks.map((task, i) => ({ runtimeId: chosen.runtimeIds[i] ?? '', resourceId: task.resourceId }))
    const simgrid = runtimes.find(({ id, configuration }) => chosen.runtimeIds.includes(id) && configuration?.['engine'] === 'simgrid')
    if (run.mode === 'simulation' && simgrid !== undefined)
      throw notBuilt(`engine simgrid of runtime ${simgrid.id}`, "leave it out of the runtime's configuration to use the built-in simulator")
    if (run.mode === 'real') {
      if (services.length > 0)
        throw notBuilt(`kinds service and interactive of activities (${services.slice(0, 5).join(', ')})`, 'give them the kind task')
      const driver = runtimes.find(
        (runtime) =>
          chosen.runtimeIds.includes(runtime.id) && !builtDrivers.has(runtime.driver) && runtime.configuration?.['launch'] !== 'none',
      )
      if (driver !== undefined)
        throw notBuilt(
          `driver ${driver.driver} of runtime ${driver.id}`,
          `bind the resource to a runtime of driver ${[...builtDrivers].join(', ')}`,
        )
      const named = [...placesOf(facts, pairs).values()]
      // Where everything runs on this machine nothing but processors and memory is asked for.
      // Processes of this machine ask nothing of their runtime that could be wrong.
      const asking = (place: Place): boolean =>
        !['local', 'rehearsal'].includes(place.kind) || runsContainers(place) || place.configuration['memoryLimit'] !== undefined
      if (named.some(asking)) {
        const commands = await loadCommands(tx, contentVersionId, [...tasks.keys()])
        const needs = commands.map(({ id, position, gpu, metadata, command, policy, memoryBytes }) => ({
          activityId: id,
          runtimeId: chosen.runtimeIds[position] ?? '',
          resourceId: tasks[position]?.resourceId ?? '',
          gpus: Math.max(gpu, (metadata['scheduling'] as { gpus?: number } | undefined)?.gpus ?? 0),
          image: command.image,
          timeoutSeconds: policy.timeoutSeconds,
          memoryBytes,
        }))
        const asked = [...new Set(named.flatMap(({ connectionId }) => (connectionId === undefined ? [] : [connectionId])))]
        // A runtime that names no connection has its problem already.
        const known = new Set(problems.map(({ path }) => path))
        problems.push(...siteProblems(facts, needs, await connectionTypes(tx, asked)).filter(({ path }) => !known.has(path)))
      }
      if (problems.length > 0) throw unacceptable(problems)
    }

    const simulation = run.mode === 'simulation' ? simulated(run, plan, await versionsByIds(tx, versionIds), topology) : undefined
    const snapshot = {
      resources,
      runtimes: runtimes.filter((runtime) => chosen.runtimeIds.includes(runtime.id)),
      runtimeBindings: bindings,
      executionScope: scope,
      networkTopology: topology,
      activityProfiles: profiles,
      storageMounts: await storageMounts(tx, [...new Set(chosen.runtimeIds)]),
    }
    await insertRun(tx, {
      id: run.id,
      schedulePlanId: plan.id,
      contentVersionId,
      mode: run.mode,
      seed: run.seed ?? 0,
      title: run.title,
      actorId: accepting.actorId,
      hostId: accepting.hostId,
      networkModel: simulation?.networkModel ?? run.networkModel,
      warnings: simulation?.warnings ?? [],
      defaultedDurations: plan.defaultedDurations,
      simulator: run.simulator,
      onFailure: run.onFailure ?? 'stop',
      snapshot: { ...snapshot, documentsHash: hashOf(snapshot) },
      runtimeIds: chosen.runtimeIds,
      runtimeReasons: chosen.reasons,
      places: run.mode === 'real' ? pairs.map(({ runtimeId, resourceId }) => placed(runtimeId, resourceId)) : undefined,
      activityIds: tasks.map((task) => task.activityId),
    })
  })
