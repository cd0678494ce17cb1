import { hash } from 'node:crypto'
import type { z } from 'zod'
import { append } from '../../lists.ts'
import { sql, type Db } from '../../db/sql.ts'
import { notBuilt } from '../../not-built.ts'
import { orderViolations } from '../../schedulers/validate.ts'
import { missing, Refusal, unacceptable, type Problem, unacceptableAt } from '../../refusal.ts'
import { builtDrivers } from '../../drivers/runtime/registry.ts'
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
import { requireProvider } from '../cloud/accept.ts'
import { readTarget } from '../cloud/store.ts'
import { readExecutionScope } from '../execution-scopes/store.ts'
import { readNetworkTopology } from '../network-topologies/store.ts'
import { planAssignments, readPlan, type PlanHeader, type PlannedTask } from '../schedule-plans/store.ts'
import { plannedGraph } from '../schedule-plans/graph.ts'
import { networkModelOf, topologyWarnings } from '../schedule-plans/prediction.ts'
import { profilesAsPlanned, type PlannedLink } from '../schedule-plans/problem.ts'
import { namedRuntime, runtimeProblems } from '../schedule-plans/runtime-names.ts'
import { activityResolver, type WorkflowGraph } from '../workflow-definitions/graph.ts'
import { embedWorkflow, loadCommands } from '../workflow-definitions/store.ts'
import { budgetWarnings, refuseAboveBudget } from './budget.ts'
import { refuseActions } from './machine-actions.ts'
import { chooseRuntimes, runtimeModeOf } from './admission.ts'
import type { RunMembers, RunRequest } from './schemas.ts'
import { withSiteDefaults, type EnvironmentDefaults } from './site-defaults.ts'
import {
  isOwnMachine,
  placer,
  placesOf,
  runsOnMachines,
  runsContainers,
  siteProblems,
  type Place,
  type SiteFacts,
  type SnapshotRuntime,
} from '../../executor/sites.ts'
import type { Finding, Findings } from './executable-findings.ts'
import { executableOf, pinExecutables, Unfound, type Pinned } from './executables.ts'
import { insertRun, readExecutionRun } from './store.ts'

/** Cores in one order: a task holds all of them, whichever comes first. */
const sorted = (cores: unknown): unknown =>
  Array.isArray(cores) ? cores.map(String).toSorted((a, b) => (a < b ? -1 : 1)) : cores

/**
 * Differences between the envelope's assignments and the stored plan's in activity, resource, core,
 * slot or order, and in the runtime and the cores that their metadata name.
 */
const differences = (
  sent: NonNullable<RunRequest['plan']>,
  stored: readonly PlannedTask[],
  activityOf: (id: string, path: string) => number | undefined,
): Problem[] => {
  const problems: Problem[] = []
  const placed = new Set<PlannedTask>()
  if (sent.assignments.length !== stored.length) {
    problems.push({
      path: 'plan.assignments',
      message:
        `has ${String(sent.assignments.length)} assignments, the stored plan ` +
        `${String(stored.length)}; send the plan as it is stored or leave it out`,
    })
  }
  for (const [i, assignment] of sent.assignments.entries()) {
    const path = `plan.assignments.${String(i)}`
    const position = activityOf(assignment.activityId, `${path}.activityId`)
    const known = position === undefined ? undefined : stored[position]
    if (known === undefined) {
      problems.push({
        path: `${path}.activityId`,
        message:
          `${JSON.stringify(assignment.activityId)} is no activity of the stored plan; name one of it, ` +
          'or leave the plan out',
      })
      continue
    }
    if (placed.has(known)) {
      problems.push({
        path: `${path}.activityId`,
        message: `${JSON.stringify(assignment.activityId)} is placed already; place each activity once`,
      })
      continue
    }
    placed.add(known)
    const cores = assignment.metadata?.['coreIds'] ?? []
    const isNamed = !Array.isArray(cores) || cores.length > 0
    const runtime = namedRuntime(known)
    const pairs = [
      ['resourceId', assignment.resourceId, known.resourceId],
      ['coreId', assignment.coreId, known.coreId],
      ['slotId', assignment.slotId, known.slotId],
      ['orderOnResource', assignment.orderOnResource, known.orderOnResource],
      ['metadata.runtimeId', namedRuntime(assignment) ?? runtime, runtime],
      ...(isNamed ? [['metadata.coreIds', sorted(cores), sorted(known.coreIds)] as const] : []),
    ] as const
    for (const [name, value, expected] of pairs) {
      if (value !== expected && JSON.stringify(value) !== JSON.stringify(expected))
        problems.push({
          path: `${path}.${name}`,
          message:
            `is ${JSON.stringify(value)}, the stored plan has ` +
            `${expected === undefined ? 'none' : JSON.stringify(expected)}; store ` +
            'another plan to run it otherwise',
        })
    }
  }
  return problems
}

/** Ids of an envelope that have to match its own run and the stored plan. */
const disagreements = (request: RunRequest, run: RunMembers, plan: PlanHeader): Problem[] => {
  const pairs: [string, string | undefined, string][] = [
    ['plan.id', request.plan?.id, run.schedulePlanId],
    ['plan.workflowVersionId', request.plan?.workflowVersionId, plan.workflowVersionId],
    ['plan.executionScopeId', request.plan?.executionScopeId, plan.executionScopeId],
    ['workflow.id', request.workflow?.id, plan.workflowVersionId],
    ['executionScope.id', request.executionScope?.id, plan.executionScopeId],
    [
      'networkTopology.id',
      plan.networkTopologyId === '' ? undefined : request.networkTopology?.id,
      plan.networkTopologyId,
    ],
  ]
  return pairs.flatMap(([path, value, expected]) =>
    value === undefined || value === expected
      ? []
      : [
          {
            path,
            message: `is ${JSON.stringify(value)}, the run's plan has ${JSON.stringify(expected)}; leave it out`,
          },
        ],
  )
}

/**
 * The facts that the runtimes' environments give. A runtime without a version in the request is
 * searched in all versions of the scope.
 */
export const surroundingsOf = async (
  tx: Db,
  runtimes: readonly z.output<typeof SnapshotRuntime>[],
  scopeVersionIds: readonly string[],
  { helperImage }: { helperImage: string },
): Promise<EnvironmentDefaults> => {
  const versionOf = new Map(runtimes.map((runtime) => [runtime.id, runtime['environmentVersionId']]))
  const named = [...versionOf.values()].filter((id) => typeof id === 'string' && id !== '') as string[]
  const connections = await connectionsOfVersions(tx, [...new Set([...named, ...scopeVersionIds])])
  const claims = new Map(
    (await defaultClaims(tx, [...versionOf.keys()])).map(({ runtimeId, ...claim }) => [runtimeId, claim]),
  )
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

/**
 * Differences between the activities of a workflow in the request and those of the plan: the run's
 * tasks take the plan's positions.
 */
const otherPlaces = (planned: WorkflowGraph, sent: WorkflowGraph): Problem[] => {
  const resolve = activityResolver(sent)
  return planned.activities.flatMap((activity, i) => {
    const path = `workflow.activities.${String(i)}`
    // The id first: an externalId may be that of several.
    if (resolve(activity.id, path) === i || resolve(activity.externalId, path) === i) return []
    const place = JSON.stringify(activity.externalId)
    return [
      {
        path,
        message:
          `is not ${place}, which the plan has at this place; send the activities in the order of the ` +
          'planned workflow',
      },
    ]
  })
}

/**
 * Contradictions between the dependencies of a workflow in the request and the orders of the plan's
 * lanes: the tasks of such a cycle would wait for each other.
 */
const otherOrders = ({ activities, edges }: WorkflowGraph, tasks: readonly PlannedTask[]): Problem[] => {
  const idOf = (position: number): string => activities[position]?.id ?? ''
  const named = edges.map(({ from, to }) => ({ from: idOf(from), to: idOf(to) }))
  const path = 'workflow.dependencies'
  return orderViolations(
    { activities, edges: named, assignments: tasks },
    { assignments: 'plan.assignments', dependencies: path },
  ).map(({ message }) => ({
    path,
    message: `${message}; send the dependencies of the planned workflow, or plan this one`,
  }))
}

/** The stored resources, replaced by the copies that a plan brings. */
const withCopies = (stored: readonly Resource[], copies: readonly Resource[] = []): Resource[] => {
  const byId = new Map(stored.map((resource) => [resource.id, resource]))
  for (const copy of copies) byId.set(copy.id, copy)
  return [...byId.values()]
}

/**
 * Problems of the runtimes that assignments name, and those of these runtimes that the request does
 * not hold. A plan may name a runtime of another mode than the run's, and an envelope of this mode
 * omits it.
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
  const outside = [...new Set(named.flatMap(({ runtimeId }) => runtimeId ?? []))].filter(
    (id) => !known.has(id),
  )
  const others = outside.length === 0 ? [] : await runtimesByIds(tx, outside)
  const unfitting = new Set(
    others.filter(({ mode }) => mode !== runtimeModeOf(given.mode)).map(({ id }) => id),
  )
  const stored =
    given.sent && unfitting.size > 0
      ? await bindingsOfResources(tx, [...new Set(named.map(({ resourceId }) => resourceId))])
      : []
  const bindings = [...stored.filter(({ runtimeId }) => unfitting.has(runtimeId)), ...given.bindings]
  return { problems: runtimeProblems(named, { runtimes: [...given.runtimes, ...others], bindings }), others }
}

/**
 * The simulation of a run: by its own network model, else by its plan's, else by that of its
 * versions.
 */
const simulated = (
  run: RunMembers,
  plan: PlanHeader,
  versions: readonly { networkModel?: string }[],
  topology: object | undefined,
) => {
  const networkModel = networkModelOf(run.networkModel ?? plan.networkModel, versions)
  return {
    networkModel,
    warnings: topologyWarnings(
      'networkTopology',
      networkModel,
      (topology as { links: PlannedLink[] } | undefined)?.links,
    ),
  }
}

/**
 * The plan of a run.
 * @throws Refusal 409 for a taken id, 422 for an unknown plan, 503 for a part that is not built
 */
const planOf = async (tx: Db, run: RunMembers): Promise<PlanHeader> => {
  if ((await readExecutionRun(tx, run.id)) !== undefined)
    throw new Refusal(
      'conflict',
      `run.id: ${JSON.stringify(run.id)} is taken by another run; choose another id`,
      {
        details: [{ path: 'run.id', message: 'is taken by another run; choose another id' }],
      },
    )
  if (run.mode === 'interactive') throw notBuilt('run.mode interactive', 'give real or simulation')
  if (run.simulator === 'simgrid')
    throw notBuilt('run.simulator simgrid', 'leave it out to use the built-in simulator')
  // The plan is locked before the workflow here and in its deletion: neither waits for the other for ever.
  const plan = await readPlan(tx, run.schedulePlanId, sql`for key share`)
  if (plan === undefined)
    throw unacceptableAt(
      'run.schedulePlanId',
      `plan ${JSON.stringify(run.schedulePlanId)} does not exist; create or import it first`,
    )
  return plan
}

/**
 * The plan's tasks and their activities, by position.
 * @throws Refusal with every difference between the request and the plan
 */
const contentOf = async (tx: Db, request: RunRequest, run: RunMembers, plan: PlanHeader) => {
  const problems = disagreements(request, run, plan)
  const tasks = await planAssignments(tx, plan.id)
  const contentVersionId =
    request.workflow === undefined ? plan.contentVersionId : await embedWorkflow(tx, request.workflow)
  const planned = await plannedGraph(tx, plan.contentVersionId)
  const graph =
    contentVersionId === plan.contentVersionId ? planned : await plannedGraph(tx, contentVersionId)
  const activityOf = activityResolver(planned)
  if (request.plan !== undefined) append(problems, differences(request.plan, tasks, activityOf))
  if (graph.activities.length !== tasks.length) {
    problems.push({
      path: 'workflow.activities',
      message:
        `has ${String(graph.activities.length)} activities, the plan places ${String(tasks.length)}; ` +
        'send the workflow that was planned',
    })
  }
  if (graph !== planned && problems.length === 0) append(problems, otherPlaces(planned, graph))
  if (graph !== planned && problems.length === 0) append(problems, otherOrders(graph, tasks))
  if (problems.length > 0) throw unacceptable(problems)
  return { tasks, contentVersionId, activities: graph.activities }
}
type Content = Awaited<ReturnType<typeof contentOf>>

/**
 * The documents that a run is accepted with: those of the request, else those of the plan, else the
 * stored ones.
 */
const documentsOf = async (tx: Db, request: RunRequest, plan: PlanHeader, content: Content) => {
  const { tasks, activities, contentVersionId } = content
  const scope =
    request.executionScope ??
    plan.embedded?.executionScope ??
    (await readExecutionScope(tx, plan.executionScopeId))
  if (scope === undefined) throw missing('execution scope', plan.executionScopeId)
  const versionIds = (scope as { environmentVersionIds: string[] }).environmentVersionIds
  const stored = await resourcesOfVersions(tx, versionIds)
  const versionOf = new Map(stored.map((one) => [one.id, one.environmentVersionId]))
  // An envelope may leave the version out; costs go by the environment that the version names.
  const resources = (
    request.resources ?? withCopies(stored, plan.embedded?.resources as Resource[] | undefined)
  ).map((one) => ({
    ...one,
    environmentVersionId: one.environmentVersionId || (versionOf.get(one.id) ?? ''),
  }))
  const topology =
    request.networkTopology ??
    plan.embedded?.networkTopology ??
    (plan.networkTopologyId === '' ? undefined : await readNetworkTopology(tx, plan.networkTopologyId))
  const used = [...new Set(tasks.map((task) => task.resourceId))]
  // Older versions accepted secrets in a configuration. No code uses them, and the snapshot leaves
  // them out.
  const bindings = (request.runtimeBindings ?? (await bindingsOfResources(tx, used))).map(withMasked)
  const bound = [...new Set(bindings.map((binding) => binding.runtimeId))]
  const runtimes = (request.runtimes ?? (await runtimesByIds(tx, bound))).map(withMasked)
  const present =
    request.activityProfiles ??
    (await profilesFor(tx, [...new Set(activities.map((activity) => activity.typeId))], used))
  const isPlanned = request.activityProfiles === undefined && contentVersionId === plan.contentVersionId
  const profiles = isPlanned ? profilesAsPlanned(present, tasks, activities) : present
  return { scope, versionIds, resources, topology, used, bindings, runtimes, profiles }
}
type Documents = Awaited<ReturnType<typeof documentsOf>>

/** Resources that the plan assigns and that the run lacks. */
const missingResources = ({ resources, used }: Documents): Problem[] => {
  const known = new Set((resources as { id: string }[]).map((resource) => resource.id))
  return used
    .filter((id) => !known.has(id))
    .map((id) => ({
      path: 'resources',
      message: `lack ${JSON.stringify(id)}, which the plan assigns; add it, or leave resources out`,
    }))
}

/**
 * The runtime of each task. @throws Refusal with all problems of the run's runtimes and resources
 */
const chosenRuntimes = async (
  tx: Db,
  run: RunMembers & { mode: 'real' | 'simulation' },
  { tasks, activities }: Content,
  documents: Documents,
  sent: boolean,
) => {
  const { runtimes, bindings } = documents
  const named = await namedRuntimes(tx, { tasks, runtimes, bindings, mode: run.mode, sent })
  const chosen = chooseRuntimes({
    mode: run.mode,
    assignments: tasks.map((task) => ({
      activityId: task.activityId,
      resourceId: task.resourceId,
      runtimeId: namedRuntime(task),
    })),
    activities: activities.map(({ id, kind, capabilities, runtimeHint }) => ({
      id,
      kind,
      capabilities,
      runtimeHint,
    })),
    runtimes: [...runtimes, ...named.others],
    bindings,
  })
  const problems = [...named.problems, ...missingResources(documents), ...chosen.problems]
  if (problems.length > 0) throw unacceptable(problems)
  return chosen
}

/** @throws Refusal 503 where a runtime or an activity of the run is of a kind that is not built */
const refuseUnbuilt = (
  mode: 'real' | 'simulation',
  { activities }: Content,
  runtimes: Documents['runtimes'],
  runtimeIds: readonly string[],
): void => {
  const chosen = runtimes.filter(({ id }) => runtimeIds.includes(id))
  if (mode === 'simulation') {
    const simgrid = chosen.find(({ configuration }) => configuration?.['engine'] === 'simgrid')
    if (simgrid !== undefined)
      throw notBuilt(
        `engine simgrid of runtime ${simgrid.id}`,
        "leave it out of the runtime's configuration to use the built-in simulator",
      )
    return
  }
  const services = activities
    .filter((activity) => activity.kind !== 'task')
    .map((activity) => activity.externalId)
  if (services.length > 0)
    throw notBuilt(
      `kinds service and interactive of activities (${services.slice(0, 5).join(', ')})`,
      'give them the kind task',
    )
  const driver = chosen.find(
    (runtime) => !builtDrivers.has(runtime.driver) && runtime.configuration?.['launch'] !== 'none',
  )
  if (driver !== undefined)
    throw notBuilt(
      `driver ${driver.driver} of runtime ${driver.id}`,
      `bind the resource to a runtime of driver ${[...builtDrivers].join(', ')}`,
    )
}

/** Problems that prevent the tasks from running at their sites. */
const problemsAtSites = async (
  tx: Db,
  { contentVersionId, tasks }: Content,
  facts: SiteFacts,
  pairs: readonly { runtimeId: string; resourceId: string }[],
): Promise<Problem[]> => {
  const named = [...placesOf(facts, pairs).values()]
  // Where all tasks run on this machine, only processors and memory are requested. For plain
  // processes of this machine no setting of the runtime can be wrong.
  const asking = (place: Place): boolean =>
    !isOwnMachine(place) || runsContainers(place) || place.configuration['memoryLimit'] !== undefined
  if (!named.some(asking)) return []
  const commands = await loadCommands(tx, contentVersionId, [...tasks.keys()])
  const needs = commands.map((activity) => {
    const { id, position, gpu, metadata, command, policy, memoryBytes } = activity
    const { source } = executableOf(activity) ?? {}
    // Each executable runs in a container, whatever names it.
    const image = source?.reference ?? (source === undefined ? command.image : source.type)
    return {
      activityId: id,
      runtimeId: pairs[position]?.runtimeId ?? '',
      resourceId: pairs[position]?.resourceId ?? '',
      gpus: Math.max(gpu, (metadata['scheduling'] as { gpus?: number } | undefined)?.gpus ?? 0),
      image,
      timeoutSeconds: policy.timeoutSeconds,
      memoryBytes,
    }
  })
  const asked = [
    ...new Set(named.flatMap(({ connectionId }) => (connectionId === undefined ? [] : [connectionId]))),
  ]
  return siteProblems(facts, needs, await connectionTypes(tx, asked))
}

/**
 * The runtimes of a real run with the facts of their sites from their environments.
 * @throws Refusal with all problems of the sites
 */
const runtimesAtSites = async (
  tx: Db,
  content: Content,
  { runtimes, bindings, resources, versionIds }: Documents,
  {
    pairs,
    hostId,
    helperImage,
    findings,
  }: {
    pairs: readonly { runtimeId: string; resourceId: string }[]
    hostId: string
    helperImage: string
    findings: Findings
  },
) => {
  const used = new Set(pairs.map(({ runtimeId, resourceId }) => JSON.stringify([runtimeId, resourceId])))
  const placed = withSiteDefaults(
    { runtimes, bindings, used },
    await surroundingsOf(tx, runtimes, versionIds, { helperImage }),
  )
  refuseUnbuilt(
    'real',
    content,
    placed.runtimes,
    pairs.map(({ runtimeId }) => runtimeId),
  )
  // A runtime that names no connection has been reported already.
  const known = new Set(placed.problems.map(({ path }) => path))
  const facts = { hostId, runtimes: placed.runtimes, resources, runtimeBindings: bindings }
  const { contentVersionId } = content
  const pinned = await pinExecutables(tx, {
    ...{ contentVersionId, count: content.tasks.length, facts, pairs, findings },
  })
  const problems = [
    ...placed.problems,
    ...(await problemsAtSites(tx, content, facts, pairs)).filter(({ path }) => !known.has(path)),
    ...pinned.problems,
  ]
  if (problems.length > 0) throw unacceptable(problems)
  const place = placer(facts)
  return {
    pinned,
    runtimes: placed.runtimes,
    places: pairs.map(({ runtimeId, resourceId }) => place(runtimeId, resourceId)),
  }
}

/** The documents that a run keeps for itself, whatever happens to the stored ones later. */
const snapshotOf = async (
  tx: Db,
  documents: Documents,
  runtimes: Documents['runtimes'],
  runtimeIds: readonly string[],
  executables: Pinned['executables'],
) => {
  const snapshot = {
    resources: documents.resources,
    runtimes: runtimes.filter((runtime) => runtimeIds.includes(runtime.id)),
    runtimeBindings: documents.bindings,
    executionScope: documents.scope,
    networkTopology: documents.topology,
    activityProfiles: documents.profiles,
    storageMounts: await storageMounts(tx, [...new Set(runtimeIds)]),
    ...(executables === undefined ? {} : { executables }),
  }
  return { ...snapshot, documentsHash: hash('sha256', JSON.stringify(snapshot)) }
}

/**
 * @throws Refusal 422 for a capacity target that can have no machines, or a `start` of an instance
 *   that it does not have, 503 for a provider or a lifecycle action that is not built
 */
const refuseUnmade = async (tx: Db, plan: PlanHeader, places: readonly Place[]): Promise<void> => {
  await refuseActions(tx, plan)
  const sites = new Set(places.filter(runsOnMachines).map(({ site }) => site))
  for (const site of sites) {
    const targetId = site.slice('cloud/'.length)
    const target = await readTarget(tx, targetId)
    if (target?.enabled !== true)
      throw unacceptableAt(
        'resources',
        `resource ${JSON.stringify(targetId)} is bound to a cloud runtime and is no enabled capacity ` +
          'target; create the target, or plan its activities elsewhere',
      )
    await requireProvider(tx, target)
  }
}

/**
 * Accepts a run in one transaction: admission with all reasons at once, then run, tasks and
 * snapshot. The snapshot takes the documents of the request, else those of the store. Embedded
 * documents never overwrite the store. Registries and sites are asked about executables
 * between two tries, so that no transaction waits for a network.
 * @returns runs of builds that were started for it
 * @throws Refusal 409 for a taken id, 422 with every reason, 503 for a mode or driver that is not
 *   available
 */
export const acceptExecutionRun = async (
  db: Db,
  request: RunRequest,
  run: RunMembers,
  accepting: Accepting & { find: (unfound: Unfound) => Promise<Findings> },
): Promise<string[]> => {
  const findings = new Map<string, Finding>()
  for (let round = 1; ; round += 1) {
    try {
      return await insertAccepted(db, request, run, { ...accepting, findings })
    } catch (error) {
      if (!(error instanceof Unfound) || round > mostRounds) throw error
      for (const [question, finding] of await accepting.find(error)) findings.set(question, finding)
    }
  }
}

interface Accepting {
  hostId: string
  actorId: string
  helperImage: string
}
/** One answer may lead to another question: of a tag, then of an engine. */
const mostRounds = 4

const insertAccepted = (
  db: Db,
  request: RunRequest,
  run: RunMembers,
  accepting: Accepting & { findings: Findings },
): Promise<string[]> =>
  db.transaction(async (tx) => {
    const plan = await planOf(tx, run)
    const mode = run.mode === 'real' ? 'real' : 'simulation'
    if (mode === 'real') refuseAboveBudget(run, plan)
    const content = await contentOf(tx, request, run, plan)
    const documents = await documentsOf(tx, request, plan, content)
    const chosen = await chosenRuntimes(
      tx,
      { ...run, mode },
      content,
      documents,
      request.runtimeBindings !== undefined,
    )
    const pairs = content.tasks.map(({ resourceId }, i) => ({
      runtimeId: chosen.runtimeIds[i] ?? '',
      resourceId,
    }))
    const real =
      mode === 'real' ? await runtimesAtSites(tx, content, documents, { pairs, ...accepting }) : undefined
    if (real !== undefined) await refuseUnmade(tx, plan, real.places)
    if (real === undefined) refuseUnbuilt(mode, content, documents.runtimes, chosen.runtimeIds)
    const { versionIds, topology } = documents
    const simulation =
      real === undefined ? simulated(run, plan, await versionsByIds(tx, versionIds), topology) : undefined
    await insertRun(tx, {
      id: run.id,
      schedulePlanId: plan.id,
      contentVersionId: content.contentVersionId,
      mode,
      seed: run.seed ?? 0,
      title: run.title,
      actorId: accepting.actorId,
      hostId: accepting.hostId,
      networkModel: simulation?.networkModel ?? run.networkModel,
      warnings: simulation?.warnings ?? budgetWarnings(run, plan),
      defaultedDurations: plan.defaultedDurations,
      simulator: run.simulator,
      onFailure: run.onFailure ?? 'stop',
      ...{ budget: run.budget, onBudget: run.onBudget },
      snapshot: await snapshotOf(
        tx,
        documents,
        real?.runtimes ?? documents.runtimes,
        chosen.runtimeIds,
        real?.pinned.executables,
      ),
      runtimeIds: chosen.runtimeIds,
      runtimeReasons: chosen.reasons,
      places: real?.places,
      activityIds: content.tasks.map((task) => task.activityId),
    })
    return real?.pinned.builds ?? []
  })
