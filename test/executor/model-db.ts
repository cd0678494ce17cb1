import type {
  CommitResult,
  ForeignEnd,
  JournalEntry,
  LoadedRun,
  LoadedTask,
  TaskEnd,
  TaskIntent,
} from '../../src/executor/journal.ts'

/**
 * The tables of one run as `commit_site` changes them, in memory: what the model check commits to,
 * and what successors are made from. `model-db.test.ts` holds it against the real function.
 */

export interface ModelTask extends LoadedTask {
  latest: boolean
  handle: string | null
  handleStartedAt: number | null
  hostId: string | null
  queueReason: string | null
  exitCode: number | null
  failureReason: string | null
  externalIdAtSite: string | null
}

export interface ModelEvent {
  sequence: number
  type: string
  id: string
}

export interface ModelDb {
  run: {
    status: string
    cancelled: boolean
    paused: boolean
    completed: number
    failed: number
    sequence: number
  }
  /** Every attempt by id. */
  tasks: Map<string, ModelTask>
  /** By position, the latest attempts. */
  latest: ModelTask[]
  /** Holder by lane. */
  leases: Map<string, string>
  epochs: Map<string, number>
  events: ModelEvent[]
  leftovers: Set<string>
  from: Int32Array
  to: Int32Array
}

export class Replaced extends Error {}

const byName = (a: readonly string[], b: readonly string[]): number => {
  for (const [k, one] of a.entries()) if (one !== b[k]) return one < (b[k] as string) ? -1 : 1
  return 0
}

export const laneOf = (lane: readonly string[]): string => JSON.stringify(lane)
const isOver = (status: string): boolean =>
  status === 'completed' || status === 'failed' || status === 'cancelled'

export const makeDb = (
  tasks: readonly ModelTask[],
  edges: readonly (readonly [number, number])[],
): ModelDb => ({
  run: { status: 'running', cancelled: false, paused: false, completed: 0, failed: 0, sequence: 1 },
  tasks: new Map(tasks.map((task) => [task.id, task])),
  latest: [...tasks],
  leases: new Map(),
  epochs: new Map(),
  events: [],
  leftovers: new Set(),
  from: Int32Array.from(edges, ([from]) => from),
  to: Int32Array.from(edges, ([, to]) => to),
})

/** The next holder of a site; the steps of all before it are refused. */
export const claim = (db: ModelDb, site: string): number => {
  const epoch = (db.epochs.get(site) ?? 0) + 1
  db.epochs.set(site, epoch)
  return epoch
}

/** What a holder loads: rows of its own, as `loadRun` reads them. */
export const load = (db: ModelDb): LoadedRun => ({
  tasks: db.latest.map(
    ({ latest: _latest, handle, handleStartedAt: _at, hostId: _host, queueReason: _reason, ...task }) => ({
      ...task,
      intended: handle !== null,
    }),
  ),
  from: db.from,
  to: db.to,
})

/** As `loadEnds` reads them. */
export const endsAfter = (db: ModelDb, after: number): ForeignEnd[] =>
  db.events.flatMap(({ sequence, type, id }) => {
    const task = db.tasks.get(id)
    const isEnd = sequence > after && isOver(type.replace('activity.', ''))
    if (!isEnd || task?.latest !== true || !isOver(task.status)) return []
    const { position, attempt, status, finished_at } = task
    return [{ sequence, position, id, attempt, status, finished_at }]
  })

/** `commit_site`. @throws Replaced for an epoch that is not the site's */
export const commit = (db: ModelDb, site: string, epoch: number, entry: JournalEntry): CommitResult => {
  if (db.epochs.get(site) !== epoch) throw new Replaced()
  takeBack(db, entry)
  startAndEnd(db, entry)
  for (const { name } of entry.leftovers) db.leftovers.add(name)
  retry(db, entry)
  show(db, entry)
  const { cancelled, paused, failed, status } = db.run
  const result: CommitResult = { acquired: [], holders: null, cancelled, paused, failed, run_status: status }
  if (cancelled || status !== 'running') return result
  if (paused) result.acquired = recordedBefore(db, entry.intents)
  else if (entry.intents.length > 0) intend(db, entry.intents, result)
  return result
}

/** Intents that an earlier call of the same step has recorded. */
const recordedBefore = (db: ModelDb, intents: readonly TaskIntent[]): string[] =>
  intents
    .filter(({ id, name }) => {
      const task = db.tasks.get(id)
      return task !== undefined && task.handle === name && !isOver(task.status)
    })
    .map(({ id }) => id)

const deleteLeases = (db: ModelDb, ids: ReadonlySet<string>): void => {
  for (const [lane, holder] of db.leases) if (ids.has(holder)) db.leases.delete(lane)
}

const takeBack = (db: ModelDb, { takenBack }: JournalEntry): void => {
  const gone = new Set<string>()
  for (const id of takenBack) {
    const task = db.tasks.get(id)
    if (task?.ahead !== true) continue
    task.ahead = false
    task.hostId = null
    gone.add(id)
  }
  deleteLeases(db, gone)
}

const tell = (db: ModelDb, type: string, id: string): void => {
  db.run.sequence += 1
  db.events.push({ sequence: db.run.sequence, type, id })
}

const startAndEnd = (db: ModelDb, { starts, ends }: JournalEntry): void => {
  const happened: { type: string; id: string; order: number }[] = []
  for (const start of starts) {
    const task = db.tasks.get(start.id)
    if (task?.ahead !== true) continue
    task.status = 'preparing'
    task.ready_at = start.readyAt
    task.queued_at ??= start.startedAt
    task.started_at = start.startedAt
    task.handle = start.name
    task.handleStartedAt = start.startedAt
    task.ahead = false
    task.queueReason = null
    task.silent_since = null
    happened.push({ type: 'activity.started', id: task.id, order: start.order })
  }
  // Leases go as they stood before the step.
  const before = new Map(db.leases)
  for (const end of ends) {
    const task = db.tasks.get(end.id)
    if (task === undefined || isOver(task.status)) continue
    endTask(db, task, end)
    for (const [lane, holder] of before) {
      if (holder !== end.id) continue
      if (end.heir === null) db.leases.delete(lane)
      else db.leases.set(lane, end.heir)
    }
    if (end.startOrder !== undefined)
      happened.push({ type: 'activity.started', id: task.id, order: end.startOrder })
    happened.push({ type: `activity.${end.status}`, id: task.id, order: end.order })
  }
  for (const { type, id } of happened.sort((a, b) => a.order - b.order)) tell(db, type, id)
}

const endTask = (db: ModelDb, task: ModelTask, end: TaskEnd): void => {
  task.status = end.status
  task.ready_at = end.readyAt
  task.started_at = end.startedAt ?? task.started_at
  task.queued_at ??= end.startedAt
  task.handle ??= end.name ?? null
  task.handleStartedAt ??= end.startedAt
  task.ahead = false
  task.finished_at = end.finishedAt
  task.exitCode = end.exitCode
  task.failureReason = end.failureReason
  task.externalIdAtSite = end.externalId ?? task.externalIdAtSite
  task.queueReason = null
  task.silent_since = null
  if (end.status === 'completed') db.run.completed += 1
  if (end.status === 'failed' && end.final) db.run.failed += 1
}

const retry = (db: ModelDb, { retries }: JournalEntry): void => {
  for (const next of retries) {
    const before = db.tasks.get(next.after)
    if (before === undefined) continue
    before.latest = false
    if (db.tasks.has(next.id)) continue
    const task: ModelTask = {
      ...before,
      id: next.id,
      attempt: next.attempt,
      user_attempts: next.userAttempts,
      walltime_extensions: next.walltimeExtensions,
      status: 'ready',
      ready_at: next.readyAt,
      not_before: next.notBefore,
      queued_at: null,
      started_at: null,
      finished_at: null,
      silent_since: null,
      ahead: false,
      latest: true,
      handle: null,
      handleStartedAt: null,
      hostId: null,
      queueReason: null,
      exitCode: null,
      failureReason: null,
      externalIdAtSite: null,
    }
    db.tasks.set(task.id, task)
    db.latest[task.position] = task
  }
}

const show = (db: ModelDb, { states }: JournalEntry): void => {
  for (const state of states) {
    const task = db.tasks.get(state.id)
    if (task === undefined || isOver(task.status) || state.atSite !== (task.handle !== null)) continue
    task.status = state.status ?? task.status
    task.ready_at = state.readyAt ?? task.ready_at
    task.queued_at = state.queuedAt ?? task.queued_at
    task.externalIdAtSite = state.externalId ?? task.externalIdAtSite
    if (state.freesCores === true)
      for (const [lane, holder] of db.leases)
        if (holder === state.id && (JSON.parse(lane) as string[])[0]?.startsWith('@host/') === true)
          db.leases.delete(lane)
    if (state.reason === undefined) continue
    task.queueReason = state.reason === '' ? null : state.reason
    task.silent_since = state.reason === '' ? null : (state.silentSince ?? null)
  }
}

const intend = (db: ModelDb, intents: readonly TaskIntent[], result: CommitResult): void => {
  const wanted = intents
    .flatMap(({ id, lanes }) => lanes.map((lane) => ({ id, lane: laneOf(lane), sorted: lane })))
    .sort((a, b) => (a.lane < b.lane ? -1 : a.lane > b.lane ? 1 : 0))
  for (const { id, lane } of wanted) if (!db.leases.has(lane)) db.leases.set(lane, id)
  const holds = ({ id, lanes }: TaskIntent): boolean =>
    lanes.every((lane) => db.leases.get(laneOf(lane)) === id)
  result.acquired = intents.filter(holds).map(({ id }) => id)
  const acquired = new Set(result.acquired)
  const refused = intents.filter(({ id }) => !acquired.has(id))
  for (const { id, lanes } of refused) {
    const cores = lanes.filter(([resource]) => resource.startsWith('@host/'))
    for (const lane of [...cores, ...lanes.filter((one) => !cores.includes(one)).toSorted(byName)]) {
      const holder = db.leases.get(laneOf(lane))
      if (holder !== undefined && holder !== id)
        (result.holders ??= {})[id] = cores.includes(lane) ? '' : holder
    }
  }
  deleteLeases(db, new Set(refused.map(({ id }) => id)))
  const begun: TaskIntent[] = []
  for (const intent of intents) {
    const task = db.tasks.get(intent.id)
    if (task === undefined || !acquired.has(intent.id) || task.handle !== null || task.ahead) continue
    if (!['blocked', 'ready', 'queued'].includes(task.status)) continue
    task.hostId = intent.host
    if (intent.ahead) {
      task.ahead = true
      continue
    }
    task.handle = intent.name
    task.handleStartedAt = intent.startedAt
    task.status = 'preparing'
    task.ready_at = intent.readyAt
    task.queued_at ??= intent.startedAt
    task.started_at = intent.startedAt
    task.queueReason = null
    task.silent_since = null
    begun.push(intent)
  }
  begun.sort((a, b) => a.startedAt - b.startedAt || (a.id < b.id ? -1 : 1))
  for (const { id } of begun) tell(db, 'activity.started', id)
}
