import { existsSync, readFileSync } from 'node:fs'
import { record } from './report.ts'

/** One kind of failures, open on its site. */
export interface Failures {
  /** Its name in the results. */
  what: string
  /**
   * Plays one case.
   * @param number counts on over all runs
   * @returns the number of cases, and their violations as text
   */
  play(number: number): Promise<{ counted: number; violations: string[] }>
  close(): Promise<void>
}

/** A counted row of the table in a file of results. Each run of its command adds to the count. */
export interface Tally {
  what: string
  command: string
  counted: number
  inOrder: number
}

const section = 'failures, counted'
const head = '| what | command | counted | in order | last |\n| --- | --- | --- | --- | --- |'

const rows = (file: string): string[] => {
  const text = existsSync(file) ? readFileSync(file, 'utf8') : ''
  const own = text.split(/^(?=## )/m).find((part) => part.startsWith(`## ${section}\n`)) ?? ''
  return own.split('\n').filter((line) => line.startsWith('| ') && !head.includes(line))
}

const cells = (row: string): string[] => row.split(' | ').map((cell) => cell.replace(/^\| | \|$/g, ''))

/**
 * The number of cases of `what` that earlier runs counted in the same file. The next run continues
 * from this number.
 */
export const countedBefore = (file: string, what: string): number =>
  Number(cells(rows(file).find((row) => cells(row)[0] === what) ?? '')[2] ?? 0)

/** Adds the counts to those of earlier runs. */
export const addTally = (file: string, { what, command, counted, inOrder }: Tally): void => {
  const all = new Map(rows(file).map((row) => [cells(row)[0] ?? '', row]))
  const [, , before = '0', good = '0'] = cells(all.get(what) ?? '')
  const sums = [Number(before) + counted, Number(good) + inOrder]
  all.set(
    what,
    `| ${[what, command, ...sums, new Date().toISOString().slice(0, 16).replace('T', ' ')].join(' | ')} |`,
  )
  const words =
    'Each command goes on where the last one ended; `--minutes` bounds one run, and what it counted is added here.'
  record(file, [], section, `## ${section}\n\n${words}\n\n${head}\n${[...all.values()].join('\n')}`)
}
