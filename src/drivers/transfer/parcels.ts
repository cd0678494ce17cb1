import type { TreeEntry, Tree } from './tree.ts'

/**
 * A large file is verified, and resumed after a cut, block by block. At 16 MiB a block costs 4
 * processes, 1 % of its time.
 */
export const blockBytes = 16 * 1024 * 1024
/**
 * Smaller files travel in tar streams; larger ones as pieces, so that a cut in the middle of one
 * costs nothing.
 */
const packedBelow = 4 * 1024 * 1024
const packBytes = 8 * 1024 * 1024
const packFiles = 4_096
const runBytes = { least: blockBytes, most: 256 * 1024 * 1024 }
/** A file of which fewer bytes have arrived is sent again as a whole. */
const keptFrom = 256 * 1024

/** The range of one digest: a file up to `blockBytes`, or a block of a larger one. */
export interface Unit {
  path: string
  /** Where it begins in its file, in bytes. */
  offset: number
  length: number
}

/**
 * The unit's key in maps of digests. A path may contain any character, so the number comes first.
 */
export const unitKey = ({ offset, path }: { offset: number; path: string }): string =>
  `${String(offset)} ${path}`

export const unitsOf = function* (path: string, { sizeBytes }: TreeEntry): Generator<Unit> {
  for (let offset = 0; offset === 0 || offset < sizeBytes; offset += blockBytes)
    yield { path, offset, length: Math.min(blockBytes, sizeBytes - offset) }
}

/** Bytes from `start` up to `end` of a file; `end` is a block's or the file's. */
export interface FilePiece {
  path: string
  start: number
  end: number
}

/** The content of one stream. */
export type Parcel =
  /** A tar stream. `members` are files and links. */
  { kind: 'pack'; members: string[]; bytes: number } | { kind: 'pieces'; pieces: FilePiece[]; bytes: number }

/** The missing part of a file at the target: the whole, or from an offset within its units. */
export interface MissingPart {
  unit: Unit
  /** Bytes of the unit that have arrived. */
  has: number
}

/**
 * Splits the missing parts into streams: small files and links into packs of 8 MiB, the rest into
 * runs of neighbouring blocks that fill `streams` streams evenly.
 */
export const parcelsOf = (
  tree: Tree,
  needs: readonly MissingPart[],
  links: readonly string[],
  streams: number,
): Parcel[] => {
  const parcels: Parcel[] = []
  let pack: Extract<Parcel, { kind: 'pack' }> | undefined
  const member = (path: string, bytes: number): void => {
    if (
      pack === undefined ||
      (pack.bytes + bytes > packBytes && pack.members.length > 0) ||
      pack.members.length === packFiles
    )
      parcels.push((pack = { kind: 'pack', members: [], bytes: 0 }))
    pack.members.push(path)
    pack.bytes += bytes
  }
  for (const path of links) member(path, 0)
  const large: MissingPart[] = []
  for (const need of needs) {
    const { path, length } = need.unit
    const whole = length === (tree.get(path)?.sizeBytes ?? 0)
    if (whole && length < packedBelow && need.has < keptFrom) member(path, length)
    else large.push(need)
  }
  const total = large.reduce((sum, { unit, has }) => sum + unit.length - has, 0)
  const limit = Math.min(runBytes.most, Math.max(runBytes.least, total / streams))
  let run: Extract<Parcel, { kind: 'pieces' }> | undefined
  for (const { unit, has } of large) {
    const start = unit.offset + has
    const end = unit.offset + unit.length
    if (run === undefined || (run.bytes > 0 && run.bytes + end - start > limit * 1.01))
      parcels.push((run = { kind: 'pieces', pieces: [], bytes: 0 }))
    const last = run.pieces.at(-1)
    if (last?.path === unit.path && last.end === start) last.end = end
    else run.pieces.push({ path: unit.path, start, end })
    run.bytes += end - start
  }
  return parcels
}

/**
 * How many bytes of a block have arrived from its beginning on, by the notes after every write:
 * `start count` a line, in any order, from several streams.
 */
export const prefixByNotes = (notes: string, { offset, length }: Unit): number => {
  const spans = notes
    .split('\n')
    .map((line) => line.split(' ').map(Number) as [number, number])
    .filter(([start, count]) => count > 0 && start + count > offset && start < offset + length)
    .sort(([a], [b]) => a - b)
  let reached = offset
  for (const [start, count] of spans) if (start <= reached) reached = Math.max(reached, start + count)
  return Math.min(reached - offset, length)
}
