import { hash } from 'node:crypto'
import { z } from 'zod'
import { durationSources, type PlanningProblem, type Schedule } from '../../schedulers/problem.ts'
import type { Prediction } from '../schedule-plans/prediction.ts'
import type { PlacedAssignment } from '../schedule-plans/problem.ts'
import type { NewAssignment } from '../schedule-plans/store.ts'

const numbers = z.array(z.number())

/**
 * A schedule as columns by position of the activity, as a candidate's row stores it. Seconds from
 * the start of the plan.
 */
export const ScheduleColumns = z.object({
  /** The resources in use; `resource` holds indices into them. */
  resourceIds: z.array(z.string()),
  resource: numbers,
  coreIds: z.array(z.array(z.string())),
  slotId: z.array(z.string()),
  order: numbers,
  readyAt: numbers,
  startAt: numbers,
  finishAt: numbers,
  runtime: numbers,
  transfer: numbers,
  boot: numbers,
  container: numbers,
  cost: numbers,
  /** Indices into `durationSources`. */
  source: numbers,
})
export type ScheduleColumns = z.output<typeof ScheduleColumns>

/**
 * The assignments of a schedule by position of their activities, in the form that the simulator
 * takes.
 */
export const placesIn = (problem: PlanningProblem, schedule: Schedule): PlacedAssignment[] =>
  schedule.assignments
    .toSorted((a, b) => a.activity - b.activity)
    .map(({ resource, coreIds, slotId, orderOnResource }) => ({
      resourceId: problem.resources[resource]!.id,
      coreIds: coreIds.length === 0 ? [''] : coreIds,
      slotId,
      orderOnResource,
    }))

/**
 * The columns of a schedule that places every activity of the problem: its places, and the
 * simulator's times and costs.
 */
export const scheduleColumns = (
  problem: PlanningProblem,
  schedule: Schedule,
  { tasks }: Pick<Prediction, 'tasks'>,
): ScheduleColumns => {
  const byActivity = schedule.assignments.toSorted((a, b) => a.activity - b.activity)
  const used = [...new Set(byActivity.map(({ resource }) => resource))].toSorted((a, b) => a - b)
  const index = new Map(used.map((resource, position) => [resource, position]))
  return {
    resourceIds: used.map((resource) => problem.resources[resource]!.id),
    resource: byActivity.map(({ resource }) => index.get(resource)!),
    coreIds: byActivity.map(({ coreIds }) => coreIds),
    slotId: byActivity.map(({ slotId }) => slotId),
    order: byActivity.map(({ orderOnResource }) => orderOnResource),
    readyAt: tasks.map(({ readyAt }) => readyAt),
    startAt: tasks.map(({ startAt }) => startAt),
    finishAt: tasks.map(({ finishAt }) => finishAt),
    runtime: tasks.map(({ runtimeSeconds }) => runtimeSeconds),
    transfer: tasks.map(({ transferSeconds }) => transferSeconds),
    boot: tasks.map(({ bootOverheadSeconds }) => bootOverheadSeconds),
    container: tasks.map(({ containerOverheadSeconds }) => containerOverheadSeconds),
    cost: tasks.map(({ cost }) => cost),
    source: tasks.map(({ durationSource }) => durationSources.indexOf(durationSource)),
  }
}

/**
 * SHA-256 (hexadecimal) of the schedule: equal for equal places and times, whichever algorithm
 * found them.
 */
export const fingerprintOf = (columns: ScheduleColumns): string => hash('sha256', JSON.stringify(columns))

const digest = (sessionId: string, fingerprint: string): string =>
  hash('sha256', JSON.stringify([sessionId, fingerprint]))

/**
 * The same schedule in the same session is the same candidate, however often a Temporal activity
 * records it.
 */
export const candidateId = (sessionId: string, fingerprint: string): string =>
  `candidate-${digest(sessionId, fingerprint).slice(0, 20)}`

/**
 * `<session>-<12 hex>`. The session's id is cut so that the plan's id stays within 255 characters.
 */
export const planIdOf = (sessionId: string, fingerprint: string): string =>
  `${Array.from(sessionId).slice(0, 242).join('')}-${digest(sessionId, fingerprint).slice(0, 12)}`

/**
 * The assignments of a candidate's plan; `activities` are those of its workflow version by
 * position.
 */
export const assignmentsOf = (
  columns: ScheduleColumns,
  planId: string,
  activities: readonly { id: string; externalId: string; priority: number }[],
): (NewAssignment & { externalId: string })[] =>
  activities.map(({ id, externalId, priority }, position) => {
    const coreIds = columns.coreIds[position]!
    return {
      position,
      id: `${planId}-${id}`,
      activityId: id,
      externalId,
      resourceId: columns.resourceIds[columns.resource[position]!]!,
      coreId: coreIds[0] ?? '',
      slotId: columns.slotId[position]!,
      orderOnResource: columns.order[position]!,
      priority,
      predictedReadyAt: columns.readyAt[position]!,
      predictedStartAt: columns.startAt[position]!,
      predictedFinishAt: columns.finishAt[position]!,
      predictedRuntimeSeconds: columns.runtime[position]!,
      predictedTransferSeconds: columns.transfer[position]!,
      predictedCost: columns.cost[position]!,
      durationSource: durationSources[columns.source[position]!]!,
      metadata: {
        ...(coreIds.length > 1 ? { coreIds } : {}),
        bootOverheadSeconds: columns.boot[position]!,
        containerOverheadSeconds: columns.container[position]!,
        expectedDurationSeconds: columns.finishAt[position]! - columns.startAt[position]!,
        durationSource: durationSources[columns.source[position]!]!,
      },
    }
  })
