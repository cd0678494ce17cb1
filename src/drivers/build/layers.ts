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
/** Limit for the entries of all layers of one image. */
const mostEntries = 5_000_000

const plain = (path: string): string => {
  const names = path.split('/').filter((name) => name !== '' && name !== '.')
  if (names.includes('..'))
    throw new BuildError(`a layer of the image has the path ${JSON.stringify(path.slice(0, 200))}`)
  return names.join('/')
}
const parentOf = (path: string): string => path.slice(0, Math.max(0, path.lastIndexOf('/')))
const nameOf = (path: string): string => path.slice(path.lastIndexOf('/') + 1)

const ancestors = (path: string): string[] => {
  const found: string[] = []
  for (let at = parentOf(path); at !== ''; at = parentOf(at)) found.push(at)
  return found
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
  const gone = new Set<string>()
  const covered = new Set<string>()
  let [count, latest] = [0, 0]
  const hidden = (path: string): boolean =>
    gone.has(path) || ancestors(path).some((one) => gone.has(one) || covered.has(one))
  for (let layer = layers.length - 1; layer >= 0; layer -= 1) {
    const own = new Map<string, { at: number; type: string; link: string }>()
    const removed: string[] = []
    const replaced: string[] = []
    let at = -1
    for await (const entry of tarEntries(layerBytes(layers[layer]?.path ?? ''))) {
      at += 1
      if ((count += 1) > mostEntries) throw new BuildError(`the image has more than ${mostEntries} entries`)
      const path = plain(entry.path)
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
    for (const [path, { at: place, type }] of own)
      if (!entries.has(path) && !hidden(path)) entries.set(path, { layer, at: place, type })
    for (const [path, { type, link, at: place }] of own) {
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
      if (type !== 'directory') covered.add(path)
    }
    for (const path of removed) gone.add(path)
    for (const path of replaced) covered.add(path)
  }
  return { entries, heirs, latest }
}

const headOf = (entry: TarEntry, name: string, epoch: number | undefined) => ({
  ...{ name, mode: entry.mode, uid: 0, gid: 0, uname: '', gname: '' },
  mtime: tarTime(Math.min(entry.mtime, epoch ?? entry.mtime) * 1_000).mtime,
})

/** Writes the merged files into an archive; times after `epoch` are set to it. */
export const addLayers = async (
  tar: Pack,
  layers: ImageFolder['layers'],
  { entries, heirs }: Merged,
  epoch: number | undefined,
): Promise<Set<string>> => {
  const written = new Set<string>()
  const folders = (path: string): void => {
    for (const folder of ancestors(path).toReversed())
      if (!entries.has(folder) && !written.has(folder)) {
        written.add(folder)
        tar.entry({ name: `${folder}/`, type: 'directory', mode: 0o755, mtime: new Date(0) })
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
        folders(heir)
        written.add(heir)
        await addFile(entry, heir)
        continue
      }
      if (kept?.layer !== layer || kept.at !== at || written.has(path)) continue
      folders(path)
      written.add(path)
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
