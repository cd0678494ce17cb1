export interface Rankable {
  id: string
  feasible: boolean
  makespanSeconds: number
  cost: number
}

export interface Ranked {
  id: string
  /** From 1. */
  rank: number
  paretoOptimal: boolean
  dominated: boolean
}

/** At least as good in both, better in one. */
const dominates = (a: Rankable, b: Rankable): boolean =>
  a.makespanSeconds <= b.makespanSeconds &&
  a.cost <= b.cost &&
  (a.makespanSeconds < b.makespanSeconds || a.cost < b.cost)

/**
 * The candidates of a session in order: feasible first, then those on the Pareto front of makespan
 * and cost, then by makespan, cost and id. A candidate is dominated when a feasible one is at least
 * as good in both and better in one; the front holds the feasible others.
 */
export const rankCandidates = (candidates: readonly Rankable[]): Ranked[] => {
  const feasible = candidates.filter((candidate) => candidate.feasible)
  const judged = candidates.map((candidate) => {
    const dominated = feasible.some((other) => dominates(other, candidate))
    return { ...candidate, dominated, paretoOptimal: candidate.feasible && !dominated }
  })
  return judged
    .toSorted(
      (a, b) =>
        Number(b.feasible) - Number(a.feasible) ||
        Number(b.paretoOptimal) - Number(a.paretoOptimal) ||
        a.makespanSeconds - b.makespanSeconds ||
        a.cost - b.cost ||
        (a.id < b.id ? -1 : 1),
    )
    .map(({ id, dominated, paretoOptimal }, position) => ({
      id,
      rank: position + 1,
      paretoOptimal,
      dominated,
    }))
}
