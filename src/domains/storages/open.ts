import { realpath } from 'node:fs/promises'
import type { Db } from '../../db/sql.ts'
import type { SiteFiles } from '../../shell/site-files.ts'
import { LinkError, type SiteShell } from '../../shell/site-shell.ts'
import type { StorageDriver } from '../../drivers/storage/contract.ts'
import { openFilesystem } from '../../drivers/storage/filesystem/driver.ts'
import type { Where } from '../../drivers/storage/filesystem/host.ts'
import { withJail, type Root } from '../../drivers/storage/jail.ts'
import { withMeasures, type StorageCall } from '../../drivers/storage/measured.ts'
import { isBelow, nameOf, parseNames } from '../../drivers/storage/paths.ts'
import { withRetries } from '../../drivers/storage/retry.ts'
import { openSftpStorage } from '../../drivers/storage/sftp/driver.ts'
import { openShellStorage } from '../../drivers/storage/shell/driver.ts'
import { Refusal, unacceptableAt } from '../../refusal.ts'
import { connectionTypes } from '../environments/store.ts'
import { readStorage, type StorageFacts } from '../environments/storages.ts'
import { bucketReach, type BucketParts } from './buckets.ts'
import {
  baseOf,
  storageConnection,
  givenConnection,
  isReachedBy,
  namedIn,
  shownEndpoint,
} from './connection.ts'
import { rootsOf } from './endpoint.ts'
import { refusing } from './errors.ts'
import { openKeptDrivers, type KeptDrivers } from './kept-drivers.ts'
import { podReach, type PodParts } from './pods.ts'
import type { Reached } from './reached.ts'

export interface StorageParts extends BucketParts, PodParts {
  db: Db
  shellOf: (connectionId: string) => SiteShell
  filesOf: (connectionId: string) => SiteFiles
  /** SERVICE_LOCAL_STORAGE_ROOT. */
  localStorageRoot: string | undefined
  onCall: (type: StorageFacts['type'], call: StorageCall) => void
}

/** A storage with its driver. */
export interface OpenedStorage extends Reached {
  facts: StorageFacts
}

/** A storage of which only entries below its roots are visible. */
export interface RootedStorage extends OpenedStorage {
  roots: readonly Root[]
}

/** The name of this machine in locations. */
export const here = 'here'
/** The deadline for the question whether an account has a shell. */
const shellMs = 20_000
const idleMs = 300_000

/**
 * The connection that leads to the folder of a storage; undefined where it is mounted here. Only
 * what cannot be mounted here looks for one beyond what the storage and its runtimes name.
 */
const loginOf = async (db: Db, facts: StorageFacts): Promise<string | undefined> => {
  if (!isReachedBy(facts, 'shell')) return undefined
  const connectionId = isReachedBy(facts, 'filesystem')
    ? givenConnection(facts, 'ssh')
    : await storageConnection(db, facts, 'ssh')
  // What was found by its type is an ssh connection.
  if (connectionId === undefined || namedIn(facts) === undefined) return connectionId
  // The shell of a local connection would give access to the whole machine.
  const type = (await connectionTypes(db, [connectionId])).get(connectionId)
  return type === 'local' ? undefined : connectionId
}

/**
 * The driver of a folder behind a login: over the account's shell, or over SFTP where the account
 * has none.
 */
const behindLogin = async (
  { shellOf, filesOf }: Pick<StorageParts, 'shellOf' | 'filesOf'>,
  { find, keep }: KeptDrivers,
  connectionId: string,
  base: string,
): Promise<StorageDriver> => {
  const keyOf = (access: 'shell' | 'sftp'): string => JSON.stringify([access, connectionId, base])
  const known = find(keyOf('sftp')) ?? find(keyOf('shell'))
  if (known !== undefined) return known
  const shell = shellOf(connectionId)
  const keepOne = (access: 'shell' | 'sftp', open: () => StorageDriver): StorageDriver =>
    find(keyOf(access)) ?? keep(keyOf(access), open())
  try {
    await shell.run(':', { deadlineMs: shellMs })
    return keepOne('shell', () => openShellStorage({ shell, base }))
  } catch (error) {
    if (!(error instanceof LinkError)) throw error
    if (error.stage === 'shell')
      return keepOne('sftp', () => openSftpStorage({ files: filesOf(connectionId), base }))
    // Every other error of the link is that of each call, with the storage's own words.
    return openShellStorage({ shell, base })
  }
}

/** Opens storages by their records. */
export const openStorages = (parts: StorageParts) => {
  const { db, localStorageRoot, onCall } = parts
  const drivers = openKeptDrivers(idleMs)
  const { find, keep, begin, close } = drivers

  const placeHere = async ({ id, endpoint }: StorageFacts): Promise<Where> => {
    if (localStorageRoot === undefined)
      throw new Refusal(
        'unavailable',
        `storage ${JSON.stringify(id)} lies on this machine, where no directory is approved; ` +
          'start the service with SERVICE_LOCAL_STORAGE_ROOT',
      )
    const base = await realpath(localStorageRoot)
    const names = parseNames(nameOf(endpoint))
    const root = [base, localStorageRoot]
      .map((path) => parseNames(nameOf(path)))
      .find((path) => isBelow(names, path))
    if (!endpoint.startsWith('/') || root === undefined)
      throw unacceptableAt(
        'storage.endpoint',
        `${shownEndpoint(endpoint)} lies outside the directory that the service ` +
          'may show (SERVICE_LOCAL_STORAGE_ROOT); register a storage below it',
      )
    return { base, below: names.slice(root.length) }
  }

  const folder = async (facts: StorageFacts): Promise<Reached> => {
    const connectionId = await loginOf(db, facts)
    if (connectionId !== undefined) {
      const path = baseOf(facts)
      if (!path.startsWith('/'))
        throw unacceptableAt(
          'storage.endpoint',
          `${shownEndpoint(path)} is no absolute path; give the folder at the host`,
        )
      const driver = await behindLogin(parts, drivers, connectionId, path)
      const at = JSON.stringify(['login', connectionId])
      return { driver, place: { at, link: connectionId, base: parseNames(nameOf(path)) } }
    }
    // `storageConnection` has refused what has no connection.
    if (!isReachedBy(facts, 'filesystem'))
      throw unacceptableAt(
        'storage.configuration.connectionId',
        'names a local connection; name the ssh connection behind which the folder lies',
      )
    const where = await placeHere(facts)
    const key = JSON.stringify(['filesystem', where])
    const driver = find(key) ?? keep(key, openFilesystem(where))
    return { driver, place: { at: here, base: [...parseNames(nameOf(where.base)), ...where.below] } }
  }

  const reach = async (facts: StorageFacts): Promise<Reached> => {
    const { driver, place } = isReachedBy(facts, 'bucket')
      ? await bucketReach(parts, drivers, facts)
      : isReachedBy(facts, 'pod')
        ? podReach(parts, drivers, facts, await storageConnection(db, facts, 'kubernetes'))
        : await folder(facts)
    const beginCall = () => {
      const end = begin(driver)
      return (call: StorageCall): void => {
        end()
        onCall(facts.type, call)
      }
    }
    return { driver: withRetries(withMeasures(driver, beginCall)), place }
  }

  /** An environment takes any text as an endpoint. */
  const reached = (facts: StorageFacts) => refusing('body', () => reach(facts), 'storage.endpoint')

  return {
    /**
     * @throws Refusal 404 for an unknown storage, 503 where it cannot be reached, 422 without an approved
     *   root
     */
    async open(id: string): Promise<RootedStorage> {
      const facts = await readStorage(db, id)
      const { driver, place } = await reached(facts)
      const roots = await refusing('body', () => Promise.resolve(rootsOf(facts)))
      if (roots.length === 0)
        throw unacceptableAt(
          'storage.configuration.browseRoots',
          `storage ${JSON.stringify(id)} has no approved root; approve one with PUT ` +
            `/storages/${encodeURIComponent(id)}/roots/`,
        )
      return { facts, place, roots, driver: withJail(driver, { roots, readOnly: facts.readOnly }) }
    },

    /** The driver without its roots, for requests about the storage as a whole. */
    async whole(id: string): Promise<OpenedStorage> {
      const facts = await readStorage(db, id)
      return { facts, ...(await reached(facts)) }
    },

    close,
  }
}

export type Storages = ReturnType<typeof openStorages>
