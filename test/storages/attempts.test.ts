import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { ApplicationFailure } from '@temporalio/common'
import { MockActivityEnvironment } from '@temporalio/testing'
import { execFileSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { storageDownloadActivities } from '../../activities/storage-download.ts'
import { storageIndexActivities } from '../../activities/storage-index.ts'
import { addressJudge } from '../../src/clients/denied-networks.ts'
import { openHttp } from '../../src/clients/http.ts'
import { openS3, type S3Bucket } from '../../src/clients/s3.ts'
import { openDatabase } from '../../src/db/pool.ts'
import { sql, type Db } from '../../src/db/sql.ts'
import { archivePath } from '../../src/domains/storages/archive.ts'
import { acceptIndexRun } from '../../src/domains/storages/index-store.ts'
import { acceptJob, type OnConflict } from '../../src/domains/storages/job-store.ts'
import { StorageError, type StorageDriver } from '../../src/drivers/storage/contract.ts'
import { openFilesystem } from '../../src/drivers/storage/filesystem/driver.ts'
import { nameOf, parseNames, type StoragePath } from '../../src/drivers/storage/paths.ts'
import { openS3Storage } from '../../src/drivers/storage/s3.ts'
import { until } from '../failures/programs.ts'
import type { TestService } from '../support/service.ts'
import { openProxy } from '../support/tcp-proxy.ts'
import { localStorage, openLab, plant, storageRoot, treeOf } from './world.ts'

/**
 * Attempts of one activity that go on side by side: a worker that was frozen, or did not reach
 * Temporal, goes on for some seconds after another attempt has begun.
 */

const root = storageRoot()
let lab: Awaited<ReturnType<typeof openLab>>
let service: TestService
let store: S3Bucket
const drivers = new Map<string, StorageDriver>()
beforeAll(async () => {
  for (const name of ['a', 'b']) {
    mkdirSync(join(root, name))
    drivers.set(name, openFilesystem({ base: join(root, name) }))
  }
  lab = await openLab(root, [localStorage('a', join(root, 'a')), localStorage('b', join(root, 'b'))])
  ;({ service } = lab)
  const http = openHttp({ addressAllowed: addressJudge({ allowLoopback: true }) })
  const { endpoint, accessKey: credential } = lab.site
  const place = { endpoint, bucket: 'bucket', region: 'us-east-1', pathStyle: true }
  store = openS3({ http, place, credential })
  drivers.set('bucket', openS3Storage(store, { prefix: [], signed: true }))
}, 600_000)
afterAll(async () => {
  for (const driver of drivers.values()) await driver.close()
  await lab?.close()
  rmSync(root, { recursive: true, force: true })
})

type Kind = 'copy' | 'archive'

/** A job of the entry: only the attempts of the test work for it. */
const accepted = (
  id: string,
  kind: Kind,
  name: string,
  { from = 'a', onConflict = 'fail' }: { from?: string; onConflict?: OnConflict } = {},
): Promise<void> =>
  service.db.transaction(async (tx) => {
    const path = parseNames(nameOf(name))
    const to =
      kind === 'copy'
        ? { destinationStorageId: 'b', destinationPath: path, strategy: 'copy:b' }
        : { destinationStorageId: from, destinationPath: archivePath(path)!, strategy: 'archive' }
    await acceptJob(tx, { id, storageId: from, path, onConflict, ...to })
    await tx.run(sql`update storage_downloads set status = 'failed' where id = ${id}`)
  })

/** One attempt, whose calls of both storages pass through `around`. */
const attempt = (
  around: (driver: StorageDriver) => Partial<StorageDriver> = () => ({}),
  db: Db = service.db,
) => {
  const activities = storageDownloadActivities({
    ...{ db, engine: { taskQueue: 'any' }, draining: new AbortController().signal },
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

/** Temporal has another attempt follow one whose error is not final. */
const repeated = (id: string, sent: Promise<void>): Promise<void> =>
  sent.catch((error: unknown) => {
    if (error instanceof ApplicationFailure) throw error
    return attempt().send(id)
  })

const recordOf = async (id: string): Promise<unknown> =>
  (
    await service.db.prepared(
      'record',
      'select entries::int, size_bytes::int from storage_downloads where id = $1',
      [id],
    )
  )[0]

const unpacked = (archive: string): string => {
  const folder = mkdtempSync(join(root, 'unpacked-'))
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
  // Nobody asks how an attempt ends that is over: the next one removes its temporary files.
  const over = first.catch(() => undefined)
  await hold.reached
  const second = attempt((driver) => ({
    [method]: async (...args: never[]) => {
      hold.go()
      await written.promise
      return (driver[method] as (...all: never[]) => Promise<unknown>)(...args)
    },
  })).send(id)
  await repeated(id, second)
  await over
  if (kind === 'copy') expect(treeOf(join(root, 'b', name))).toEqual(treeOf(join(root, 'a', name)))
})

test('an archive that the attempt before has recorded meanwhile stays whole', async () => {
  plant(join(root, 'a', 'whole'), { one: '1', 'deep/two': '22' })
  await accepted('whole', 'archive', 'whole', { onConflict: 'overwrite' })
  await attempt().list('whole')
  const hold = openHold()
  const first = attempt((driver) => ({
    write: async (...args) => {
      await hold.pass()
      return driver.write(...args)
    },
  })).send('whole')
  await hold.reached
  const second = attempt((driver) => ({
    discard: async (...args) => {
      hold.go()
      await first
      return driver.discard(...args)
    },
  })).send('whole')
  await repeated('whole', second)
  expect(treeOf(join(unpacked(join(root, 'a', 'whole.tar.gz')), 'whole'))).toEqual(
    treeOf(join(root, 'a', 'whole')),
  )
  expect(await recordOf('whole')).toMatchObject({ entries: 4 })
})

test('an archive in a bucket whose first attempt has died leaves no parts of that one', async () => {
  plant(join(lab.bucket, 'big'), {
    ...{ f1: randomBytes(12_000_000), f2: randomBytes(12_000_000), f3: randomBytes(1_000_000) },
  })
  await accepted('big', 'archive', 'big', { from: 'bucket' })
  await attempt().list('big')
  const hold = openHold()
  const first = attempt((driver) => ({
    read: async (path, options) => {
      if (path[1] === 'f3') {
        await hold.pass()
        throw new StorageError('away', 'is gone')
      }
      return driver.read(path, options)
    },
  })).send('big')
  await hold.reached
  const uploads = () => store.parts!.unfinished('big.tar.gz')
  await until('a part of the first attempt', 60, async () => {
    const [upload] = await uploads()
    return upload !== undefined && (await store.parts!.list('big.tar.gz', upload)).length > 0
  })
  await attempt().send('big')
  const left = await uploads()
  hold.go()
  await expect(first).rejects.toThrow()
  expect(left).toEqual([])
  expect(treeOf(join(unpacked(join(lab.bucket, 'big.tar.gz')), 'big'))).toEqual(
    treeOf(join(lab.bucket, 'big')),
  )
})

test.each(['the list of a copy', 'the record of an index run'])(
  '%s waits for a database that is away, and spends no attempt of the job',
  async (what) => {
    const url = new URL(service.databaseUrl)
    const proxy = await openProxy(Number(url.port))
    url.port = String(proxy.port)
    await using db = openDatabase(url.href, { max: 1, onError: () => undefined })
    const id = `away-${what}`
    const isCopy = what.includes('copy')
    if (isCopy) {
      plant(join(root, 'a', id), { file: 'content' })
      await accepted(id, 'copy', id)
    } else
      await service.db.transaction(async (tx) => {
        const limits = { maxDepth: 1, maxEntries: 1, timeoutSeconds: 1 }
        const rules = { roots: [], include: [], exclude: [], ...limits }
        await acceptIndexRun(tx, { id, storageId: 'a', rules, checksums: false })
        await tx.run(sql`update storage_index_runs set status = 'failed' where id = ${id}`)
      })
    let lost = 0
    proxy.loseAnswerOf = () => {
      lost += 1
      return true
    }
    const { recordStorageIndex } = storageIndexActivities({
      db,
      draining: new AbortController().signal,
    } as never)
    const work = isCopy
      ? attempt(undefined, db).list(id)
      : new MockActivityEnvironment().run(() => recordStorageIndex(id))
    await Promise.race([until('some tries', 60, () => lost >= 3), work])
    proxy.loseAnswerOf = undefined
    await work
    expect(lost).toBeGreaterThanOrEqual(3)
    await proxy.close()
  },
)
