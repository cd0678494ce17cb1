import { z } from 'zod'
import { append } from '../../lists.ts'
import { raw, sql, type Db } from '../../db/sql.ts'
import { Refusal, unacceptable, type Problem } from '../../refusal.ts'
import type { Compute } from '../../compute/compute.ts'
import { assignedCores } from '../../schedulers/validate.ts'
import { measuredDurations } from '../cloud/durations.ts'
import { resourceObject } from '../environments/document-sql.ts'
import { Resource } from '../environments/schemas.ts'
import {
  bindingsOfResources,
  holdInventory,
  inventoryDigest,
  profilesFor,
  resourcesOfVersions,
  runtimesByIds,
  versionsByIds,
} from '../environments/store.ts'
import type { ExecutionScopeDocument } from '../execution-scopes/schemas.ts'
import { readExecutionScope } from '../execution-scopes/store.ts'
import type { NetworkTopologyDocument } from '../network-topologies/schemas.ts'
import { readNetworkTopology } from '../network-topologies/store.ts'
import { unlessBlank } from '../workflow-definitions/names.ts'
import { defaultCpu, defaultMemoryBytes } from '../workflow-definitions/quantities.ts'
import type { WorkflowGraph } from '../workflow-definitions/graph.ts'
import type { WorkflowVersionDocument } from '../workflow-definitions/schemas.ts'
import { embedWorkflow } from '../workflow-definitions/store.ts'
import { versionProblems } from '../workflow-definitions/version-rules.ts'
import { plannedGraph } from './graph.ts'
import {
  availability,
  isMadeOnDemand,
  lifecycleOf,
  taskOverheads,
  withLifecycle,
  withOverheads,
} from './lifecycle.ts'
import { networkModelOf, predict, type Prediction } from './prediction.ts'
import { plannedRuntime, problemOf } from './problem.ts'
import { namedRuntime, runtimeProblems } from './runtime-names.ts'
import { assignmentId, planProblems, type PlacedActivity, type PlacedWorkflow } from './rules.ts'
import type { AssignmentDocument, Plan, PlanDocument, Times } from './schemas.ts'
import { storedVersion, type StoredVersion } from './load-problem.ts'
import {
  createPlan,
  readPlan,
  readPlanDocument,
  type EmbeddedDocuments,
  type NewAssignment,
} from './store.ts'

/** Documents sent with a plan. The plan uses each one as sent; none changes the store. */
export interface Companions {
  workflow: WorkflowVersionDocument
  resources: readonly Resource[]
  executionScope: ExecutionScopeDocument
  networkTopology?: NetworkTopologyDocument | undefined
}

const quoted = (text: string): string => JSON.stringify(text)

/**
 * JSON with sorted keys, without absent and blank members: equal for documents of equal content.
 */
const canonical = (value: unknown): string => {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  const members = Object.entries(value)
    .filter(([, member]) => member !== undefined && member !== '')
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
  return `{${members.map(([name, member]) => `${JSON.stringify(name)}:${canonical(member)}`).join(',')}}`
}
const differ = (a: object, b: object): boolean => canonical(a) !== canonical(b)

/**
 * Stores a plan, or refuses (422) with all its problems: references into the store, differences
 * between the plan and its companions, and the rules of its assignments. Without companions all
 * documents come from the store. The simulator computes the plan's makespan and cost; the plan's
 * own prediction is stored beside them.
 * @throws Refusal 503 where its resources change during each simulation
 */
export const acceptPlan = async (
  { db, compute }: { db: Db; compute: Pick<Compute, 'simulate'> },
  plan: PlanDocument,
  companions?: Companions,
): Promise<Plan> => {
  for (let tries = 0; tries < mostTries; tries++) {
    // The database has few connections and is not needed while the plan is simulated. The
    // constraints refuse references to records that were deleted meanwhile; the workflow has none.
    const checked = await undone(db, (tx) => checkPlan(tx, plan, companions))
    const prediction = await predict(compute, checked.given)
    const stored = await db.transaction((tx) => storePlan(tx, plan, companions, checked, prediction))
    if (stored !== undefined) return stored
  }
  throw new Refusal(
    'unavailable',
    'resources of the plan were changed while it was simulated; send the plan again',
    { retryAfterSeconds: 1 },
  )
}

/** A plan is checked and simulated once more where its resources were changed meanwhile. */
const mostTries = 2

/** Stores a plan; undefined where its resources are not those that were simulated. */
const storePlan = async (
  tx: Db,
  plan: PlanDocument,
  companions: Companions | undefined,
  checked: Awaited<ReturnType<typeof checkPlan>>,
  prediction: Prediction,
): Promise<Plan | undefined> => {
  // A change of a resource either is seen here, or sees the plan, which stands in its way.
  await holdInventory(tx)
  const { resourceIds, versionIds, digest } = checked.inventory
  if ((await inventoryDigest(tx, resourceIds, versionIds)) !== digest) return undefined
  if ((await storedVersion(tx, checked.version.id, sql`for key share`)) === undefined)
    throw unacceptable([noVersion(checked.version.id)])
  const { networkModel, tasks } = prediction
  const lifecycle = lifecycleOf(plan.id, {
    ...checked.given,
    actions: plan.lifecycleActions?.map((action) => ({ ...action, schedulePlanId: plan.id })),
    tasks: tasks.map((task, at) => ({ ...task, resourceId: checked.given.assignments[at]!.resourceId })),
  })
  await createPlan(tx, {
    ...plan,
    ...submitted(plan.predicted),
    ...withLifecycle(prediction, lifecycle, plan.metadata),
    networkModel,
    contentionFreeMakespanSeconds: undefined,
    defaultedDurations: tasks.filter(({ durationSource }) => durationSource === 'default').length,
    contentVersionId:
      companions === undefined ? checked.version.id : await embed(tx, checked.version, companions),
    embedded: checked.embedded,
    assignments: plan.assignments.map((assignment, at) =>
      predictedAssignment(plan.id, assignment, checked.positions[at]!, tasks[checked.positions[at]!]!),
    ),
  })
  return (await readPlanDocument(tx, plan.id))!
}

/** Thrown to roll back a transaction. */
const undo = new Error('the transaction is not committed')

/**
 * The result of `work` in a transaction that is rolled back: rows that it stores only to read them
 * are not kept.
 */
const undone = async <T>(db: Db, work: (tx: Db) => Promise<T>): Promise<T> => {
  const found: T[] = []
  await db
    .transaction(async (tx) => {
      found.push(await work(tx))
      throw undo
    })
    .catch((error: unknown) => {
      if (error !== undo) throw error
    })
  return found[0]!
}

/**
 * Everything that the simulation and storage of a plan needs. @throws Refusal 422 with all problems
 * of the plan
 */
const checkPlan = async (tx: Db, plan: PlanDocument, companions: Companions | undefined) => {
  const { problems, version, ...stored } = await lookUp(tx, plan)
  if (companions !== undefined) append(problems, disagreements(plan, companions))
  const scope = companions?.executionScope ?? stored.scope
  const versionIds = scope?.environmentVersionIds ?? []
  const resourceIds = namedResources(plan, companions)
  // Read before the resources: a change in between is seen when the plan is stored.
  const digest = await inventoryDigest(tx, resourceIds, versionIds)
  const inventory = await inventoryOf(tx, plan, scope, companions)
  append(problems, inventory.problems)

  const content = await contentOf(tx, version, companions)
  append(problems, content.problems)
  const checked =
    content.workflow &&
    planProblems({
      plan,
      workflow: content.workflow,
      resources: inventory.resources,
      stored: inventory.stored,
      environmentVersionIds: new Set(scope?.environmentVersionIds),
    })
  append(problems, await unboundRuntimes(tx, plan))
  // A flaw of the workflow itself is reported once.
  append(
    problems,
    checked?.problems.filter(({ path }) => content.problems.length === 0 || !path.startsWith('workflow.')) ??
      [],
  )
  if (problems.length > 0 || checked === undefined || content.graph === undefined || version === undefined)
    throw unacceptable(problems)
  const given = await simulationOf(tx, {
    plan,
    positions: checked.positions,
    graph: content.graph,
    resources: inventory.resources,
    environmentVersionIds: versionIds,
    topology: companions === undefined ? stored.topology : companions.networkTopology,
  })
  return {
    version,
    positions: checked.positions,
    given,
    inventory: { resourceIds, versionIds, digest },
    embedded: embeddedOf(companions, stored, inventory.stored),
  }
}

/**
 * The input for the simulation of the plan, as a run of it would have: its content, the resources
 * that it names, and the profiles and versions of the store.
 */
const simulationOf = async (
  tx: Db,
  given: {
    plan: PlanDocument
    positions: Int32Array
    graph: WorkflowGraph
    resources: ReadonlyMap<string, Resource>
    environmentVersionIds: readonly string[]
    topology: NetworkTopologyDocument | undefined
  },
): Promise<
  Parameters<typeof predict>[1] & Pick<Parameters<typeof lifecycleOf>[1], 'resources' | 'measured'>
> => {
  const { graph } = given
  const assignments = new Array<AssignmentDocument>(graph.activities.length)
  given.plan.assignments.forEach((assignment, at) => (assignments[given.positions[at]!] = assignment))
  const used = [...new Set(assignments.map(({ resourceId }) => resourceId))]
  const resources = used.map((id) => given.resources.get(id)!)
  const measured = await measuredDurations(
    tx,
    resources.filter(isMadeOnDemand).map(({ id }) => id),
  )
  const versions = await versionsByIds(tx, given.environmentVersionIds)
  const problem = problemOf({
    graph,
    resources: withOverheads(resources, taskOverheads(resources, measured)),
    versions,
    profiles: await profilesFor(tx, [...new Set(graph.activities.map(({ typeId }) => typeId))], used),
    links: given.topology?.links,
    runtimes: assignments.map(plannedRuntime),
    availability: availability(resources, measured, given.plan.lifecycleActions),
  })
  return {
    problem,
    assignments: assignments.map((assignment) => ({ ...assignment, coreIds: assignedCores(assignment) })),
    networkModel: networkModelOf(given.plan.networkModel, versions),
    ...{ resources, measured },
  }
}

/** Problems of the runtimes that the assignments name. */
const unboundRuntimes = async (tx: Db, { assignments }: PlanDocument): Promise<Problem[]> => {
  const named = assignments.map((assignment, at) => ({
    resourceId: assignment.resourceId,
    runtimeId: namedRuntime(assignment),
    path: `plan.assignments.${at}`,
  }))
  const runtimeIds = [...new Set(named.flatMap(({ runtimeId }) => runtimeId ?? []))]
  if (runtimeIds.length === 0) return []
  const resourceIds = [...new Set(named.map(({ resourceId }) => resourceId))]
  return runtimeProblems(named, {
    runtimes: await runtimesByIds(tx, runtimeIds),
    bindings: await bindingsOfResources(tx, resourceIds),
  })
}

/** The prediction in a document, where it has one. */
const submitted = ({ makespanSeconds, cost, feasible }: PlanDocument['predicted']) =>
  makespanSeconds > 0 || cost > 0 || feasible
    ? { submittedPrediction: { makespanSeconds, cost, feasible } }
    : { submittedPrediction: undefined }

const timesOf = (assignment: AssignmentDocument): Times | undefined => {
  const {
    predictedReadyAt,
    predictedStartAt,
    predictedFinishAt,
    predictedRuntimeSeconds,
    predictedTransferSeconds,
    predictedCost,
  } = assignment
  const times = {
    predictedReadyAt,
    predictedStartAt,
    predictedFinishAt,
    predictedRuntimeSeconds,
    predictedTransferSeconds,
    predictedCost,
  }
  return Object.values(times).some((value) => value > 0) ? times : undefined
}

const predictedAssignment = (
  planId: string,
  assignment: AssignmentDocument,
  position: number,
  task: Prediction['tasks'][number],
): NewAssignment => ({
  ...assignment,
  id: assignmentId(planId, assignment),
  position,
  predictedReadyAt: task.readyAt,
  predictedStartAt: task.startAt,
  predictedFinishAt: task.finishAt,
  predictedRuntimeSeconds: task.runtimeSeconds,
  predictedTransferSeconds: task.transferSeconds,
  predictedCost: task.cost,
  durationSource: task.durationSource,
  submittedPrediction: timesOf(assignment),
})

interface Content {
  problems: Problem[]
  /** Absent where no workflow is available to check the plan against. */
  workflow?: PlacedWorkflow
  /** The same, stored; absent where it cannot be stored. */
  graph?: WorkflowGraph
}

/**
 * The workflow that the plan places: the embedded one, stored beside the store's own where they
 * differ, else the store's.
 */
const contentOf = async (
  tx: Db,
  version: StoredVersion | undefined,
  companions: Companions | undefined,
): Promise<Content> => {
  if (companions === undefined) {
    if (version === undefined) return { problems: [] }
    const graph = await plannedGraph(tx, version.id)
    return { problems: [], workflow: graph, graph }
  }
  const problems = versionProblems(companions.workflow)
  if (problems.length > 0 || version === undefined)
    return { problems, workflow: asFarAsReadable(companions.workflow, version) }
  const graph = await plannedGraph(tx, await embed(tx, version, companions))
  return { problems, workflow: graph, graph }
}

/**
 * Stores the workflow embedded with a plan, where it differs from the stored version.
 * @returns the version that holds it
 */
const embed = (tx: Db, version: StoredVersion, { workflow }: Companions): Promise<string> =>
  embedWorkflow(tx, {
    ...workflow,
    // The plan names the version. A different id in the document is reported besides.
    id: version.id,
    workflowId: workflow.workflowId ?? version.workflowId,
    activities: workflow.activities.map((activity) => ({ ...activity, workflowVersionId: undefined })),
  })

/**
 * The readable parts of a flawed workflow, so that the same answer reports the plan's own flaws.
 */
const asFarAsReadable = (
  document: WorkflowVersionDocument,
  version: StoredVersion | undefined,
): PlacedWorkflow => {
  const byId = new Map(document.activities.map((activity) => [activity.id, activity]))
  const activities = [...byId.values()].map(
    ({ id, externalId, resources, metadata }, position): PlacedActivity => {
      return {
        position,
        id,
        externalId: externalId ?? id,
        cpu: resources?.cpu ?? defaultCpu,
        memoryBytes: resources?.memoryBytes ?? defaultMemoryBytes,
        resourceSelector: unlessBlank(metadata?.['resourceSelector']),
      }
    },
  )
  const positions = new Map(activities.map(({ id, position }) => [id, position]))
  const edges = (document.dependencies ?? []).flatMap(({ activityId, dependsOnActivityId }) => {
    const [from, to] = [positions.get(dependsOnActivityId), positions.get(activityId)]
    return from === undefined || to === undefined ? [] : [{ from, to }]
  })
  return { workflowId: document.workflowId ?? version?.workflowId ?? '', activities, edges }
}

const Reference = z.string().catch('')
const References = z.object({
  plan: z.object({
    id: Reference,
    workflowVersionId: Reference,
    executionScopeId: Reference,
    networkTopologyId: Reference,
    assignments: z
      .array(
        z.object({ activityId: Reference, resourceId: Reference }).catch({ activityId: '', resourceId: '' }),
      )
      .catch([]),
  }),
})
type References = Pick<PlanDocument, 'id' | 'workflowVersionId' | 'executionScopeId' | 'networkTopologyId'>

/** Problems of references, for a document that its schema refuses already. */
export const planReferenceProblems = async (db: Db, document: unknown): Promise<Problem[]> => {
  const references = References.safeParse(document)
  if (!references.success) return []
  const { assignments, ...plan } = references.data.plan
  const { problems, version } = await lookUp(db, plan)
  const report = (path: string, message: string): void => void problems.push({ path, message })
  const known = new Set(
    await db.values(
      z.string(),
      sql`select id from resources where id = any(${assignments.map(({ resourceId }) => resourceId)})`,
    ),
  )
  // The activities of a document's own workflow decide, and the schema has checked those.
  const embeds = typeof document === 'object' && document !== null && 'workflow' in document
  const activities =
    version === undefined || embeds
      ? undefined
      : namesOf((await plannedGraph(db, version.id)).activities, version.workflowId)
  assignments.forEach(({ activityId, resourceId }, at) => {
    const path = `plan.assignments.${at}`
    if (resourceId !== '' && !known.has(resourceId))
      report(`${path}.resourceId`, `${quoted(resourceId)} names no resource; name one of the scope`)
    if (activityId !== '' && activities?.has(activityId) === false)
      report(`${path}.activityId`, `${quoted(activityId)} names no activity of the workflow; name one of it`)
  })
  return problems
}

const noVersion = (id: string): Problem => ({
  path: 'plan.workflowVersionId',
  message: `${quoted(id)} names no workflow version; import the workflow first`,
})

/** Every form in which a plan may name an activity. */
const namesOf = (activities: readonly PlacedActivity[], workflowId: string): Set<string> =>
  new Set(activities.flatMap(({ id, externalId }) => [id, externalId, `${workflowId}-${externalId}`]))

/**
 * The stored records that a plan names, and the problems of these names. The schema reports a blank
 * name.
 */
const lookUp = async (db: Db, plan: References) => {
  const problems: Problem[] = []
  const report = (path: string, message: string): void => void problems.push({ path, message })
  if ((await readPlan(db, plan.id)) !== undefined)
    report('plan.id', `${quoted(plan.id)} is taken by another plan; choose another id`)
  const version = await storedVersion(db, plan.workflowVersionId)
  if (version === undefined && plan.workflowVersionId !== '') problems.push(noVersion(plan.workflowVersionId))
  const scope = await readExecutionScope(db, plan.executionScopeId)
  if (scope === undefined && plan.executionScopeId !== '')
    report(
      'plan.executionScopeId',
      `${quoted(plan.executionScopeId)} names no execution scope; create the scope first`,
    )
  const topology =
    plan.networkTopologyId === '' ? undefined : await readNetworkTopology(db, plan.networkTopologyId)
  if (plan.networkTopologyId !== '' && topology === undefined)
    report(
      'plan.networkTopologyId',
      `${quoted(plan.networkTopologyId)} names no network topology; create the topology first`,
    )
  if (topology !== undefined && topology.executionScopeId !== plan.executionScopeId)
    report(
      'plan.networkTopologyId',
      `${quoted(plan.networkTopologyId)} belongs to scope ${quoted(topology.executionScopeId)}, not ` +
        `to ${quoted(plan.executionScopeId)}`,
    )
  return { problems, version, scope, topology }
}

/** Differences between the records that the companions name and those that the plan names. */
const disagreements = (
  plan: PlanDocument,
  { workflow, executionScope, networkTopology }: Companions,
): Problem[] => {
  const problems: Problem[] = []
  const report = (path: string, message: string): void => void problems.push({ path, message })
  const same = (path: string, value: string, member: string, wanted: string): void => {
    if (value !== wanted)
      report(path, `is ${quoted(value)}, but ${member} is ${quoted(wanted)}; give both the same`)
  }
  same('workflow.id', workflow.id, 'plan.workflowVersionId', plan.workflowVersionId)
  same('executionScope.id', executionScope.id, 'plan.executionScopeId', plan.executionScopeId)
  if (networkTopology !== undefined) {
    same('networkTopology.id', networkTopology.id, 'plan.networkTopologyId', plan.networkTopologyId)
    same(
      'networkTopology.executionScopeId',
      networkTopology.executionScopeId,
      'plan.executionScopeId',
      plan.executionScopeId,
    )
  } else if (plan.networkTopologyId !== '')
    report(
      'networkTopology',
      `is required: the plan names network topology ${quoted(plan.networkTopologyId)}; add its document`,
    )
  return problems
}

const namedResources = (plan: PlanDocument, companions: Companions | undefined): string[] => [
  ...new Set([
    ...plan.assignments.map(({ resourceId }) => resourceId),
    ...(companions?.resources ?? []).map(({ id }) => id),
  ]),
]

interface Inventory {
  problems: Problem[]
  /** By id: the resources that the plan may name. */
  resources: Map<string, Resource>
  /** By id: the stored resources of the scope, and those that the plan names. */
  stored: Map<string, Resource>
}

const inventoryOf = async (
  tx: Db,
  plan: PlanDocument,
  scope: ExecutionScopeDocument | undefined,
  companions: Companions | undefined,
): Promise<Inventory> => {
  const problems: Problem[] = []
  const report = (path: string, message: string): void => void problems.push({ path, message })
  const versionIds = scope?.environmentVersionIds ?? []
  const given = companions?.resources ?? []
  const named = namedResources(plan, companions)
  const stored = new Map(
    (await resourcesOfVersions(tx, versionIds)).map((resource) => [resource.id, resource]),
  )
  const outside = named.filter((id) => !stored.has(id))
  if (outside.length > 0) {
    const documents = await tx.values(
      Resource,
      sql`select ${raw(resourceObject)}::json as document from resources r where r.id = any(${outside})`,
    )
    for (const document of documents) stored.set(document.id, document)
  }
  if (companions === undefined) return { problems, resources: stored, stored }

  const versions = new Set((await versionsByIds(tx, versionIds)).map(({ id }) => id))
  versionIds.forEach((id, at) => {
    if (!versions.has(id))
      report(
        `executionScope.environmentVersionIds.${at}`,
        `${quoted(id)} names no environment version; register the environment first`,
      )
  })
  const resources = new Map<string, Resource>()
  given.forEach((resource, at) => {
    const path = `resources.${at}`
    const known = stored.get(resource.id)
    if (resources.has(resource.id))
      report(`${path}.id`, `${quoted(resource.id)} is listed more than once; list it once`)
    if (known === undefined)
      report(`${path}.id`, `${quoted(resource.id)} names no resource; register its environment first`)
    else if (
      resource.environmentVersionId !== '' &&
      resource.environmentVersionId !== known.environmentVersionId
    )
      report(
        `${path}.environmentVersionId`,
        `is ${quoted(resource.environmentVersionId)}, but the resource belongs to ` +
          quoted(known.environmentVersionId),
      )
    resources.set(resource.id, {
      ...resource,
      environmentVersionId: known?.environmentVersionId ?? resource.environmentVersionId,
    })
  })
  companions.networkTopology?.links.forEach((link, at) => {
    for (const end of ['sourceResourceId', 'targetResourceId'] as const)
      if (!stored.has(link[end]) && !resources.has(link[end]))
        report(
          `networkTopology.links.${at}.${end}`,
          `${quoted(link[end])} names no resource of the scope; name one of it`,
        )
  })
  return { problems, resources, stored }
}

/** The companions that differ from the stored documents. */
const embeddedOf = (
  companions: Companions | undefined,
  stored: { scope: ExecutionScopeDocument | undefined; topology: NetworkTopologyDocument | undefined },
  storedResources: ReadonlyMap<string, Resource>,
): EmbeddedDocuments | undefined => {
  if (companions === undefined) return undefined
  const { executionScope, networkTopology } = companions
  const resources = companions.resources
    .map((resource) => ({
      ...resource,
      environmentVersionId:
        storedResources.get(resource.id)?.environmentVersionId ?? resource.environmentVersionId,
    }))
    .filter((resource) => differ(resource, storedResources.get(resource.id) ?? {}))
  const topology = networkTopology && {
    ...networkTopology,
    links: networkTopology.links.map((link) => ({ ...link, topologyId: networkTopology.id })),
  }
  const embedded: EmbeddedDocuments = {
    ...(resources.length > 0 ? { resources } : {}),
    ...(differ(executionScope, stored.scope ?? {}) ? { executionScope } : {}),
    ...(topology !== undefined && differ(topology, stored.topology ?? {})
      ? { networkTopology: topology }
      : {}),
  }
  return Object.keys(embedded).length === 0 ? undefined : embedded
}
