import { hash } from 'node:crypto'
import { append, greatest, smallest } from '../../lists.ts'
import { ranges } from '../../ranges.ts'
import { secondsIn, type Span } from '../../spans.ts'
import type { MeasuredDurations } from '../cloud/durations.ts'
import type { PlannedResource } from './problem.ts'
import type { LifecycleAction } from './schemas.ts'

/** The members of an action with the times of its machine. */
export type TimedAction = Pick<
  LifecycleAction,
  'capacityTargetId' | 'action' | 'earliestStart' | 'expectedDuration'
>

/** Steps from the request for a machine until it takes work, in their order, and its end. */
const setup = ['provision', 'wait-for-ssh', 'configure', 'validate'] as const
type Step = (typeof setup)[number] | 'stop'

/**
 * Seconds of each step, the key of a resource's metadata that overrides it, and the measured one.
 */
const steps: Readonly<
  Record<Step, { seconds: number; key: string; measured: (of: MeasuredDurations) => number | undefined }>
> = {
  provision: { seconds: 40, key: 'terraformSeconds', measured: ({ provision }) => provision },
  'wait-for-ssh': { seconds: 20, key: 'sshWaitSeconds', measured: ({ waitForSsh }) => waitForSsh },
  configure: { seconds: 30, key: 'configurationSeconds', measured: ({ configure }) => configure },
  // The time until a machine is ready holds its checks; then a run takes it.
  validate: {
    seconds: 5,
    key: 'validationSeconds',
    measured: ({ configure, pickUp }) => (configure === undefined ? undefined : (pickUp ?? 0)),
  },
  stop: { seconds: 20, key: 'stopSeconds', measured: ({ stop }) => stop },
}

const seconds = (value: unknown): number | undefined =>
  typeof value === 'number' && value >= 0 && value < Infinity ? value : undefined

/** A figure of the resource's metadata. One beyond its bounds does not count: sums of it would overflow. */
const figure = (
  { metadata }: PlannedResource,
  key: string,
  most: number = ranges.seconds.most,
): number | undefined => {
  const value = seconds(metadata?.[key])
  return value !== undefined && value <= most ? value : undefined
}

/** The measured duration, else that of the resource's metadata, else the default. */
const durationOf = (step: Step, resource: PlannedResource, measured: MeasuredDurations = {}): number => {
  const { seconds: usual, key, measured: of } = steps[step]
  return seconds(of(measured)) ?? figure(resource, key) ?? usual
}

/** Whether machines of a resource are made when a plan needs them. */
export const isMadeOnDemand = ({ executionTarget, metadata }: PlannedResource): boolean =>
  executionTarget === 'provisioned' && typeof metadata?.['capacityTargetId'] === 'string'

/** When a machine that is asked for at `from` takes work. */
const setUpAt = (from: number, resource: PlannedResource, measured: MeasuredDurations | undefined): number =>
  setup.reduce((at, step) => at + durationOf(step, resource, measured), from)

const isSetup = ({ action }: TimedAction): boolean => [...setup, 'start'].includes(action)

/** By resource: seconds for which each task there holds its lane beside its runtime. */
export type TaskOverheads = Readonly<Record<string, number>>

/** By resource: measured seconds until a machine takes work that no action of the plan sets up. */
export type MachineSetups = Readonly<Record<string, number>>

/** The measured overheads of tasks on machines that are made on demand. */
export const taskOverheads = (
  resources: readonly PlannedResource[],
  measured: ReadonlyMap<string, MeasuredDurations>,
): TaskOverheads =>
  Object.fromEntries(
    resources.filter(isMadeOnDemand).flatMap(({ id }) => {
      const perTask = measured.get(id)?.perTask
      return perTask === undefined ? [] : [[id, perTask]]
    }),
  )

/**
 * The resources with the overheads of their tasks, as planner, simulator and validator count them.
 * Only finite seconds from 0 on count, and only on machines that are made on demand: stored
 * overheads may be of an author's metadata.
 */
export const withOverheads = <R extends PlannedResource>(
  resources: readonly R[],
  overheads: TaskOverheads,
): R[] =>
  resources.map((resource) => {
    const more = isMadeOnDemand(resource) ? seconds(overheads[resource.id]) : undefined
    return more === undefined
      ? resource
      : { ...resource, containerOverheadSeconds: resource.containerOverheadSeconds + more }
  })

/**
 * When the machine of a target is first there by the actions of a plan; undefined where it has none.
 * What comes behind a `stop`, such as a `start`, is of a machine that was there before.
 */
const thereBy = (actions: readonly TimedAction[], targetId: string): number | undefined => {
  const own = actions.filter(({ capacityTargetId }) => capacityTargetId === targetId)
  const setups = own.filter(isSetup)
  if (setups.length === 0) return undefined
  const asked = smallest(setups.map(({ earliestStart }) => earliestStart))
  const stops = own.filter(({ action, earliestStart }) => action === 'stop' && earliestStart > asked)
  const stopped = smallest(stops.map(({ earliestStart }) => earliestStart))
  return greatest(
    setups
      .filter(({ earliestStart }) => earliestStart <= stopped)
      .map(({ earliestStart, expectedDuration }) => earliestStart + expectedDuration),
  )
}

/**
 * By resource: the seconds from the start of a run at which a machine is there, by the plan's own
 * actions, else where it is asked for at the start: as the plan has recorded it in `setups`, else by
 * the measured durations.
 */
export const availability = (
  resources: readonly PlannedResource[],
  measured: ReadonlyMap<string, MeasuredDurations>,
  actions: readonly TimedAction[] = [],
  setups: MachineSetups = {},
): Map<string, number> =>
  new Map(
    resources
      .filter(isMadeOnDemand)
      .map((resource) => [
        resource.id,
        thereBy(actions, resource.id) ??
          seconds(setups[resource.id]) ??
          setUpAt(0, resource, measured.get(resource.id)),
      ]),
  )

/** The money of one resource's machine, in the currency of the prices. */
export interface CloudCost {
  /** Of the time from the first start to the last finish without pauses; part of the tasks' own costs. */
  compute: number
  /** Of the machine's disk, as long as it exists. */
  disk: number
  /** Of the rest of the time in which the machine runs. */
  idle: number
  activeSeconds: number
}

export interface PlacedTask {
  resourceId: string
  startAt: number
  finishAt: number
}

const monthSeconds = 730 * 3_600
const usualIdleSeconds = 900

/** As long as a run keeps a machine without work at most. */
const longestIdleSeconds = 31_536_000
/** Of a disk. */
const mostGiB = 65_536

const diskPrice = (resource: PlannedResource): number =>
  ((figure(resource, 'diskPricePerGiBMonth', ranges.money.most) ?? 0) *
    (figure(resource, 'diskSizeGiB', mostGiB) ?? 0)) /
  monthSeconds

/** When a machine's end begins: by the policy of its target. */
const endOf = (resource: PlannedResource, lastFinish: number, planFinish: number): number => {
  const policy = resource.metadata?.['lifecyclePolicy']
  if (policy === 'destroy-after-run') return planFinish
  const idle = figure(resource, 'idleSeconds', longestIdleSeconds) ?? usualIdleSeconds
  return policy === 'keep' ? planFinish + idle : lastFinish
}

const longestId = 255
const actionId = (planId: string, targetId: string, action: string): string => {
  const id = `${planId}-${targetId}-${action}`
  if (id.length <= longestId) return id
  const digest = hash('sha256', JSON.stringify([planId, targetId])).slice(0, 32)
  return `${planId.slice(0, 120).toWellFormed()}-${digest}-${action}`
}

/** The actions around the tasks of one resource. */
const actionsOf = (
  planId: string,
  resource: PlannedResource,
  measured: MeasuredDurations | undefined,
  { first, end }: { first: number; end: number },
): LifecycleAction[] => {
  const made: LifecycleAction[] = []
  const add = (action: LifecycleAction['action'], earliestStart: number, expectedDuration: number): void => {
    const before = made.at(-1)
    made.push({
      ...{ id: actionId(planId, resource.id, action), schedulePlanId: planId, capacityTargetId: resource.id },
      ...{ action, earliestStart, expectedDuration },
      ...(before === undefined ? {} : { dependsOn: [before.id] }),
    })
  }
  let at = Math.max(0, first - setUpAt(0, resource, measured))
  // A sum that is rounded up would let a simulation of the plan start the first task later.
  while (at > 0 && setUpAt(at, resource, measured) > first) at = Math.max(0, at - first * Number.EPSILON)
  for (const step of setup) {
    const duration = durationOf(step, resource, measured)
    add(step, at, duration)
    at += duration
  }
  add('destroy', end, durationOf('stop', resource, measured))
  return made
}

const ends: readonly string[] = ['stop', 'destroy']
const overAt = ({ earliestStart, expectedDuration }: TimedAction): number => earliestStart + expectedDuration

/** The life of a machine in a plan, in seconds from the plan's start. */
export interface PlannedLife {
  /** When the machine is asked for, and when it runs; undefined without a `provision`. */
  askedAt: number | undefined
  runsFrom: number | undefined
  /** Its last `stop` or `destroy`. */
  gone: TimedAction | undefined
  /** From the end of each `stop` to the end of the `start` or `destroy` behind it. */
  pauses: readonly Span[]
}

/** The life of the machine of one target by the actions of a plan. */
export const plannedLife = (actions: readonly TimedAction[], targetId: string): PlannedLife => {
  const own = actions
    .filter(({ capacityTargetId }) => capacityTargetId === targetId)
    .toSorted((one, other) => one.earliestStart - other.earliestStart)
  const provision = own.find(({ action }) => action === 'provision')
  const pauses: Span[] = []
  let stopped: number | undefined
  for (const step of own) {
    if (step.action === 'stop') stopped ??= overAt(step)
    else if ((step.action === 'start' || step.action === 'destroy') && stopped !== undefined) {
      pauses.push({ from: stopped, to: Math.max(stopped, overAt(step)) })
      stopped = undefined
    }
  }
  return {
    askedAt: provision?.earliestStart,
    runsFrom: provision === undefined ? undefined : overAt(provision),
    gone: own.findLast(({ action }) => ends.includes(action)),
    pauses,
  }
}

/** The money of one resource's machine by the actions of a plan. */
const costOf = (
  resource: PlannedResource,
  actions: readonly TimedAction[],
  { first, last, end }: { first: number; last: number; end: number },
): CloudCost => {
  const life = plannedLife(actions, resource.id)
  const { askedAt = first, runsFrom = askedAt, gone } = life
  const over = Math.max(last, end, gone?.earliestStart ?? 0) + (gone?.expectedDuration ?? 0)
  const activeSeconds = last - first - secondsIn(life.pauses, { from: first, to: last })
  const runSeconds = over - runsFrom - secondsIn(life.pauses, { from: runsFrom, to: over })
  return {
    compute: activeSeconds * resource.pricePerSecond,
    disk: (over - askedAt) * diskPrice(resource),
    idle: Math.max(0, runSeconds - activeSeconds) * resource.pricePerSecond,
    activeSeconds,
  }
}

/**
 * The lifecycle of the machines that a plan uses: the actions around its tasks (the author's own,
 * where a document brings some for the target) and what the machines cost beside the tasks.
 * `cost`: the sum of idle time and disks, which the tasks' costs do not hold, less the pauses that they hold.
 */
export interface Lifecycle {
  actions: LifecycleAction[]
  cloudCost: Record<string, CloudCost>
  overheads: TaskOverheads
  setups: MachineSetups
  cost: number
}

/** The lifecycle of a plan's machines; `tasks` by position of their activities. */
export const lifecycleOf = (
  planId: string,
  given: {
    resources: readonly PlannedResource[]
    measured: ReadonlyMap<string, MeasuredDurations>
    tasks: readonly PlacedTask[]
    actions?: readonly LifecycleAction[] | undefined
  },
): Lifecycle => {
  const actions = [...(given.actions ?? [])]
  const costs = new Map<string, CloudCost>()
  const planFinish = greatest(
    given.tasks.map(({ finishAt }) => finishAt),
    0,
  )
  let cost = 0
  // In one order everywhere: a sum in another order has another last digit.
  const machines = given.resources
    .filter(isMadeOnDemand)
    .toSorted(({ id: one }, { id: other }) => (one < other ? -1 : 1))
  for (const resource of machines) {
    const own = given.tasks.filter(({ resourceId }) => resourceId === resource.id)
    if (own.length === 0) continue
    const first = smallest(own.map(({ startAt }) => startAt))
    const last = greatest(own.map(({ finishAt }) => finishAt))
    const end = endOf(resource, last, planFinish)
    if (!actions.some(({ capacityTargetId }) => capacityTargetId === resource.id))
      append(actions, actionsOf(planId, resource, given.measured.get(resource.id), { first, end }))
    const of = costOf(resource, actions, { first, last, end })
    costs.set(resource.id, of)
    // The tasks' own costs hold the whole window, pauses included.
    cost += of.compute + of.disk + of.idle - (last - first) * resource.pricePerSecond
  }
  const used = machines.filter(({ id }) => costs.has(id))
  const overheads = taskOverheads(used, given.measured)
  const setups = availability(
    used.filter(({ id }) => given.measured.has(id) && thereBy(actions, id) === undefined),
    given.measured,
  )
  return {
    actions,
    cloudCost: Object.fromEntries(costs),
    overheads,
    setups: Object.fromEntries(setups),
    cost,
  }
}

/** The members of a plan that its machines change: the predicted cost, its actions and metadata. */
export const withLifecycle = <P extends { cost: number; failure?: string | undefined }>(
  prediction: P,
  lifecycle: Lifecycle,
  metadata: Record<string, unknown> | undefined,
) => ({
  predicted:
    prediction.failure === undefined ? { ...prediction, cost: prediction.cost + lifecycle.cost } : prediction,
  ...lifecycleMembers(lifecycle, metadata),
})

/**
 * The actions of a plan, and its metadata with `cloudCost`, `taskOverheadSeconds` and
 * `machineSetupSeconds` by resource. The last two are never an author's: simulations of the plan
 * read them.
 */
export const lifecycleMembers = (
  lifecycle: (Pick<Lifecycle, 'actions' | 'cloudCost'> & Partial<Lifecycle>) | undefined,
  metadata: Record<string, unknown> | undefined,
): { lifecycleActions: LifecycleAction[] | undefined; metadata: Record<string, unknown> | undefined } => {
  const { actions = [], cloudCost = {}, overheads = {}, setups = {} } = lifecycle ?? {}
  const { taskOverheadSeconds: _, machineSetupSeconds: __, ...others } = metadata ?? {}
  return {
    lifecycleActions: actions.length === 0 ? undefined : actions,
    metadata:
      Object.keys(cloudCost).length === 0
        ? metadata && others
        : {
            ...others,
            cloudCost,
            ...(Object.keys(overheads).length === 0 ? {} : { taskOverheadSeconds: overheads }),
            ...(Object.keys(setups).length === 0 ? {} : { machineSetupSeconds: setups }),
          },
  }
}
