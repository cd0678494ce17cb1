import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import type { PlanningProblem, Schedule } from '../../src/schedulers/problem.ts'
import type { NetworkModel } from '../../src/simulator/channel.ts'
import type { Placed } from '../../src/simulator/simulate.ts'

/** What the replay reads: the documents of an execution request as the API has them. */
export interface ReplayRequest {
  networkModel: NetworkModel
  workflow: { activities: object[]; dependencies: object[]; dataDependencies: object[] }
  plan: { assignments: object[] }
  resources: object[]
  networkTopology: { links: object[] } | null
}

export interface Replay {
  makespanSeconds: number
  /** Start and finish by activity id. */
  tasks: Record<string, [number, number]>
  /** Arrival by `producer>consumer`. */
  transfers: Record<string, number>
}

/** A plan for the simulator from what a planner made. */
export const placedFrom = (schedule: Schedule): Placed[] =>
  schedule.assignments.map(({ resource, coreIds, slotId, orderOnResource }) => ({
    resource,
    lanes: coreIds.length === 0 ? [slotId] : coreIds,
    orderOnResource,
  }))

/**
 * Problem and plan written as documents, so that the replay shares no data structure with the
 * simulator.
 */
export function documents(
  problem: PlanningProblem,
  placed: readonly Placed[],
  networkModel: NetworkModel,
): ReplayRequest {
  const activity = (index: number): string => problem.activities[index]!.id
  const resource = (index: number): string => problem.resources[index]!.id
  return {
    networkModel,
    workflow: {
      activities: problem.activities.map(({ id }) => ({ id })),
      dependencies: problem.edges.map(({ from, to }) => ({
        activityId: activity(to),
        dependsOnActivityId: activity(from),
      })),
      dataDependencies: problem.edges
        .filter(({ bytes }) => bytes > 0)
        .map(({ from, to, bytes }) => ({
          producerActivityId: activity(from),
          consumerActivityId: activity(to),
          sizeBytes: bytes,
        })),
    },
    plan: {
      assignments: placed.map((each, index) => ({
        activityId: activity(index),
        resourceId: resource(each.resource),
        coreId: each.lanes[0],
        orderOnResource: each.orderOnResource,
        predictedRuntimeSeconds: problem.durations[index * problem.resources.length + each.resource],
        metadata: { coreIds: each.lanes },
      })),
    },
    resources: problem.resources.map(({ id, bootOverheadSeconds, containerOverheadSeconds }) => ({
      id,
      bootOverheadSeconds,
      containerOverheadSeconds,
    })),
    networkTopology: problem.links === undefined ? null : {
      links: problem.links.map((link) => ({
        id: link.id,
        sourceResourceId: resource(link.source),
        targetResourceId: resource(link.target),
        bandwidthBitsPerSecond: link.bandwidthBitsPerSecond,
        latencySeconds: link.latencySeconds,
        bidirectional: link.bidirectional,
        sharingPolicy: link.shared ? 'shared' : 'fatpipe',
        metadata: link.duplexSplit ? { duplex: 'split' } : {},
      })),
    },
  } // oxfmt-ignore
}

const script = fileURLToPath(new URL('./oracle/simgrid_replay.py', import.meta.url))

/** Plays the documents in SimGrid. Its Python module belongs to the system's interpreter. */
export function replay(request: ReplayRequest): Replay {
  const { status, stdout, stderr, error } = spawnSync('/usr/bin/python3', [script], {
    input: JSON.stringify(request),
    encoding: 'utf8',
    maxBuffer: 1 << 28,
  })
  if (error !== undefined) throw new Error(`SimGrid's reference needs /usr/bin/python3: ${error.message}`)
  if (stderr.includes("No module named 'simgrid'"))
    throw new Error(
      'SimGrid is not installed; install it with: apt-get install -y --no-install-recommends python3-simgrid',
    )
  if (status !== 0) throw new Error(`the replay in SimGrid ended with ${status}: ${stderr.slice(-2000)}`)
  return JSON.parse(stdout) as Replay
}
