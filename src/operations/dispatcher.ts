import { z } from 'zod'
import { openTurns } from '../db/each-record.ts'
import { join, sql, type Db, type Sql } from '../db/sql.ts'
import type { Engine, WorkflowStanding } from '../engine.ts'
import type { Log } from '../observability/log.ts'
import type { Metrics } from '../observability/metrics.ts'
import { everyRound } from '../pacing/every-round.ts'
import { appendEvent } from './events.ts'
import type { OperationKind, OperationRef, PageSummary, WorkflowKind } from './kind.ts'
import {
  auditChange,
  dispatchedOperations,
  isOperationOpen,
  lockOperation,
  markDispatched,
  RefRow,
  temporalActor,
  undispatchedOperations,
} from './records.ts'

/**
 * Records whose workflows the dispatcher starts and checks: every kind of operation, and the
 * monitors of connections.
 */
export interface Dispatched<Type extends string = string> {
  kind: WorkflowKind<Type>
  /** Selects open records whose workflow was never started, as `OperationRef`, in order of acceptance. */
  undispatched: (limit: number) => Sql
  markDispatched: (db: Db, of: OperationRef) => Promise<unknown>
  /**
   * Open records whose workflow was started once. It may have been terminated, or lost with
   * Temporal's data. In order of their ids, from behind `after`.
   */
  open: (db: Db, after: string, limit: number) => Promise<OperationRef[]>
  isOpen: (db: Db, of: OperationRef) => Promise<boolean>
  pageSummary: (db: Db, id: string, generation: number) => Promise<PageSummary | undefined>
  /** The interval between checks of open records. */
  lookEverySeconds: number
  /** Records a restart of the workflow: its event and its audit record. */
  noteRestart: (tx: Db, of: OperationRef, note: { cause: string; summary: string }) => Promise<unknown>
}

/** For records that a request waits for. */
const lookEverySeconds = 30

/** The dispatcher's functions for operations of a kind. */
export const dispatchedOperation = <Type extends string>(kind: OperationKind<Type>): Dispatched<Type> => ({
  kind,
  undispatched: (limit) => undispatchedOperations(kind, limit),
  markDispatched: (db, of) => markDispatched(db, kind, of),
  open: (db, after, limit) => dispatchedOperations(db, kind, after, limit),
  isOpen: (db, of) => isOperationOpen(db, kind, of),
  pageSummary: kind.pageSummary,
  lookEverySeconds,
  noteRestart: async (tx, of, { cause, summary }) => {
    // The first event of an operation is its start, so a restart is recorded only after it.
    const found = await lockOperation(tx, kind, of)
    if (found?.status === kind.states.running)
      await appendEvent(tx, kind, of, `${kind.events}.workflow-restarted`, { workflow: cause })
    await auditChange(tx, kind, of.id, 'workflow-restarted', {
      actorId: temporalActor,
      summary,
      metadata: { kind: kind.name, generation: of.generation, cause },
    })
  },
})

export interface DispatcherParts {
  db: Db
  engine: Pick<Engine, 'start' | 'standing'>
  metrics: Pick<Metrics, 'workflowRestarted' | 'workflowsOf'>
}

/** The names of the kinds with records whose workflow was never started, in one statement. */
const kindsThatWait = (db: Db, kinds: readonly Dispatched[]): Promise<string[]> =>
  db.values(
    z.string(),
    join(
      kinds.map((of) => sql`select ${of.kind.name}::text as name where exists (${of.undispatched(1)})`),
      ' union all ',
    ),
  )

const everyMs = 1_000
const batch = 200
const lookBatch = 1_000
/**
 * The most executions by a reset that this process keeps. At this number it drops them, and then
 * notes an execution again.
 */
const mostRemembered = 10_000
/** Records of a kind whose start met an open workflow; more wait for the look at all. */
const mostMet = 100

/** The reason for a restart of a workflow, for the log and the audit. */
const causeOf = ({ state, end }: WorkflowStanding): string =>
  state === 'open'
    ? 'was reset'
    : state === 'missing'
      ? 'is unknown to Temporal'
      : `had ended there as ${(end ?? 'UNKNOWN').toLowerCase()}`

/**
 * Starts work that was accepted while Temporal was unavailable, in order of acceptance, and checks
 * now and then whether open records still have their workflow. The record overrules an end on
 * Temporal's page, and each such restart leaves an event, a warning and a count. The record is the
 * queue, so a crash between commit and start loses no work.
 */
export const openDispatcher = (
  { db, engine, metrics }: DispatcherParts,
  kinds: readonly Dispatched[],
  log: Log,
): { stop(): Promise<void> } => {
  /** Of each kind: the time of its next look, and the record behind which a look goes on. */
  const lookAt = new Map<string, number>()
  const lookedTo = new Map<string, string>()
  const resetsNoted = new Set<string>()
  /**
   * Records whose start met an open workflow. It may be that of a removed record of the same id,
   * which is about to end, so they are looked at in each round for as long as a look at all takes.
   */
  const met = new Map<Dispatched, { ref: OperationRef; until: number }[]>()

  const noteRestart = async (
    of: Dispatched,
    ref: OperationRef,
    standing: WorkflowStanding,
  ): Promise<void> => {
    const { id, generation } = ref
    const cause = causeOf(standing)
    const open = await db.transaction(async (tx) => {
      if (!(await of.isOpen(tx, ref))) return false
      const summary = `the workflow of ${id} ${cause}; the record is open, so it goes on in a new one`
      await of.noteRestart(tx, ref, { cause, summary })
      return true
    })
    if (!open) return
    metrics.workflowRestarted(of.kind.name)
    const named = of.kind.idInLog === undefined ? {} : { [of.kind.idInLog]: id }
    log.warn(
      { kind: of.kind.name, recordId: id, ...named, generation, cause },
      'the workflow of an open record was started again',
    )
  }

  /** @returns false where Temporal is unavailable */
  const look = async (of: Dispatched, ref: OperationRef): Promise<boolean> => {
    const { id, generation } = ref
    const standing = await engine.standing(of.kind, id, generation)
    if (standing === undefined) return false
    if (standing.state === 'open') {
      if (standing.reset !== true || standing.execution === undefined || resetsNoted.has(standing.execution))
        return true
      if (resetsNoted.size >= mostRemembered) resetsNoted.clear()
      resetsNoted.add(standing.execution)
      await noteRestart(of, ref, standing)
      return true
    }
    // The record and its workflow may have ended since the record was read.
    if (!(await of.isOpen(db, ref))) return true
    const started = await engine.start(of.kind, ref, await of.pageSummary(db, id, generation))
    if (started === 'started') await noteRestart(of, ref, standing)
    return started !== false
  }

  /** A record whose workflow could not be started or looked at waits for its next try. */
  const turns = openTurns<{ of: Dispatched; ref: OperationRef }>(
    ({ of, ref: { id, generation } }) => JSON.stringify([of.kind.name, id, generation]),
    (error, { of, ref: { id, generation } }) =>
      log.warn(
        { err: error, kind: of.kind.name, recordId: id, generation },
        'the workflow of an open record could not be started; it is tried again',
      ),
  )
  /** Does the work for the records whose turn it is. @returns false where the round is over */
  const inTurn = (
    of: Dispatched,
    refs: readonly OperationRef[],
    work: (of: Dispatched, ref: OperationRef) => Promise<boolean>,
    signal: AbortSignal,
  ): Promise<boolean> =>
    turns.each(
      refs.map((ref) => ({ of, ref })),
      ({ ref }) => work(of, ref),
      signal,
    )

  /** @returns false where Temporal is unavailable */
  const dispatch = async (of: Dispatched, ref: OperationRef): Promise<boolean> => {
    const { id, generation } = ref
    const started = await engine.start(of.kind, ref, await of.pageSummary(db, id, generation))
    if (started === false) return false
    const others = met.get(of) ?? []
    if (started === 'open' && others.length < mostMet)
      met.set(of, [...others, { ref, until: performance.now() + of.lookEverySeconds * 1_000 }])
    await of.markDispatched(db, ref)
    return true
  }

  const round = async (signal: AbortSignal): Promise<void> => {
    const waiting = await kindsThatWait(db, kinds)
    for (const of of kinds.filter(({ kind }) => waiting.includes(kind.name))) {
      // Records that wait for their next try leave a whole batch of others.
      const refs = await db.many(RefRow, of.undispatched(batch + turns.waiting))
      if (!(await inTurn(of, refs, dispatch, signal))) return
    }
    for (const of of kinds) {
      const { kind } = of
      const again = (met.get(of) ?? []).filter(({ until }) => until > performance.now())
      met.set(of, again)
      const refs = again.map(({ ref }) => ref)
      if (!(await inTurn(of, refs, look, signal))) return
      if (performance.now() < (lookAt.get(kind.name) ?? -Infinity)) continue
      // In pages, one a round: what was accepted meanwhile does not wait for a look at all.
      const open = await of.open(db, lookedTo.get(kind.name) ?? '', lookBatch)
      if (!(await inTurn(of, open, look, signal))) return
      const last = open.length < lookBatch ? undefined : open.at(-1)
      lookedTo.set(kind.name, last?.id ?? '')
      if (last === undefined) lookAt.set(kind.name, performance.now() + of.lookEverySeconds * 1_000)
    }
  }

  // A counter that begins at its first event shows no increase for that event.
  for (const { kind } of kinds) metrics.workflowsOf(kind.name)
  return everyRound(everyMs, round, (error) => {
    log.warn({ err: error }, 'accepted work could not be looked for; it is looked for again')
  })
}
