import { createHash } from 'node:crypto'
import { createReadStream, createWriteStream } from 'node:fs'
import { mkdir, open, readFile, rm } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { Transform } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { createGunzip, createZstdDecompress } from 'node:zlib'
import { BuildError } from './errors.ts'
import { tarEntries } from './tar.ts'

/** An image as files: its configuration and its layers, the lowest first. */
export interface ImageFolder {
  config: Buffer
  architecture: string
  /** Seconds since 1970. */
  created: number
  environment: readonly string[]
  entrypoint: readonly string[]
  command: readonly string[]
  layers: readonly { path: string; digest: string; sizeBytes: number }[]
}

/** The files of an archive of `docker save` that are read. */
const wanted = /^(manifest\.json|(blobs\/sha256\/)?[0-9a-f]{64}(\.json|\/layer\.tar)?)$/

interface Config {
  architecture?: unknown
  created?: unknown
  config?: { Env?: unknown; Entrypoint?: unknown; Cmd?: unknown } | null
  rootfs?: { diff_ids?: unknown }
}

const textsOf = (value: unknown): string[] =>
  Array.isArray(value) ? value.filter((item): item is string => typeof item === 'string') : []

/** Writes the parts of an archive into a folder; links among layers become their targets. */
const unpack = async (archive: AsyncIterable<Buffer>, folder: string, counted: (bytes: number) => void) => {
  const links = new Map<string, string>()
  const digests = new Map<string, { digest: string; sizeBytes: number }>()
  for await (const entry of tarEntries(archive)) {
    if (entry.type === 'symlink' && wanted.test(entry.path)) {
      const target = join(dirname(entry.path), entry.linkPath)
      if (wanted.test(target)) links.set(entry.path, target)
      continue
    }
    if (entry.type !== 'file' || !wanted.test(entry.path)) continue
    const path = join(folder, entry.path)
    await mkdir(dirname(path), { recursive: true, mode: 0o700 })
    await using file = await open(path, 'w', 0o600)
    const hash = createHash('sha256')
    for await (const piece of entry.content) {
      hash.update(piece)
      await file.writeFile(piece)
      counted(piece.length)
    }
    digests.set(entry.path, { digest: `sha256:${hash.digest('hex')}`, sizeBytes: entry.size })
  }
  return { links, digests }
}

type Layer = ImageFolder['layers'][number]

/** Limit for the layers of an image that an engine stores compressed. */
const mostExpandedBytes = 20 * 2 ** 30

/** By the first bytes of a file. */
const expanders: readonly (readonly [mark: string, open: () => Transform])[] = [
  ['1f8b', () => createGunzip({ chunkSize: 262_144 })],
  ['28b52ffd', () => createZstdDecompress({ chunkSize: 262_144 })],
]

/** A compressed layer as its tar archive, beside it; undefined for a layer of another form. */
const expanded = async (path: string, mostBytes: number): Promise<Layer | undefined> => {
  const head = Buffer.alloc(4)
  await using file = await open(path, 'r')
  await file.read(head, 0, 4, 0)
  const expander = expanders.find(([mark]) => head.toString('hex').startsWith(mark))
  if (expander === undefined) return undefined
  const hash = createHash('sha256')
  let sizeBytes = 0
  const counting = new Transform({
    transform(piece: Buffer, _, done) {
      sizeBytes += piece.length
      hash.update(piece)
      const over = sizeBytes > mostBytes
      done(
        over
          ? new BuildError(`the layers of the image expand to more than ${mostExpandedBytes} bytes`)
          : null,
        piece,
      )
    },
  })
  const plain = `${path}.expanded`
  try {
    await pipeline(createReadStream(path), expander[1](), counting, createWriteStream(plain, { mode: 0o600 }))
  } catch (error) {
    if (/^(Z_|ZSTD_|ERR_.*Z(LIB|STD))/.test((error as NodeJS.ErrnoException).code ?? '')) return undefined
    throw error
  }
  return { path: plain, digest: `sha256:${hash.digest('hex')}`, sizeBytes }
}

/**
 * Takes an image from the engine (`docker save`) and compares each layer, expanded where the engine
 * stores it compressed, with the digest that the configuration names.
 */
export const readImage = async (
  archive: AsyncIterable<Buffer>,
  folder: string,
  counted: (bytes: number) => void,
): Promise<ImageFolder> => {
  await rm(folder, { recursive: true, force: true })
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const { links, digests } = await unpack(archive, folder, counted)
  const broken = (what: string) =>
    new BuildError(`the engine gave an archive ${what}; try again`, { passes: true })
  if (!digests.has('manifest.json')) throw broken('without a manifest')
  const [image] = JSON.parse(await readFile(join(folder, 'manifest.json'), 'utf8')) as {
    Config: string
    Layers: string[]
  }[]
  if (image === undefined || !digests.has(image.Config)) throw broken('without the image')
  const config = await readFile(join(folder, image.Config))
  const parsed = JSON.parse(config.toString()) as Config
  const diffs = textsOf(parsed.rootfs?.diff_ids)
  if (diffs.length !== image.Layers.length) throw broken('with other layers than the image has')
  const layers: Layer[] = []
  const known = new Map<string, Layer>()
  let left = mostExpandedBytes
  for (const [at, name] of image.Layers.entries()) {
    const target = links.get(name) ?? name
    const found = digests.get(target)
    let layer = known.get(target) ?? (found && { path: join(folder, target), ...found })
    if (layer !== undefined && layer.digest !== diffs[at]) {
      layer = await expanded(layer.path, left)
      left -= layer?.sizeBytes ?? 0
    }
    if (layer === undefined || layer.digest !== diffs[at]) throw broken('with a layer of another digest')
    known.set(target, layer)
    layers.push(layer)
  }
  const created = typeof parsed.created === 'string' ? Date.parse(parsed.created) : 0
  return {
    ...{ config, layers, architecture: typeof parsed.architecture === 'string' ? parsed.architecture : '' },
    created: Number.isFinite(created) && created > 0 ? Math.floor(created / 1_000) : 0,
    environment: textsOf(parsed.config?.Env),
    entrypoint: textsOf(parsed.config?.Entrypoint),
    command: textsOf(parsed.config?.Cmd),
  }
}

/** The content of a layer. */
export const layerBytes = (path: string): AsyncIterable<Buffer> =>
  createReadStream(path, { highWaterMark: 1_048_576 }) as AsyncIterable<Buffer>
