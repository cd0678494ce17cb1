import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { ArtifactStore } from '../../drivers/build/store.ts'
import { removeUnowned } from '../artifacts/versions.ts'

/** Bytes of the store without a record: of refused runs, of deleted ones, of deletions on other hosts,
 * of uploads that were cut. */

/** A run that fetches an executable is recorded long before. */
const graceMs = 86_400_000

/** Those of the digests that no run has pinned. */
const unpinned = (db: Db, digests: readonly string[]): Promise<string[]> =>
  db.values(
    z.string(),
    sql`select digest from unnest(${[...digests]}::text[]) as given (digest)
      except select pin #>> '{}' from run_snapshots s,
        jsonb_path_query(s.executables, '$.pins[*].digest') as pin`,
  )

/** Removes the bytes in the store of this host that no record has named for a day. */
export const removeUnnamed = async (
  db: Db,
  artifactStore: Pick<ArtifactStore, 'olderThan' | 'isOlder' | 'remove' | 'removeLog'>,
  signal: AbortSignal,
): Promise<void> => {
  for (const kind of ['images', 'contexts'] as const)
    for await (const digests of artifactStore.olderThan(kind, graceMs)) {
      if (signal.aborted) return
      // The look-up of a run that is being accepted renews what it finds here, and so does an upload.
      await removeUnowned(
        { db, artifactStore },
        await unpinned(db, digests),
        kind,
        async (tx, digest) =>
          (await unpinned(tx, [digest])).length > 0 && artifactStore.isOlder(kind, digest, graceMs),
      )
    }
}
