import { setImmediate as nextTurn } from 'node:timers/promises'
import type { Pack } from 'tar-stream'
import { tarTime } from '../tar-time.ts'
import { BuildError } from './errors.ts'
import { layerBytes, type ImageFolder } from './image.ts'
import { addContent } from './packing.ts'
import { tarEntries, type TarEntry } from './tar.ts'

/**
 * The layers of an image as one archive, without what upper layers replace or delete. Nothing is
 * unpacked.
 */

const whiteout = '.wh.'
const opaque = '.wh..wh..opq'
/** Limits for all layers of one image: entries, folders that only paths name, characters of paths. */
const most = { entries: 5_000_000, characters: 512 * 2 ** 20 } as const
/** As systems take them. */
const longestPath = 4_096
/** Other work goes on after so many characters of paths. */
const turnCharacters = 262_144

const tooMany = (): BuildError =>
  new BuildError(`the image has more than ${most.entries} files and folders; make an image of fewer ones`)

const plain = (path: string): string => {
  const names = path.split('/').filter((name) => name !== '' && name !== '.')
  if (names.includes('..'))
    throw new BuildError(`a layer of the image has the path ${JSON.stringify(path.slice(0, 200))}`)
  const found = names.join('/')
  if (Buffer.byteLength(found) > longestPath)
    throw new BuildError(
      `a layer of the image has a path of more than ${longestPath} bytes: ${JSON.stringify(found.slice(0, 200))}`,
    )
  return found
}
const parentOf = (path: string): string => path.slice(0, Math.max(0, path.lastIndexOf('/')))
const nameOf = (path: string): string => path.slice(path.lastIndexOf('/') + 1)

/** What upper layers did to a path; those below it by their names, so that a path is read once. */
interface Mark {
  gone?: true
  /** What lower layers have below the path is hidden. */
  covered?: true
  below?: Map<string, Mark>
}

const openMarks = () => {
  const root: Mark = {}
  let count = 0
  return {
    of: (path: string): Mark => {
      let at = root
      for (const name of path === '' ? [] : path.split('/')) {
        const below = (at.below ??= new Map<string, Mark>())
        let next = below.get(name)
        if (next === undefined) {
          if ((count += 1) > most.entries) throw tooMany()
          below.set(name, (next = {}))
        }
        at = next
      }
      return at
    },
    hide: (path: string): boolean => {
      let at: Mark | undefined = root
      for (const name of path.split('/')) {
        if (at.gone === true || at.covered === true) return true
        at = at.below?.get(name)
        if (at === undefined) return false
      }
      return at.gone === true
    },
  }
}

/** The entries that remain of the layers. */
interface Merged {
  /** The entry of each path: its layer, and its position there. */
  entries: Map<string, { layer: number; at: number; type: string }>
  /**
   * For a hard link whose file was deleted: the path that holds the content now, by layer and file.
   */
  heirs: Map<string, string>
  /** The latest time of an entry, in seconds since 1970. */
  latest: number
}

const skipped = new Set(['character-device', 'block-device', 'fifo'])

/** Reads the layers, the highest first. */
export const mergeLayers = async (layers: ImageFolder['layers']): Promise<Merged> => {
  const entries: Merged['entries'] = new Map()
  const heirs: Merged['heirs'] = new Map()
  const marks = openMarks()
  let [count, characters, turn, latest] = [0, 0, 0, 0]
  const takesTurn = (path: string): boolean => {
    if ((turn += path.length) < turnCharacters) return false
    turn = 0
    return true
  }
  for (let layer = layers.length - 1; layer >= 0; layer -= 1) {
    const own = new Map<string, { at: number; type: string; link: string }>()
    const removed: string[] = []
    const replaced: string[] = []
    let at = -1
    for await (const entry of tarEntries(layerBytes(layers[layer]?.path ?? ''))) {
      at += 1
      if ((count += 1) > most.entries) throw tooMany()
      const path = plain(entry.path)
      if ((characters += path.length + entry.linkPath.length) > most.characters)
        throw new BuildError(`the paths of the image have more than ${most.characters} characters together`)
      const name = nameOf(path)
      if (name === opaque) replaced.push(parentOf(path))
      else if (name.startsWith(whiteout)) {
        const parent = parentOf(path)
        removed.push(`${parent === '' ? '' : `${parent}/`}${name.slice(whiteout.length)}`)
      } else if (path !== '' && !skipped.has(entry.type)) {
        latest = Math.max(latest, entry.mtime)
        own.set(path, { at, type: entry.type, link: entry.type === 'link' ? plain(entry.linkPath) : '' })
      }
    }
    for (const [path, { at: place, type }] of own) {
      if (takesTurn(path)) await nextTurn()
      if (!entries.has(path) && !marks.hide(path)) entries.set(path, { layer, at: place, type })
    }
    for (const [path, { type, link, at: place }] of own) {
      if (takesTurn(path)) await nextTurn()
      const kept = entries.get(path)
      if (type === 'link' && kept?.layer === layer && kept.at === place) {
        const target = entries.get(link)
        const file = own.get(link)
        if (
          file !== undefined &&
          (target?.layer !== layer || target.at !== file.at) &&
          !heirs.has(`${layer}:${link}`)
        )
          heirs.set(`${layer}:${link}`, path)
      }
      // Nothing is below the lowest layer.
      if (layer > 0 && type !== 'directory') marks.of(path).covered = true
    }
    for (const path of removed) marks.of(path).gone = true
    for (const path of replaced) marks.of(path).covered = true
  }
  return { entries, heirs, latest }
}

const headOf = (entry: TarEntry, name: string, epoch: number | undefined) => ({
  ...{ name, mode: entry.mode, uid: 0, gid: 0, uname: '', gname: '' },
  mtime: tarTime(Math.min(entry.mtime, epoch ?? entry.mtime) * 1_000).mtime,
})

/**
 * Writes the merged files into an archive; times after `epoch` are set to it. `room` waits for its
 * reader.
 */
export const addLayers = async (
  tar: Pack,
  layers: ImageFolder['layers'],
  { entries, heirs }: Merged,
  { epoch, room }: { epoch: number | undefined; room: () => Promise<void> },
): Promise<Set<string>> => {
  const written = new Set<string>()
  const reached = new Set<string>()
  /** Writes the folders above a path that no layer has. */
  const folders = async (path: string): Promise<void> => {
    const above: string[] = []
    for (let at = parentOf(path); at !== '' && !reached.has(at); at = parentOf(at)) {
      if (reached.size === most.entries) throw tooMany()
      reached.add(at)
      above.push(at)
    }
    for (const folder of above.toReversed())
      if (!entries.has(folder) && !written.has(folder)) {
        written.add(folder)
        tar.entry({ name: `${folder}/`, type: 'directory', mode: 0o755, mtime: new Date(0) })
        await room()
      }
  }
  const addFile = (entry: TarEntry, path: string): Promise<void> =>
    addContent(tar, { ...headOf(entry, path, epoch), size: entry.size }, entry.content)
  for (let layer = 0; layer < layers.length; layer += 1) {
    let at = -1
    for await (const entry of tarEntries(layerBytes(layers[layer]?.path ?? ''))) {
      at += 1
      const path = plain(entry.path)
      const kept = entries.get(path)
      const heir = heirs.get(`${layer}:${path}`)
      if (entry.type === 'file' && heir !== undefined) {
        await folders(heir)
        written.add(heir)
        await addFile(entry, heir)
        continue
      }
      if (kept?.layer !== layer || kept.at !== at || written.has(path)) continue
      await folders(path)
      written.add(path)
      await room()
      if (entry.type === 'file') await addFile(entry, path)
      else if (entry.type === 'directory')
        tar.entry({ ...headOf(entry, `${path}/`, epoch), type: 'directory' })
      else if (entry.type === 'symlink')
        tar.entry({ ...headOf(entry, path, epoch), type: 'symlink', linkname: entry.linkPath })
      else if (entry.type === 'link') {
        const target = plain(entry.linkPath)
        tar.entry({
          ...headOf(entry, path, epoch),
          type: 'link',
          linkname: heirs.get(`${layer}:${target}`) ?? target,
        })
      }
    }
  }
  return written
}
