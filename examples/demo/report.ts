import type { TypeTime } from '../mosaic/measure.ts'
import { errorOf, type Band, type Line, type Triple } from './comparison.ts'
import { table } from './table.ts'

const seconds = (value: number): string => value.toFixed(value < 10 ? 2 : 1)
const money = (value: number): string => value.toFixed(5)
/** An amount with its currency, where the service has one. */
const amount = (value: number, currency: string | undefined): string =>
  `${money(value)}${currency === undefined ? '' : ` ${currency}`}`
const percent = (share: number | undefined): string =>
  share === undefined ? '–' : `${share < 0 ? '−' : '+'}${Math.abs(100 * share).toFixed(0)} %`

export const profileTable = (times: readonly TypeTime[]): string[] =>
  table(
    ['left', 'right', 'right', 'right', 'right'],
    [
      ['type', 'seconds per task', 'fastest – slowest pass', 'passes', 'tasks'],
      [],
      ...times.map(({ activityType, runtimeSeconds, lowestSeconds, highestSeconds, passes, sampleSize }) => [
        activityType,
        seconds(runtimeSeconds),
        `${seconds(lowestSeconds)} – ${seconds(highestSeconds)}`,
        String(passes),
        String(sampleSize),
      ]),
    ],
  )

export const candidateTable = (candidates: readonly any[], currency: string | undefined): string[] =>
  table(
    ['left', 'left', 'right', 'right', 'left'],
    [
      ['candidate, best first', 'algorithm', 'makespan', 'cost', 'feasible'],
      [],
      ...candidates.map(({ id, algorithm, predicted, feasible }) => [
        id,
        algorithm,
        `${seconds(predicted.makespanSeconds)} s`,
        amount(predicted.cost, currency),
        feasible ? 'yes' : 'no',
      ]),
    ],
  )

/** Per type the mean of a task. The error is that of the plan: measured to planned. */
export const taskTable = ({ types, all }: { types: readonly Line[]; all: Line }): string[] => {
  const row = ({ activityType, tasks, seconds: sum }: Line): string[] => [
    activityType,
    String(tasks),
    seconds(sum.planned / tasks),
    seconds(sum.simulated / tasks),
    seconds(sum.measured / tasks),
    percent(errorOf(sum)),
  ]
  return table(
    ['left', ...Array<'right'>(5).fill('right')],
    [
      ['seconds of a task, mean', 'tasks', 'planned', 'simulated', 'measured', 'error'],
      [],
      ...types.map(row),
      [],
      row(all),
    ],
  )
}

/** Per type the sum over its tasks; below, the whole run. */
export const sumTable = (
  { types, all }: { types: readonly Line[]; all: Line },
  makespan: Triple,
  cost: Triple,
): string[] => {
  const cells = (triple: Triple, text: (value: number) => string): string[] => [
    text(triple.planned),
    text(triple.simulated),
    text(triple.measured),
    percent(errorOf(triple)),
  ]
  const row = ({ activityType, seconds: sum, cost: costs }: Line): string[] => [
    activityType,
    ...cells(sum, seconds),
    money(costs.measured),
  ]
  return table(
    ['left', ...Array<'right'>(5).fill('right')],
    [
      ['seconds in all', 'planned', 'simulated', 'measured', 'error', 'cost'],
      [],
      ...types.map(row),
      [],
      row(all),
      ['makespan', ...cells(makespan, seconds)],
      ['cost', ...cells(cost, money)],
    ],
  )
}

/** The meaning of the figures in the columns `cost`. */
export const currencyText = (currency: string | undefined): string =>
  currency === undefined
    ? 'Costs have no currency: SERVICE_CURRENCY=EUR would name one.'
    : `Costs are in ${currency}.`

/** Sums of seconds over the tasks, and the idle time of the cores. */
export const whereTheTimeWent = (cores: number, simulated: any, measured: any): string[] => {
  const idle = ({ makespanSeconds, breakdown }: any): number =>
    Math.max(
      0,
      cores * makespanSeconds -
        breakdown.computeSeconds -
        breakdown.transferSeconds -
        breakdown.overheadSeconds,
    )
  const row = (name: string, valueOf: (run: any) => number): string[] => [
    name,
    seconds(valueOf(simulated)),
    seconds(valueOf(measured)),
  ]
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

/**
 * @param band the planned makespan if every task took as long as in the fastest, and in the slowest
 *   pass of the measurement
 */
export const wallText = (makespan: Triple, wallSeconds: number, band: Band | undefined): string =>
  [
    `The run took ${seconds(makespan.measured)} s where ${seconds(makespan.planned)} s were ` +
      `planned (${percent(errorOf(makespan))});`,
    `${seconds(wallSeconds)} s by the wall clock.`,
    ...(band === undefined
      ? []
      : [
          `By the spread of the measurement the plan is between ${seconds(band.lowest)} s and ` +
            `${seconds(band.highest)} s.`,
        ]),
  ].join('\n')

export const runText = (
  { mode, completedActivityCount, activityCount, makespanSeconds, cost }: any,
  currency: string | undefined,
): string =>
  `${completedActivityCount} of ${activityCount} ` +
  `${mode === 'simulation' ? 'rehearsed' : 'done'}: ${seconds(makespanSeconds)} s, cost ${amount(cost, currency)}`

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
  const sum = (of: readonly any[], member: string): string =>
    seconds(of.reduce((total, each) => total + Number(each[member] ?? 0), 0))
  return table(
    ['left', ...Array<'right'>(6).fill('right')],
    [
      ['site', 'tasks', 'tries', 'queue s', 'run s', 'data s', 'peak MiB'],
      [],
      ...[...sites].map(([site, attempts]) => [
        site,
        String(new Set(attempts.map(({ activityId }) => activityId)).size),
        String(attempts.length),
        sum(attempts, 'queueSeconds'),
        sum(attempts, 'runtimeSeconds'),
        sum(attempts, 'transferSeconds'),
        (Math.max(...attempts.map(({ peakMemoryBytes }) => Number(peakMemoryBytes ?? 0))) / 2 ** 20).toFixed(
          0,
        ),
      ]),
    ],
  )
}

/** Transfers between sites, by strategy. */
export const movedText = (transfers: readonly any[]): string => {
  const ways = Map.groupBy(transfers, ({ strategy }) => String(strategy ?? 'in place'))
  const mebibytes = (of: readonly any[]): string =>
    (of.reduce((total, each) => total + Number(each.bytes), 0) / 2 ** 20).toFixed(1)
  if (ways.size === 0) return 'No data had to be moved.'
  return `Data: ${[...ways].map(([way, of]) => `${of.length} × ${way}, ${mebibytes(of)} MiB`).join('; ')}.`
}

/** Planned and actual seconds and money of a run's machines, side by side. */
export const receiptTable = (receipt: any, currency: string | undefined): string[] => {
  const money = (of: any): string => (of === null ? 'unknown' : Number(of.money).toFixed(6))
  const time = (of: any): string => (of === null ? 'unknown' : seconds(Number(of.seconds)))
  const row = (name: string, { planned, actual }: any): string[] => [
    ...[name, time(planned), time(actual), money(planned), money(actual)],
  ]
  return [
    ...table(
      ['left', ...Array<'right'>(4).fill('right')],
      [
        ['machine', 'planned s', 'actual s', `planned ${currency ?? 'cost'}`, `actual ${currency ?? 'cost'}`],
        [],
        ...receipt.instances.map((one: any) => row(String(one.capacityTargetId), one)),
        [],
        row('sum', receipt.sum),
      ],
    ),
    '',
    receipt.final === true ? 'All machines of the run are gone.' : 'A machine of the run is not gone yet.',
    ...receipt.warnings,
  ]
}
