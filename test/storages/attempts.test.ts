import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { MockActivityEnvironment } from '@temporalio/testing'
import { execFileSync } from 'node:child_process'
import { mkdirSync, rmSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { storageDownloadActivities } from '../../activities/storage-download.ts'
import { sql } from '../../src/db/sql.ts'
import { archivePath } from '../../src/domains/storages/archive.ts'
import { acceptJob } from '../../src/domains/storages/job-store.ts'
import { StorageError, type StorageDriver } from '../../src/drivers/storage/contract.ts'
import { openFilesystem } from '../../src/drivers/storage/filesystem/driver.ts'
import { nameOf, parseNames, type StoragePath } from '../../src/drivers/storage/paths.ts'
import type { TestService } from '../support/service.ts'
import { localStorage, openLab, plant, storageRoot, treeOf } from './world.ts'

/**
 * Attempts of one activity that go on side by side: a worker that was frozen, or did not reach
 * Temporal, goes on for some seconds after another attempt has begun.
 */

const root = storageRoot()
let lab: Awaited<ReturnType<typeof openLab>>
let service: TestService
const drivers = new Map<string, StorageDriver>()
beforeAll(async () => {
  for (const name of ['a', 'b']) {
    mkdirSync(join(root, name))
    drivers.set(name, openFilesystem({ base: join(root, name) }))
  }
  lab = await openLab(root, [localStorage('a', join(root, 'a')), localStorage('b', join(root, 'b'))])
  ;({ service } = lab)
}, 600_000)
afterAll(async () => {
  for (const driver of drivers.values()) await driver.close()
  await lab?.close()
  rmSync(root, { recursive: true, force: true })
})

type Kind = 'copy' | 'archive'

/** A job of the entry in `a`: only the attempts of the test work for it. */
const accepted = (id: string, kind: Kind, name: string): Promise<void> =>
  service.db.transaction(async (tx) => {
    const path = parseNames(nameOf(name))
    const to =
      kind === 'copy'
        ? { destinationStorageId: 'b', destinationPath: path, strategy: 'copy:b' }
        : { destinationStorageId: 'a', destinationPath: archivePath(path)!, strategy: 'archive' }
    await acceptJob(tx, { id, storageId: 'a', path, onConflict: 'fail', ...to })
    await tx.run(sql`update storage_downloads set status = 'failed' where id = ${id}`)
  })

/** One attempt, whose calls of both storages pass through `around`. */
const attempt = (around: (driver: StorageDriver) => Partial<StorageDriver> = () => ({})) => {
  const activities = storageDownloadActivities({
    ...{ db: service.db, engine: { taskQueue: 'any' }, draining: new AbortController().signal },
    storages: {
      open: (id: string) => {
        const driver = drivers.get(id)!
        return Promise.resolve({
          driver: { ...driver, ...around(driver) },
          place: { at: id, base: [] },
        } as never)
      },
    },
  })
  const run = <T>(work: () => Promise<T>): Promise<T> => new MockActivityEnvironment().run(work)
  return {
    list: (id: string) => run(() => activities.listStorageDownload(id)),
    send: async (id: string) => {
      while (await run(() => activities.sendStorageDownload(id)));
    },
  }
}

/** A place where an attempt waits: `reached` by it, and left with `go`. */
const openHold = () => {
  const [reached, left] = [Promise.withResolvers<undefined>(), Promise.withResolvers<undefined>()]
  const pass = (): Promise<undefined> => {
    reached.resolve(undefined)
    return left.promise
  }
  return { reached: reached.promise, go: () => left.resolve(undefined), pass }
}

const recordOf = async (id: string): Promise<unknown> =>
  (
    await service.db.prepared(
      'record',
      'select entries::int, size_bytes::int from storage_downloads where id = $1',
      [id],
    )
  )[0]

const unpacked = (archive: string): string => {
  const folder = join(root, 'unpacked')
  mkdirSync(folder)
  execFileSync('tar', ['-xzf', archive, '-C', folder])
  return folder
}

test.each(['copy', 'archive'] as const)(
  'the list of a %s that one attempt begins anew is not ended by the one before it',
  async (kind) => {
    plant(join(root, 'a', kind), { 'first/one': '1', 'second/two': '22' })
    const all = treeOf(join(root, 'a', kind))
    await accepted(`listed-${kind}`, kind, kind)
    const [before, after] = [openHold(), openHold()]
    const held =
      (name: string | undefined, hold: ReturnType<typeof openHold>, then?: Error) =>
      (driver: StorageDriver): Partial<StorageDriver> => ({
        list: async (path: StoragePath, options) => {
          if (path[1] === name) {
            await hold.pass()
            if (then !== undefined) throw then
          }
          return driver.list(path, options)
        },
      })
    const first = attempt(held('second', before)).list(`listed-${kind}`)
    await before.reached
    const second = attempt(held(undefined, after, new StorageError('away', 'is gone'))).list(`listed-${kind}`)
    await after.reached
    before.go()
    await first.catch(() => undefined)
    after.go()
    await expect(second).rejects.toThrow('is gone')
    const third = attempt()
    await third.list(`listed-${kind}`)
    await third.send(`listed-${kind}`)
    const end = kind === 'copy' ? join(root, 'b') : unpacked(join(root, 'a', `${kind}.tar.gz`))
    expect(treeOf(join(end, kind))).toEqual(all)
    expect(await recordOf(`listed-${kind}`)).toMatchObject({ entries: 5 })
  },
)

test.each([
  ['a file', 'copy', 'write'],
  ['a link', 'copy', 'makeLink'],
  ['an archive', 'archive', 'write'],
] as const)('%s that the attempt before has written meanwhile is its own', async (what, kind, method) => {
  const [id, name] = [`own-${what}`, what.replace(' ', '-')]
  plant(join(root, 'a', name), { file: 'content' })
  if (method === 'makeLink') symlinkSync('file', join(root, 'a', name, 'link'))
  await accepted(id, kind, name)
  await attempt().list(id)
  const hold = openHold()
  const written = Promise.withResolvers<undefined>()
  const first = attempt((driver) => ({
    [method]: async (...args: never[]) => {
      await hold.pass()
      const done = await (driver[method] as (...all: never[]) => Promise<unknown>)(...args)
      written.resolve(undefined)
      return done
    },
  })).send(id)
  await hold.reached
  const second = attempt((driver) => ({
    [method]: async (...args: never[]) => {
      hold.go()
      await written.promise
      return (driver[method] as (...all: never[]) => Promise<unknown>)(...args)
    },
  })).send(id)
  await second
  await first
  if (kind === 'copy') expect(treeOf(join(root, 'b', name))).toEqual(treeOf(join(root, 'a', name)))
})
