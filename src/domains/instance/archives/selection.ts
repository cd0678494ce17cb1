import type { Database } from '../../../db/pool.ts'
import type { Selected } from '../../../db/selected.ts'
import type { Selection as KernelSelection } from '../../../http/options.ts'
import { orAfter } from '../../../pacing/within.ts'
import { missing } from '../../../refusal.ts'
import { defaultId, readActive } from './store.ts'

/** An activation by another process takes effect after at most this time. */
const seenAfterMs = 400
/** A look at an unresponsive database delays a read by at most this time. */
const lookMs = 300

/** Routes whose data is not in the records, so that no archive has it. */
const outside = [
  /^\/execution-runs\/\{runId\}\/activities\/\{activityId\}\/(logs|outputs|script)\//,
  /^\/storages\/\{storageId\}\/(?!(roots|index|index-runs|downloads)\/)/,
  // Its key, and the logs of builds, are those of this installation.
  /^\/build-runs\/\{runId\}\/(attestation|logs)\//,
  /^\/attestation-key\//,
  /^\/storage-downloads\/\{downloadId\}\/content\//,
  /^\/console-sessions\/\{sessionId\}\/log\//,
  /^\/environment-connections\/\{connectionId\}\/login\//,
  // Providers know the machines of this installation.
  /^\/environments\/\{environmentId\}\/cloud-orphans\//,
]

interface Opened {
  id: string
  schema: string
  database: Database
}

/** The selection of the instance that the API reads. */
export interface InstanceSelection {
  /**
   * For the kernel, at each request. While the database is unreachable, the last known selection.
   */
  select(): Promise<KernelSelection>
  /** Whether changes are refused now, read from the record itself. */
  activated(): Promise<boolean>
  /** Discards the cached selection: the next request reads it again. */
  changed(): void
  [Symbol.asyncDispose](): Promise<void>
}

export const openSelection = ({ db, selected }: { db: Database; selected: Selected }): InstanceSelection => {
  // Each stays open: reads and streams that began go on, and idle connections close by themselves.
  const databases = new Map<string, Database>()
  const databaseOf = (schema: string): Database => {
    const known = databases.get(schema) ?? db.archive(schema)
    databases.set(schema, known)
    return known
  }
  let opened: Opened | undefined
  let lookedAt = Number.NEGATIVE_INFINITY
  let looking: Promise<void> | undefined

  const look = async (): Promise<void> => {
    const active = await readActive(db)
    lookedAt = performance.now()
    opened = active && { ...active, database: databaseOf(active.schema) }
  }
  const fresh = async (): Promise<void> => {
    if (performance.now() - lookedAt < seenAfterMs) return
    looking ??= look().finally(() => {
      looking = undefined
    })
    await orAfter(looking, lookMs, undefined).catch(() => undefined)
  }

  return {
    async select() {
      await fresh()
      const now = opened
      if (now === undefined) return { id: defaultId, read: (_route, work) => work() }
      return {
        id: now.id,
        read: (template, work) => {
          if (outside.some((form) => form.test(template)))
            throw missing('what is not in this archive:', template)
          return selected.reading(now.schema, now.database, work)
        },
      }
    },
    activated: async () => (await readActive(db)) !== undefined,
    changed: () => {
      lookedAt = Number.NEGATIVE_INFINITY
    },
    async [Symbol.asyncDispose]() {
      await looking?.catch(() => undefined)
      await Promise.all(Array.from(databases.values(), (each) => each[Symbol.asyncDispose]()))
    },
  }
}
