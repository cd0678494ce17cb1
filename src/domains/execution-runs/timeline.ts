/**
 * The timeline of a run: where its time went, as phases on one clock. Pure; `timeline-page.ts` draws the same input as a page.
 */

export interface TimelineInput {
  title: string
  run: {
    id: string
    status: string
    mode: string
    /** Seconds since epoch at which the bars' zero lies; absent where the clock is simulated and starts at 0. */
    startedAt?: number
    /** Seconds from the run's start to its recorded end, where that is later than its last task (closing of the run). */
    wallSeconds?: number
    makespanSeconds: number | null
    cost: number | null
  }
  /** At most one of each label; a band without bars is as good as absent. */
  bands: TimelineBand[]
}

export type BandLabel = 'planned' | 'simulated' | 'measured'

export interface TimelineBand {
  label: BandLabel
  bars: TimelineBar[]
}

/** One attempt of one task. Times in seconds from the run's start, finite, `startAt` ≤ `finishAt`. */
export interface TimelineBar {
  activityId: string
  name: string
  type: string
  /** Core or slot within the resource; may be empty. */
  lane: string
  resource: string
  /** Predecessors done. From here to `startAt` the task waits: for its data, then for its lane. */
  readyAt?: number
  queuedAt?: number
  /** Before the overheads (boot, container, launch). */
  startAt: number
  /** Of a task that still runs: now. */
  finishAt: number
  status?: string
  attempt?: number
  cost?: number
  transferSeconds?: number
  /** The part of `startAt` … `finishAt` before the program ran. */
  overheadSeconds?: number
}

export type PhaseCategory = 'workspace-transfer' | 'resource-queue' | 'launch' | 'runtime'

/** Times on the clock of the run's task records: seconds since epoch, or simulated seconds from 0. */
export interface TimelinePhase {
  id: string
  category: PhaseCategory
  activityId: string
  status: string
  source: BandLabel
  startedAt: number
  finishedAt: number
  durationSeconds: number
}

/** Shape of the API's timeline. `totals` are sums over phases and can exceed the wall time. */
export interface TimelineSummary {
  startedAt: number
  finishedAt: number
  wallSeconds: number
  /** Last end minus first start of a program. */
  computeMakespanSeconds: number
  /** Time in which at least one phase was going on. */
  coveredWallSeconds: number
  unclassifiedWallSeconds: number
  totals: { workspaceTransferSeconds: number; resourceQueueSeconds: number; launchSeconds: number; runtimeSeconds: number }
  phases: TimelinePhase[]
}

interface Interval {
  from: number
  to: number
}

/**
 * A bar cut at its known moments, without gap or overlap from the moment it was ready to its end; parts may be empty.
 * A transfer longer than the wait is cut off at the start: what was moved earlier belongs to the time before the task was ready.
 */
export const partsOf = (bar: TimelineBar): Record<PhaseCategory, Interval> => {
  const ready = Math.min(bar.readyAt ?? bar.queuedAt ?? bar.startAt, bar.startAt)
  const moved = Math.min(ready + Math.max(0, bar.transferSeconds ?? 0), bar.startAt)
  const launched = Math.min(bar.startAt + Math.max(0, bar.overheadSeconds ?? 0), bar.finishAt)
  return {
    'workspace-transfer': { from: ready, to: moved },
    'resource-queue': { from: moved, to: bar.startAt },
    launch: { from: bar.startAt, to: launched },
    runtime: { from: launched, to: bar.finishAt },
  }
}

/** Length of the union of intervals. */
const measure = (intervals: readonly Interval[]): number => {
  let covered = 0
  let reached = -Infinity
  for (const { from, to } of intervals.toSorted((a, b) => a.from - b.from)) {
    if (to <= reached) continue
    covered += to - Math.max(from, reached)
    reached = to
  }
  return covered
}

/** Numbers that a timeline cannot be drawn from are a fault of the caller. */
export const assertBar = (bar: TimelineBar): void => {
  const numbers: [string, number | undefined][] = [
    ['readyAt', bar.readyAt],
    ['queuedAt', bar.queuedAt],
    ['startAt', bar.startAt],
    ['finishAt', bar.finishAt],
    ['transferSeconds', bar.transferSeconds],
    ['overheadSeconds', bar.overheadSeconds],
  ]
  for (const [name, value] of numbers) {
    if (value !== undefined && !Number.isFinite(value))
      throw new RangeError(`${name} of ${bar.activityId} is ${value}: a timeline needs finite seconds`)
  }
  if (bar.finishAt < bar.startAt) {
    throw new RangeError(
      `finishAt ${bar.finishAt} of ${bar.activityId} is before its startAt ${bar.startAt}: a timeline needs them in order`,
    )
  }
}

/** What happened most truly: measured before simulated before planned. */
const truest = (bands: readonly TimelineBand[]): TimelineBand | undefined =>
  (['measured', 'simulated', 'planned'] as const)
    .map((label) => bands.find((band) => band.label === label && band.bars.length > 0))
    .find((band) => band !== undefined)

/**
 * The timeline as data, of the truest band that has bars. Phases are in order of their start; empty ones are left out.
 * @throws RangeError naming the activity whose times are not finite or not in order.
 */
export const timelineSummary = (input: TimelineInput): TimelineSummary => {
  const band = truest(input.bands)
  const bars = band?.bars ?? []
  bars.forEach(assertBar)
  const origin = input.run.startedAt ?? 0
  const pieces = bars.flatMap((bar) =>
    Object.entries(partsOf(bar))
      .filter(([, part]) => part.to > part.from)
      .map(([category, part]) => ({ bar, category: category as PhaseCategory, part })),
  )
  const total = (category: PhaseCategory): number =>
    pieces.reduce((sum, piece) => (piece.category === category ? sum + piece.part.to - piece.part.from : sum), 0)
  const runtimes = bars.map((bar) => partsOf(bar).runtime)
  // Before the run's start nothing can have happened in it, but clocks of machines differ: the earlier of both is its start.
  const start = pieces.reduce((least, { part }) => Math.min(least, part.from), 0)
  const end = bars.reduce((most, bar) => Math.max(most, bar.finishAt), Math.max(0, input.run.wallSeconds ?? 0))
  const covered = measure(pieces.map(({ part }) => part))
  return {
    startedAt: origin + start,
    finishedAt: origin + end,
    wallSeconds: end - start,
    computeMakespanSeconds:
      runtimes.length === 0
        ? 0
        : runtimes.reduce((most, { to }) => Math.max(most, to), -Infinity) -
          runtimes.reduce((least, { from }) => Math.min(least, from), Infinity),
    coveredWallSeconds: covered,
    unclassifiedWallSeconds: Math.max(0, end - start - covered),
    totals: {
      workspaceTransferSeconds: total('workspace-transfer'),
      resourceQueueSeconds: total('resource-queue'),
      launchSeconds: total('launch'),
      runtimeSeconds: total('runtime'),
    },
    phases: pieces
      .toSorted((a, b) => a.part.from - b.part.from)
      .map(({ bar, category, part }) => ({
        id: `${input.run.id}:${bar.activityId}:${bar.attempt ?? 1}:${category}`,
        category,
        activityId: bar.activityId,
        status: bar.status ?? 'completed',
        source: band?.label ?? 'planned',
        startedAt: origin + part.from,
        finishedAt: origin + part.to,
        durationSeconds: part.to - part.from,
      })),
  }
}
