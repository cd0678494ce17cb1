import { BuildError } from './errors.ts'

/**
 * Reads tar archives as they arrive. Own code: `tar-stream` keeps the head of an entry in memory
 * whatever its size, and these archives are hostile.
 */

/** Limit for the bytes of the records that name one entry (PAX, GNU): a path and its attributes. */
const mostHeadBytes = 1_048_576

/** Kinds of entries by their flag; an unlisted flag is its own type. */
const types: Readonly<Record<string, string>> = {
  '0': 'file',
  '\0': 'file',
  '7': 'file',
  '1': 'link',
  '2': 'symlink',
  '3': 'character-device',
  '4': 'block-device',
  '5': 'directory',
  '6': 'fifo',
}

export interface TarEntry {
  /** Without slashes at its end; not checked. */
  path: string
  type: string
  mode: number
  uid: number
  gid: number
  /** Seconds since 1970. */
  mtime: number
  size: number
  /** Only for links. */
  linkPath: string
  major: number
  minor: number
  /** Extended attributes and all other values of the archive's PAX records. */
  records: ReadonlyMap<string, string>
  /** The content, to be read once; unread bytes are skipped. */
  content: AsyncIterable<Buffer>
}

const decoder = new TextDecoder('utf-8', { fatal: true })
const utf8 = (bytes: Buffer, what: string): string => {
  try {
    return decoder.decode(bytes)
  } catch {
    throw new BuildError(`the archive has a ${what} that is not UTF-8`)
  }
}

/** Returns the requested number of bytes, in pieces or as one. */
class Source {
  readonly #chunks: AsyncIterator<Buffer>
  #rest: Buffer = Buffer.alloc(0)
  constructor(chunks: AsyncIterable<Buffer>) {
    this.#chunks = chunks[Symbol.asyncIterator]()
  }

  /** Returns 1 to `most` bytes; undefined at the end. */
  async some(most: number): Promise<Buffer | undefined> {
    while (this.#rest.length === 0) {
      const next = await this.#chunks.next()
      if (next.done === true) return undefined
      this.#rest = next.value
    }
    const piece = this.#rest.subarray(0, most)
    this.#rest = this.#rest.subarray(piece.length)
    return piece
  }

  /** Returns exactly `count` bytes. @throws BuildError where the archive ends before */
  async exactly(count: number): Promise<Buffer> {
    const pieces: Buffer[] = []
    for (let left = count; left > 0;) {
      const piece = await this.some(left)
      if (piece === undefined)
        throw new BuildError('the archive ends in the middle of an entry; send all of it')
      pieces.push(piece)
      left -= piece.length
    }
    return pieces.length === 1 && pieces[0] !== undefined ? pieces[0] : Buffer.concat(pieces, count)
  }
}

const textOf = (bytes: Buffer): Buffer => {
  const end = bytes.indexOf(0)
  return end < 0 ? bytes : bytes.subarray(0, end)
}

const numberOf = (field: Buffer): number => {
  // Base 256, where eight digits are too few.
  if (((field[0] ?? 0) & 0x80) !== 0) {
    const value = field.subarray(1).reduce((sum, byte) => sum * 256 + byte, 0)
    if ((field[0] ?? 0) !== 0x80 || !Number.isSafeInteger(value))
      throw new BuildError('the archive has a number that is negative or too large')
    return value
  }
  const digits = textOf(field).toString('latin1').trim()
  if (!/^[0-7]*$/.test(digits)) throw new BuildError('the archive has a head with a number that is none')
  return digits === '' ? 0 : Number.parseInt(digits, 8)
}

const checkSum = (head: Buffer): void => {
  const sum = head.reduce((all, byte, at) => all + (at >= 148 && at < 156 ? 32 : byte), 0)
  if (sum !== Number.parseInt(textOf(head.subarray(148, 156)).toString('latin1'), 8))
    throw new BuildError('this is no tar archive: the checksum of a head is wrong')
}

/** The records of a PAX head: `<length> <name>=<value>\n` each. */
const recordsOf = (bytes: Buffer): [string, string][] => {
  const found: [string, string][] = []
  for (let at = 0; at < bytes.length;) {
    const space = bytes.indexOf(32, at)
    const length = Number(bytes.toString('latin1', at, space))
    const equals = bytes.indexOf(61, space)
    const end = at + length
    if (space < 0 || !Number.isInteger(length) || end > bytes.length || equals < 0 || equals >= end)
      throw new BuildError('the archive has a PAX record that cannot be read')
    const name = utf8(bytes.subarray(space + 1, equals), 'PAX name')
    const value = bytes.subarray(equals + 1, end - 1)
    // Attributes are bytes; latin1 preserves them.
    found.push([name, name.startsWith('SCHILY.xattr.') ? value.toString('latin1') : utf8(value, 'PAX value')])
    at = end
  }
  return found
}

const recordNumber = (records: ReadonlyMap<string, string>, name: string, usual: number): number => {
  const given = records.get(name)
  if (given === undefined) return usual
  const value = Number(given)
  if (!Number.isFinite(value) || value < 0 || value > Number.MAX_SAFE_INTEGER)
    throw new BuildError(`the archive has a PAX record ${JSON.stringify(name)} that is no number`)
  return value
}

/** Where the prefix of a path ends in a head: formats other than that of POSIX have times there. */
const prefixEnd = (head: Buffer): number => {
  const magic = head.toString('latin1', 257, 265)
  if (magic.startsWith('ustar\0')) return head.toString('latin1', 508, 512) === 'tar\0' ? 476 : 500
  // Go before 1.8 wrote a prefix into heads of GNU, and Go reads one where the times are no numbers.
  const isTime = [345, 357].every((at) => (head[at] ?? 0) >= 0x80 || /^[0-7 \0]*$/.test(field(head, at)))
  return magic === 'ustar  \0' && !isTime ? 500 : 345
}
const field = (head: Buffer, at: number): string => head.toString('latin1', at, at + 12)

const pathOf = (head: Buffer): string => {
  const name = utf8(textOf(head.subarray(0, 100)), 'path')
  const prefix = utf8(textOf(head.subarray(345, prefixEnd(head))), 'path')
  return prefix === '' ? name : `${prefix}/${name}`
}

/** The values that records before an entry set for it. */
interface Names {
  path?: string
  linkPath?: string
  records: Map<string, string>
  /** Kinds of the records that were read for the entry: x, L, K. */
  kinds: string
}

/** Kinds of records that one entry may not have beside a kind: programs differ in which they take. */
const contradicting: Readonly<Record<string, string>> = { x: 'xLK', L: 'xL', K: 'xK', g: '' }

/** The values before the next entry, with those of one more record. @throws BuildError */
const named = (names: Names, flag: string, bytes: Buffer, common: Map<string, string>): Names => {
  if ([...names.kinds].some((kind) => contradicting[flag]?.includes(kind)))
    throw new BuildError('the archive names one entry twice, in two records')
  const kinds = names.kinds + flag
  if (flag === 'L') return { ...names, kinds, path: utf8(textOf(bytes), 'path') }
  if (flag === 'K') return { ...names, kinds, linkPath: utf8(textOf(bytes), 'link') }
  for (const [name, value] of recordsOf(bytes)) {
    if (flag === 'g' && /^(path|linkpath|size|GNU\.sparse\..*)$/.test(name))
      throw new BuildError(`the archive gives all entries one ${name}; give each its own`)
    // An empty value takes the record back.
    if (value === '' && !name.startsWith('SCHILY.xattr.')) names.records.delete(name)
    else names.records.set(name, value)
    if (flag === 'g') common.set(name, value)
  }
  if (common.size > 1_000) throw new BuildError('the archive has more than 1000 PAX records for all entries')
  return { ...names, kinds }
}

const entryOf = (head: Buffer, { path, linkPath, records }: Names): Omit<TarEntry, 'content'> => {
  const flag = head.toString('latin1', 156, 157)
  const given = records.get('path') ?? path ?? pathOf(head)
  const type = types[flag] ?? `entry of type ${JSON.stringify(flag)}`
  const size = Math.floor(recordNumber(records, 'size', numberOf(head.subarray(124, 136))))
  return {
    path: given.replace(/\/+$/, ''),
    // Archives from before 1988 mark directories this way.
    type: type === 'file' && given.endsWith('/') ? 'directory' : type,
    mode: numberOf(head.subarray(100, 108)) & 0o7777,
    uid: Math.floor(recordNumber(records, 'uid', numberOf(head.subarray(108, 116)))),
    gid: Math.floor(recordNumber(records, 'gid', numberOf(head.subarray(116, 124)))),
    mtime: Math.floor(recordNumber(records, 'mtime', numberOf(head.subarray(136, 148)))),
    size: type === 'file' ? size : 0,
    linkPath: records.get('linkpath') ?? linkPath ?? utf8(textOf(head.subarray(157, 257)), 'link'),
    major: type.endsWith('device') ? numberOf(head.subarray(329, 337)) : 0,
    minor: type.endsWith('device') ? numberOf(head.subarray(337, 345)) : 0,
    records,
  }
}

const padded = (size: number): number => Math.ceil(size / 512) * 512

/** The entries of an archive in their order. @throws BuildError for data that is no tar archive */
export async function* tarEntries(chunks: AsyncIterable<Buffer>): AsyncGenerator<TarEntry> {
  const source = new Source(chunks)
  const common = new Map<string, string>()
  let names: Names = { records: new Map(common), kinds: '' }
  for (;;) {
    const first = await source.some(512)
    if (first === undefined) return
    const head =
      first.length === 512 ? first : Buffer.concat([first, await source.exactly(512 - first.length)])
    if (head.every((byte) => byte === 0)) continue
    checkSum(head)
    const flag = head.toString('latin1', 156, 157)
    if (/[xgLK]/.test(flag)) {
      const size = numberOf(head.subarray(124, 136))
      if (size > mostHeadBytes)
        throw new BuildError(`the archive names one entry with more than ${mostHeadBytes} bytes`)
      const bytes = (await source.exactly(padded(size))).subarray(0, size)
      names = named(names, flag, bytes, common)
      continue
    }
    const entry = entryOf(head, names)
    names = { records: new Map(common), kinds: '' }
    let left = entry.size
    const content = async function* (): AsyncGenerator<Buffer> {
      while (left > 0) {
        const piece = await source.some(left)
        if (piece === undefined)
          throw new BuildError('the archive ends in the middle of an entry; send all of it')
        left -= piece.length
        yield piece
      }
    }
    yield { ...entry, content: content() }
    while (left > 0) {
      const piece = await source.some(left)
      if (piece === undefined)
        throw new BuildError('the archive ends in the middle of an entry; send all of it')
      left -= piece.length
    }
    await source.exactly(padded(entry.size) - entry.size)
  }
}
