import type { Db } from '../../db/sql.ts'
import type { ArtifactStore } from '../../drivers/build/store.ts'
import { StorageError } from '../../drivers/storage/contract.ts'
import { isBelow, nameOf, parseNames, type StoragePath } from '../../drivers/storage/paths.ts'
import { Refusal } from '../../refusal.ts'
import { storagesOfType } from '../environments/storages.ts'
import { bucketAddress } from '../storages/endpoint.ts'
import type { Storages } from '../storages/open.ts'

/** Executables in storages of the service: in buckets, and promoted ones. */

export interface StoredParts {
  db: Db
  artifactStore: ArtifactStore
  storages: Pick<Storages, 'open'>
}

/** A place of a storage's file. */
interface StoredFile {
  storageId: string
  path: StoragePath
}

const decoded = (text: string): string | undefined => {
  try {
    return decodeURIComponent(text)
  } catch {
    return undefined
  }
}

/** The storages whose bucket and prefix hold a key, those with the longest prefix first. */
const bucketHolders = async (db: Db, type: 's3' | 'gcs', names: StoragePath): Promise<StoredFile[]> => {
  const found: StoredFile[] = []
  for (const facts of await storagesOfType(db, type))
    try {
      const { bucket, prefix } = bucketAddress(facts)
      const whole = [nameOf(bucket), ...prefix]
      if (isBelow(names, whole)) found.push({ storageId: facts.id, path: names.slice(whole.length) })
    } catch (error) {
      // A record that names no bucket holds no key.
      if (!(error instanceof Refusal)) throw error
    }
  return found.toSorted((a, b) => a.path.length - b.path.length)
}

/** The file that an address names, or why there is none. */
const fileOf = async (db: Db, uri: string): Promise<StoredFile | { problem: string }> => {
  const [, scheme = '', rest = ''] = /^(s3|gs|storage):\/\/(.*)$/is.exec(uri) ?? []
  const text = scheme.toLowerCase() === 'storage' ? decoded(rest) : rest
  const names = parseNames(nameOf(text ?? ''))
  const [first] = names
  if (first === undefined || names.length < 2)
    return { problem: `source.uri ${JSON.stringify(uri.slice(0, 200))} names no file; give bucket and key` }
  if (scheme.toLowerCase() === 'storage') {
    const id = decoded(rest.split('/')[0] ?? '') ?? ''
    const path = decoded(rest.slice(rest.indexOf('/') + 1)) ?? ''
    return { storageId: id, path: parseNames(nameOf(path)) }
  }
  const [holder, other] = await bucketHolders(db, scheme.toLowerCase() === 's3' ? 's3' : 'gcs', names)
  if (holder === undefined)
    return {
      problem: `no storage of this service has ${JSON.stringify(uri.slice(0, 200))}; register its bucket as a storage`,
    }
  if (other !== undefined && other.path.length === holder.path.length)
    return {
      problem:
        `the storages ${JSON.stringify(holder.storageId)} and ${JSON.stringify(other.storageId)} both have ` +
        `${JSON.stringify(uri.slice(0, 200))}; name one by storage://${encodeURIComponent(holder.storageId)}/…`,
    }
  return holder
}

/** Whether an address is that of a storage. */
export const isStored = (uri: string): boolean => /^(s3|gs|storage):\/\//i.test(uri)

/**
 * Brings the file of a storage into our store, by the storage's driver and below its roots.
 * @returns its digest, or why it could not be read
 */
export const fetchStored = async (
  { db, artifactStore, storages }: StoredParts,
  uri: string,
  { limitBytes, deadlineMs }: { limitBytes: number; deadlineMs: number },
): Promise<{ digest: string } | { problem: string }> => {
  const signal = AbortSignal.timeout(deadlineMs)
  try {
    const file = await fileOf(db, uri)
    if ('problem' in file) return file
    const { driver } = await storages.open(file.storageId)
    const { entry, stream } = await driver.read(file.path, { signal })
    if ((entry.sizeBytes ?? 0) > limitBytes) {
      stream.destroy()
      return { problem: `${uri} has ${String(entry.sizeBytes)} bytes; executables may have ${limitBytes}` }
    }
    await using aside = await artifactStore.aside()
    for await (const piece of stream) {
      await aside.write(piece as Buffer)
      if (aside.size() > limitBytes) return { problem: `${uri} has more than ${limitBytes} bytes` }
    }
    return { digest: await aside.keep('images') }
  } catch (error) {
    if (signal.aborted)
      return {
        problem: `${uri} was not read within ${deadlineMs / 1_000} s; promote it, or give a smaller file`,
      }
    if (error instanceof StorageError || error instanceof Refusal) return { problem: error.message }
    throw error
  }
}
