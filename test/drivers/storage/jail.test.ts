import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { mkdtempSync, realpathSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import type { StorageMethod } from '../../../src/drivers/storage/around.ts'
import type { SiteFile, StorageDriver, WriteFromOptions } from '../../../src/drivers/storage/contract.ts'
import { openFilesystem } from '../../../src/drivers/storage/filesystem/driver.ts'
import { withJail } from '../../../src/drivers/storage/jail.ts'
import { nameOf, textOf, type StoragePath } from '../../../src/drivers/storage/paths.ts'
import { runFolder } from '../../support/run-folder.ts'
import { allOf, at, bytesFrom, contentOf, faultOf } from './conformance.ts'

const base = realpathSync(mkdtempSync(join(runFolder(), 'storage-')))
/** Methods of other kinds of storages that a call has reached. */
const reached: string[] = []
const reach = (method: string) => () => Promise.resolve(void reached.push(method) as never)
const inner: StorageDriver = {
  ...openFilesystem({ base, below: [] }),
  ...{ copyWithin: reach('copyWithin'), presign: reach('presign') },
  ...{ fileAtSite: reach('fileAtSite'), writeFrom: reach('writeFrom') },
}
const roots = [
  { path: at('a/open'), readOnly: false },
  { path: at('fixed'), readOnly: true },
]
const jail = withJail(inner, { roots, readOnly: false })

beforeAll(async () => {
  for (const name of ['a', 'a/open', 'a/open/sub', 'a/closed', 'b', 'fixed'])
    await inner.makeDirectory(at(name))
  for (const name of ['a/open/file', 'a/closed/file', 'b/file', 'fixed/file', 'file'])
    await inner.write(at(name), bytesFrom(name))
})
afterAll(async () => {
  await inner.close()
  rmSync(base, { recursive: true, force: true })
})

type Call = (driver: Required<StorageDriver>, path: StoragePath) => Promise<unknown>
const folderOf = (path: StoragePath): StoragePath => path.slice(0, -1)
const nameIn = (path: StoragePath) => path.at(-1)!
const upload = 'an-upload'
const reads = {
  list: (driver, path) => driver.list(path, { limit: 5 }),
  stat: (driver, path) => driver.stat(path),
  read: (driver, path) => driver.read(path),
  digest: (driver, path) => driver.digest(path),
  readMany: (driver, path) => driver.readMany(folderOf(path), [nameIn(path)]),
  presign: (driver, path) => driver.presign(path, 60),
  fileAtSite: (driver, path) => driver.fileAtSite(path),
} satisfies Partial<Record<StorageMethod, Call>>
const changes = {
  write: (driver, path) => driver.write(path, bytesFrom('x'), { overwrite: true }),
  writeMany: (driver, path) =>
    driver.writeMany(folderOf(path), [{ name: nameIn(path), bytes: Buffer.from('x'), upload }], {
      overwrite: true,
    }),
  writeFrom: (driver, path) => driver.writeFrom(path, {} as SiteFile, {} as WriteFromOptions),
  openUpload: (driver, path) => driver.openUpload(path, { name: upload, earlier: [], sizeBytes: 1 }),
  received: (driver, path) => driver.received(path, upload),
  discard: (driver, path) => driver.discard(path, upload),
  delete: (driver, path) => driver.delete(path),
  copyWithin: (driver, path) => driver.copyWithin(path, at('a/open/file'), { overwrite: true }),
  makeDirectory: (driver, path) => driver.makeDirectory(path),
  makeLink: (driver, path) => driver.makeLink(path, nameOf('x'), { overwrite: true }),
  setAttributes: (driver, path) => driver.setAttributes(path, { mode: 0o700 }),
} satisfies Partial<Record<StorageMethod, Call>>
const calls: Record<Exclude<StorageMethod, 'space'>, Call> = { ...reads, ...changes }

/** What each call at a path ends with. */
const faultsAt = async (driver: StorageDriver, path: string, of: Partial<Record<StorageMethod, Call>>) =>
  Object.fromEntries(
    await Promise.all(
      Object.entries(of).map(async ([method, call]) => [
        method,
        await faultOf(call(driver as Required<StorageDriver>, at(path))),
      ]),
    ),
  ) as Record<string, string>
const each = (of: object, fault: string): Record<string, string> =>
  Object.fromEntries(Object.keys(of).map((method) => [method, fault]))

test('of a storage with roots only what lies below them is there, and above them the way', async () => {
  const names = async (path: string): Promise<string[]> =>
    (await allOf(jail, at(path), 1)).map(({ name }) => textOf(name))
  expect(await names('')).toEqual(['a', 'fixed'])
  expect(await names('a')).toEqual(['open'])
  expect(await names('a/open')).toEqual(['file', 'sub'])
  expect(await jail.stat(at('a'))).toMatchObject({ type: 'directory', writable: false })
  expect(await jail.stat(at('fixed/file'))).toMatchObject({ writable: false })
  expect((await contentOf(jail, at('fixed/file'))).toString()).toBe('fixed/file')
  const none = withJail(inner, { roots: [], readOnly: false })
  expect(await faultOf(none.list([], { limit: 1 }))).toBe('outside')
})

test.each(['a/closed', 'a/closed/file', 'b', 'b/file', 'file', 'nothing', 'a/openly'])(
  'no call reaches %s, which is outside of the roots',
  async (path) => {
    reached.length = 0
    expect(await faultsAt(jail, path, calls)).toEqual(each(calls, 'outside'))
    expect(reached).toEqual([])
  },
)

test('no call changes what lies below a read-only root, in a read-only storage, or a root itself', async () => {
  reached.length = 0
  expect(await faultsAt(jail, 'fixed/file', changes)).toEqual(each(changes, 'readOnly'))
  const fixed = withJail(inner, { roots, readOnly: true })
  expect(await faultsAt(fixed, 'a/open/file', changes)).toEqual(each(changes, 'readOnly'))
  const { makeDirectory: _there, ...others } = changes
  expect(await faultsAt(jail, 'a/open', others)).toEqual(each(others, 'notFile'))
  expect(reached).toEqual([])
  expect((await contentOf(inner, at('a/open/file'))).toString()).toBe('a/open/file')
})

test('the methods of other kinds of storages are reached below a root', async () => {
  reached.length = 0
  for (const method of ['presign', 'copyWithin', 'fileAtSite', 'writeFrom'] as const)
    expect([method, await faultOf(calls[method](jail as Required<StorageDriver>, at('a/open/new')))]).toEqual(
      [method, 'none'],
    )
  expect(reached).toEqual(['presign', 'copyWithin', 'fileAtSite', 'writeFrom'])
})
