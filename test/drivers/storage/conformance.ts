import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { createHash, randomBytes } from 'node:crypto'
import { buffer } from 'node:stream/consumers'
import { Readable } from 'node:stream'
import {
  StorageError,
  type Entry,
  type StorageDriver,
  type StorageFault,
} from '../../../src/drivers/storage/contract.ts'
import {
  nameOf,
  nameOfBytes,
  parseNames,
  textOf,
  type StoragePath,
} from '../../../src/drivers/storage/paths.ts'

/** A storage for the suite: empty at first, and what only its owner can do there. */
export interface StorageUnderTest {
  driver: StorageDriver
  /** The same place once more: another process of the service. */
  again: () => StorageDriver
  /** Its endpoint, from the base of the place that copies within itself. */
  prefix?: StoragePath
  stop: () => Promise<void>
}

type Lackable = {
  [K in keyof StorageDriver]-?: undefined extends StorageDriver[K] ? K : never
}[keyof StorageDriver]
const lackable = Object.keys({
  ...{ copyWithin: 0, fileAtSite: 0, makeLink: 0, openUpload: 0, presign: 0, readMany: 0, received: 0 },
  ...{ setAttributes: 0, writeFrom: 0, writeMany: 0 },
} satisfies Record<Lackable, 0>) as Lackable[]

/** What a kind of storage can do: its flags, and those methods that others lack. */
interface StorageKind {
  capabilities: StorageDriver['capabilities']
  methods: readonly Lackable[]
}
export const storageKinds = {
  folder: {
    capabilities: { directories: true, versions: false },
    methods: ['makeLink', 'openUpload', 'readMany', 'received', 'setAttributes', 'writeMany'],
  },
  shell: {
    capabilities: { directories: true, versions: false },
    methods: [
      ...(['fileAtSite', 'makeLink', 'openUpload', 'readMany', 'received', 'setAttributes'] as const),
      ...(['writeFrom', 'writeMany'] as const),
    ],
  },
  sftp: {
    capabilities: { directories: true, versions: false },
    methods: ['makeLink', 'openUpload', 'received', 'setAttributes'],
  },
  bucket: {
    capabilities: { directories: false, versions: true },
    methods: ['copyWithin', 'openUpload', 'presign'],
  },
  bucketOfGoogle: {
    capabilities: { directories: false, versions: true },
    methods: ['copyWithin', 'presign'],
  },
} satisfies Record<string, StorageKind>

export const at = (text: string): StoragePath => parseNames(nameOf(text))
export const bytesFrom = (content: Buffer | string): Readable =>
  Readable.from([Buffer.from(content)], { objectMode: false })
export const sha256 = (content: Buffer | string): string => createHash('sha256').update(content).digest('hex')
export const faultOf = async (work: Promise<unknown>): Promise<StorageFault | 'none'> => {
  try {
    await work
    return 'none'
  } catch (error) {
    if (error instanceof StorageError) return error.fault
    throw error
  }
}
export const contentOf = async (driver: StorageDriver, path: StoragePath, options = {}): Promise<Buffer> =>
  buffer((await driver.read(path, options)).stream)
const texts = (entries: readonly Entry[]): string[] => entries.map(({ name }) => textOf(name))

/** Every page of a directory. */
export const allOf = async (driver: StorageDriver, path: StoragePath, limit = 500): Promise<Entry[]> => {
  const entries: Entry[] = []
  let after: string | undefined
  do {
    const page = await driver.list(path, { limit, after })
    entries.push(...page.entries)
    after = page.next
  } while (after !== undefined)
  return entries
}

/** What every storage promises, on a real one of this kind. */
export const storageConformance = (
  title: string,
  kind: StorageKind,
  open: () => Promise<StorageUnderTest>,
): void => {
  describe(`${title} keeps the contract`, () => {
    let site: StorageUnderTest
    let driver: Required<StorageDriver>
    const has = (method: Lackable): boolean => kind.methods.includes(method)
    /** Whether a file system is seen through its own calls: names are bytes, and contents have tags. */
    const isWhole = (): boolean => has('readMany')
    const again = () => site.again() as Required<StorageDriver>
    beforeAll(async () => {
      site = await open()
      driver = site.driver as typeof driver
    }, 600_000)
    afterAll(async () => {
      await driver.close()
      await site.stop()
    })

    const put = (path: string, content: Buffer | string, options = {}) =>
      driver.write(at(path), bytesFrom(content), options)
    /** Directories where there are any: elsewhere a key is enough. */
    const folder = (path: string): Promise<void> => driver.makeDirectory(at(path))

    test('it can do what its kind can, and nothing else', () => {
      expect({
        capabilities: driver.capabilities,
        methods: lackable.filter((method) => driver[method] !== undefined),
      }).toEqual({ capabilities: kind.capabilities, methods: [...kind.methods] })
    })

    test('what is written is read, as a whole and in ranges, and its digest is that of the bytes', async () => {
      const content = randomBytes(3 * 1024 * 1024 + 17)
      const written = await put('whole.bin', content, { sizeBytes: content.length })
      expect(written).toMatchObject({
        receivedBytes: content.length,
        sha256: sha256(content),
        entry: { type: 'file', sizeBytes: content.length },
      })
      expect((await contentOf(driver, at('whole.bin'))).equals(content)).toBe(true)
      expect(await driver.digest(at('whole.bin'))).toBe(sha256(content))
      for (const [offset, length] of [
        [0, 1],
        [5, 1_000_000],
        [content.length - 3, 100],
        [content.length, 5],
        [content.length + 100, 5],
      ] as const)
        expect(
          (await contentOf(driver, at('whole.bin'), { offset, length })).equals(
            content.subarray(offset, offset + length),
          ),
        ).toBe(true)
      expect(
        (await contentOf(driver, at('whole.bin'), { offset: 3_000_000 })).equals(content.subarray(3_000_000)),
      ).toBe(true)
    })

    test('a file of no bytes is a file', async () => {
      await put('empty.bin', '', { sizeBytes: 0 })
      expect(await driver.stat(at('empty.bin'))).toMatchObject({
        type: 'file',
        sizeBytes: 0,
        name: 'empty.bin',
      })
      expect(await contentOf(driver, at('empty.bin'))).toEqual(Buffer.alloc(0))
      expect(await driver.digest(at('empty.bin'))).toBe(sha256(''))
    })

    test('the endpoint is a directory, and what is not there is missing', async () => {
      expect(await driver.stat([])).toMatchObject({ type: 'directory', name: '' })
      expect(await faultOf(driver.stat(at('nothing')))).toBe('missing')
      expect(await faultOf(driver.read(at('nothing')))).toBe('missing')
      expect(await faultOf(driver.digest(at('nothing')))).toBe('missing')
      expect(await faultOf(driver.delete(at('nothing')))).toBe('missing')
      expect(await faultOf(driver.stat(at('nothing/below/it')))).toBe('missing')
    })

    test('directories are no files, and files no directories', async () => {
      await folder('kinds')
      await put('kinds/file', 'x')
      for (const path of [at('kinds'), []]) {
        expect(await faultOf(driver.read(path))).toBe('notFile')
        expect(await faultOf(driver.digest(path))).toBe('notFile')
        expect(await faultOf(driver.delete(path))).toBe('notFile')
        expect(await faultOf(driver.write(path, bytesFrom('x'), { overwrite: true }))).toBe('notFile')
      }
      expect(await faultOf(driver.list(at('kinds/file'), { limit: 10 }))).toBe('notDirectory')
    })

    test('a directory is listed one level at a time, page by page, each entry once', async () => {
      await folder('pages')
      await folder('pages/sub')
      await put('pages/sub/inner', 'x')
      const names = Array.from({ length: 23 }, (_, i) => `file-${i}`)
      for (const name of names) await put(`pages/${name}`, name)
      for (const limit of [1, 7, 24, 500])
        expect(texts(await allOf(driver, at('pages'), limit)).sort()).toEqual([...names, 'sub'].sort())
      const page = await driver.list(at('pages'), { limit: 7 })
      expect(page.entries.length).toBeLessThanOrEqual(7)
      const entries = await allOf(driver, at('pages'))
      for (const entry of entries.filter(({ type }) => type === 'file'))
        expect(entry).toEqual(await driver.stat([...at('pages'), entry.name]))
      expect(entries.find(({ type }) => type === 'directory')?.name).toBe('sub')
      const facts = ({ name, type, sizeBytes, modifiedAt }: Entry) => ({ name, type, sizeBytes, modifiedAt })
      const brief = await driver.list(at('pages'), { limit: 500, brief: true })
      expect(brief.entries.map(facts)).toEqual(entries.map(facts))
    })

    test('names may hold what shells, URLs, XML and patterns mean something by', async () => {
      await folder('names')
      const names = [
        ...[
          '-rf',
          '--help',
          'a b',
          ' lead',
          'tail ',
          "quo'te",
          'dou"ble',
          '$HOME',
          '`id`',
          '$(id)',
          '*',
          '?',
          '[a]',
          '{a,b}',
          '~',
        ],
        ...[
          'a&b',
          'a;b',
          'a|b',
          '<b>',
          '%41',
          '%2e%2e',
          '+',
          'a+b',
          'a%20b',
          '#x',
          '\u00e9',
          'e\u0301',
          '日本',
          '😀',
          '!',
          '^',
          ':',
          ',',
          '=',
          '@',
        ],
        ...['...', '.hidden', 'new\nline', 'tab\there', 'bell\u0007', 'x'.repeat(200)],
      ].filter((name) => !['\n', '\u0007'].some((letter) => name.includes(letter)) || isWhole())
      for (const name of names) await driver.write([...at('names'), nameOf(name)], bytesFrom(name))
      expect(texts(await allOf(driver, at('names'))).sort()).toEqual([...names].sort())
      for (const name of names) {
        const path = [...at('names'), nameOf(name)]
        expect((await contentOf(driver, path)).toString()).toBe(name)
        expect((await driver.stat(path)).name).toBe(nameOf(name))
        await driver.delete(path)
        expect(await faultOf(driver.stat(path))).toBe('missing')
      }
    })

    test('names that cannot be are refused, and no path of 4,096 bytes does harm', async () => {
      for (const path of [
        [nameOf('x'.repeat(300))],
        [nameOf('x'.repeat(4_000))],
        Array.from({ length: 2_000 }, () => nameOf('d')),
      ]) {
        expect(['name', 'missing']).toContain(await faultOf(driver.stat(path)))
        expect(['name', 'missing']).toContain(await faultOf(driver.read(path)))
      }
      expect(await faultOf(driver.write([nameOf('x'.repeat(4_000))], bytesFrom('x')))).toBe('name')
    })

    test('a write that does not come to its end leaves nothing, and says what was wrong', async () => {
      await folder('broken')
      const broken = (): Readable =>
        Readable.from(
          (async function* () {
            yield randomBytes(200_000)
            await new Promise((resolve) => setTimeout(resolve, 50))
            throw new Error('the client went away')
          })(),
          { objectMode: false },
        )
      await expect(driver.write(at('broken/a'), broken())).rejects.toThrow('the client went away')
      expect(await faultOf(put('broken/b', '12345', { sizeBytes: 6 }))).toBe('changed')
      expect(await faultOf(put('broken/c', '12345', { sizeBytes: 4 }))).toBe('changed')
      const stopped = new AbortController()
      const endless = (): Readable =>
        Readable.from(
          (async function* () {
            for (;;) {
              yield randomBytes(10_000)
              await new Promise((resolve) => setTimeout(resolve, 5))
            }
          })(),
          { objectMode: false },
        )
      const cancelled = AbortSignal.abort(new Error('cancelled before'))
      for (const isFree of [false, true])
        await expect(driver.write(at('broken/e'), endless(), { signal: cancelled, isFree })).rejects.toThrow()
      const writing = driver.write(at('broken/d'), endless(), { signal: stopped.signal })
      setTimeout(() => stopped.abort(new Error('stopped')), 100)
      await expect(writing).rejects.toThrow()
      expect(texts(await allOf(driver, at('broken')))).toEqual([])
    })

    test('a name that is taken stays as it is unless it may be overwritten', async () => {
      await put('taken', 'first')
      expect(await faultOf(put('taken', 'second'))).toBe('exists')
      expect((await contentOf(driver, at('taken'))).toString()).toBe('first')
      await put('taken', 'third', { overwrite: true })
      expect((await contentOf(driver, at('taken'))).toString()).toBe('third')
    })

    test('a read that is not wanted any more ends, and the next one works', async () => {
      await put('left.bin', randomBytes(4 * 1024 * 1024))
      for (let round = 0; round < 5; round++) {
        const { stream } = await driver.read(at('left.bin'))
        stream.once('data', () => stream.destroy())
        await new Promise((resolve) => stream.once('close', resolve))
      }
      const aborted = AbortSignal.abort(new Error('no longer'))
      await expect(driver.stat(at('left.bin'), { signal: aborted })).rejects.toThrow('no longer')
      expect((await contentOf(driver, at('left.bin'))).length).toBe(4 * 1024 * 1024)
    })

    test('its endpoint answers for itself', async () => {
      const { availableBytes } = await driver.space()
      if (availableBytes !== undefined) expect(availableBytes).toBeGreaterThan(0)
    })

    describe('each capability is what it says', () => {
      const { directories, versions } = kind.capabilities

      test('directories: pages come in the order of the bytes of names', async () => {
        if (!directories) return
        await folder('ordered')
        const names = ['b', 'a-', 'a.', 'A', 'é', 'z', 'a', '~', '-', 'a0']
        for (const name of names) await put(`ordered/${name}`, '')
        await folder('ordered/a--')
        const found = await allOf(driver, at('ordered'), 3)
        expect(found.map(({ name }) => name)).toEqual([...names.map(nameOf), nameOf('a--')].sort())
      })

      test('directories: they exist by themselves, and a file needs one', async () => {
        const fault = await faultOf(put('no-such-folder/inner/file', 'x'))
        expect(fault).toBe(directories ? 'missing' : 'none')
        if (!directories) return
        await folder('alone')
        expect(await driver.stat(at('alone'))).toMatchObject({ type: 'directory' })
        await put('alone/file', 'x')
        await driver.delete(at('alone/file'))
        expect(await driver.stat(at('alone'))).toMatchObject({ type: 'directory' })
      })

      test('versions: what is read is of one version, also where the file is replaced meanwhile', async () => {
        const [old, next] = [randomBytes(24 * 1024 * 1024), randomBytes(24 * 1024 * 1024)]
        await put('version.bin', old)
        const { stream } = await driver.read(at('version.bin'))
        const pieces: Buffer[] = []
        const reading = async (): Promise<void> => {
          for await (const piece of stream as AsyncIterable<Buffer>) {
            // The rest is still at the storage.
            if (pieces.push(piece) === 1) await put('version.bin', next, { overwrite: true })
          }
        }
        const fault = await faultOf(reading())
        expect((await contentOf(driver, at('version.bin'))).equals(next)).toBe(true)
        if (!versions) return
        if (fault === 'none') expect(Buffer.concat(pieces).equals(old)).toBe(true)
        else expect(['changed', 'away', 'missing']).toContain(fault)
      })

      test('copyWithin: the storage copies a file itself, and replaces what it may', async () => {
        if (!has('copyWithin')) return
        const from = (path: string): StoragePath => [...(site.prefix ?? []), ...at(path)]
        const contents = [randomBytes(3_000_000), Buffer.alloc(0)]
        await put('within-taken/x', 'x')
        for (const content of contents) {
          await put('within', content, { overwrite: true })
          const to = at(`within-${content.length}`)
          await driver.copyWithin(to, from('within'))
          expect((await contentOf(driver, to)).equals(content)).toBe(true)
          await put('within', 'another', { overwrite: true })
          expect(await faultOf(driver.copyWithin(to, from('within')))).toBe('exists')
          expect((await contentOf(driver, to)).equals(content)).toBe(true)
          await driver.copyWithin(to, from('within'), { overwrite: true })
          expect((await contentOf(driver, to)).toString()).toBe('another')
        }
        for (const overwrite of [false, true])
          expect(await faultOf(driver.copyWithin(at('within-taken'), from('within'), { overwrite }))).toBe(
            'exists',
          )
        expect(await faultOf(driver.copyWithin(at('within-new'), from('nothing')))).toBe('missing')
        expect(await faultOf(driver.stat(at('within-new')))).toBe('missing')
      })

      test('names that are not UTF-8 are names, or are refused', async () => {
        const path = [nameOfBytes(Buffer.from([0x66, 0xff, 0xfe, 0x0a]))]
        const fault = await faultOf(driver.write(path, bytesFrom('bytes')))
        expect(fault).toBe(isWhole() ? 'none' : 'name')
        if (!isWhole()) return
        expect((await contentOf(driver, path)).toString()).toBe('bytes')
        expect((await allOf(driver, [])).filter(({ name }) => name === path[0])).toHaveLength(1)
        await driver.delete(path)
      })

      test('of many writers under one name one succeeds', async () => {
        const other = again()
        for (let round = 0; round < 5; round++) {
          const writers = Array.from({ length: 8 }, (_, i) =>
            faultOf((i % 2 === 0 ? driver : other).write(at(`race-${round}`), bytesFrom(`writer ${i}`))).then(
              (fault) => ({ fault, i }),
            ),
          )
          const ends = await Promise.all(writers)
          const winners = ends.filter(({ fault }) => fault === 'none')
          expect(
            ends.map(({ fault }) => fault).filter((fault) => fault !== 'none' && fault !== 'exists'),
          ).toEqual([])
          expect(winners).toHaveLength(1)
          expect((await contentOf(driver, at(`race-${round}`))).toString()).toBe(`writer ${winners[0]!.i}`)
        }
        await other.close()
      })

      test('received: an upload goes on where its kept bytes end, also from another process', async () => {
        const content = randomBytes(900_000)
        const part = (from: number, to: number, last: boolean) => ({
          part: { upload: 'u1', offset: from, last },
          piece: content.subarray(from, to),
        })
        const send = (to: StorageDriver, { part: one, piece }: ReturnType<typeof part>) =>
          to.write(at('parts.bin'), bytesFrom(piece), { part: one })
        if (!has('received')) {
          expect(await faultOf(send(driver, part(0, 300_000, false)))).toBe('unsupported')
          return
        }
        expect(await send(driver, part(0, 300_000, false))).toEqual({ receivedBytes: 300_000 })
        expect(await faultOf(driver.stat(at('parts.bin')))).toBe('missing')
        const other = again()
        expect(await other.received(at('parts.bin'), 'u1')).toBe(300_000)
        const wrong = await send(other, part(200_000, 300_000, false)).catch((error: unknown) => error)
        expect(wrong).toMatchObject({ fault: 'offset', receivedBytes: 300_000 })
        // What came before a break stays where the caller says so, else it goes.
        const cut = (): Readable =>
          Readable.from(
            (async function* () {
              yield content.subarray(300_000, 400_000)
              await new Promise((resolve) => setTimeout(resolve, 100))
              throw new Error('cut')
            })(),
            { objectMode: false },
          )
        await expect(
          other.write(at('parts.bin'), cut(), { part: { upload: 'u1', offset: 300_000, last: true } }),
        ).rejects.toThrow('cut')
        expect(await other.received(at('parts.bin'), 'u1')).toBe(300_000)
        const keeping = { part: { upload: 'u1', offset: 300_000, last: true, keepsAfter: () => true } }
        await expect(other.write(at('parts.bin'), cut(), keeping)).rejects.toThrow('cut')
        const kept = await driver.received(at('parts.bin'), 'u1')
        expect(kept).toBe(400_000)
        const end = await send(driver, part(kept, content.length, true))
        expect(end).toMatchObject({
          receivedBytes: content.length,
          sha256: sha256(content),
          entry: { sizeBytes: content.length },
        })
        expect((await contentOf(other, at('parts.bin'))).equals(content)).toBe(true)
        expect(await other.received(at('parts.bin'), 'u1')).toBe(0)
        await send(driver, { part: { upload: 'u2', offset: 0, last: false }, piece: content }).catch(
          () => undefined,
        )
        await driver.discard(at('parts.bin'), 'u2')
        await driver.discard(at('parts.bin'), 'u2')
        expect(texts(await allOf(driver, [])).filter((name) => name.startsWith('.orrery-'))).toEqual([])
        await other.close()
        // A second Pod is made here.
      }, 180_000)

      test('openUpload: that of a whole file goes on in a later attempt, and the earlier one is out', async () => {
        const content = randomBytes(20 * 1024 * 1024 + 5)
        const path = at('continued.bin')
        const first = { name: 'attempt-1', earlier: [], sizeBytes: content.length }
        if (!has('openUpload')) return
        const begun = await driver.openUpload(path, first)
        expect(begun.receivedBytes).toBe(0)
        const { promise: cut, resolve } = Promise.withResolvers<undefined>()
        const pieces = (to: number, end: Promise<undefined>): Readable =>
          Readable.from(
            (async function* () {
              for (let from = 0; from < to; from += 500_000)
                yield content.subarray(from, Math.min(to, from + 500_000))
              await end
              throw new Error('cut')
            })(),
            { objectMode: false },
          )
        const size = { sizeBytes: content.length }
        const writing = driver.write(path, pieces(17_000_000, cut), { ...size, continued: begun })
        writing.catch(() => undefined)
        await new Promise((end) => setTimeout(end, 2_000))
        const other = again()
        const next = { name: 'attempt-2', earlier: [begun.upload, 'attempt-0'], sizeBytes: content.length }
        const continued = await other.openUpload(path, next)
        expect(continued.receivedBytes).toBeGreaterThanOrEqual(10_000_000)
        // The first attempt, which was believed dead, sends more.
        resolve(undefined)
        await expect(writing).rejects.toThrow()
        expect(await faultOf(driver.stat(path))).toBe('missing')
        const once = await other.openUpload(path, {
          ...next,
          name: 'attempt-3',
          earlier: [continued.upload],
        })
        const written = await other.write(path, bytesFrom(content), {
          ...{ ...size, continued: once, digest: () => sha256(content) },
        })
        expect(written).toMatchObject({ receivedBytes: content.length, entry: { sizeBytes: content.length } })
        expect((await contentOf(driver, path)).equals(content)).toBe(true)
        // What is kept of another content does not get the name.
        const stale = await driver.openUpload(at('stale.bin'), first)
        await driver
          .write(at('stale.bin'), pieces(12_000_000, Promise.resolve(undefined)), {
            ...size,
            continued: stale,
          })
          .catch(() => undefined)
        const kept = await driver.openUpload(at('stale.bin'), {
          ...first,
          name: 'attempt-4',
          earlier: [stale.upload],
        })
        const others = randomBytes(content.length)
        const end = faultOf(
          driver.write(at('stale.bin'), bytesFrom(others), {
            ...{ ...size, continued: kept, digest: () => sha256(others) },
          }),
        )
        // A bucket compares the parts that it has, and takes those that differ anew.
        if ((await end) === 'none')
          expect((await contentOf(driver, at('stale.bin'))).equals(others)).toBe(true)
        else {
          expect(await end).toBe('changed')
          expect(await faultOf(driver.stat(at('stale.bin')))).toBe('missing')
        }
        await driver.discard(at('stale.bin'), kept.upload)
        await driver.discard(at('stale.bin'), kept.upload)
        const fresh = await driver.openUpload(at('stale.bin'), {
          ...first,
          name: 'attempt-5',
          earlier: [kept.upload],
        })
        expect(fresh.receivedBytes).toBe(0)
        await driver.discard(at('stale.bin'), fresh.upload)
        expect(texts(await allOf(driver, [])).filter((name) => name.startsWith('.orrery-'))).toEqual([])
        await other.close()
      }, 60_000)

      test('setAttributes: modes and times of files and directories are set', async () => {
        const time = Date.UTC(2020, 1, 3, 4, 5, 6)
        const attributes = { mode: 0o640, modifiedAt: time }
        const written = driver.write(at('mode'), bytesFrom('x'), { attributes })
        await folder('mode-folder')
        if (!has('setAttributes')) return expect((await written).entry?.mode).toBeUndefined()
        expect((await written).entry).toMatchObject(attributes)
        await driver.setAttributes(at('mode-folder'), { mode: 0o750, modifiedAt: time })
        expect(await driver.stat(at('mode-folder'))).toMatchObject({ mode: 0o750, modifiedAt: time })
        expect(await driver.stat(at('mode'))).toMatchObject(attributes)
      })

      test('readMany, writeMany: files of a folder go in one call, each whole or not at all', async () => {
        const times = [Date.UTC(2020, 1, 3, 4, 5, 6, 789), Date.UTC(1969, 11, 31), Date.UTC(2100, 0)]
        const contents = new Map(
          [
            'one',
            '-r',
            'two lines\nand \\ a backslash',
            '.hidden',
            'empty',
            'ünï $(touch x) "q"',
            'z'.repeat(200),
          ].map(
            (name, at) =>
              [nameOf(name), name === 'empty' ? Buffer.alloc(0) : randomBytes(500 * at + 1)] as const,
          ),
        )
        const given = [...contents].map(([name, bytes], i) => ({
          ...{ name, bytes, upload: `pack-${i}` },
          attributes: { mode: 0o640, modifiedAt: times[i % times.length] },
        }))
        const timeOf = new Map(given.map(({ name, attributes }) => [name, attributes.modifiedAt]))
        await folder('packed')
        if (!has('readMany')) return
        expect(new Set(await driver.writeMany(at('packed'), given))).toEqual(new Set(contents.keys()))
        const entries = await allOf(driver, at('packed'))
        expect(new Set(entries.map(({ name }) => name))).toEqual(new Set(contents.keys()))
        if (has('setAttributes'))
          for (const { name, mode, modifiedAt } of entries)
            expect([name, mode, modifiedAt]).toEqual([name, 0o640, timeOf.get(name)])
        await folder('packed/dir')
        const names = [...contents.keys(), nameOf('dir')]
        const read = await driver.readMany(at('packed'), names)
        expect(new Map(read.map(({ name, bytes }) => [name, sha256(bytes)]))).toEqual(
          new Map([...contents].map(([name, bytes]) => [name, sha256(bytes)])),
        )
        if (has('setAttributes'))
          for (const { name, modifiedAt } of read)
            expect([name, modifiedAt]).toEqual([name, timeOf.get(name)])
        // Taken names keep what they hold, and a directory is never replaced.
        const next = ['one', 'dir', 'new'].map((name) => ({
          ...{ name: nameOf(name), bytes: Buffer.from('new'), upload: `next-${name}` },
        }))
        expect(await driver.writeMany(at('packed'), next)).toEqual(['new'])
        expect(sha256(await contentOf(driver, at('packed/one')))).toBe(sha256(contents.get(nameOf('one'))!))
        expect(new Set(await driver.writeMany(at('packed'), next, { overwrite: true }))).toEqual(
          new Set(['one', 'new']),
        )
        expect((await contentOf(driver, at('packed/one'))).toString()).toBe('new')
        expect(await driver.stat(at('packed/dir'))).toMatchObject({ type: 'directory' })
        expect(await faultOf(driver.writeMany(at('not-there'), next))).toBe('missing')
        expect(await faultOf(driver.writeMany(at('packed/one'), next))).toBe('notDirectory')
        expect(
          texts(await allOf(driver, at('packed'))).filter((name) => name.startsWith('.orrery-')),
        ).toEqual([])
      })

      test('etags: another content of the same size at the same time has another one', async () => {
        if (directories && !isWhole()) {
          await put('etag', 'x')
          return expect((await driver.stat(at('etag'))).etag).toBeUndefined()
        }
        const seen = new Set<string | undefined>()
        for (let round = 0; round < 10; round++) {
          await put('etag', `content ${round}`, { overwrite: true })
          const entry = await driver.stat(at('etag'))
          expect(entry.etag).toMatch(/^"[^"]+"$/)
          expect((await driver.read(at('etag'))).entry.etag).toBe(entry.etag)
          seen.add(entry.etag)
        }
        expect(seen.size).toBe(10)
      })

      test('presign: a URL is enough to read the file, for its time and without a login', async () => {
        if (!has('presign')) return
        await put('signed', 'for anybody with the URL')
        const url = await driver.presign(at('signed'), 60)
        const answer = await fetch(url)
        expect([answer.status, await answer.text()]).toEqual([200, 'for anybody with the URL'])
        expect((await fetch(url.replace('signed', 'other'))).status).toBe(403)
        expect(
          (await fetch((await driver.presign(at('signed'), 1)).replace(/Expires=1&/, 'Expires=100&'))).status,
        ).toBe(403)
      })

      test('makeLink: links are made, and listed as what they are', async () => {
        const target = nameOf('../somewhere else/$x')
        if (!has('makeLink')) return
        await driver.makeLink(at('link'), target, { modifiedAt: 1_000_000_000_000 })
        const link = { type: 'symlink', linkTarget: target }
        expect(await driver.stat(at('link'))).toMatchObject(link)
        expect(await faultOf(driver.makeLink(at('link'), nameOf('other')))).toBe('exists')
        await driver.makeLink(at('link'), nameOf('other'), { overwrite: true })
        expect(await driver.stat(at('link'))).toMatchObject({ ...link, linkTarget: 'other' })
        expect(await faultOf(driver.read(at('link')))).toBe('link')
        expect(texts(await allOf(driver, [])).filter((name) => name.startsWith('.orrery-'))).toEqual([])
        await driver.delete(at('link'))
      })
    })
  })
}
