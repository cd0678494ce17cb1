import { createHash } from 'node:crypto'
import { once } from 'node:events'
import type { Readable } from 'node:stream'
import { createGunzip } from 'node:zlib'
import { pack } from 'tar-stream'
import { tarTime } from '../tar-time.ts'
import { BuildError } from './errors.ts'
import { addContent, pacedArchive } from './packing.ts'
import { tarEntries, type TarEntry } from './tar.ts'

/** Bounds of a build context: a context within them can be unpacked wherever it is built. */
export const contextBounds = { entries: 100_000, expansion: 16, ratio: 200, ratioFrom: 16 * 2 ** 20 } as const

const shown = (path: string): string => JSON.stringify(path.slice(0, 200))

/** The normal form of a path below the context; `Dockerfile` and `./Dockerfile` are one. */
export const plainPath = (path: string): string =>
  path
    .split('/')
    .filter((name) => name !== '' && name !== '.')
    .join('/')

/** Why a path must not lead into a context; undefined for one that may. */
export const pathFault = (path: string): string | undefined => {
  if (path.startsWith('/')) return 'is absolute'
  if (path.split('/').includes('..')) return 'leads out of the context by ..'
  if (/[\p{Cc}\p{Cs}\\]/u.test(path)) return 'holds a control character or a backslash'
  if (Buffer.byteLength(path) > 4_096 || path.split('/').some((name) => Buffer.byteLength(name) > 255))
    return 'is longer than file systems take'
  return undefined
}

const judge = ({ path, type, mode }: TarEntry): void => {
  if (type !== 'file' && type !== 'directory')
    throw new BuildError(
      `${shown(path)} is a ${type.replace('-', ' ')}; a build context holds files and directories only: ` +
        'pack with tar --dereference --hard-dereference',
    )
  const fault = pathFault(path)
  if (fault !== undefined)
    throw new BuildError(`the path ${shown(path)} ${fault}; pack from within the folder: tar -C folder .`)
  if (type === 'file' && plainPath(path) === '')
    throw new BuildError(`the context holds a file of the path ${shown(path)}, which names no file`)
  if (type === 'file' && (mode & 0o6000) !== 0)
    throw new BuildError(`${shown(path)} has the set-user-id or set-group-id bit; take it away`)
}

const digestOf = (text: string): string => createHash('sha256').update(text).digest('base64')
const folderOf = (path: string): string => path.slice(0, Math.max(0, path.lastIndexOf('/')))

/**
 * Counts files and folders, those that only paths name among them, and refuses two of one path: where
 * the context is unpacked, the later one takes the place of the other. Names that differ by case alone
 * are one name to some file systems, and to builders that look for a recipe.
 */
const openPaths = (): ((entry: TarEntry) => void) => {
  // Digests, because paths may have 4 KiB each.
  const seen = new Map<string, { path: string; type: string }>()
  const add = (path: string, type: string): boolean => {
    const key = digestOf(path.toLowerCase())
    const before = seen.get(key)
    if (before !== undefined && before.path !== digestOf(path))
      throw new BuildError(
        `the context holds ${shown(path)} in two spellings of upper and lower case; rename one of the two`,
      )
    if (before !== undefined && !(before.type === 'directory' && type === 'directory'))
      throw new BuildError(
        `the context holds ${shown(path)} twice; keep one of the two, and pack the folder anew`,
      )
    if (before === undefined && seen.size === contextBounds.entries)
      throw new BuildError(
        `the context has more than ${contextBounds.entries} files and folders; leave out what is not needed`,
      )
    seen.set(key, { path: digestOf(path), type })
    return before === undefined
  }
  return ({ path, type }) => {
    const plain = plainPath(path)
    if (plain === '' || !add(plain, type)) return
    // The folders above a known one are known.
    for (let at = folderOf(plain); at !== '' && add(at, 'directory');) at = folderOf(at)
  }
}

export interface ContextFacts {
  files: number
  /** SHA-256 of the requested file; undefined: the archive has no file of that path. */
  recipeDigest?: string | undefined
}

/**
 * Bytes of the largest recipe, by the kind of a build. One is read within a request; a Dockerfile takes some
 * seconds for each MiB at worst.
 */
const largestRecipe = (sourceType: string): number => (sourceType === 'definition' ? 4 * 2 ** 20 : 2 ** 20)

/** Walks the whole archive: what stands behind the recipe must not replace it. */
const walk = async (
  bytes: AsyncIterable<Buffer>,
  { recipe, onEntry }: Pick<ContextWork, 'recipe' | 'onEntry'>,
): Promise<ContextFacts> => {
  let [entries, files] = [0, 0]
  let recipeDigest: string | undefined
  const refuseRepeated = openPaths()
  for await (const entry of tarEntries(bytes)) {
    if ((entries += 1) > contextBounds.entries)
      throw new BuildError(
        `the context has more than ${contextBounds.entries} entries; leave out what is not needed`,
      )
    judge(entry)
    refuseRepeated(entry)
    if (entry.type === 'file') files += 1
    await onEntry?.(entry)
    if (recipe === undefined || entry.type !== 'file' || plainPath(entry.path) !== recipe.path) continue
    const most = largestRecipe(recipe.sourceType)
    if (entry.size > most)
      throw new BuildError(`the recipe ${shown(recipe.path)} has more than ${most} bytes; make it shorter`)
    const hash = createHash('sha256')
    for await (const piece of entry.content) {
      hash.update(piece)
      recipe.onPiece(piece)
    }
    recipeDigest = `sha256:${hash.digest('hex')}`
  }
  if (files === 0) throw new BuildError('the context holds no file; pack the folder with its files')
  return { files, recipeDigest }
}

/** Passes on the expanded bytes while they are within the bounds. */
async function* bounded(
  expanded: AsyncIterable<Buffer>,
  limitBytes: number,
  taken: () => number,
): AsyncGenerator<Buffer> {
  let size = 0
  for await (const piece of expanded) {
    size += piece.length
    if (size > limitBytes * contextBounds.expansion)
      throw new BuildError(`the context expands to more than ${limitBytes * contextBounds.expansion} bytes`)
    if (size > contextBounds.ratioFrom && size > taken() * contextBounds.ratio)
      throw new BuildError(`the context expands to more than ${contextBounds.ratio} times its size`)
    yield piece
  }
}

const asBuildError = (error: unknown): unknown => {
  const { code = '' } = error as NodeJS.ErrnoException
  if (!/^(Z_|ERR_.*ZLIB)/.test(code)) return error
  return new BuildError(
    code === 'Z_BUF_ERROR'
      ? 'the context ends before its gzip stream does; send all of it'
      : 'the context is no gzip archive; pack it with tar -cz',
    { cause: error },
  )
}

/** With this, and beside the writes, 1 GiB takes 7.8 s; with pieces of 16 KiB in turns, 11.5 s. */
const gunzipPieces = { chunkSize: 65_536, highWaterMark: 262_144 }

interface ContextWork {
  limitBytes: number
  recipe?: {
    path: string
    /** That of the build. */
    sourceType: string
    onPiece: (piece: Buffer) => void
  }
  /** Receives each entry, once it is judged; it reads the content of no recipe. */
  onEntry?: (entry: TarEntry) => Promise<void>
  keep?: (piece: Buffer) => Promise<void>
}

/**
 * Judges a context as it arrives, and passes each piece to `keep` too. @throws BuildError
 */
export const readContext = async (
  chunks: AsyncIterable<Buffer>,
  { limitBytes, keep, ...work }: ContextWork,
): Promise<ContextFacts> => {
  const gunzip = createGunzip(gunzipPieces)
  let taken = 0
  let over = false
  const walked = walk(
    bounded(gunzip, limitBytes, () => taken),
    work,
  ).finally(() => (over = true))
  // The feeder receives the failure when it waits.
  walked.catch(() => undefined)
  gunzip.on('error', () => undefined)
  const settled = walked.then(
    () => undefined,
    () => undefined,
  )
  try {
    for await (const piece of chunks) {
      taken += piece.length
      const kept = keep?.(piece)
      if (over) {
        await kept
        await walked
        continue
      }
      // A piece is written to the disk while it is expanded.
      const expanded = gunzip.write(piece)
        ? undefined
        : Promise.race([once(gunzip, 'drain').catch(() => undefined), settled])
      await Promise.all([kept, expanded])
    }
    if (taken === 0) throw new BuildError('the context is empty; pack the folder with its files')
    gunzip.end()
    return await walked
  } catch (error) {
    throw asBuildError(error)
  } finally {
    gunzip.destroy()
  }
}

/**
 * The files of a context as an archive of our own, which builders get instead of the bytes as they were
 * sent: they unpack what was judged, and nothing that another reader of archives would find. All belongs
 * to root, as the files do that a recipe copies.
 * @returns a stream that fails with a BuildError; its end closes `sent` too
 */
export const judgedContext = (sent: Readable, limitBytes: number): Readable => {
  const tar = pack()
  const { bytes: archive, gone, room } = pacedArchive(tar)
  const onEntry = async ({ path, type, mode, mtime, size, content }: TarEntry): Promise<void> => {
    const head = { mode, mtime: tarTime(mtime * 1_000).mtime, uid: 0, gid: 0 }
    if (type === 'file') await addContent(tar, { ...head, name: plainPath(path), size }, content)
    else tar.entry({ ...head, name: `./${plainPath(path)}/`, type: 'directory' })
    await room()
  }
  // BuildKit knows an archive by its first kilobyte, where a long path would take more.
  tar.entry({ name: './', type: 'directory', mode: 0o755, mtime: new Date(0) })
  readContext(sent as AsyncIterable<Buffer>, { limitBytes, onEntry })
    .then(() => tar.finalize())
    .catch((error: unknown) => archive.destroy(error as Error))
  void gone.then(() => sent.destroy())
  return archive
}
