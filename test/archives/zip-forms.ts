/** ZIP files as somebody may forge them. */

const centralSignature = 0x02014b50

interface Header {
  /** Where the entry's record in the directory begins, and its local header. */
  central: number
  local: number
}

/** The headers of an entry, found by its name in the directory. */
const headersOf = (zip: Buffer, name: string): Header => {
  for (let at = 0; at < zip.length - 46; at += 1)
    if (
      zip.readUInt32LE(at) === centralSignature &&
      zip.toString('utf8', at + 46, at + 46 + zip.readUInt16LE(at + 28)) === name
    )
      return { central: at, local: zip.readUInt32LE(at + 42) }
  throw new Error(`no entry ${name}`)
}

/** A copy in which `change` has written into the headers of an entry. */
export const forged = (
  zip: Buffer,
  name: string,
  change: (bytes: Buffer, header: Header) => void,
): Buffer => {
  const bytes = Buffer.from(zip)
  change(bytes, headersOf(bytes, name))
  return bytes
}

/**
 * Whether a change is one of bytes that nothing reads: in the directory versions, the number of a
 * disk, and attributes that mean nothing here; the bits with which deflate fills its last byte. A
 * file may also be of no kind instead of a regular one, as other programs write it, and be one that
 * its owner does not read.
 */
export const isUnread = (
  zip: Buffer,
  names: readonly string[],
): ((changed: Buffer, place: number) => boolean) => {
  const headers = names.map((name) => headersOf(zip, name))
  const places = new Set(
    headers.flatMap(({ central, local }) => {
      const data = local + 30 + zip.readUInt16LE(local + 26) + zip.readUInt16LE(local + 28)
      return [
        ...[4, 5, 6, 7, 34, 35, 36, 37, 38, 39, 40].map((place) => central + place),
        data + zip.readUInt32LE(central + 20) - 1,
      ]
    }),
  )
  const kinds = new Set(headers.map(({ central }) => central + 41))
  return (changed, place) =>
    places.has(place) ||
    (changed.length === zip.length && kinds.has(place) && [0x00, 0x80].includes((changed[place] ?? 0) & 0xfe))
}

/** Numbers from 0 to 1, the same for the same seed (mulberry32). */
export const numbersOf = (seed: number): (() => number) => {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), 1 | state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296
  }
}

/**
 * An honest archive with one thing changed, and the place of the change.
 * @param random numbers from 0 to 1
 */
export const mutated = (zip: Buffer, random: () => number): { bytes: Buffer; place: number; how: string } => {
  // Headers and directory are small beside the rows, and are what a reader trusts.
  const directory = zip.readUInt32LE(zip.length - 6)
  const place =
    random() < 0.5
      ? directory + Math.floor(random() * (zip.length - directory))
      : Math.floor(random() * zip.length)
  const length = 1 + Math.floor(random() * 16)
  switch (Math.floor(random() * 6)) {
    case 0: {
      const bytes = Buffer.from(zip)
      bytes[place] = (bytes[place] ?? 0) ^ (1 << Math.floor(random() * 8))
      return { bytes, place, how: 'a bit flipped' }
    }
    case 1: {
      const bytes = Buffer.from(zip)
      bytes[place] = ((bytes[place] ?? 0) + 1 + Math.floor(random() * 254)) & 0xff
      return { bytes, place, how: 'a byte replaced' }
    }
    case 2:
      return {
        bytes: Buffer.concat([zip.subarray(0, place), zip.subarray(place + length)]),
        place,
        how: 'bytes removed',
      }
    case 3:
      return {
        bytes: Buffer.concat([
          zip.subarray(0, place),
          Buffer.alloc(length, Math.floor(random() * 256)),
          zip.subarray(place),
        ]),
        place,
        how: 'bytes inserted',
      }
    case 4:
      return { bytes: zip.subarray(0, place), place, how: 'cut off' }
    default:
      return {
        bytes: Buffer.concat([
          zip.subarray(0, place),
          zip.subarray(Math.max(0, place - length), place),
          zip.subarray(place),
        ]),
        place,
        how: 'bytes doubled',
      }
  }
}

/** A ZIP file of empty files: a writer of archives takes a millisecond for each. */
export const ofEmptyFiles = (names: readonly string[]): Buffer => {
  const [files, directory]: [Buffer[], Buffer[]] = [[], []]
  let at = 0
  for (const name of names) {
    const local = Buffer.alloc(30)
    local.writeUInt32LE(0x04034b50)
    local.writeUInt16LE(10, 4)
    local.writeUInt16LE(name.length, 26)
    const central = Buffer.alloc(46)
    central.writeUInt32LE(0x02014b50)
    central.writeUInt16LE(10, 6)
    central.writeUInt16LE(name.length, 28)
    central.writeUInt32LE(at, 42)
    files.push(local, Buffer.from(name))
    directory.push(central, Buffer.from(name))
    at += local.length + name.length
  }
  const end = Buffer.alloc(22)
  end.writeUInt32LE(0x06054b50)
  for (const place of [8, 10]) end.writeUInt16LE(names.length, place)
  end.writeUInt32LE(Buffer.concat(directory).length, 12)
  end.writeUInt32LE(at, 16)
  return Buffer.concat([...files, ...directory, end])
}
