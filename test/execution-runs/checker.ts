/**
 * Checks what the API says of runs against the rules of execution. It reads the API's documents
 * only and shares no code with the service: precedence, lanes, planned resources, attempts, events,
 * sums.
 */

export interface CheckedRecord {
  run: any
  plan: any
  activities: any[]
  handles: any[]
  events: any[]
  workflow?: any
}

export interface CheckerOptions {
  /** How many attempts of an activity may fail because of the activity itself. */
  maxAttempts?: (activityId: string) => number
  /** Needed, needing: pairs of activity ids. */
  dependencies: readonly (readonly [string, string])[]
}

const terminal = new Set(['completed', 'failed', 'cancelled'])
/** Times are whole microseconds, as doubles. */
const clockSlack = 1e-6

const lanesOf = (task: any): string[] =>
  (task.coreIds.length === 0 ? [''] : task.coreIds).map((core: string) =>
    JSON.stringify([task.plannedResourceId, core, task.slotId]),
  )

const attemptsByActivity = (activities: readonly any[]): Map<string, any[]> => {
  const groups = new Map<string, any[]>()
  for (const task of activities) groups.set(task.activityId, [...(groups.get(task.activityId) ?? []), task])
  for (const group of groups.values()) group.sort((a, b) => a.attempt - b.attempt)
  return groups
}

/** Violations of one run, in words; an empty list is a run without violations. */
export const violationsOf = (record: CheckedRecord, options: CheckerOptions): string[] => {
  const { run, plan, activities, handles, events } = record
  const wrong: string[] = []
  const say = (text: string): void => void wrong.push(`run ${String(run.id)}: ${text}`)
  const groups = attemptsByActivity(activities)
  const over = terminal.has(run.status)
  const simulated = run.mode === 'simulation'
  const planned = new Map<string, any>(
    plan.assignments.map((assignment: any) => [assignment.activityId, assignment]),
  )

  if (groups.size !== run.activityCount)
    say(`has ${String(groups.size)} activities, activityCount is ${String(run.activityCount)}`)
  if (planned.size !== groups.size)
    say(`plans ${String(planned.size)} activities and has ${String(groups.size)}`)

  const done = new Map<string, any>()
  for (const [activityId, attempts] of groups) {
    const assignment = planned.get(activityId)
    if (assignment === undefined) say(`${activityId} is not in the plan`)
    for (const [k, task] of attempts.entries()) {
      const which = `${activityId} attempt ${String(task.attempt)}`
      if (task.attempt !== k + 1)
        say(
          `attempts of ${activityId} are not numbered from 1 without gaps: ` +
            String(attempts.map((each) => each.attempt)),
        )
      if (
        task.id !==
        (task.attempt === 1
          ? `${String(run.id)}:${activityId}`
          : `${String(run.id)}:${activityId}:${String(task.attempt)}`)
      )
        say(`${which} has id ${String(task.id)}`)
      if (task.plannedResourceId !== assignment?.resourceId)
        say(
          `${which} is planned on ${String(task.plannedResourceId)}, the plan says ${String(assignment?.resourceId)}`,
        )
      if (task.allocatedResourceId !== undefined && task.allocatedResourceId !== task.plannedResourceId)
        say(
          `${which} ran on ${String(task.allocatedResourceId)} instead of ${String(task.plannedResourceId)}`,
        )
      if (task.orderOnResource !== assignment?.orderOnResource)
        say(`${which} has another order than the plan`)
      if (over && !terminal.has(task.status))
        say(`${which} is ${String(task.status)} after the end of the run`)
      if (task.status === 'completed') {
        if (k !== attempts.length - 1) say(`${which} completed and was tried again`)
        if (task.startedAt === undefined || task.finishedAt === undefined)
          say(`${which} completed without times`)
        done.set(activityId, task)
      }
      if (
        task.startedAt !== undefined &&
        task.finishedAt !== undefined &&
        task.finishedAt < task.startedAt - 1e-9
      )
        say(`${which} ends before it starts`)
      const [before] = attempts.slice(k - 1, k)
      if (k > 0 && task.startedAt !== undefined && task.startedAt < before.finishedAt - clockSlack)
        say(
          `${which} starts at ${String(task.startedAt)} while its predecessor is alive until ` +
            String(before.finishedAt),
        )
    }
    const most = options.maxAttempts?.(activityId) ?? 1
    const own = attempts.filter((task) => task.failureClass === 'user').length
    if (own > most) say(`${activityId} failed ${String(own)} times by itself, ${String(most)} are allowed`)
  }

  for (const [needed, needing] of options.dependencies) {
    const producer = done.get(needed)
    for (const consumer of groups.get(needing) ?? []) {
      if (consumer.startedAt === undefined) continue
      if (producer === undefined) say(`${needing} started although ${needed} has not completed`)
      else if (consumer.startedAt < producer.finishedAt - (simulated ? 1e-9 : clockSlack))
        say(
          `${needing} starts at ${String(consumer.startedAt)}, before ${needed} ends at ${String(producer.finishedAt)}`,
        )
    }
  }

  // In a lane tasks come in the plan's order.
  const lanes = new Map<string, any[]>()
  for (const task of activities)
    if (task.startedAt !== undefined)
      for (const lane of lanesOf(task)) lanes.set(lane, [...(lanes.get(lane) ?? []), task])
  for (const [lane, tasks] of lanes) {
    tasks.sort((a, b) => a.startedAt - b.startedAt || a.orderOnResource - b.orderOnResource)
    for (let k = 1; k < tasks.length; k++) {
      if (tasks[k].orderOnResource < tasks[k - 1].orderOnResource)
        say(
          `in lane ${lane} ${String(tasks[k].id)} starts after ${String(tasks[k - 1].id)}, which ` +
            'the plan has behind it',
        )
    }
  }
  wrong.push(...overlapsOf([record]))

  // Events: numbered without gaps, the run's own first and last, each attempt started once and
  // ended once.
  for (const [k, event] of events.entries())
    if (event.sequence !== k + 1) say(`event ${String(k + 1)} has sequence ${String(event.sequence)}`)
  if (run.startedAt !== undefined && events[0]?.eventType !== 'execution.run.started')
    say(`the first event is ${String(events[0]?.eventType)}`)
  if (over && events.at(-1)?.eventType !== `execution.run.${String(run.status)}`)
    say(`the last event is ${String(events.at(-1)?.eventType)}, the run is ${String(run.status)}`)
  const seen = new Map<string, string[]>()
  const completedSoFar = new Set<string>()
  const needs = new Map<string, string[]>()
  for (const [needed, needing] of options.dependencies)
    needs.set(needing, [...(needs.get(needing) ?? []), needed])
  for (const event of events) {
    if (event.aggregateType !== 'activity_execution') continue
    const kind = event.eventType.replace('activity.', '')
    seen.set(event.aggregateId, [...(seen.get(event.aggregateId) ?? []), kind])
    const { activityId } = event.payload
    if (kind === 'completed') completedSoFar.add(activityId)
    if (kind === 'started')
      for (const needed of needs.get(activityId) ?? [])
        if (!completedSoFar.has(needed))
          say(`event ${String(event.sequence)}: ${String(activityId)} starts before ${needed} has completed`)
  }
  for (const task of activities) {
    const kinds = seen.get(task.id) ?? []
    const expected =
      task.startedAt === undefined
        ? []
        : ['started', ...(terminal.has(task.status) && task.finishedAt !== undefined ? [task.status] : [])]
    if (kinds.join() !== expected.join())
      say(
        `${String(task.id)} is ${String(task.status)} and has the events ` +
          `${kinds.join(', ') || 'none'} instead of ${expected.join(', ') || 'none'}`,
      )
  }

  // One handle per started attempt of a real run, under one name.
  if (!simulated) {
    const started = activities.filter((task) => task.startedAt !== undefined).map((task) => task.id)
    const held = handles.map((handle) => handle.id)
    if ([...started].sort().join() !== [...held].sort().join())
      say(`started attempts ${started.join()} and handles ${held.join()} differ`)
    if (new Set(handles.map((handle) => handle.name)).size !== handles.length)
      say('two handles have one name')
    if (over)
      for (const handle of handles)
        if (handle.status === 'starting' || handle.status === 'running')
          say(`handle ${String(handle.id)} is ${String(handle.status)} after the end of the run`)
  }

  if (run.completedActivityCount !== done.size)
    say(
      `completedActivityCount is ${String(run.completedActivityCount)}, ${String(done.size)} activities are completed`,
    )
  const failed = [...groups.values()].filter((attempts) => attempts.at(-1)?.status === 'failed').length
  if (over && run.status !== 'cancelled' && run.failedActivityCount !== failed)
    say(`failedActivityCount is ${String(run.failedActivityCount)}, ${String(failed)} activities are failed`)
  if (run.status === 'completed' && done.size !== groups.size)
    say('is completed and not all its activities are')
  if (run.status === 'completed' && groups.size > 0) {
    const starts = activities.flatMap((task) => (task.startedAt === undefined ? [] : [task.startedAt]))
    const ends = activities.flatMap((task) => (task.finishedAt === undefined ? [] : [task.finishedAt]))
    const makespan = Math.max(...ends) - Math.min(...starts)
    if (Math.abs(run.makespanSeconds - makespan) > 1e-6 * Math.max(1, makespan))
      say(`makespanSeconds is ${String(run.makespanSeconds)}, first start to last end is ${String(makespan)}`)
  }
  return wrong
}

/** Tasks that share a lane at the same time, within and across runs. */
export const overlapsOf = (records: readonly CheckedRecord[]): string[] => {
  const wrong: string[] = []
  const lanes = new Map<string, any[]>()
  for (const { activities } of records) {
    for (const task of activities) {
      if (task.startedAt === undefined || task.finishedAt === undefined) continue
      for (const lane of lanesOf(task)) lanes.set(lane, [...(lanes.get(lane) ?? []), task])
    }
  }
  for (const [lane, tasks] of lanes) {
    tasks.sort((a, b) => a.startedAt - b.startedAt || a.finishedAt - b.finishedAt)
    for (let k = 1; k < tasks.length; k++) {
      const [a, b] = [tasks[k - 1], tasks[k]]
      if (b.startedAt < a.finishedAt - clockSlack)
        wrong.push(
          `lane ${lane}: ${String(b.id)} starts at ${String(b.startedAt)}, ${String(a.id)} ends at ` +
            String(a.finishedAt),
        )
    }
  }
  return wrong
}

/** The most tasks alive at one moment, over all the records. */
export const mostAtOnce = (records: readonly CheckedRecord[]): number => {
  const changes = records.flatMap(({ activities }) =>
    activities.flatMap((task) =>
      task.startedAt === undefined || task.finishedAt === undefined
        ? []
        : [[task.startedAt, 1] as const, [task.finishedAt - clockSlack, -1] as const],
    ),
  )
  changes.sort((a, b) => a[0] - b[0] || a[1] - b[1])
  let now = 0
  let most = 0
  for (const [, change] of changes) most = Math.max(most, (now += change))
  return most
}
