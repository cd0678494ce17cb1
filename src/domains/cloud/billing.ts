import { raw, sql, type Db, type Sql } from '../../db/sql.ts'

/**
 * Bills of instances, by the clock of PostgreSQL. That clock may be set back, by a person or a time
 * server; no span of time is negative then.
 */

/** Seconds from one time to another, as SQL; 0 where the clock was set back between them. */
export const spanSeconds = (from: string, to: string): string =>
  `greatest(0, extract(epoch from (${to}) - (${from})))::double precision`

/** Seconds for which the machine of `cloud_instances`, under this alias, has run so far, as SQL. */
export const computeSecondsOf = (alias: string): string =>
  `(${alias}.accumulated_compute_seconds + case when ${alias}.compute_started_at is null then 0
    else ${spanSeconds(`${alias}.compute_started_at`, 'now()')} end)`

/** The time from a moment to another one, as SQL; none where it is null or the clock was set back. */
const spanSince = (start: string, end = 'now()'): string =>
  `(case when ${start} < ${end} then tstzmultirange(tstzrange(${start}, ${end})) else '{}' end)`

/** Times as SQL: JSON of spans `{from, to}` in seconds since the epoch. */
const spansJson = (times: string): string =>
  `(select coalesce(json_agg(json_build_object('from', extract(epoch from lower(s)),
      'to', extract(epoch from upper(s))) order by s), '[]') from unnest(${times}) s)`

/**
 * When the machine of `cloud_instances`, under this alias, has run, as SQL: JSON of spans. Earlier versions
 * recorded none: the spans may be shorter than `computeSecondsOf`.
 */
export const computeSpansOf = (alias: string): string =>
  spansJson(`(${alias}.compute_spans + ${spanSince(`${alias}.compute_started_at`)})`)

/** When an instance had no machine between its first and its last one, as SQL: JSON of spans. */
export const billingGapsOf = (alias: string): string => spansJson(`${alias}.billing_gaps`)

/**
 * When the bill of `cloud_instances`, under this alias where there is one, ended, as SQL; null while it goes on.
 * Workers of earlier versions begin it anew for a further machine and keep the end of the one before.
 */
export const billingEndOf = (alias?: string): string => {
  const at = alias === undefined ? '' : `${alias}.`
  return `(case when ${at}billing_finished_at >= ${at}billing_started_at then ${at}billing_finished_at
    when ${at}billing_finished_at is not null and ${at}machine_gone then ${at}billing_started_at end)`
}

/** Seconds for which a disk of the instance has existed so far, as SQL. A gap may be later than the end. */
export const diskSecondsOf = (alias: string): string =>
  `(select coalesce(sum(extract(epoch from upper(s) - lower(s))), 0)::double precision
    from unnest(tstzmultirange(tstzrange(${alias}.billing_started_at,
      greatest(${alias}.billing_started_at, coalesce(${billingEndOf(alias)}, now())))) - ${alias}.billing_gaps) s)`

/**
 * Columns of an instance whose machine was made at this time, as SQL; a retry makes another one after the end of
 * the first.
 */
const billingBeginsAt = (at: string): Sql => sql`billing_gaps = billing_gaps
    + ${raw(spanSince('billing_finished_at', at))},
  billing_started_at = coalesce(billing_started_at, ${raw(at)}), billing_finished_at = null`

/** Columns of an instance whose machine was made. */
export const billingBegins: Sql = billingBeginsAt('now()')

/** Columns of an instance whose machine was asked for, and was found much later: it ran meanwhile. */
export const askedBillingBegins: Sql = sql`${billingBeginsAt('asked_at')}, compute_started_at = asked_at`

/** Columns of an instance whose machine runs from now on. */
export const computeBegins: Sql = sql`compute_started_at = coalesce(compute_started_at, now()),
  billing_started_at = coalesce(billing_started_at, now())`

/** Columns of an instance whose machine runs no more. */
export const computeEnds: Sql = sql`accumulated_compute_seconds = accumulated_compute_seconds
    + coalesce(greatest(0, extract(epoch from now() - compute_started_at)), 0),
  compute_spans = compute_spans + ${raw(spanSince('compute_started_at'))}, compute_started_at = null`

/** Columns of an instance whose machine and disk are gone. */
export const billingEnds: Sql = sql`billing_finished_at = case when billing_started_at is not null
    then coalesce(${raw(billingEndOf())}, greatest(now(), billing_started_at)) end, ${computeEnds}`

/**
 * Bills that begin later than now begin now: the clock was set back, and no second would count
 * until it has come there again. @returns how many
 */
export const beginLateBills = (db: Db): Promise<number> =>
  db.run(sql`update cloud_instances set compute_started_at = least(compute_started_at, now()),
      billing_started_at = least(billing_started_at, now())
    where not machine_gone and status <> 'destroyed'
      and (compute_started_at > clock_timestamp() or billing_started_at > clock_timestamp())`)
