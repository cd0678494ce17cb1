import { append } from '../../lists.ts'
import { Refusal, type Problem } from '../../refusal.ts'
import { validatePlan } from '../../schedulers/validate.ts'
import { activityResolver, type GraphActivity } from '../workflow-definitions/graph.ts'
import { isBatch, type PlannedResource } from './problem.ts'
import type { LifecycleAction, PlanDocument } from './schemas.ts'

/** The facts of the placed workflow that the rules need: its content version by position. */
export interface PlacedWorkflow {
  workflowId: string
  activities: readonly PlacedActivity[]
  /** Control edges by position. */
  edges: readonly { from: number; to: number }[]
}
export type PlacedActivity = Pick<
  GraphActivity,
  'position' | 'id' | 'externalId' | 'cpu' | 'memoryBytes' | 'resourceSelector'
>

export interface PlanContext {
  plan: PlanDocument
  workflow: PlacedWorkflow
  /** The resources that a plan may name, by id: the embedded ones, else those of the store. */
  resources: ReadonlyMap<string, PlannedResource>
  /** The resources of the store, by id. */
  stored: ReadonlyMap<string, unknown>
  /** Versions of the scope. */
  environmentVersionIds: ReadonlySet<string>
}

const quoted = (text: string): string => JSON.stringify(text)

/**
 * All problems of a plan's assignments and actions, with paths below `plan`, and the position of
 * each assignment's activity in the workflow, −1 where it has none.
 */
export const planProblems = ({
  plan,
  workflow,
  resources,
  stored,
  environmentVersionIds,
}: PlanContext): { problems: Problem[]; positions: Int32Array } => {
  const resolve = activityResolver(workflow)
  const positions = new Int32Array(plan.assignments.length).fill(-1)
  const problems: Problem[] = []
  const ambiguous = new Set<string>()
  const ids = new Map<string, number>()
  const assignments = plan.assignments.map((assignment, at) => {
    const path = `plan.assignments.${at}`
    try {
      positions[at] = resolve(assignment.activityId, `${path}.activityId`) ?? -1
    } catch (error) {
      if (!(error instanceof Refusal)) throw error
      append(problems, error.details)
      ambiguous.add(`${path}.activityId`)
    }
    if (assignment.planId !== '' && assignment.planId !== plan.id)
      problems.push({
        path: `${path}.planId`,
        message: `is ${quoted(assignment.planId)}, but the plan is ${quoted(plan.id)}; leave it out`,
      })
    const id = assignmentId(plan.id, assignment)
    const taken = ids.get(id)
    if (taken === undefined) ids.set(id, at)
    else
      problems.push({
        path: `${path}.id`,
        message: `${quoted(id)} is the id of plan.assignments.${taken} too; give each its own`,
      })
    return {
      ...assignment,
      activityId: positions[at] === -1 ? assignment.activityId : workflow.activities[positions[at]!]!.id,
    }
  })
  const violations = validatePlan(
    {
      activities: workflow.activities,
      edges: workflow.edges.map(({ from, to }) => ({
        from: workflow.activities[from]!.id,
        to: workflow.activities[to]!.id,
      })),
      resources: new Map(
        [...resources].map(([id, resource]) => [
          id,
          {
            inScope: environmentVersionIds.has(resource.environmentVersionId),
            schedulable: resource.schedulable,
            batch: isBatch(resource),
            cpuCapacity: resource.cpuCapacity,
            memoryBytes: resource.memoryBytes,
          },
        ]),
      ),
      stored,
      assignments,
    },
    { assignments: 'plan.assignments', dependencies: 'workflow.dependencies' },
  )
  const others = violations.filter(({ path }) => !ambiguous.has(path))
  return {
    problems: [...problems, ...others, ...actionProblems(plan.lifecycleActions ?? [], plan.id, resources)],
    positions,
  }
}

/** The author's id of an assignment, else `<plan>-<activity>`. */
export const assignmentId = (planId: string, assignment: { id: string; activityId: string }): string =>
  assignment.id === '' ? `${planId}-${assignment.activityId}` : assignment.id

const actionProblems = (
  actions: readonly LifecycleAction[],
  planId: string,
  resources: ReadonlyMap<string, Pick<PlannedResource, 'metadata'>>,
): Problem[] => {
  const ids = new Set(actions.map(({ id }) => id))
  const seen = new Set<string>()
  return actions.flatMap((action, at) => {
    const path = `plan.lifecycleActions.${at}`
    const found: Problem[] = []
    if (seen.has(action.id))
      found.push({
        path: `${path}.id`,
        message: `${quoted(action.id)} is listed more than once; give each action its own id`,
      })
    seen.add(action.id)
    if (resources.get(action.capacityTargetId)?.metadata?.['capacityTargetId'] === undefined)
      found.push({
        path: `${path}.capacityTargetId`,
        message: `${quoted(action.capacityTargetId)} is no capacity target among the plan's resources`,
      })
    const owner = action.schedulePlanId ?? ''
    if (owner !== '' && owner !== planId)
      found.push({
        path: `${path}.schedulePlanId`,
        message: `is ${quoted(owner)}, but the plan is ${quoted(planId)}; leave it out`,
      })
    action.dependsOn?.forEach((before, k) => {
      if (!ids.has(before) || before === action.id)
        found.push({
          path: `${path}.dependsOn.${k}`,
          message: `${quoted(before)} is no other lifecycle action of the plan; name one of its actions`,
        })
    })
    return found
  })
}
