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
import type { StorageDriver } from '../../../src/drivers/storage/contract.ts'
import { contentsOf } from '../../../src/domains/storages/packs.ts'
import { parseNames, nameOf, textOf } from '../../../src/drivers/storage/paths.ts'
import { openSftpStorage } from '../../../src/drivers/storage/sftp/driver.ts'
import { openShellStorage } from '../../../src/drivers/storage/shell/driver.ts'
import { FilesError, type FileFacts, type SiteFiles } from '../../../src/shell/site-files.ts'
import { openLocalShell } from '../../../src/shell/local-shell.ts'
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
