import type { TypeTime } from '../mosaic/measure.ts'
import { errorOf, type Line, type Triple } from './comparison.ts'
import { table } from './table.ts'

const seconds = (value: number): string => value.toFixed(value < 10 ? 2 : 1)
const money = (value: number): string => value.toFixed(5)
const percent = (share: number | undefined): string =>
  share === undefined ? '–' : `${share < 0 ? '−' : '+'}${Math.abs(100 * share).toFixed(0)} %`

export const profileTable = (times: readonly TypeTime[]): string[] =>
  table(
    ['left', 'right', 'right', 'right'],
    [
      ['type', 'seconds per task', '±', 'measured'],
      [],
      ...times.map(({ activityType, runtimeSeconds, runtimeStdDevSeconds, sampleSize }) => [
        activityType,
        seconds(runtimeSeconds),
        seconds(runtimeStdDevSeconds),
        `${sampleSize}×`,
      ]),
    ],
  )

export const candidateTable = (candidates: readonly any[]): string[] =>
  table(
    ['right', 'left', 'left', 'right', 'right', 'left'],
    [
      ['rank', 'candidate', 'algorithm', 'makespan', 'cost', 'feasible'],
      [],
      ...candidates.map(({ rank, id, algorithm, predicted, feasible }) => [
        String(rank ?? '–'),
        id,
        algorithm,
        `${seconds(predicted.makespanSeconds)} s`,
        money(predicted.cost),
        feasible ? 'yes' : 'no',
      ]),
    ],
  )

/** Per type the mean of a task and the sum over the tasks; below, the whole. The error is that of the plan: measured to planned. */
export const comparisonTable = ({ types, all }: { types: readonly Line[]; all: Line }, makespan: Triple, cost: Triple): string[] => {
  const row = ({ activityType, tasks, seconds: sum, cost: costs }: Line): string[] => [
    activityType,
    String(tasks),
    seconds(sum.planned / tasks),
    seconds(sum.simulated / tasks),
    seconds(sum.measured / tasks),
    percent(errorOf(sum)),
    seconds(sum.planned),
    seconds(sum.simulated),
    seconds(sum.measured),
    money(costs.measured),
  ]
  const whole = (name: string, triple: Triple, text: (value: number) => string): string[] => [
    name,
    '',
    '',
    '',
    '',
    percent(errorOf(triple)),
    text(triple.planned),
    text(triple.simulated),
    text(triple.measured),
  ]
  return table(
    ['left', ...Array<'right'>(9).fill('right')],
    [
      ['type', 'tasks', 'planned', 'simulated', 'measured', 'error', 'planned', 'simulated', 'measured', 'cost'],
      [],
      ...types.map(row),
      [],
      row(all),
      whole('makespan', makespan, seconds),
      whole('cost', cost, money),
    ],
    [
      { first: 2, last: 5, text: 'seconds of a task, mean' },
      { first: 6, last: 8, text: 'seconds in all' },
    ],
  )
}

/** Seconds added up over the tasks, and what was left of the cores. */
export const whereTheTimeWent = (cores: number, simulated: any, measured: any): string[] => {
  const idle = ({ makespanSeconds, breakdown }: any): number =>
    Math.max(0, cores * makespanSeconds - breakdown.computeSeconds - breakdown.transferSeconds - breakdown.overheadSeconds)
  const row = (name: string, valueOf: (run: any) => number): string[] => [name, seconds(valueOf(simulated)), seconds(valueOf(measured))]
  return table(
    ['left', 'right', 'right'],
    [
      ['where the time went, seconds over all tasks', 'simulated', 'measured'],
      [],
      row('compute', ({ breakdown }) => breakdown.computeSeconds),
      row('data transfer', ({ breakdown }) => breakdown.transferSeconds),
      row('queue: waiting for a core', ({ breakdown }) => breakdown.queueSeconds),
      row('overhead: start and end of tasks', ({ breakdown }) => breakdown.overheadSeconds),
      row(`idle: ${cores} cores until the makespan`, idle),
    ],
  )
}

export const wallText = (makespan: Triple, wallSeconds: number): string =>
  `The run took ${seconds(makespan.measured)} s where ${seconds(makespan.planned)} s were planned (${percent(errorOf(makespan))}), ${seconds(wallSeconds)} s by the wall clock.`

export const runText = ({ mode, completedActivityCount, activityCount, makespanSeconds, cost }: any): string =>
  `${completedActivityCount} of ${activityCount} ${mode === 'simulation' ? 'rehearsed' : 'done'}: ${seconds(makespanSeconds)} s, cost ${money(cost)}`

export const resourceTable = (resources: readonly any[]): string[] =>
  table(
    ['left', 'left', 'right', 'right'],
    [
      ['resource', 'type', 'cores', 'memory, MiB'],
      [],
      ...resources.map(({ name, type, cpuCores, memoryBytes }) => [
        name,
        type,
        String(cpuCores),
        String(Math.round(memoryBytes / 2 ** 20)),
      ]),
    ],
  )

/** Per site of a run: its tasks and attempts, and seconds added up over the tasks. */
export const siteTable = (activities: readonly any[]): string[] => {
  const sites = Map.groupBy(activities, ({ site }) => String(site ?? 'nowhere'))
  const sum = (of: readonly any[], member: string): string => seconds(of.reduce((total, each) => total + Number(each[member] ?? 0), 0))
  return table(
    ['left', ...Array<'right'>(6).fill('right')],
    [
      ['site', 'tasks', 'attempts', 'queue, s', 'run, s', 'data, s', 'peak, MiB'],
      [],
      ...[...sites].map(([site, attempts]) => [
        site,
        String(new Set(attempts.map(({ activityId }) => activityId)).size),
        String(attempts.length),
        sum(attempts, 'queueSeconds'),
        sum(attempts, 'runtimeSeconds'),
        sum(attempts, 'transferSeconds'),
        (Math.max(...attempts.map(({ peakMemoryBytes }) => Number(peakMemoryBytes ?? 0))) / 2 ** 20).toFixed(0),
      ]),
    ],
  )
}

/** What was moved between sites, by the way it took. */
export const movedText = (transfers: readonly any[]): string => {
  const ways = Map.groupBy(transfers, ({ strategy }) => String(strategy ?? 'in place'))
  const mebibytes = (of: readonly any[]): string => (of.reduce((total, each) => total + Number(each.bytes), 0) / 2 ** 20).toFixed(1)
  if (ways.size === 0) return 'No data had to be moved.'
  return `Data: ${[...ways].map(([way, of]) => `${of.length} × ${way}, ${mebibytes(of)} MiB`).join('; ')}.`
}
