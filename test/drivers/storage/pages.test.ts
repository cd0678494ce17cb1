import { afterAll, expect, test } from '@jest/globals'
import {
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import { pack } from 'tar-stream'
import type { Db } from '../../../src/db/sql.ts'
import type { StorageFacts } from '../../../src/domains/environments/storages.ts'
import { packFile } from '../../../src/domains/storages/archive.ts'
import { promoteArtifact, promoteData } from '../../../src/domains/storages/promote.ts'
import type { PromotedData } from '../../../src/domains/storages/promoted.ts'
import type { StorageDriver } from '../../../src/drivers/storage/contract.ts'
import { contentsOf } from '../../../src/domains/storages/packs.ts'
import { parseNames, nameOf, textOf } from '../../../src/drivers/storage/paths.ts'
import { openSftpStorage } from '../../../src/drivers/storage/sftp/driver.ts'
import { openShellStorage } from '../../../src/drivers/storage/shell/driver.ts'
import { FilesError, type FileFacts, type SiteFiles } from '../../../src/shell/site-files.ts'
import { openLocalShell } from '../../../src/shell/local-shell.ts'
import type { ShellStream } from '../../../src/shell/site-shell.ts'
import { until } from '../../failures/programs.ts'
import { runFolder } from '../../support/run-folder.ts'

/** Behind a login, names and small files are read once. */

const folder = mkdtempSync(join(runFolder(), 'pages-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))
const names = Array.from({ length: 1_500 }, (_, i) => `n${String(i).padStart(4, '0')}`)

const factsOf = (path: string): FileFacts => {
  const stats = lstatSync(path, { throwIfNoEntry: false })
  if (stats === undefined) throw new FilesError('missing', path)
  const type = stats.isDirectory() ? 'directory' : 'file'
  return {
    type,
    sizeBytes: stats.size,
    modifiedSeconds: Math.floor(stats.mtimeMs / 1_000),
    mode: stats.mode & 0o777,
  }
}

const noDb = undefined as unknown as Db

/** Paths of files that were opened by SFTP. */
const opened: string[] = []

/** A driver at a folder, and how often it has read all names of a directory. */
const drivers: Record<string, (base: string) => { driver: StorageDriver; reads: () => number }> = {
  shell(base) {
    let reads = 0
    const shell = openLocalShell()
    const run: typeof shell.run = (script, options) => {
      if (script.endsWith('\nnames\n')) reads += 1
      return shell.run(script, options)
    }
    return { driver: openShellStorage({ shell: { ...shell, run }, base }), reads: () => reads }
  },
  sftp(base) {
    let reads = 0
    const files = {
      lstat: async (path: string) => factsOf(path),
      async readdir(path: string) {
        reads += 1
        return readdirSync(path).map((name) => ({ name, facts: factsOf(join(path, name)) }))
      },
      open: (path: string) => {
        opened.push(path)
        const bytes = readFileSync(path)
        return Promise.resolve({
          facts: async () => factsOf(path),
          read: (offset: number, length: number) => Promise.resolve(bytes.subarray(offset, offset + length)),
          close: () => Promise.resolve(),
        })
      },
      close: () => Promise.resolve(),
    }
    return { driver: openSftpStorage({ files: files as unknown as SiteFiles, base }), reads: () => reads }
  },
}

test.each(Object.entries(drivers))(
  'by %s: one read for all pages, until a name comes or goes',
  async (kind, open) => {
    const base = join(folder, kind)
    const large = join(base, 'large')
    mkdirSync(large, { recursive: true })
    for (const name of names) writeFileSync(join(large, name), name)
    const long = Date.now() / 1_000 - 3_600
    const settle = (seconds: number) => utimesSync(large, seconds, seconds)
    settle(long)
    const { driver, reads } = open(base)
    const path = parseNames(nameOf('large'))
    const pageBehind = async (after: string | undefined) => {
      const { entries, next } = await driver.list(path, { limit: 400, after })
      return { listed: entries.map(({ name }) => textOf(name)), entries, next }
    }
    const first = await pageBehind(undefined)
    const second = await pageBehind(first.next)
    const third = await pageBehind(second.next)
    expect([...first.listed, ...second.listed, ...third.listed]).toEqual(names.slice(0, 1_200))
    expect(reads()).toBe(1)

    // What a page says of an entry is read for it; what is gone is left out.
    writeFileSync(join(large, 'n1200'), 'changed meanwhile')
    const last = await pageBehind(third.next)
    expect([last.listed, last.next, last.entries[0]?.sizeBytes]).toEqual([names.slice(1_200), undefined, 17])
    expect(reads()).toBe(1)

    rmSync(join(large, 'n0401'))
    writeFileSync(join(large, 'n0400-new'), '')
    settle(long + 60)
    const again = await pageBehind(first.next)
    expect(again.listed.slice(0, 3)).toEqual(['n0400', 'n0400-new', 'n0402'])
    expect(reads()).toBe(2)
    // A first page is always read.
    await pageBehind(undefined)
    expect(reads()).toBe(3)
    await driver.close()
  },
)

test('small files of an account with SFTP alone are whole after one read, and what changed meanwhile is left out', async () => {
  const base = join(folder, 'small')
  mkdirSync(base)
  for (const name of ['a', 'b', 'changes']) writeFileSync(join(base, name), `content of ${name}`)
  const { driver } = drivers['sftp']!(base)
  const read: typeof driver.read = async (path, options) => {
    const reading = await driver.read(path, options)
    if (textOf(path.at(-1)!) === 'changes') writeFileSync(join(base, 'changes'), 'longer than it was before')
    return reading
  }
  const files = await contentsOf({ ...driver, read }, ['a', 'b', 'changes'].map(nameOf), {
    ...{ from: [], signal: new AbortController().signal },
  })
  expect(files.map(({ name, bytes }) => [textOf(name), bytes.toString()]).toSorted()).toEqual([
    ['a', 'content of a'],
    ['b', 'content of b'],
  ])
  expect(opened.toSorted()).toEqual(['a', 'b', 'changes'].map((name) => join(base, name)))
})

test('what changes while it is hashed or packed is not recorded with the size of before, also without tags', async () => {
  const base = join(folder, 'changing')
  mkdirSync(join(base, 'tree'), { recursive: true })
  for (const change of ['bytes', 'none'])
    for (const path of ['tool.sif', 'file', join('tree', 'file')]) {
      const file = join(base, path)
      const content = Buffer.from(`${'x'.repeat(31)}\0SIF_MAGIC\x0001\x0002\0`, 'latin1')
      writeFileSync(file, content)
      utimesSync(file, 1_000, 1_000)
      const { driver } = drivers['sftp']!(base)
      /** Other bytes of the same size, as soon as the file has been read. */
      const write = (): void => {
        if (change === 'none') return
        writeFileSync(file, content.toReversed())
        utimesSync(file, 2_000, 2_000)
      }
      const changing: StorageDriver = {
        ...driver,
        digest: async (...given) => {
          const digest = await driver.digest(...given)
          write()
          return digest
        },
        read: async (...given) => {
          const { entry, stream } = await driver.read(...given)
          stream.once('end', write)
          return { entry, stream }
        },
      }
      const recorded: { sizeBytes: number }[] = []
      const promoted: PromotedData = {
        record: (_db, data) => {
          recorded.push(data)
          return Promise.resolve({ id: 'data', isNew: true })
        },
        at: () => Promise.resolve([]),
        places: () => Promise.resolve([]),
        gone: () => Promise.resolve(),
      }
      const { signal } = new AbortController()
      const opened = { facts: { id: 's' } as StorageFacts, driver: changing, place: { at: 'here', base: [] } }
      const [name] = parseNames(nameOf(path))
      const expected = change === 'none' ? undefined : /written to/
      const outcomeOf = (work: Promise<unknown>): Promise<string | undefined> =>
        work.then(
          () => undefined,
          (error: unknown) => String(error),
        )
      const promotion = promoteData({ db: noDb, promoted }, opened, [name!], {}, signal)
      const matches = (outcome: string | undefined) =>
        expect([path, change, outcome]).toEqual([
          ...[path, change],
          expected === undefined ? undefined : expect.stringMatching(expected),
        ])
      matches(await outcomeOf(promotion))
      expect(recorded.map(({ sizeBytes }) => sizeBytes)).toEqual(change === 'none' ? [content.length] : [])
      writeFileSync(file, content)
      utimesSync(file, 1_000, 1_000)
      if (change === 'bytes' && path === 'tool.sif') {
        matches(await outcomeOf(promoteArtifact(noDb, opened, [name!], {}, signal)))
        writeFileSync(file, content)
        utimesSync(file, 1_000, 1_000)
      }
      const tar = pack()
      tar.resume()
      matches(
        await outcomeOf(
          packFile(tar, changing, parseNames(nameOf(path)), [nameOf('file')], () => undefined, signal),
        ),
      )
    }
})

/** A read over a shell whose site falls silent for a day, before the record of a file or behind its bytes. */
const silentRead = async (before: boolean, { stallMs }: { stallMs?: number } = {}) => {
  const base = mkdtempSync(join(folder, 'silent-'))
  writeFileSync(join(base, 'file'), 'four')
  const shell = openLocalShell()
  const scripts: ShellStream[] = []
  const storage = openShellStorage({
    ...{ base, ...(stallMs === undefined ? {} : { stallMs }) },
    shell: {
      ...shell,
      open: async (script) => {
        const stream = await shell.open(before ? 'sleep 86400' : `(${script})\nsleep 86400`)
        scripts.push(stream)
        return stream
      },
    },
  })
  const stop = new AbortController()
  const reading = storage.read(parseNames(nameOf('file')), { signal: stop.signal })
  reading.catch(() => undefined)
  // The script has begun, and its bytes have come.
  await (before ? until('the script runs', 120, () => scripts.length === 1) : reading.catch(() => undefined))
  return { reading, stop, shell, ended: async () => (await scripts[0]!.done).signal }
}

test.each([true, false])(
  'a read ends with its signal, with its link, and where its site is silent for too long (before the record: %s)',
  async (before) => {
    const contentOf = ({ reading }: Awaited<ReturnType<typeof silentRead>>): Promise<Buffer> => {
      const content = reading.then(({ stream }) => buffer(stream))
      content.catch(() => undefined)
      return content
    }
    const aborted = await silentRead(before)
    const abortedContent = contentOf(aborted)
    aborted.stop.abort(new Error('the copy was cancelled'))
    await expect(abortedContent).rejects.toThrow('the copy was cancelled')
    expect(await aborted.ended()).toBe('SIGKILL')

    const cut = await silentRead(before)
    const cutContent = contentOf(cut)
    await cut.shell.close()
    await expect(cutContent).rejects.toMatchObject({ name: 'StorageError', fault: 'away' })

    const late = await silentRead(before, { stallMs: 1_000 })
    await expect(contentOf(late)).rejects.toMatchObject({ name: 'StorageError', fault: 'late' })
    expect(await late.ended()).toBe('SIGKILL')
  },
)

test('of a file that grows behind its record, as many bytes come as the record names', async () => {
  const base = mkdtempSync(join(folder, 'growing-'))
  writeFileSync(join(base, 'log'), 'four')
  const shell = openLocalShell()
  const scripts: string[] = []
  const storage = openShellStorage({
    base,
    shell: {
      ...shell,
      open: (script, options) => {
        scripts.push(script)
        return shell.open(script.replace('\n  size=$(', '\n  printf more >>"./$1"\n  size=$('), options)
      },
    },
  })
  const { entry, stream } = await storage.read(parseNames(nameOf('log')))
  expect([entry.sizeBytes, (await buffer(stream)).toString()]).toEqual([4, 'four'])
  expect([scripts.length, readFileSync(join(base, 'log'), 'utf8')]).toEqual([1, 'fourmore'])
  await shell.close()
})

test('a file that nobody reads ends its script', async () => {
  const { reading, ended } = await silentRead(false)
  const { stream } = await reading
  stream.destroy()
  expect(await ended()).toBe('SIGKILL')
})

test.each([
  ['breaks', new Error('the client left')],
  ['is complete', undefined],
])('a part whose site does not answer ends with its signal, where its stream %s', async (_, broken) => {
  const base = mkdtempSync(join(folder, 'unanswered-'))
  const shell = openLocalShell()
  const scripts: ShellStream[] = []
  const storage = openShellStorage({
    base,
    shell: {
      ...shell,
      open: async () => {
        const stream = await shell.open('cat >/dev/null; sleep 86400')
        scripts.push(stream)
        return stream
      },
    },
  })
  const stop = new AbortController()
  const part = { upload: 'u', offset: 0, last: false, keepsAfter: () => true }
  const source = Readable.from(
    (async function* () {
      yield Buffer.from('some bytes')
      if (broken !== undefined) throw broken
    })(),
    { objectMode: false },
  )
  const written = storage.write(parseNames(nameOf('file')), source, { part, signal: stop.signal })
  written.catch(() => undefined)
  await until('the bytes have been sent', 120, () => scripts[0]?.stdin.writableFinished === true)
  stop.abort(new Error('another part goes on'))
  await expect(written).rejects.toThrow(broken?.message ?? 'another part goes on')
  expect((await scripts[0]!.done).signal).toBe('SIGKILL')
  await shell.close()
})
