import type { Span } from '../../spans.ts'

/** The time of one machine that one run pays for; times are seconds since the epoch. Pure. */

export interface MachineUse {
  runId: string
  from: number
  /** Absent: it is used now. */
  to?: number | undefined
}

/**
 * Who pays for each moment of a machine's life: of the runs that use it then, the one that took it
 * first; while none uses it, the one that used it last, and before the first use the first one. The
 * spans of all runs together are the whole life, without gap or overlap.
 */
export const sharesOf = (life: Span, uses: readonly MachineUse[]): Map<string, Span[]> => {
  const shares = new Map<string, Span[]>()
  if (uses.length === 0 || life.to <= life.from) return shares
  const byTake = uses.toSorted((a, b) => a.from - b.from || (a.runId < b.runId ? -1 : 1))
  const ends = byTake.map(({ to }) => to ?? Infinity)
  const moments = [life.from, life.to, ...byTake.map(({ from }) => from), ...ends]
    .filter((at) => at >= life.from && at <= life.to)
    .toSorted((a, b) => a - b)
  const payerAt = (at: number): string => {
    const present = byTake.find(({ from }, k) => from <= at && at < ends[k]!)
    if (present !== undefined) return present.runId
    let last: number | undefined
    ends.forEach((end, k) => {
      if (end <= at && (last === undefined || end > ends[last]!)) last = k
    })
    return byTake[last ?? 0]!.runId
  }
  for (let k = 1; k < moments.length; k++) {
    const [from, to] = [moments[k - 1]!, moments[k]!]
    if (to <= from) continue
    const runId = payerAt(from)
    const own = shares.get(runId) ?? []
    const before = own.at(-1)
    if (before !== undefined && before.to === from) before.to = to
    else own.push({ from, to })
    shares.set(runId, own)
  }
  return shares
}

/**
 * The times in which a machine ran, `seconds` in all: those that are recorded, and what they lack of it from the
 * beginning of its life on.
 */
export const computeOf = (life: Span, recorded: readonly Span[], seconds: number): Span[] => {
  const lacking = seconds - recorded.reduce((sum, { from, to }) => sum + (to - from), 0)
  return lacking > 0 ? [{ from: life.from, to: life.from + lacking }, ...recorded] : [...recorded]
}
