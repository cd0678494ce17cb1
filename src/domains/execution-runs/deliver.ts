import { hash } from 'node:crypto'
import { z } from 'zod'
import { sql, type Db, type Sql } from '../../db/sql.ts'
import type { StoragePath } from '../../drivers/storage/byte-name.ts'
import { StorageError, type StorageDriver } from '../../drivers/storage/contract.ts'
import { nameOf, parseNames } from '../../drivers/storage/paths.ts'
import { streamDigest } from '../../drivers/storage/streams.ts'
import { causeOf, isErrno } from '../../drivers/runtime/contract/errno.ts'
import { Refusal } from '../../refusal.ts'
import type { Storages } from '../storages/open.ts'
import { ensureDirectory } from '../storages/send.ts'
import { openOutput, type OpenedFile } from './files.ts'

const OutputRow = z.object({
  id: z.string(),
  storageId: z.string(),
  activity: z.string(),
  /** Other activities of the workflow have its externalId too. */
  isNamesake: z.boolean(),
  attempt: z.number(),
  position: z.number(),
  path: z.string(),
  root: z.string(),
  /** Of a file whose content was read; of others what is on record may differ from the content. */
  sizeBytes: z.number().nullish(),
  /** Its SHA-256 in hexadecimal digits. */
  sha256: z.string().nullish(),
})
type OutputRow = z.output<typeof OutputRow>

/** Files in one round. */
const atOnce = 1_000

/**
 * Files of completed attempts on machines whose runtime has a default storage, and that are not
 * there yet, with a copy on a host.
 */
const undelivered = (runId: string): Sql =>
  sql`from task_executions t
      join runtimes r on r.id = t.runtime_id
      join storage_runtime_bindings b on b.runtime_id = r.id and b.is_default and not b.read_only
        and b.environment_version_id = r.environment_version_id
      join data_object_instances o on o.execution_run_id = t.execution_run_id
        and o.producer_activity_id = t.activity_id and o.attempt = t.attempt
      where exists (select from run_machines m where m.execution_run_id = ${runId})
        and t.execution_run_id = ${runId} and t.site like 'cloud/%' and t.status = 'completed'
        and t.metadata ->> 'keptOn' <> '' and not exists (
          select from data_locations l where l.data_object_instance_id = o.id and l.uri like 'storage:%')`

/**
 * The host with the copies of outputs that are not in their storage yet; undefined where none are
 * missing. All copies of a run are on one host.
 */
export const hostOfUndelivered = (db: Db, runId: string): Promise<string | undefined> =>
  db.value(z.string(), sql`select t.metadata ->> 'keptOn' as host_id ${undelivered(runId)} limit 1`)

/** The next of them behind `last` in the order of activities and paths. `root`: the copy on this host. */
const nextUndelivered = (
  db: Db,
  runId: string,
  hostId: string,
  last: Pick<OutputRow, 'position' | 'path' | 'id'> = { position: -1, path: '', id: '' },
): Promise<OutputRow[]> =>
  db.many(
    OutputRow,
    sql`select o.id, b.storage_id, t.external_id as activity,
        exists (select from execution_runs w join activity_definitions d
          on d.workflow_version_id = w.content_version_id
          where w.id = t.execution_run_id and d.external_id = t.external_id
            and d.position <> t.activity_position) as is_namesake, t.attempt, t.activity_position as position,
        o.relative_path as path, t.metadata ->> 'keptAt' as root,
        case when o.checksum <> '' then o.size_bytes end as size_bytes,
        substring(o.checksum from '^sha256:(.*)') as sha256
      ${undelivered(runId)} and t.metadata ->> 'keptOn' = ${hostId}
        and (t.activity_position, o.relative_path, o.id) > (${last.position}, ${last.path}, ${last.id})
      order by t.activity_position, o.relative_path, o.id limit ${atOnce}`,
  )

const pathOf = (runId: string, { activity, isNamesake, position, attempt, path }: OutputRow): string =>
  [
    ...['runs', encodeURIComponent(runId), encodeURIComponent(activity)],
    ...(isNamesake ? [String(position)] : []),
    ...[String(attempt), path],
  ].join('/')

const recordPlace = (db: Db, runId: string, { id, storageId }: OutputRow, path: string): Promise<number> => {
  const uri = `storage://${encodeURIComponent(storageId)}/${encodeURI(path)}`
  const location = hash('md5', `${id} ${uri}`)
  return db.run(sql`insert into data_locations (id, data_object_instance_id, execution_run_id, uri, status,
      available_at)
    values (${`location-${location}`}, ${id}, ${runId}, ${uri}, 'available', clock_timestamp())
    on conflict do nothing`)
}

/** Why a copy is not delivered. `differs`: it is there, with other bytes than the record. */
interface Lack {
  reason: string
  differs: boolean
}

/** The copy of a file on this host, or why it is none. */
const openCopy = async ({ root, path, sizeBytes }: OutputRow): Promise<OpenedFile | Lack> => {
  try {
    const copy = await openOutput(root, path)
    if (sizeBytes == null || copy.sizeBytes === sizeBytes) return copy
    copy.stream.destroy()
    const reason = `it has ${String(copy.sizeBytes)} bytes instead of ${String(sizeBytes)}`
    return { reason, differs: true }
  } catch (error) {
    if (error instanceof Refusal) return { reason: 'it is not there', differs: false }
    if (isErrno(error, 'EACCES', 'EPERM', 'ELOOP', 'ENAMETOOLONG', 'ENOTDIR', 'ENOENT', 'ENXIO'))
      return { reason: causeOf(error), differs: false }
    throw error
  }
}

/**
 * Writes a file under its name. @returns why not, where the copy has other bytes than the record
 * @throws where the storage cannot be reached or refuses
 */
const writeCopy = async (
  driver: StorageDriver,
  names: StoragePath,
  copy: OpenedFile,
  file: OutputRow,
  signal: AbortSignal | undefined,
): Promise<Lack | undefined> => {
  const { sha256 } = file
  const digest = sha256 == null ? undefined : () => sha256
  try {
    await driver.write(names, copy.stream, { overwrite: true, sizeBytes: copy.sizeBytes, digest, signal })
    return undefined
  } catch (error) {
    if (sha256 == null || !(error instanceof StorageError) || error.fault !== 'changed') throw error
    // The file in the storage may have changed instead.
    const again = await openCopy(file)
    if ('reason' in again) return again
    if ((await streamDigest(again.stream, signal)) === sha256) throw error
    return { reason: 'it has another content than its record', differs: true }
  }
}

/**
 * Brings what a run's activities made on machines to the default storages of their runtimes, below
 * `runs/<run>/<activity>/<attempt>/`, with the position behind the activity where others have the
 * same externalId. A repeat goes on with what is missing.
 * @returns the files that are not brought, each with the reason: `unread` have no readable copy on
 *   this host, and the copies of `differing` have other bytes than their records
 * @throws where a storage cannot be reached or refuses, or `signal` is aborted; the copies on this
 *   host stay
 */
export const deliverOutputs = async (
  { db, storages, hostId }: { db: Db; storages: Storages; hostId: string },
  runId: string,
  signal?: AbortSignal,
): Promise<{ unread: string[]; differing: string[] }> => {
  const made = new Map<string, Set<string>>()
  const left = { unread: new Array<string>(), differing: new Array<string>() }
  const leave = ({ path, activity }: OutputRow, { reason, differs }: Lack): void =>
    void left[differs ? 'differing' : 'unread'].push(`${path} of ${activity} (${reason})`)
  for (let last: OutputRow | undefined; ;) {
    const files = await nextUndelivered(db, runId, hostId, last)
    last = files.at(-1)
    if (last === undefined) return left
    for (const file of files) {
      signal?.throwIfAborted()
      const copy = await openCopy(file)
      if ('reason' in copy) {
        leave(file, copy)
        continue
      }
      try {
        const { driver } = await storages.open(file.storageId)
        const folders = made.get(file.storageId) ?? new Set<string>()
        made.set(file.storageId, folders)
        const path = pathOf(runId, file)
        const names = parseNames(nameOf(`/${path}`))
        await ensureDirectory(driver, names.slice(0, -1), folders, signal)
        const lack = await writeCopy(driver, names, copy, file, signal)
        if (lack === undefined) await recordPlace(db, runId, file, path)
        else leave(file, lack)
      } finally {
        copy.stream.destroy()
      }
    }
  }
}
