import { LinkError } from '../../shell/site-shell.ts'
import { StorageError, type Entry, type StorageFault } from './contract.ts'
import { quotedPath, type ByteName, type StoragePath } from './paths.ts'

/** Faults that drivers find alike, in the same words. */

const faultAt =
  (fault: StorageFault, words: string) =>
  (path: StoragePath, cause?: unknown): StorageError =>
    new StorageError(fault, `${quotedPath(path)} ${words}`, { cause })

export const taken = faultAt('exists', 'is there already; choose another name, or overwrite it')
export const takenByFile = faultAt('exists', 'is there already and is no directory; choose another name')
export const takenByFolder = faultAt('notFile', 'is a directory, which no file replaces; choose another name')
export const notDeleted = faultAt('notFile', 'is a directory; only files and links are deleted')
export const shorter = faultAt('changed', 'has become shorter while it was read; read it again')
export const writtenTo = faultAt('changed', 'was written to while it was read; try again when it is complete')
export const otherBytes = (path: StoragePath): StorageError =>
  new StorageError(
    'changed',
    `${quotedPath(path)}: the bytes at the site are not those that were sent; send it again`,
  )
export const wrongSize = (path: StoragePath, announced: number, came: number): StorageError =>
  new StorageError(
    'changed',
    `${announced} bytes of ${quotedPath(path)} were announced, and ${came} came; send it again`,
  )
export const silentSite = (path: StoragePath, stallMs: number): StorageError =>
  new StorageError('late', `no byte of ${quotedPath(path)} has come for ${stallMs / 1_000} s`)
export const wrongOffset = (path: StoragePath, receivedBytes: number): StorageError =>
  new StorageError('offset', `${receivedBytes} bytes of ${quotedPath(path)} are kept; go on there`, {
    receivedBytes,
  })
export const notFile = (path: StoragePath, type: Entry['type']): StorageError =>
  faultAt(
    'notFile',
    `is ${type === 'directory' ? 'a directory' : 'a device, a FIFO or a socket'}, not a file`,
  )(path)

/** The name of an entry in its folder. @throws StorageError for the endpoint, which has none */
export const nameIn = (path: StoragePath): ByteName => {
  const name = path.at(-1)
  if (name !== undefined) return name
  throw new StorageError('notFile', 'the endpoint of the storage is a directory; name an entry in it')
}

const siteWords: Partial<Record<StorageFault, string>> = {
  missing: 'is not there',
  exists: 'is there already; choose another name, or overwrite it',
  notDirectory: 'leads through what is no directory',
  link: 'leads through a symbolic link, and none is followed; name what it leads to',
  name: 'is a name that the file system of the site does not take',
  readOnly: 'lies on a file system that is mounted read-only',
  denied: 'is denied to the account at the site',
  full: 'does not fit: no space is left for the account at the site',
  busy: 'is in use by the file system of the site',
}

/** A fault of an account at a site; `said`: what the site says, where the fault has no words of its own. */
export const siteFault = (
  fault: StorageFault,
  path: StoragePath,
  { said = '', cause }: { said?: string; cause?: unknown } = {},
): StorageError => {
  const words = siteWords[fault]
  const text = words === undefined ? `: the site answers: ${said}` : ` ${words}`
  return new StorageError(fault, `${quotedPath(path)}${text}`, { cause })
}

/** The link to a site was lost, or cannot be made. */
export const linkFault = (error: LinkError): StorageError => {
  const isLogin = error.stage === 'login' && error.permanent
  const fault = isLogin ? 'credential' : error.permanent ? 'refused' : 'away'
  return new StorageError(fault, error.message, { cause: error })
}

/** Runs work at a path; `errorOf` names what it throws. */
export const namedBy =
  (errorOf: (error: unknown, path: StoragePath) => Error) =>
  async <T>(path: StoragePath, work: () => Promise<T>): Promise<T> => {
    try {
      return await work()
    } catch (error) {
      throw errorOf(error, path)
    }
  }
