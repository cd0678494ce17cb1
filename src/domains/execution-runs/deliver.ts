import { pathOfShown, systemPath } from '../../outside-path.ts'
import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { posix } from 'node:path'
import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { StorageDriver } from '../../drivers/storage/contract.ts'
import { nameOf, parseNames, type StoragePath } from '../../drivers/storage/paths.ts'
import type { Storages } from '../storages/open.ts'

const OutputRow = z.object({
  id: z.string(),
  storageId: z.string(),
  activity: z.string(),
  attempt: z.number(),
  path: z.string(),
  sizeBytes: z.number(),
  root: z.string(),
})
type OutputRow = z.output<typeof OutputRow>

/** Files in one round. */
const atOnce = 1_000

/**
 * Files of completed attempts on machines whose runtime has a default storage, and that are not
 * there yet. `root`: their copy on this host.
 */
const undelivered = (db: Db, runId: string, hostId: string): Promise<OutputRow[]> =>
  db.many(
    OutputRow,
    sql`select o.id, b.storage_id, t.external_id as activity, t.attempt, o.relative_path as path, o.size_bytes,
        t.metadata ->> 'keptAt' as root
      from task_executions t
      join runtimes r on r.id = t.runtime_id
      join storage_runtime_bindings b on b.runtime_id = r.id and b.is_default and not b.read_only
        and b.environment_version_id = r.environment_version_id
      join data_object_instances o on o.execution_run_id = t.execution_run_id
        and o.producer_activity_id = t.activity_id and o.attempt = t.attempt
      where exists (select from run_machines m where m.execution_run_id = ${runId})
        and t.execution_run_id = ${runId} and t.site like 'cloud/%' and t.status = 'completed'
        and t.metadata ->> 'keptOn' = ${hostId} and not exists (
          select from data_locations l where l.data_object_instance_id = o.id and l.uri like 'storage:%')
      order by t.activity_position, o.relative_path limit ${atOnce}`,
  )

const pathOf = (runId: string, { activity, attempt, path }: OutputRow): string =>
  ['runs', encodeURIComponent(runId), encodeURIComponent(activity), String(attempt), path].join('/')

const makeParents = async (driver: StorageDriver, path: StoragePath, made: Set<string>): Promise<void> => {
  if (!driver.capabilities.directories) return
  for (let depth = 1; depth < path.length; depth++) {
    const parent = path.slice(0, depth)
    const key = JSON.stringify(parent)
    if (made.has(key)) continue
    await driver.makeDirectory(parent)
    made.add(key)
  }
}

const recordPlace = (db: Db, runId: string, { id, storageId }: OutputRow, path: string): Promise<number> => {
  const uri = `storage://${encodeURIComponent(storageId)}/${encodeURI(path)}`
  const location = createHash('md5').update(`${id} ${uri}`).digest('hex')
  return db.run(sql`insert into data_locations (id, data_object_instance_id, execution_run_id, uri, status,
      available_at)
    values (${`location-${location}`}, ${id}, ${runId}, ${uri}, 'available', clock_timestamp())
    on conflict do nothing`)
}

/**
 * Brings what a run's activities made on machines to the default storages of their runtimes, below
 * `runs/<run>/<activity>/<attempt>/`. A repeat goes on with what is missing.
 * @returns how many files were brought
 * @throws where a storage cannot be reached or refuses; the copies on this host stay
 */
export const deliverOutputs = async (
  { db, storages, hostId }: { db: Db; storages: Storages; hostId: string },
  runId: string,
): Promise<number> => {
  const made = new Map<string, Set<string>>()
  let brought = 0
  for (;;) {
    const files = await undelivered(db, runId, hostId)
    if (files.length === 0) return brought
    for (const file of files) {
      const { driver } = await storages.open(file.storageId)
      const folders = made.get(file.storageId) ?? new Set<string>()
      made.set(file.storageId, folders)
      const path = pathOf(runId, file)
      const names = parseNames(nameOf(`/${path}`))
      await makeParents(driver, names, folders)
      const source = createReadStream(systemPath(posix.join(file.root, pathOfShown(file.path))))
      await driver.write(names, source, { overwrite: true, sizeBytes: file.sizeBytes })
      await recordPlace(db, runId, file, path)
      brought += 1
    }
  }
}
