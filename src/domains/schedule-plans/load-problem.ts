import { z } from 'zod'
import { empty, sql, type Db, type Sql } from '../../db/sql.ts'
import type { PlanningProblem } from '../../schedulers/problem.ts'
import { profilesFor, resourcesOfVersions, versionsByIds } from '../environments/store.ts'
import { readExecutionScope } from '../execution-scopes/store.ts'
import { readNetworkTopology } from '../network-topologies/store.ts'
import type { NetworkModel } from '../../simulator/channel.ts'
import { measuredDurations, type MeasuredDurations } from '../cloud/durations.ts'
import { plannedGraph } from './graph.ts'
import { availability, isMadeOnDemand, taskOverheads, withOverheads } from './lifecycle.ts'
import { networkModelOf } from './prediction.ts'
import { problemOf, type PlannedResource } from './problem.ts'

const Version = z.object({
  id: z.string(),
  workflowId: z.string(),
  activityCount: z.number(),
  dependencyCount: z.number(),
})
export type StoredVersion = z.output<typeof Version>

/**
 * A workflow version that was imported (not embedded in a plan or a run); undefined where there is
 * none. With the lock `for key share` it stays until the end of the transaction.
 */
export const storedVersion = (db: Db, id: string, lock: Sql = empty): Promise<StoredVersion | undefined> =>
  db.maybe(
    Version,
    sql`select id, workflow_id, activity_count, dependency_count from workflow_versions where id = ${id}
      and not embedded ${lock}`,
  )

/**
 * The planning problem of a stored workflow on a stored scope and topology ('' = none), read from
 * the present state of the store, and the network model for the simulation of its plans.
 * @throws Error where one of them is gone: records that a session names cannot be deleted
 */
export const loadProblem = async (
  db: Db,
  ids: {
    workflowVersionId: string
    executionScopeId: string
    networkTopologyId: string
    networkModel?: NetworkModel | undefined
  },
): Promise<{
  problem: PlanningProblem
  networkModel: NetworkModel
  resources: PlannedResource[]
  measured: Map<string, MeasuredDurations>
}> => {
  const graph = await plannedGraph(db, ids.workflowVersionId)
  const scope = await readExecutionScope(db, ids.executionScopeId)
  const topology =
    ids.networkTopologyId === '' ? undefined : await readNetworkTopology(db, ids.networkTopologyId)
  if (scope === undefined || (ids.networkTopologyId !== '' && topology === undefined))
    throw new Error(`the scope or topology of ${JSON.stringify(ids)} is gone`)
  const resources = await resourcesOfVersions(db, scope.environmentVersionIds)
  const versions = await versionsByIds(db, scope.environmentVersionIds)
  const measured = await measuredDurations(
    db,
    resources.filter(isMadeOnDemand).map(({ id }) => id),
  )
  const problem = problemOf({
    graph,
    resources: withOverheads(resources, taskOverheads(resources, measured)),
    versions,
    profiles: await profilesFor(
      db,
      [...new Set(graph.activities.map(({ typeId }) => typeId))],
      resources.map(({ id }) => id),
    ),
    links: topology?.links,
    availability: availability(resources, measured),
  })
  return { problem, networkModel: networkModelOf(ids.networkModel, versions), resources, measured }
}
