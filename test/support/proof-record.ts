import type { Verdict } from './judge.ts'

/** One run of a group of proofs, as `docs/proofs.md` shows it. */
export interface ProofRun {
  group: string
  /** The commit, with a `+` where files were changed since. */
  commit: string
  /** YYYY-MM-DD. */
  date: string
  machine: string
  rounds: number
  passed: number
  failed: number
  /** Files that passed only when they ran again. */
  unsteady: number
  leftOut: number
  minutes: number
}

/** The counts of several runs of one group, or of several parts of one run, in sum. */
export const sumOf = (
  verdicts: readonly Pick<Verdict, 'passed' | 'failed' | 'unsteady' | 'leftOut' | 'files'>[],
): Pick<ProofRun, 'passed' | 'failed' | 'unsteady' | 'leftOut' | 'minutes'> => {
  const sum = (measure: (verdict: (typeof verdicts)[number]) => number): number =>
    verdicts.reduce((total, verdict) => total + measure(verdict), 0)
  return {
    passed: sum(({ passed }) => passed),
    failed: sum(({ failed }) => failed),
    unsteady: sum(({ unsteady }) => unsteady.length),
    leftOut: sum(({ leftOut }) => leftOut.reduce((total, { tests }) => total + tests, 0)),
    minutes: Math.round(
      sum(({ files }) => Object.values(files).reduce((total, { seconds }) => total + seconds, 0)) / 60,
    ),
  }
}

const heading = '## Runs'

/**
 * The text of `docs/proofs.md` with the row of this run in its table of runs, in place of the
 * group's row before.
 * @throws Error where the text has no such table
 */
export const withRun = (text: string, run: ProofRun): string => {
  const lines = text.split('\n')
  const section = lines.indexOf(heading)
  const header = lines.findIndex((line, at) => at > section && line.startsWith('| group |'))
  if (section === -1 || header === -1) throw new Error(`the table of runs below "${heading}" is missing`)
  const first = header + 2
  const next = lines.findIndex((line, at) => at >= first && !line.startsWith('|'))
  const end = next === -1 ? lines.length : next
  const others = lines.slice(first, end).filter((line) => !line.startsWith(`| \`${run.group}\` |`))
  const { group, ...cells } = run
  const row = `| ${[`\`${group}\``, ...Object.values(cells)].join(' | ')} |`
  return [...lines.slice(0, first), ...[...others, row].toSorted(), ...lines.slice(end)].join('\n')
}
