import type { Db } from '../../db/sql.ts'
import { StorageError } from '../../drivers/storage/contract.ts'
import { artifactPlaces } from '../artifacts/store.ts'
import { writtenFiles, type StorageJob } from './job-store.ts'
import { recordLoss } from './promoted.ts'
import type { Ends } from './send.ts'
import { pathOfUri, uriOf } from './view.ts'

/**
 * Ends the records of promoted files that a job has replaced with other bytes, as long as its list
 * of entries is there. A repeated call has no effect.
 */
export const endReplaced = async (
  db: Db,
  { id, onConflict, destinationStorageId, destinationPath }: StorageJob,
  { target, promoted }: Pick<Ends, 'target' | 'promoted'>,
  signal: AbortSignal,
): Promise<void> => {
  if (onConflict !== 'overwrite' || promoted === undefined) return
  const place = { uri: uriOf(destinationStorageId, destinationPath), below: true }
  const uris = [...(await artifactPlaces(db, place)), ...(await promoted.places(db, place))]
  const files = uris.map((uri) => pathOfUri(uri).slice(destinationPath.length))
  for (const file of await writtenFiles(db, id, files)) {
    const path = [...destinationPath, ...file]
    const digest = await target.digest(path, { signal }).catch((error: unknown) => {
      // What cannot be read back is not known to be the promoted bytes.
      if (error instanceof StorageError && !error.passes) return undefined
      throw error
    })
    const uri = uriOf(destinationStorageId, path)
    await recordLoss({ db, promoted }, { uri, digest: digest && `sha256:${digest}` })
  }
}
