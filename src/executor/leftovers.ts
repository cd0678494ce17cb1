import { z } from 'zod'
import { sql, type Db } from '../db/sql.ts'
import { DriverError, driverErrorOf, type RuntimeDriver } from '../drivers/runtime/contract/driver.ts'
import { reasonText } from '../outside-text.ts'

/** Names in one call to the site. */
const namesPerTry = 500
const graceSeconds = 5

const SiteRow = z.object({ site: z.string(), runId: z.string() })

/**
 * Sites with attempts left to stop now, by the runs that left them: a run's snapshot holds the way
 * to the site and the folder that its tasks have there.
 */
export const sitesWithLeftovers = (db: Db): Promise<{ site: string; runId: string }[]> =>
  db.many(
    SiteRow,
    sql`select site, execution_run_id as run_id from site_leftovers where next_try_at <= now()
      group by 1, 2 order by min(since)`,
  )

/**
 * Ends attempts at a site and deletes their rows of `site_leftovers`. Rejects with a `DriverError`
 * where the site does not confirm the ends, and with the database's own error.
 */
const endNamed = async (
  db: Db,
  site: string,
  names: readonly string[],
  driver: Pick<RuntimeDriver, 'cancel'>,
): Promise<void> => {
  if (names.length === 0) return
  await driver.cancel(names, graceSeconds).catch((error: unknown) => {
    throw driverErrorOf(error)
  })
  await db.run(sql`delete from site_leftovers where site = ${site} and name = any(${names}::text[])`)
}

/**
 * Ends those of the attempts `names` that are left at a site, before others take their place.
 * Rejects with a `DriverError` where the site does not confirm it, and with the database's own
 * error.
 */
export const endLeftovers = async (
  db: Db,
  site: string,
  names: readonly string[],
  driver: Pick<RuntimeDriver, 'cancel'>,
): Promise<void> => {
  const left = await db.values(
    z.string(),
    sql`select name from site_leftovers where site = ${site} and name = any(${names}::text[])`,
  )
  await endNamed(db, site, left, driver)
}

/**
 * Asks a site to end the attempts that a run has left there, until it confirms: 5 s after a
 * failure, doubled to 5 minutes. Returns how many names are left. Any number of processes may do
 * so at once: a second end does no harm.
 */
export const stopLeftovers = async (
  db: Db,
  { site, runId }: { site: string; runId: string },
  driver: Pick<RuntimeDriver, 'cancel'>,
): Promise<number> => {
  const ofRun = sql`site = ${site} and execution_run_id = ${runId}`
  const names = await db.values(
    z.string(),
    sql`select name from site_leftovers where ${ofRun} and next_try_at <= now() order by since
      limit ${namesPerTry}`,
  )
  try {
    await endNamed(db, site, names, driver)
  } catch (error) {
    if (!(error instanceof DriverError)) throw error
    const reason = reasonText(error.message)
    await db.run(sql`update site_leftovers set tries = tries + 1, last_error = ${reason},
      next_try_at = now() + least(300, 5 * 2 ^ least(tries, 10)) * interval '1 second' where site = ${site}
        and name = any(${names}::text[])`)
  }
  return db.only(z.number(), sql`select count(*) from site_leftovers where ${ofRun}`)
}
