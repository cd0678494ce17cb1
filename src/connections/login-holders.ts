import { z } from 'zod'
import type { LoginRecords } from '../clients/ssh/relay.ts'
import { sql, type Db } from '../db/sql.ts'

/**
 * A process that has not renewed its record for this long counts as gone, by the database's clock.
 */
const stale = sql`seen_at < clock_timestamp() - interval '15 seconds'`

const Row = z.object({
  login: z.string(),
  process: z.string(),
  waiting: z.boolean(),
  address: z.string().optional(),
  since: z.string(),
})

/**
 * The record of the logins that a process of the fleet holds, or that wait there for a person; see
 * `LoginRecords`.
 */
export const loginRecords = (db: Db): LoginRecords => ({
  read: async () => {
    const rows = await db.many(
      Row,
      sql`select login, process, waiting, address, since from login_holders where not (${stale})
        order by since, process`,
    )
    return rows.map(({ address, ...row }) => ({ ...row, ...(address === undefined ? {} : { address }) }))
  },
  write: async (process, records) => {
    // Rows that another process deletes at this moment are left to it.
    await db.run(
      sql`with given as (
            select login, waiting, address, since from jsonb_to_recordset(${JSON.stringify(records)}::jsonb)
              as x (login text, waiting boolean, address text, since timestamptz)
          ), ended as (
            delete from login_holders where process = ${process} and login not in (select login from given)
          ), swept as (
            delete from login_holders where (login, process) in
              (select login, process from login_holders where process <> ${process} and ${stale} for update skip locked)
          )
          insert into login_holders (login, process, waiting, address, since)
            select login, ${process}, waiting, address, since from given order by login
          on conflict on constraint login_holders_pkey do update
            set waiting = excluded.waiting, address = excluded.address, since = excluded.since, seen_at =
              excluded.seen_at`,
    )
  },
})
