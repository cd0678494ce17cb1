import { expect, test } from '@jest/globals'
import { mkdtemp, open, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import { crc32 } from 'node:zlib'
import { checkArchive } from '../src/domains/instance/archives/zip-check.ts'
import { zipSize, zipStream, type PackedEntry } from '../src/zip.ts'
import { runFolder } from './support/run-folder.ts'
import { proved } from './support/share.ts'

const time = new Date(2026, 10, 24, 13, 37, 59)
const artifact = (n: number): string => `artifacts/sha256/${n.toString(16).padStart(64, '0')}`
/** An entry of bytes as they are, whose sum is not looked at. */
const stored = (name: string, size: number, pieces: Iterable<Buffer>): PackedEntry => ({
  ...{ name, time, method: 0, crc: 1, size, packedSize: size },
  open: () => Readable.from(pieces, { objectMode: false }),
})

proved(
  'entries above 4 GiB, and behind one, are where the directory says, and the size is known before',
  async () => {
    const piece = Buffer.alloc(1024 ** 2)
    const size = 4_100 * piece.length
    const zeros = function* () {
      for (let n = 0; n < 4_100; n += 1) yield piece
    }
    const text = Buffer.from('{}')
    const entries = [
      stored(artifact(1), size, zeros()),
      stored(artifact(2), 2, [text]),
      { ...stored('manifest.json', 2, [text]), crc: crc32(text) },
    ]
    await using after = new AsyncDisposableStack()
    const folder = await mkdtemp(join(runFolder(), 'wide-'))
    after.defer(() => rm(folder, { recursive: true, force: true }))
    const file = after.use(await open(join(folder, 'wide.zip'), 'w+'))
    let at = 0
    for await (const bytes of zipStream(entries) as AsyncIterable<Buffer>) {
      // What is not written stays zero, and takes no place on disk.
      if (!bytes.equals(piece.subarray(0, bytes.length))) await file.write(bytes, 0, bytes.length, at)
      at += bytes.length
    }
    expect(at).toBe(await zipSize(entries))
    const { entries: found, read } = await checkArchive(file, at)
    const seen = [...found.values()].map((entry) => [entry.fileName, entry.crc32, entry.uncompressedSize])
    expect(seen).toEqual([
      [artifact(1), 1, size],
      [artifact(2), 1, 2],
      ['manifest.json', crc32(text), 2],
    ])
    const last = found.get('manifest.json')
    expect(last === undefined ? undefined : await buffer(await read(last))).toEqual(text)

    // The sizes before the bytes of the first entry are checked too: 4 bytes of the field's head, then 8 each.
    const name = artifact(1).length
    for (const place of [30 + name + 2, 30 + name + 4, 30 + name + 12]) {
      const kept = Buffer.alloc(1)
      await file.read(kept, 0, 1, place)
      await file.write(Buffer.from([(kept[0] ?? 0) ^ 1]), 0, 1, place)
      await expect(checkArchive(file, at)).rejects.toThrow()
      await file.write(kept, 0, 1, place)
    }
    await checkArchive(file, at)
  },
  300_000,
)

test('an entry that is shorter or longer than it says, or cannot be read, breaks the file off', async () => {
  for (const wrong of ['a', 'abc']) {
    const entry = stored(artifact(1), 2, [Buffer.from(wrong)])
    await expect(buffer(zipStream([entry]))).rejects.toThrow('has changed')
  }
  const unreadable = function* (): Generator<Buffer> {
    yield Buffer.from('a')
    throw new Error('the disk is gone')
  }
  await expect(buffer(zipStream([stored(artifact(1), 2, unreadable())]))).rejects.toThrow('the disk is gone')
})

test('a reader that leaves closes the entry that is read, and opens no other', async () => {
  const endless = Readable.from(
    (function* () {
      for (;;) yield Buffer.alloc(100_000)
    })(),
    { objectMode: false },
  )
  const silent = new Readable({ read: () => undefined })
  for (const [source, enough] of [
    [endless, 1_000],
    [silent, 1],
  ] as const) {
    let opened = 0
    const second = { ...stored(artifact(2), 0, []), open: () => Readable.from([(opened += 1)]) }
    const closed = new Promise((resolve) => source.once('close', resolve))
    const stream = zipStream([{ name: 'first', time, open: () => source }, second])
    let read = 0
    for await (const bytes of stream) if ((read += (bytes as Buffer).length) >= enough) break
    await closed
    expect([stream.destroyed, opened]).toEqual([true, 0])
  }
})

proved.each([
  ['read at once', (): Promise<void> => Promise.resolve()],
  ['read slowly', (): Promise<void> => new Promise((resolve) => setImmediate(resolve))],
])('2,000 entries come to an end, %s', async (_, pause) => {
  const count = 2_000
  const entries = Array.from({ length: count }, (_entry, n) =>
    stored(`data/${'x'.repeat(n % 240)}\n${n}`, 1, [Buffer.from('a')]),
  )
  const parts: Buffer[] = []
  for await (const bytes of zipStream(entries) as AsyncIterable<Buffer>) {
    parts.push(bytes)
    await pause()
  }
  const file = Buffer.concat(parts)
  // The record of the end has the number of entries.
  expect(file.readUInt32LE(file.length - 22)).toBe(0x06054b50)
  expect(file.readUInt16LE(file.length - 12)).toBe(count)
  expect(file.length).toBe(await zipSize(entries))
})
