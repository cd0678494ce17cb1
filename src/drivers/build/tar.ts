import { BuildError } from './errors.ts'

/**
 * Reads tar archives as they arrive. Own code: `tar-stream` keeps the head of an entry in memory
 * whatever its size, and these archives are hostile. Engines read them by Go's archive/tar, so each
 * entry has the path, the size and the place that it has there; what Go and other programs read in two
 * ways is refused.
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

/** The octal number of a field; undefined: none. */
const octalOf = (field: Buffer): number | undefined => {
  // Blanks and zero bytes on both sides are filling, and the first zero byte inside ends the number.
  const [digits = ''] = field
    .toString('latin1')
    .replaceAll(/^[ \0]+|[ \0]+$/g, '')
    .split('\0', 1)
  return /^[0-7]*$/.test(digits) ? Number.parseInt(`0${digits}`, 8) : undefined
}

const numberOf = (field: Buffer): number => {
  // Base 256, where eight digits are too few.
  if (((field[0] ?? 0) & 0x80) !== 0) {
    const value = field.subarray(1).reduce((sum, byte) => sum * 256 + byte, 0)
    if ((field[0] ?? 0) !== 0x80 || !Number.isSafeInteger(value))
      throw new BuildError('the archive has a number that is negative or too large')
    return value
  }
  const value = octalOf(field)
  if (value === undefined) throw new BuildError('the archive has a head with a number that is none')
  return value
}

const checkSum = (head: Buffer): void => {
  const sum = head.reduce((all, byte, at) => all + (at >= 148 && at < 156 ? 32 : byte), 0)
  if (sum !== octalOf(head.subarray(148, 156)))
    throw new BuildError('this is no tar archive: the checksum of a head is wrong')
}

/** The records of a PAX head: `<length> <name>=<value>\n` each. */
const recordsOf = (bytes: Buffer): [string, string][] => {
  const found: [string, string][] = []
  for (let at = 0; at < bytes.length;) {
    const space = bytes.indexOf(32, at)
    const digits = bytes.toString('latin1', at, Math.max(at, space))
    const equals = bytes.indexOf(61, space)
    const end = at + Number(digits)
    if (!/^\d{1,7}$/.test(digits) || equals <= space + 1 || equals >= end - 1 || bytes[end - 1] !== 10)
      throw new BuildError('the archive has a PAX record that cannot be read')
    const name = utf8(bytes.subarray(space + 1, equals), 'PAX name')
    const value = bytes.subarray(equals + 1, end - 1)
    if (/^(link)?path$/.test(name) && value.includes(0))
      throw new BuildError(`the archive has a zero byte in the PAX record ${name}`)
    // Extended attributes are bytes, and nothing here reads them.
    if (!name.startsWith('SCHILY.xattr.')) found.push([name, utf8(value, 'PAX value')])
    at = end
  }
  return found
}

/** An empty value leaves that of the head. */
const filled = (text: string | undefined): string | undefined => (text === '' ? undefined : text)

const recordNumber = (
  records: ReadonlyMap<string, string>,
  name: string,
  usual: number,
  form = /^\d+$/,
): number => {
  const given = filled(records.get(name))
  if (given === undefined) return usual
  const value = Number(given)
  if (!form.test(given) || value > Number.MAX_SAFE_INTEGER)
    throw new BuildError(`the archive has a PAX record ${JSON.stringify(name)} that is no number`)
  return Math.floor(value)
}

/** The prefix of a path in a head: formats other than that of POSIX have times there. */
const prefixOf = (head: Buffer): string => {
  const magic = head.toString('latin1', 257, 265)
  if (magic.startsWith('ustar\0')) {
    const end = head.toString('latin1', 508, 512) === 'tar\0' ? 476 : 500
    return utf8(textOf(head.subarray(345, end)), 'path')
  }
  if (magic !== 'ustar  \0') return ''
  // Go before 1.8 wrote a prefix into heads of GNU, and Go reads one where the times are no numbers.
  const areTimes = [345, 357].every((at) => {
    const field = head.subarray(at, at + 12)
    const [first = 0] = field
    return first === 0 || (first < 0x80 ? octalOf(field) !== undefined : numberOf(field) >= 0)
  })
  const prefix = areTimes ? '' : textOf(head.subarray(345, 500)).toString('latin1')
  if (/[\x80-\xff]/.test(prefix))
    throw new BuildError('the archive has a head of GNU whose times are no numbers')
  return prefix
}

const pathOf = (head: Buffer): string => {
  const name = utf8(textOf(head.subarray(0, 100)), 'path')
  const prefix = prefixOf(head)
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

/**
 * Kinds of records that one entry may not have beside a kind: programs differ in which they take. Go
 * drops the records before those for all entries.
 */
const contradicting: Readonly<Record<string, string>> = { x: 'xLK', L: 'xL', K: 'xK', g: 'xLK' }

/** The values before the next entry, with those of one more record. @throws BuildError */
const named = (names: Names, flag: string, bytes: Buffer): Names => {
  if ([...names.kinds].some((kind) => contradicting[flag]?.includes(kind)))
    throw new BuildError('the archive names one entry twice, in two records')
  const kinds = names.kinds + flag
  if (flag === 'L') return { ...names, kinds, path: utf8(textOf(bytes), 'path') }
  if (flag === 'K') return { ...names, kinds, linkPath: utf8(textOf(bytes), 'link') }
  const records = new Map(recordsOf(bytes))
  if (flag === 'x') return { ...names, kinds, records }
  for (const name of records.keys())
    if (/^(path|linkpath|size|GNU\.sparse\..*)$/.test(name))
      throw new BuildError(`the archive gives all entries one ${name}; give each its own`)
  // Engines take no record for all entries.
  return names
}

const entryOf = (head: Buffer, { path, linkPath, records }: Names): Omit<TarEntry, 'content'> => {
  const flag = head.toString('latin1', 156, 157)
  const given = filled(records.get('path')) ?? filled(path) ?? pathOf(head)
  const plain = given.replace(/\/+$/, '')
  // Such entries have other paths and other bytes where they are unpacked.
  if (flag === 'S' || [...records.keys()].some((name) => name.startsWith('GNU.sparse.')))
    throw new BuildError(
      `${JSON.stringify(plain.slice(0, 200))} is packed as a sparse file; pack without --sparse`,
    )
  const isFolder = flag === '\0' && given.endsWith('/')
  const type = isFolder ? 'directory' : (types[flag] ?? `entry of type ${JSON.stringify(flag)}`)
  const size = recordNumber(records, 'size', numberOf(head.subarray(124, 136)))
  return {
    ...{ path: plain, type },
    mode: numberOf(head.subarray(100, 108)) & 0o7777,
    uid: recordNumber(records, 'uid', numberOf(head.subarray(108, 116))),
    gid: recordNumber(records, 'gid', numberOf(head.subarray(116, 124))),
    mtime: recordNumber(records, 'mtime', numberOf(head.subarray(136, 148)), /^\d+(\.\d*)?$/),
    // Entries without content have none, whatever size their heads give.
    size: isFolder || /[1-6]/.test(flag) ? 0 : size,
    linkPath:
      filled(records.get('linkpath')) ?? filled(linkPath) ?? utf8(textOf(head.subarray(157, 257)), 'link'),
    major: type.endsWith('device') ? numberOf(head.subarray(329, 337)) : 0,
    minor: type.endsWith('device') ? numberOf(head.subarray(337, 345)) : 0,
  }
}

const padded = (size: number): number => Math.ceil(size / 512) * 512

const zeros = Buffer.alloc(65_536)

/** Reads what stands behind the last entry. @throws BuildError for anything but zero bytes */
const readEnd = async (source: Source): Promise<void> => {
  for (let piece; (piece = await source.some(zeros.length)) !== undefined;)
    if (!piece.equals(zeros.subarray(0, piece.length)))
      throw new BuildError('the archive has bytes behind its end; pack all files into one archive')
}

/** The entries of an archive in their order. @throws BuildError for data that is no tar archive */
export async function* tarEntries(chunks: AsyncIterable<Buffer>): AsyncGenerator<TarEntry> {
  const source = new Source(chunks)
  let names: Names = { records: new Map(), kinds: '' }
  for (;;) {
    const first = await source.some(512)
    if (first === undefined) break
    const head =
      first.length === 512 ? first : Buffer.concat([first, await source.exactly(512 - first.length)])
    if (head.every((byte) => byte === 0)) {
      await readEnd(source)
      break
    }
    checkSum(head)
    const flag = head.toString('latin1', 156, 157)
    if (/[xgLK]/.test(flag)) {
      const size = numberOf(head.subarray(124, 136))
      if (size > mostHeadBytes)
        throw new BuildError(`the archive names one entry with more than ${mostHeadBytes} bytes`)
      names = named(names, flag, (await source.exactly(padded(size))).subarray(0, size))
      continue
    }
    const entry = entryOf(head, names)
    names = { records: new Map(), kinds: '' }
    let left = entry.size
    const rest = async function* (): AsyncGenerator<Buffer> {
      while (left > 0) {
        const piece = await source.some(left)
        if (piece === undefined)
          throw new BuildError('the archive ends in the middle of an entry; send all of it')
        left -= piece.length
        yield piece
      }
    }
    yield { ...entry, content: rest() }
    for await (const _unread of rest());
    await source.exactly(padded(entry.size) - entry.size)
  }
  if (names.kinds !== '') throw new BuildError('the archive ends with a record that names no entry')
}
