import { z } from 'zod'
import { columnsOf } from '../../db/projection.ts'
import { readPage } from '../../db/rows.ts'
import { orderOf } from '../../db/orders.ts'
import { sql, where, type Db, type Sql } from '../../db/sql.ts'
import type { NetworkModel } from '../../simulator/channel.ts'
import type { Page } from '../../http/paging.ts'
import type { Problem } from '../../refusal.ts'
import { AlgorithmRun, candidateMembers, Session, sessionStates } from './schemas.ts'
import { sessionWarnings } from './warnings.ts'
import type { Lifecycle } from '../schedule-plans/lifecycle.ts'
import { planConditions, type PlanFilter } from '../schedule-plans/store.ts'
import { ScheduleColumns } from './candidate-plan.ts'
import type { Ranked } from './ranking.ts'
import type { RecordRef } from '../../operations/kind.ts'
import { beginOperation, endOperation, idOfRecord } from '../../operations/records.ts'
import { sessionKind } from './operation.ts'

const FreeObject = z.record(z.string(), z.unknown())

/** A deadline or budget of 0 means none. */
const SessionRow = z.object({
  ...Session.shape,
  algorithms: z.array(z.object({ id: z.string(), configuration: FreeObject.optional() })),
  deadlineSeconds: z.number(),
  budget: z.number(),
  warnings: Session.shape.warnings.optional(),
})
export type SessionRow = z.output<typeof SessionRow>

const sessionColumns = columnsOf(SessionRow, 's')
const idOf = (of: RecordRef): Sql => idOfRecord(sessionKind, of)

/** A session in the form of the API. */
export const sessionDocument = ({ deadlineSeconds, budget, ...row }: SessionRow): Session => ({
  ...row,
  ...(deadlineSeconds === 0 ? {} : { deadlineSeconds }),
  ...(budget === 0 ? {} : { budget }),
  warnings: [...(row.warnings ?? []), ...sessionWarnings(row)],
})

export interface NewSession {
  id: string
  workflowVersionId: string
  executionScopeId: string
  networkTopologyId: string
  deadlineSeconds: number
  budget: number
  networkModel: NetworkModel
  warnings: readonly Problem[]
  configuration?: Record<string, unknown> | undefined
  algorithms: readonly {
    id: string
    objective: string
    configuration?: Record<string, unknown> | undefined
    estimate: AlgorithmRun['estimate']
  }[]
}

const json = (value: unknown): string | null => (value === undefined ? null : JSON.stringify(value))

/**
 * Stores a queued session with its algorithms' runs. A taken id is a violation of
 * `planning_sessions_pkey` (422).
 */
export const insertSession = (db: Db, session: NewSession): Promise<void> =>
  db.transaction(async (tx) => {
    const algorithms = session.algorithms.map(({ id, configuration }) => ({
      id,
      ...(configuration === undefined ? {} : { configuration }),
    }))
    await tx.run(sql`insert into planning_sessions (id, workflow_version_id, execution_scope_id,
      network_topology_id, algorithms, deadline_seconds, budget, network_model, warnings, configuration)
      values (${session.id}, ${session.workflowVersionId}, ${session.executionScopeId},
        ${session.networkTopologyId}, ${JSON.stringify(algorithms)}, ${session.deadlineSeconds},
        ${session.budget}, ${session.networkModel},
          ${json(session.warnings.length === 0 ? undefined : session.warnings)}, ${json(session.configuration)})`)
    await tx.run(sql`insert into planning_algorithm_runs (id, planning_session_id, position, algorithm,
      objective, configuration, estimate)
      select ${session.id} || '-' || given.algorithm, ${session.id}, given.number - 1, given.algorithm,
        given.objective, given.configuration, given.estimate
      from unnest(${session.algorithms.map(({ id }) => id)}::text[],
        ${session.algorithms.map(({ objective }) => objective)}::text[],
        ${session.algorithms.map(({ configuration }) => json(configuration))}::jsonb[],
          ${session.algorithms.map(({ estimate }) => json(estimate))}::jsonb[])
        with ordinality as given (algorithm, objective, configuration, estimate, number)`)
  })

export const readSession = (db: Db, id: string): Promise<SessionRow | undefined> =>
  db.maybe(SessionRow, sql`select ${sessionColumns} from planning_sessions s where s.id = ${id}`)

/**
 * The row, locked until the transaction ends. Every change of a session's state holds this lock.
 */
export const lockSession = (tx: Db, of: RecordRef): Promise<SessionRow | undefined> =>
  tx.maybe(
    SessionRow,
    sql`select ${sessionColumns} from planning_sessions s where s.id = ${idOf(of)} for update`,
  )

/** `completedAt` of an open session is the end of all times. */
export const sessionOrders = {
  createdAt: 's.created_at',
  completedAt: "coalesce(s.completed_at, 'infinity')",
}
export const usualSessionOrder = '-createdAt'

/** As for plans; `sort`: a name of `sessionOrders`, or `-` and a name. */
export interface SessionFilter extends PlanFilter {
  status?: string | undefined
}

/** The limit of bytes of a configuration that an item of the list carries. */
const itemConfigurationBytes = 65_536

const ItemRow = SessionRow.extend({ configurationBytes: z.number() })
const itemColumns = columnsOf(ItemRow, 's', {
  configuration: `case when octet_length(s.configuration::text) <= ${itemConfigurationBytes} then s.configuration end`,
  configurationBytes: 'coalesce(octet_length(s.configuration::text), 0)',
})

/**
 * Sessions in the order asked for, one more than the page, and the number of all, counted to one
 * above the bound. A session has no configuration here where it is large: a warning says so.
 */
export const listSessions = async (
  db: Db,
  filter: SessionFilter,
  page: Page,
): Promise<{ rows: SessionRow[]; total: number }> => {
  const { status, sort = usualSessionOrder } = filter
  const condition = where(status !== undefined && sql`s.status = ${status}`, ...planConditions('s', filter))
  const { rows, total } = await readPage(db, ItemRow, {
    select: itemColumns,
    from: sql`planning_sessions s ${condition}`,
    order: orderOf(sessionOrders, sort, 's'),
    page,
  })
  return { rows: rows.map(withoutLarge), total }
}

const withoutLarge = ({ configurationBytes, ...row }: z.output<typeof ItemRow>): SessionRow => {
  if (configurationBytes <= itemConfigurationBytes) return row
  const message =
    `has more than ${itemConfigurationBytes} bytes and is left out of lists; ` +
    'GET /planning-sessions/{sessionId}/ has it'
  return { ...row, warnings: [...(row.warnings ?? []), { path: 'configuration', message }] }
}

const runColumns = columnsOf(AlgorithmRun, 'r')

/** In the order of their execution. */
export const readAlgorithmRuns = (db: Db, sessionId: string): Promise<AlgorithmRun[]> =>
  db.many(
    AlgorithmRun,
    sql`select ${runColumns} from planning_algorithm_runs r where r.planning_session_id = ${sessionId}
      order by r.position`,
  )

const SessionEnd = z.object({ status: z.enum(sessionStates).optional(), reason: z.string().optional() })
/** State of a session, and why it failed; no state where there is none. */
export type SessionEnd = z.output<typeof SessionEnd>

export const readSessionEnd = async (db: Db, of: RecordRef): Promise<SessionEnd> =>
  (await db.maybe(
    SessionEnd,
    sql`select status, failure_reason as reason from planning_sessions where id = ${idOf(of)}`,
  )) ?? {}

/**
 * Moves a session from queued to running, once.
 * @returns the algorithms in order while the session is open, else none
 */
export const openSession = (db: Db, of: RecordRef): Promise<{ algorithm: string }[]> =>
  db.transaction(async (tx) => {
    const begun = await beginOperation(tx, sessionKind, { ...of, generation: 1 })
    const session = begun?.status === 'running' ? await readSession(tx, of.id) : undefined
    return session?.algorithms.map(({ id: algorithm }) => ({ algorithm })) ?? []
  })

const Attempted = z.object({
  status: z.enum(sessionStates),
  attempts: z.number(),
  configuration: FreeObject.optional(),
})

/**
 * Begins one more attempt at an algorithm of an open session.
 * @returns undefined where no work is left: the session is over, or the algorithm has ended in an
 *   earlier attempt whose answer was lost
 */
export const beginAlgorithm = (
  db: Db,
  of: RecordRef,
  algorithm: string,
): Promise<{ session: SessionRow; attempts: number; configuration: Record<string, unknown> } | undefined> =>
  db.transaction(async (tx) => {
    const session = await lockSession(tx, of)
    if (session?.status !== 'running') return undefined
    const run = await tx.maybe(
      Attempted,
      sql`update planning_algorithm_runs set status = 'running', attempts = attempts + 1, started_at =
        coalesce(started_at, clock_timestamp())
        where planning_session_id = ${of.id} and algorithm = ${algorithm}
          and status in ('queued', 'running') returning status, attempts, configuration`,
    )
    return run === undefined
      ? undefined
      : { session, attempts: run.attempts, configuration: run.configuration ?? {} }
  })

/** Takes back the newest attempt at an algorithm, the `attempts`th, where it is the newest still. */
export const giveBackAttempt = (
  db: Db,
  of: RecordRef,
  algorithm: string,
  attempts: number,
): Promise<number> =>
  db.run(sql`update planning_algorithm_runs set attempts = ${attempts - 1} where status = 'running'
    and planning_session_id = ${idOf(of)} and algorithm = ${algorithm} and attempts = ${attempts}`)

/** Records the facts of the problem after it was read. */
export const recordProblem = (
  db: Db,
  of: RecordRef,
  algorithm: string,
  facts: { defaultedDurations: number; networkModel: NetworkModel; estimate: AlgorithmRun['estimate'] },
): Promise<number> =>
  db.run(sql`with counted as (update planning_sessions set defaulted_durations = ${facts.defaultedDurations},
    network_model = ${facts.networkModel} where id = ${idOf(of)} and status = 'running')
    update planning_algorithm_runs set estimate = ${json(facts.estimate)}
      where planning_session_id = ${idOf(of)} and algorithm = ${algorithm} and status = 'running'`)

/**
 * Records the progress of an algorithm, 0…1. The session's progress is the mean over its
 * algorithms.
 * @returns false where the session is no longer open
 */
export const recordProgress = async (
  db: Db,
  of: RecordRef,
  algorithm: string,
  progress: number,
): Promise<boolean> =>
  (await db.run(sql`with recorded as (
      update planning_algorithm_runs set progress = greatest(progress, ${progress})
        where planning_session_id = ${idOf(of)} and algorithm = ${algorithm} and status = 'running' returning progress
    ) update planning_sessions s set progress = greatest(s.progress, m.mean)
      from (select avg(case when r.algorithm = ${algorithm} then greatest(r.progress, ${progress})
        else r.progress end) as mean from planning_algorithm_runs r where r.planning_session_id = ${of.id}) m
      where s.id = ${idOf(of)} and s.status = 'running'`)) > 0

export interface NewCandidate {
  id: string
  fingerprint: string
  feasible: boolean
  makespanSeconds: number
  cost: number
  contentionFreeMakespanSeconds: number
  defaultedDurations: number
  /** Machines that are made for the plan; absent: it uses none. */
  lifecycle?: Lifecycle | undefined
  columns: ScheduleColumns
}

/**
 * Ends an algorithm's run, with its result or the reason why there is none. A schedule that an
 * earlier algorithm of the session found remains that one's. Once the algorithm's run or the session
 * is over, this writes no row.
 */
export const endAlgorithm = (
  db: Db,
  of: RecordRef,
  algorithm: string,
  outcome: { candidates: readonly NewCandidate[] } | { failure: string },
): Promise<void> =>
  db.transaction(async (tx) => {
    const session = await lockSession(tx, of)
    if (session?.status !== 'running') return
    const sessionId = of.id
    const candidates = 'candidates' in outcome ? outcome.candidates : []
    for (const candidate of candidates)
      await tx.run(sql`insert into planning_candidates (id, planning_session_id, algorithm_run_id, algorithm,
        objective, feasible, predicted_makespan_seconds, predicted_cost, contention_free_makespan_seconds,
          defaulted_durations, plan, lifecycle, fingerprint)
        select ${candidate.id}, r.planning_session_id, r.id, r.algorithm, r.objective, ${candidate.feasible},
          ${candidate.makespanSeconds}, ${candidate.cost}, ${candidate.contentionFreeMakespanSeconds},
            ${candidate.defaultedDurations}, ${JSON.stringify(candidate.columns)}::jsonb,
          ${candidate.lifecycle === undefined ? null : JSON.stringify(candidate.lifecycle)}::jsonb,
          ${candidate.fingerprint}
        from planning_algorithm_runs r where r.planning_session_id = ${sessionId} and r.algorithm = ${algorithm}
          and r.status in ('queued', 'running')
        on conflict do nothing`)
    await tx.run(sql`update planning_algorithm_runs r set status =
      ${'failure' in outcome ? 'failed' : 'completed'}, failure_reason =
        ${'failure' in outcome ? outcome.failure : null},
        progress = 1, completed_at = clock_timestamp(), candidate_count = (select count(*)
          from planning_candidates c where c.algorithm_run_id = r.id)
      where r.planning_session_id = ${sessionId} and r.algorithm = ${algorithm} and r.status in ('queued', 'running')`)
    await tx.run(sql`update planning_sessions s set candidate_count = (select count(*)
      from planning_candidates c where c.planning_session_id = s.id),
        progress = (select avg(r.progress) from planning_algorithm_runs r where r.planning_session_id = s.id)
      where s.id = ${sessionId}`)
  })

const RankableRow = z.object({
  id: z.string(),
  feasible: z.boolean(),
  makespanSeconds: z.number(),
  cost: z.number(),
})

/** Why a session has no candidate: the failures of its algorithms. */
const noCandidate = (tx: Db, id: string): Promise<string> =>
  tx.only(
    z.string(),
    sql`select 'no planning algorithm produced a valid candidate' || coalesce(': ' || string_agg(r.algorithm
      || ': ' || r.failure_reason, '; ' order by r.position), '') as reason
        from planning_algorithm_runs r where r.planning_session_id = ${id} and r.failure_reason is not null`,
  )

/**
 * Ends a session whose algorithms have ended: completed with its candidates ranked by `rank`,
 * failed when there is none. A session that is over does not change.
 * @returns whether this call ended it
 */
export const closeSession = (
  db: Db,
  of: RecordRef,
  rank: (candidates: readonly z.output<typeof RankableRow>[]) => Ranked[],
): Promise<boolean> =>
  db.transaction(async (tx) => {
    const session = await lockSession(tx, of)
    if (session?.status !== 'running') return false
    const { id } = of
    const candidates = await tx.many(
      RankableRow,
      sql`select id, feasible, predicted_makespan_seconds as makespan_seconds, predicted_cost as cost
        from planning_candidates where planning_session_id = ${id}`,
    )
    const ranked = rank(candidates)
    await tx.run(sql`update planning_candidates c set rank = given.rank, pareto_optimal =
      given.pareto_optimal, dominated = given.dominated
      from unnest(${ranked.map((r) => r.id)}::text[], ${ranked.map((r) => r.rank)}::bigint[],
        ${ranked.map((r) => r.paretoOptimal)}::boolean[], ${ranked.map((r) => r.dominated)}::boolean[])
        as given (id, rank, pareto_optimal, dominated)
      where c.id = given.id`)
    const status = candidates.length === 0 ? 'failed' : 'completed'
    await tx.run(
      sql`update planning_sessions set progress = 1, candidate_count = ${candidates.length} where id = ${id}`,
    )
    await endOperation(
      tx,
      sessionKind,
      { id, generation: 1 },
      { status, reason: status === 'failed' ? await noCandidate(tx, id) : undefined },
    )
    return true
  })

/**
 * Ends an open session as failed, with those of its algorithms that have not ended.
 * @returns whether this call ended it
 */
export const failSession = (db: Db, of: RecordRef, reason: string): Promise<boolean> =>
  db.transaction(async (tx) => {
    if (!(await endOperation(tx, sessionKind, { ...of, generation: 1 }, { status: 'failed', reason })))
      return false
    await tx.run(sql`update planning_algorithm_runs set status = 'failed', failure_reason = ${reason},
      completed_at = clock_timestamp() where planning_session_id = ${of.id} and status in ('queued', 'running')`)
    return true
  })

const candidateFields = {
  ...candidateMembers,
  predictedMakespanSeconds: z.number(),
  predictedCost: z.number(),
  defaultedDurations: z.number(),
  activityCount: z.number(),
}
const CandidateRow = z.object(candidateFields)
export type CandidateRow = z.output<typeof CandidateRow>
const CandidateWithColumns = z.object({
  ...candidateFields,
  columns: ScheduleColumns,
  lifecycle: z.custom<Lifecycle>().optional(),
})

const candidateColumns = columnsOf(CandidateRow, 'c', { activityCount: 'v.activity_count' })
const candidateSource = sql`planning_candidates c join planning_sessions s on s.id = c.planning_session_id
  join workflow_versions v on v.id = s.workflow_version_id`

/** Candidates by rank, unranked ones last, one more than the page. Their schedules are not read. */
export const listCandidates = (db: Db, sessionId: string, page: Page) =>
  readPage(db, CandidateRow, {
    select: candidateColumns,
    from: sql`${candidateSource} where c.planning_session_id = ${sessionId}`,
    counted: sql`planning_candidates where planning_session_id = ${sessionId}`,
    order: sql`c.rank nulls last, c.created_at, c.id`,
    page,
  })

export const readCandidate = (
  db: Db,
  sessionId: string,
  candidateId: string,
): Promise<z.output<typeof CandidateWithColumns> | undefined> =>
  db.maybe(
    CandidateWithColumns,
    sql`select ${candidateColumns}, c.plan as columns, c.lifecycle from ${candidateSource}
      where c.planning_session_id = ${sessionId} and c.id = ${candidateId}`,
  )

/** Records the session's choice, under its lock. */
export const recordSelection = (
  tx: Db,
  sessionId: string,
  candidateId: string,
  planId: string,
): Promise<number> =>
  tx.run(
    sql`update planning_sessions set selected_candidate_id = ${candidateId}, selected_plan_id = ${planId}
      where id = ${sessionId}`,
  )
