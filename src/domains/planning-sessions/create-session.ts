import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import { unacceptable, type Problem } from '../../refusal.ts'
import { holdInventory, resourcesOfVersions, versionsByIds } from '../environments/store.ts'
import { readExecutionScope } from '../execution-scopes/store.ts'
import { readNetworkTopology } from '../network-topologies/store.ts'
import { storedVersion } from '../schedule-plans/load-problem.ts'
import { networkModelOf, topologyWarnings } from '../schedule-plans/prediction.ts'
import { algorithmOf, choiceProblems, estimateOf } from './algorithms.ts'
import type { SessionDocument } from './schemas.ts'
import { insertSession, readSession, type SessionRow } from './store.ts'

/** The references of a session; blank where the document lacks one. */
const References = z.object({
  id: z.string().catch(''),
  workflowVersionId: z.string().catch(''),
  executionScopeId: z.string().catch(''),
  networkTopologyId: z.string().catch(''),
  algorithms: z.array(z.object({ id: z.string().catch('') }).catch({ id: '' })).catch([]),
})
type References = z.output<typeof References>

/**
 * Stores a session as queued.
 * @throws Refusal 422 with all its problems
 */
export const createSession = (db: Db, document: SessionDocument): Promise<SessionRow> =>
  db.transaction(async (tx) => {
    // A change of a resource either sees the session, or is done before the session plans.
    await holdInventory(tx)
    const { problems, warnings, version, scope, schedulable, topology } = await lookUp(tx, document)
    if (problems.length > 0 || version === undefined || scope === undefined) throw unacceptable(problems)

    // The resources that can run an activity are known only after the problem is read. Until then
    // every resource counts.
    const size = {
      activityCount: version.activityCount,
      dependencyCount: version.dependencyCount,
      compatibleResources: schedulable.length,
      expandedStates: version.activityCount * schedulable.length,
    }
    const networkModel = networkModelOf(
      document.networkModel,
      await versionsByIds(tx, scope.environmentVersionIds),
    )
    await insertSession(tx, {
      id: document.id,
      workflowVersionId: document.workflowVersionId,
      executionScopeId: document.executionScopeId,
      networkTopologyId: topology?.id ?? '',
      networkModel,
      warnings: [...warnings, ...topologyWarnings('networkTopologyId', networkModel, topology?.links)],
      deadlineSeconds: document.deadlineSeconds,
      budget: document.budget,
      configuration: document.configuration,
      algorithms: document.algorithms.map(({ id, configuration }) => {
        const algorithm = algorithmOf(id)!
        return {
          id,
          objective: algorithm.descriptor.objective,
          configuration,
          estimate: estimateOf(algorithm, size, configuration),
        }
      }),
    })
    return (await readSession(tx, document.id))!
  })

/** Problems of references, for a document that its schema refuses already. */
export const sessionReferenceProblems = async (db: Db, document: unknown): Promise<Problem[]> => {
  const references = References.safeParse(document)
  return references.success ? (await lookUp(db, references.data)).problems : []
}

const lookUp = async (
  db: Db,
  { id, workflowVersionId, executionScopeId, networkTopologyId, algorithms }: References,
) => {
  const problems: Problem[] = choiceProblems(algorithms.filter((choice) => choice.id !== ''))
  const report = (path: string, message: string): void => void problems.push({ path, message })
  if ((await readSession(db, id)) !== undefined)
    report('id', `${JSON.stringify(id)} is taken by another planning session; choose another id`)

  const version = await storedVersion(db, workflowVersionId)
  if (version === undefined && workflowVersionId !== '')
    report(
      'workflowVersionId',
      `${JSON.stringify(workflowVersionId)} names no workflow version; import the workflow first`,
    )

  const scope = await readExecutionScope(db, executionScopeId)
  const schedulable =
    scope === undefined
      ? []
      : (await resourcesOfVersions(db, scope.environmentVersionIds)).filter(
          (resource) => resource.schedulable,
        )
  if (scope === undefined && executionScopeId !== '')
    report(
      'executionScopeId',
      `${JSON.stringify(executionScopeId)} names no execution scope; create the scope first`,
    )
  if (scope !== undefined && schedulable.length === 0)
    report(
      'executionScopeId',
      `the scope ${JSON.stringify(scope.id)} has no schedulable resource; planning needs at least ` +
        'one with schedulable: true',
    )

  const warnings: Problem[] = []
  const topologyId = networkTopologyId === '' ? (scope?.networkTopologyId ?? '') : networkTopologyId
  const topology = await readNetworkTopology(db, topologyId)
  if (topologyId === '' || topology?.executionScopeId === executionScopeId)
    return { problems, warnings, version, scope, schedulable, topology }
  const fault =
    topology === undefined
      ? `${JSON.stringify(topologyId)} names no network topology; create the topology first`
      : `${JSON.stringify(topologyId)} belongs to scope ` +
        `${JSON.stringify(topology.executionScopeId)}, not to ${JSON.stringify(executionScopeId)}`
  if (networkTopologyId !== '') report('networkTopologyId', fault)
  else
    warnings.push({
      path: 'networkTopologyId',
      message: `the session has no network, so no transfer takes time: the scope's networkTopologyId ${fault}`,
    })
  return { problems, warnings, version, scope, schedulable, topology: undefined }
}
