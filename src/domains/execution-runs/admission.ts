import type { Problem } from '../../refusal.ts'

/** The facts of a runtime that admission needs. */
export interface AdmissionRuntime {
  id: string
  name: string
  driver: string
  mode: string
}

export interface AdmissionAssignment {
  activityId: string
  resourceId: string
  /** `metadata.runtimeId` of the assignment. It has an enabled binding. */
  runtimeId?: string | undefined
}

export interface AdmissionActivity {
  id: string
  kind: string
  capabilities: readonly string[]
  /** The author's `runtime`: a driver, a runtime id or a runtime's name. */
  runtimeHint?: string | undefined
}

export interface AdmissionFacts {
  mode: 'real' | 'simulation'
  /** By position: `assignments` and `activities` have the same order. */
  assignments: readonly AdmissionAssignment[]
  activities: readonly AdmissionActivity[]
  /** Bound runtimes, and those that assignments name. */
  runtimes: readonly AdmissionRuntime[]
  bindings: readonly { resourceId: string; runtimeId: string; enabled: boolean }[]
}

/** The mode of the runtimes that a run may use. */
export const runtimeModeOf = (mode: string): 'simulation' | 'execution' =>
  mode === 'simulation' ? 'simulation' : 'execution'

/**
 * The runtime of every assignment, or all reasons why a run cannot be admitted (API specification,
 * run creation; one answer). The choice: the assignment's `metadata.runtimeId` if its mode fits the
 * run's, else the activity's hint, else the smallest id among the enabled bindings of a fitting
 * mode. So one plan serves all modes. `reasons` explains, by position, why a task's runtime differs
 * from the one that its assignment or activity names; undefined where it does not differ, or none
 * is named.
 */
export const chooseRuntimes = (
  facts: AdmissionFacts,
): { runtimeIds: string[]; reasons: (string | undefined)[]; problems: Problem[] } => {
  const wanted = runtimeModeOf(facts.mode)
  const byId = new Map(facts.runtimes.map((runtime) => [runtime.id, runtime]))
  const bound = new Map<string, AdmissionRuntime[]>()
  for (const binding of facts.bindings) {
    const runtime = byId.get(binding.runtimeId)
    if (!binding.enabled || runtime?.mode !== wanted) continue
    const known = bound.get(binding.resourceId)
    if (known === undefined) bound.set(binding.resourceId, [runtime])
    else known.push(runtime)
  }
  for (const runtimes of bound.values()) runtimes.sort((a, b) => (a.id < b.id ? -1 : a.id > b.id ? 1 : 0))

  const problems: Problem[] = []
  const unbound = new Set<string>()
  const reasons = new Array<string | undefined>(facts.assignments.length)
  const runtimeIds = facts.assignments.map((assignment, i) => {
    const activity = facts.activities[i] as AdmissionActivity
    const path = `plan.assignments.${String(i)}`
    if (facts.mode === 'real' && !activity.capabilities.includes('real')) {
      problems.push({
        path,
        message:
          `activity ${JSON.stringify(activity.id)} is for simulation only and cannot be run for real; ` +
          'give it a command and an executable, or run in mode simulation',
      })
    }
    const choices = bound.get(assignment.resourceId) ?? []
    const named = choices.find((runtime) => runtime.id === assignment.runtimeId)
    const hint = activity.runtimeHint
    const hinted =
      hint === undefined
        ? undefined
        : (choices.find((runtime) => runtime.id === hint || runtime.name === hint) ??
          choices.find((runtime) => runtime.driver === hint))
    const chosen = named ?? hinted ?? choices[0]
    if (chosen === undefined && !unbound.has(assignment.resourceId)) {
      unbound.add(assignment.resourceId)
      problems.push({
        path: `${path}.resourceId`,
        message:
          `resource ${JSON.stringify(assignment.resourceId)} has no enabled binding to a runtime of ` +
          `mode ${wanted}; bind it to one or plan the activity elsewhere`,
      })
    }
    reasons[i] =
      chosen === undefined
        ? undefined
        : whyAnother({ chosen, hinted, hint, wanted, asked: assignment.runtimeId, byId })
    return chosen?.id ?? ''
  })
  return { runtimeIds, reasons, problems }
}

/** The reason, as text, why a runtime other than the requested one was chosen. */
const whyAnother = (choice: {
  chosen: AdmissionRuntime
  hinted: AdmissionRuntime | undefined
  hint: string | undefined
  wanted: string
  asked: string | undefined
  byId: ReadonlyMap<string, AdmissionRuntime>
}): string | undefined => {
  const { chosen, hinted, hint, wanted, asked, byId } = choice
  if (asked === chosen.id || (asked === undefined && (hint === undefined || hinted !== undefined)))
    return undefined
  const causes = [
    ...(asked === undefined
      ? []
      : [
          `runtime ${JSON.stringify(asked)} of the assignment has mode ` +
            `${byId.get(asked)?.mode ?? 'unknown'}, the run needs mode ${wanted}`,
        ]),
    ...(hint === undefined || hinted !== undefined
      ? []
      : [`no bound runtime of mode ${wanted} is the activity's ${JSON.stringify(hint)}`]),
  ]
  const basis =
    hinted === undefined ? 'the first by id of those bound' : `the activity's hint ${JSON.stringify(hint)}`
  return `${causes.join('; ')}: taken is ${JSON.stringify(chosen.id)}, ${basis}`
}
