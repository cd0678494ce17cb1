import { execFileSync, spawn } from 'node:child_process'
import { afterAll, expect, test } from '@jest/globals'
import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import { StorageError, type StorageDriver } from '../../../src/drivers/storage/contract.ts'
import { openFilesystem } from '../../../src/drivers/storage/filesystem/driver.ts'
import { withJail } from '../../../src/drivers/storage/jail.ts'
import { withMeasures, withRate, type StorageCall } from '../../../src/drivers/storage/measured.ts'
import { nameOf, parsePath, parseRoot, pathInAnswer } from '../../../src/drivers/storage/paths.ts'
import { withRetries } from '../../../src/drivers/storage/retry.ts'
import { openKeptDrivers } from '../../../src/domains/storages/kept-drivers.ts'
import { needs } from '../../support/needs.ts'
import { runFolder } from '../../support/run-folder.ts'
import { at, bytesFrom, contentOf, faultOf, storageConformance, storageKinds } from './conformance.ts'

const base = realpathSync(mkdtempSync(join(runFolder(), 'storage-')))
const opened: StorageDriver[] = []
const folder = (name: string): StorageDriver => {
  mkdirSync(join(base, name), { recursive: true })
  const driver = openFilesystem({ base, below: at(name) })
  opened.push(driver)
  return driver
}
afterAll(async () => {
  for (const driver of opened) await driver.close()
  rmSync(base, { recursive: true, force: true })
})

// What stands around a driver is one itself.
const everything = (driver: StorageDriver): StorageDriver =>
  withJail(withRetries(withMeasures(withRate(driver, 1e9), () => () => undefined)), {
    roots: [{ path: [], readOnly: false }],
    readOnly: false,
  })
const whole = (): StorageDriver => everything(folder('whole'))
storageConformance('a folder inside all wrappers', storageKinds.folder, () =>
  Promise.resolve({ driver: whole(), again: whole, stop: () => Promise.resolve() }),
)

test('a body that fails before the driver reads it fails the write, and nothing else', async () => {
  const inner = folder('early')
  const late: StorageDriver = {
    ...inner,
    async write(path, source, options) {
      // As a store that is asked first whether the name is free.
      await new Promise((resolve) => setTimeout(resolve, 50))
      return inner.write(path, source, options)
    },
  }
  const calls: StorageCall[] = []
  const driver = withMeasures(withRate(late, 1e9), () => (call) => calls.push(call))
  const cut = new Readable({ read: () => undefined })
  setImmediate(() => cut.destroy(new StorageError('changed', 'the body is another one')))
  await expect(driver.write(at('file'), cut)).rejects.toThrow('the body is another one')
  expect(calls).toMatchObject([{ method: 'write', outcome: 'changed' }])
  expect(await faultOf(inner.stat(at('file')))).toBe('missing')
})

test('paths are read as they are meant: absolute below the endpoint, else relative; never upwards', () => {
  const texts = (path: string, endpoint: string): string => parsePath(nameOf(path), endpoint).join('/')
  expect(texts('/srv/data/a/b', '/srv/data')).toBe('a/b')
  expect(texts('/srv/data', '/srv/data/')).toBe('')
  expect(texts('/srv/database', '/srv/data')).toBe('srv/database')
  expect(texts('/a//b/./c/', 's3://bucket')).toBe('a/b/c')
  expect(texts('', '/srv')).toBe('')
  expect(texts('/etc/passwd', '/')).toBe('etc/passwd')
  expect(parseRoot('/srv/data', '/srv/data')).toEqual([])
  expect(parseRoot('s3://bucket/in/deep', 's3://bucket/in')).toEqual(['deep'])
  expect(parseRoot('/', 's3://bucket')).toEqual([])
  for (const path of ['..', '../x', 'a/../b', 'a/..', '/srv/data/../x', '/..'])
    expect(() => texts(path, '/srv/data')).toThrow(expect.objectContaining({ fault: 'outside' }))
  expect(texts('%2e%2e/．．/..%2f/…', '/srv')).toBe(nameOf('%2e%2e/．．/..%2f/…'))
  expect(() => texts('a\0b', '/srv')).toThrow(expect.objectContaining({ fault: 'name' }))
  expect(() => texts('x'.repeat(4_097), '/srv')).toThrow(expect.objectContaining({ fault: 'name' }))
  expect(pathInAnswer(at('a/é'))).toEqual({ path: 'a/é' })
  expect(pathInAnswer([nameOf('a'), '\xff' as never])).toEqual({
    path: 'a/\ufffd',
    pathBytes: Buffer.from('a/\xff', 'latin1').toString('base64'),
  })
})

test('what passes is tried again, what does not is not, and a long pause is left to the caller', async () => {
  const inner = folder('retry')
  let faults: StorageError[] = []
  let calls = 0
  const failing: StorageDriver = {
    ...inner,
    stat: (path, options) => {
      calls += 1
      const fault = faults.shift()
      return fault === undefined ? inner.stat(path, options) : Promise.reject(fault)
    },
  }
  const driver = withRetries(failing, { firstMs: 1 })
  const after = async (...given: StorageError[]): Promise<[string, number]> => {
    faults = given
    calls = 0
    return [await faultOf(driver.stat([])), calls]
  }
  const busy = (retryAfterSeconds?: number): StorageError =>
    new StorageError('busy', 'later', { retryAfterSeconds })
  const away = new StorageError('away', 'gone')
  expect(await after(busy(), away, busy())).toEqual(['none', 4])
  expect(await after(away, away, away, away)).toEqual(['away', 4])
  expect(await after(busy(60))).toEqual(['busy', 1])
  for (const fault of ['late', 'denied', 'missing', 'full', 'credential'] as const)
    expect(await after(new StorageError(fault, 'no'))).toEqual([fault, 1])
})

test('each call is told with its outcome and bytes, and a rate is kept', async () => {
  const calls: StorageCall[] = []
  const driver = withMeasures(withRate(folder('measured'), 1_000_000), () => (call) => calls.push(call))
  const began = performance.now()
  await driver.write(at('file'), bytesFrom(Buffer.alloc(300_000)))
  await buffer((await driver.read(at('file'))).stream)
  expect(performance.now() - began).toBeGreaterThan(550)
  await faultOf(driver.stat(at('nothing')))
  expect(calls.map(({ method, outcome, bytes }) => [method, outcome, bytes])).toEqual([
    ['write', 'ok', 300_000],
    ['read', 'ok', 300_000],
    ['stat', 'missing', 0],
  ])
})

test('a kept driver stays open as long as a call lasts, and closes once it is unused', async () => {
  const drivers = openKeptDrivers(100)
  const inner = folder('kept')
  let closed = 0
  const open = () => ({
    ...inner,
    close: async () => {
      closed += 1
      await inner.close()
    },
  })
  const kept = drivers.keep('one', open())
  const driver = withMeasures(kept, () => drivers.begin(kept))
  const content = Buffer.alloc(4 * 1024 * 1024, 7)
  // A reader slower than the pause after which an unused driver is closed.
  const slowly = Readable.from(
    (async function* () {
      for (let i = 0; i < 4; i++) {
        yield content.subarray(0, content.length / 4)
        await new Promise((resolve) => setTimeout(resolve, 80))
      }
    })(),
  )
  await driver.write(at('file'), slowly)
  const { stream } = await driver.read(at('file'))
  await new Promise((resolve) => setTimeout(resolve, 300))
  expect([closed, drivers.find('one')]).toEqual([0, kept])
  expect((await buffer(stream)).equals(content)).toBe(true)
  while (closed === 0) await new Promise((resolve) => setTimeout(resolve, 20))
  expect([closed, drivers.find('one')]).toEqual([1, undefined])
  await drivers.close()
})

needs('root').test(
  'a mount that hangs delays its own requests to their deadline, and nothing else',
  async () => {
    // A file system whose server does not answer: FUSE's own device, mounted, and nobody reads it.
    const point = join(base, 'hanging')
    mkdirSync(point)
    const holder = spawn(
      'sh',
      [
        '-c',
        'exec 5<>/dev/fuse && mount -i -t fuse -o fd=5,rootmode=40000,user_id=0,group_id=0 hang ' +
          `${point} && echo up && exec sleep 1000`,
      ],
      {
        stdio: ['ignore', 'pipe', 'inherit'],
      },
    )
    try {
      await new Promise((resolve) => holder.stdout.once('data', resolve))
      const hanging = openFilesystem({ base, below: at('hanging'), deadlineMs: 5_000 })
      writeFileSync(join(base, 'well'), 'well')
      const well = folder('.')
      const began = performance.now()
      let answered = 0
      const asked = Promise.all(
        Array.from({ length: 20 }, () => faultOf(hanging.list([], { limit: 5 })).finally(() => answered++)),
      )
      for (let round = 0; round < 20; round++)
        expect((await contentOf(well, at('well'))).toString()).toBe('well')
      expect(answered).toBe(0)
      expect(new Set(await asked)).toEqual(new Set(['late']))
      // One after another, they would take 100 s.
      expect(performance.now() - began).toBeLessThan(50_000)
      await hanging.close()
    } finally {
      execFileSync('umount', ['-l', point])
      holder.kill('SIGKILL')
    }
  },
  60_000,
)
