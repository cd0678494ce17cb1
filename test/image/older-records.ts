import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

/** The last commit whose schema has eight migrations. */
export const olderCommit = '6e74fec'

/**
 * The records that `fleet.test.ts` makes with that commit (`UPDATE_OLDER_RECORDS=1`): the run
 * `before` is over, `open` waits in its last step on the host `api`.
 */
export const olderRecordsFile = join(import.meta.dirname, 'older-schema.sql')
export const olderRecords = readFileSync(olderRecordsFile, 'utf8')

/** Work directories of the tasks in these records, relative to the data folder. */
export const olderFolders = [
  ...new Set(
    [...olderRecords.matchAll(/'\/var\/lib\/orrery\/(work\/[0-9a-f]+\/[\w-]+\/\d+)'/g)].map(
      ([, path = '']) => path,
    ),
  ),
]

/** The number of the newest migration, to which they are brought. */
export const newestMigration = (): number =>
  Math.max(
    ...readdirSync(join(import.meta.dirname, '../../src/db/migrations')).map((name) =>
      Number.parseInt(name, 10),
    ),
  )
