import { realpath } from 'node:fs/promises'
import type { Http } from '../../clients/http.ts'
import type { Db } from '../../db/sql.ts'
import type { SiteFiles } from '../../shell/site-files.ts'
import { LinkError, type SiteShell } from '../../shell/site-shell.ts'
import type { StorageDriver } from '../../drivers/storage/contract.ts'
import { withJail, type Root } from '../../drivers/storage/jail.ts'
import { withMeasures, type StorageCall } from '../../drivers/storage/measured.ts'
import { isBelow, nameOf, parseNames } from '../../drivers/storage/paths.ts'
import type { ClaimAccess } from '../../drivers/storage/pod.ts'
import { openStorage, type StorageReach } from '../../drivers/storage/registry.ts'
import { withRetries } from '../../drivers/storage/retry.ts'
import { isBucketWay, waysOf, type Way } from '../../drivers/storage/ways.ts'
import { Refusal, unacceptable } from '../../refusal.ts'
import type { SecretFinder, SecretOpener } from '../../vault/secret.ts'
import { connectionTypes } from '../environments/store.ts'
import { readStorage, type StorageFacts } from '../environments/storages.ts'
import { bucketReach } from './buckets.ts'
import { baseOf, storageConnection, givenConnection, namedIn } from './connection.ts'
import { rootsOf } from './endpoint.ts'
import { refusing } from './errors.ts'
import { openKeptDrivers } from './kept-drivers.ts'
import { podReach } from './pods.ts'
import type { Reached } from './reached.ts'

export interface StorageParts {
  db: Db
  http: Http
  secrets: SecretOpener & SecretFinder
  shellOf: (connectionId: string) => SiteShell
  filesOf: (connectionId: string) => SiteFiles
  clusterOf: (connectionId: string) => ClaimAccess['cluster']
  /** SERVICE_KUBERNETES_HELPER_IMAGE. */
  helperImage: string
  /** SERVICE_LOCAL_STORAGE_ROOT. */
  localStorageRoot: string | undefined
  /** Bytes of one part of an upload to a bucket, as the instance has them. */
  partBytes: () => Promise<number>
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

const unavailable = (message: string): Refusal => new Refusal('unavailable', message)

/**
 * The connection that leads to the folder of a storage; undefined where it is mounted here. Only
 * what cannot be mounted here looks for one beyond what the storage and its runtimes name.
 */
const loginOf = async (db: Db, facts: StorageFacts): Promise<string | undefined> => {
  const ways: readonly Way[] = waysOf[facts.type]
  if (!ways.includes('shell')) return undefined
  const connectionId = ways.includes('filesystem')
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
  {
    shellOf,
    filesOf,
    keep,
    isKept,
  }: Pick<StorageParts, 'shellOf' | 'filesOf'> & {
    keep: (key: string, open: () => StorageDriver) => StorageDriver
    isKept: (key: string) => boolean
  },
  { connectionId, path: base }: { connectionId: string; path: string },
): Promise<StorageDriver> => {
  const keys = {
    shell: JSON.stringify(['shell', connectionId, base]),
    sftp: JSON.stringify(['sftp', connectionId, base]),
  }
  const bySftp = (): StorageDriver =>
    keep(keys.sftp, () => openStorage({ way: 'sftp', files: filesOf(connectionId), base }))
  if (isKept(keys.sftp)) return bySftp()
  const shell = shellOf(connectionId)
  const byShell = (): StorageDriver => keep(keys.shell, () => openStorage({ way: 'shell', shell, base }))
  if (isKept(keys.shell)) return byShell()
  try {
    await shell.run(':', { deadlineMs: shellMs })
    return byShell()
  } catch (error) {
    if (!(error instanceof LinkError)) throw error
    // Every other error of the link is that of each call, with the storage's own words.
    return error.stage === 'shell' ? bySftp() : openStorage({ way: 'shell', shell, base })
  }
}

/** Opens storages by their records. */
export const openStorages = ({
  db,
  http,
  secrets,
  shellOf,
  filesOf,
  clusterOf,
  helperImage,
  localStorageRoot,
  partBytes,
  onCall,
}: StorageParts) => {
  const { keep, isKept, begin, close } = openKeptDrivers(idleMs)

  const hereReach = async (
    facts: StorageFacts,
    endpoint: string,
  ): Promise<StorageReach & { way: 'filesystem' }> => {
    if (localStorageRoot === undefined)
      throw unavailable(
        `storage ${JSON.stringify(facts.id)} lies on this machine, where no directory is approved; ` +
          'start the service with SERVICE_LOCAL_STORAGE_ROOT',
      )
    const base = await realpath(localStorageRoot)
    const names = parseNames(nameOf(endpoint))
    const root = [base, localStorageRoot]
      .map((path) => parseNames(nameOf(path)))
      .find((path) => isBelow(names, path))
    if (!endpoint.startsWith('/') || root === undefined)
      throw unacceptable([
        {
          path: 'storage.endpoint',
          message:
            `${JSON.stringify(endpoint.slice(0, 200))} lies outside the directory that the service ` +
            'may show (SERVICE_LOCAL_STORAGE_ROOT); register a storage below it',
        },
      ])
    return { way: 'filesystem', base, below: names.slice(root.length) }
  }

  const folder = async (facts: StorageFacts): Promise<Reached> => {
    const ways: readonly Way[] = waysOf[facts.type]
    const connectionId = await loginOf(db, facts)
    if (connectionId !== undefined) {
      const path = baseOf(facts)
      if (!path.startsWith('/'))
        throw unacceptable([
          {
            path: 'storage.endpoint',
            message: `${JSON.stringify(path.slice(0, 200))} is no absolute path; give the folder at the host`,
          },
        ])
      const driver = await behindLogin({ shellOf, filesOf, keep, isKept }, { connectionId, path })
      return {
        driver,
        place: {
          ...{ at: JSON.stringify(['login', connectionId]), link: connectionId },
          base: parseNames(nameOf(path)),
        },
      }
    }
    // `storageConnection` has refused what has no connection.
    if (!ways.includes('filesystem'))
      throw unacceptable([
        {
          path: 'storage.configuration.connectionId',
          message: 'names a local connection; name the ssh connection behind which the folder lies',
        },
      ])
    const reach = await hereReach(facts, facts.endpoint)
    const driver = keep(JSON.stringify(reach), () => openStorage(reach))
    return { driver, place: { at: here, base: [...parseNames(nameOf(reach.base)), ...reach.below] } }
  }

  const reach = async (facts: StorageFacts): Promise<Reached> => {
    const ways: readonly Way[] = waysOf[facts.type]
    if (ways.length === 0)
      throw new Refusal(
        'not_built',
        `storages of type ${facts.type} have no driver in this version; copy the data to one of another type`,
      )
    const { driver, place } = ways.some(isBucketWay)
      ? await bucketReach({ http, secrets, partBytes, keep, isKept }, facts)
      : ways.includes('pod')
        ? podReach({ clusterOf, helperImage, keep }, facts, await storageConnection(db, facts, 'kubernetes'))
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
     * @throws Refusal 404 for an unknown storage, 503 without a driver, 422 without an approved
     *   root
     */
    async open(id: string): Promise<RootedStorage> {
      const facts = await readStorage(db, id)
      const { driver, place } = await reached(facts)
      const roots = await refusing('body', () => Promise.resolve(rootsOf(facts)))
      if (roots.length === 0)
        throw unacceptable([
          {
            path: 'storage.configuration.browseRoots',
            message:
              `storage ${JSON.stringify(id)} has no approved root; approve one with PUT ` +
              `/storages/${encodeURIComponent(id)}/roots/`,
          },
        ])
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
