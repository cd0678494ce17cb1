import { readFileSync } from 'node:fs'

/** One line that a task wrote about itself. */
export interface LedgerLine {
  kind: 'start' | 'end'
  run: string
  activity: string
  attempt: number
  pid: number
  /** Seconds since the epoch. */
  at: number
}

/**
 * A shell command that does `work` and writes into the ledger when it starts and when it ends. One
 * write each, so lines never mix.
 */
export const withLedger = (path: string, work: string): string => {
  const line = (kind: string): string =>
    `echo "${kind} $AKOFLOW_RUN_ID $AKOFLOW_ACTIVITY_ID $AKOFLOW_ATTEMPT $$ $(date +%s.%N)" >> ${path}`
  return `${line('start')}; (${work}); code=$?; ${line('end')}; exit $code`
}

export const readLedger = (path: string): LedgerLine[] =>
  readFileSync(path, 'utf8')
    .split('\n')
    .slice(0, -1)
    .map((line) => {
      const [kind, run, activity, attempt, pid, at] = line.split(' ')
      return {
        kind: kind as 'start' | 'end',
        run: run as string,
        activity: activity as string,
        attempt: Number(attempt),
        pid: Number(pid),
        at: Number(at),
      }
    })

/**
 * What is wrong with what the tasks of a run saw themselves: an attempt started twice, two of an
 * activity alive at once, an activity that never came to an end or ended more than once, more alive
 * than the machine has cores.
 */
export const ledgerViolations = (
  lines: readonly LedgerLine[],
  run: string,
  activities: readonly string[],
  cores: number,
): string[] => {
  const own = lines.filter((line) => line.run === run)
  const violations: string[] = []
  for (const activity of activities) {
    const mine = own.filter((line) => line.activity === activity)
    const starts = mine.filter(({ kind }) => kind === 'start')
    const ends = mine.filter(({ kind }) => kind === 'end')
    for (const attempt of new Set(starts.map((line) => line.attempt))) {
      const times = starts.filter((line) => line.attempt === attempt).length
      if (times > 1)
        violations.push(
          `${run}: attempt ${String(attempt)} of ${activity} was started ${String(times)} times`,
        )
    }
    if (ends.length !== 1) violations.push(`${run}: ${activity} came to its end ${String(ends.length)} times`)
    let alive = 0
    for (const { kind } of mine.toSorted((a, b) => a.at - b.at)) {
      alive += kind === 'start' ? 1 : -1
      if (alive > 1) violations.push(`${run}: two of ${activity} were alive at once`)
    }
  }
  let alive = 0
  for (const { kind } of lines.toSorted((a, b) => a.at - b.at)) {
    alive += kind === 'start' ? 1 : -1
    if (alive > cores) violations.push(`${String(alive)} tasks were alive at once on ${String(cores)} cores`)
  }
  return [...new Set(violations)]
}
