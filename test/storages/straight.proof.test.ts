import { afterAll, beforeAll, expect } from '@jest/globals'
import { randomBytes } from 'node:crypto'
import { readdirSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { openSshSessions } from '../../src/clients/ssh/sessions.ts'
import type { SiteFile } from '../../src/drivers/storage/contract.ts'
import { openShellStorage } from '../../src/drivers/storage/shell/driver.ts'
import { sites } from '../../sites/requirements.ts'
import { startSsh, type SshHost, type SshSite } from '../../sites/ssh.ts'
import { at, faultOf } from '../drivers/storage/conformance.ts'
import { until } from '../failures/programs.ts'
import { needs } from '../support/needs.ts'
import { connectionTo, makeVaultKeyFile } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'
import { environmentOf, loginStorage, plant, treeOf } from './world.ts'

/** Copies between two SSH hosts of which one may reach the other with the agent of its session. */

const { describe, test } = needs(...sites.ssh)
const mebibyte = 1024 * 1024

describe('a copy between two logins', () => {
  let site: SshSite
  let service: TestService
  let [one, two] = [] as unknown as [SshHost, SshHost]
  beforeAll(async () => {
    site = await startSsh({ hosts: 2 })
    ;[one, two] = site.hosts as unknown as [SshHost, SshHost]
    service = await openService({ environment: { SERVICE_VAULT_KEY_FILE: makeVaultKeyFile() } })
    await service.post('/ssh-keys/import/', { id: 'key', privateKey: site.key.privateKey })
    const wrongKey = one.knownHosts().replace(one.address, two.address)
    await service.post(
      '/environments/',
      environmentOf('lab', [loginStorage('one'), loginStorage('two'), loginStorage('masked')], {
        connections: [
          connectionTo('one', one, 'key', { forwardAgent: true, directTo: ['two', 'masked'] }),
          connectionTo('two', two, 'key', { knownHosts: two.knownHosts() }),
          // This service knows the host by its fingerprint; the other host gets another key's line.
          connectionTo('masked', two, 'key', { knownHosts: wrongKey }),
        ],
      }),
    )
  }, 600_000)
  afterAll(async () => {
    await service?.[Symbol.asyncDispose]()
    await site?.stop()
  })

  const storageOf = (host: SshHost): string => join(host.folder, 'srv')
  const begin = async (from: string, path: string, to: string, more: object = {}): Promise<string> =>
    (await service.post(`/storages/${from}/copies/`, { path, destinationStorageId: to, ...more })).id
  const read = (id: string) => service.get(`/storage-downloads/${id}/`)
  const ended = (id: string) =>
    until(`the end of ${id}`, 240, async () => {
      const found = await read(id)
      return ['completed', 'failed', 'cancelled'].includes(found.status) ? found : undefined
    })
  /** Bytes of contents that this service has read from storages and written to them. */
  const passed = async (): Promise<number> => {
    const counter = await service.metrics.measures.storageBytes.get()
    return counter.values.reduce((sum, { value }) => sum + value, 0)
  }
  const logins = (at: SshHost, from: SshHost): number =>
    at.log().split(`Connection from ${from.address} `).length - 1
  const leftovers = (): string[] =>
    [one, two].flatMap((host) =>
      (readdirSync(storageOf(host), { recursive: true }) as string[]).filter((path) =>
        path.includes('.orrery-'),
      ),
    )
  /** The size of the unfinished file at a host. */
  const unfinished = (host: SshHost): number => {
    const names = readdirSync(storageOf(host)).filter((name) => name.startsWith('.orrery-'))
    return names.reduce((sum, name) => sum + statSync(join(storageOf(host), name)).size, 0)
  }
  const programs = async (host: SshHost): Promise<string> =>
    (await host.run('pgrep -x -l "ssh|dd" || :')).stdout

  test.each([
    ['one', 'two', 'source-push'],
    ['two', 'one', 'destination-pull'],
  ] as const)(
    'from %s to %s the large files go straight, and this service carries the small ones',
    async (from, to, strategy) => {
      const [here, there] = from === 'one' ? [one, two] : [two, one]
      const tree = `tree-${from}`
      const odd = "it's $(touch ran)\nlarge"
      plant(join(storageOf(here), tree), {
        'deep/large': randomBytes(64 * mebibyte),
        [odd]: randomBytes(9 * mebibyte),
        'deep/small': 'small',
      })
      const bytes = Buffer.concat([Buffer.from(`${storageOf(here)}/${tree}/`), Buffer.of(0xff, 0x27, 0x6c)])
      writeFileSync(bytes, randomBytes(10 * mebibyte), { mode: 0o604 })
      const time = new Date('2021-02-03T04:05:06Z')
      utimesSync(join(storageOf(here), tree, 'deep/large'), time, time)
      const [before, loginsBefore] = [await passed(), logins(two, one)]
      const end = await ended(await begin(from, tree, to))
      const size = 83 * mebibyte + 5
      expect(end).toMatchObject({ status: 'completed', sizeBytes: size, sentBytes: size })
      expect(end).toMatchObject({ verification: 'sha256', route: { strategy } })
      expect(treeOf(join(storageOf(there), tree))).toEqual(treeOf(join(storageOf(here), tree)))
      expect((await passed()) - before).toBeLessThan(mebibyte)
      expect(logins(two, one) - loginsBefore).toBe(3)
      const arrived = statSync(join(storageOf(there), tree, 'deep/large'))
      expect(arrived.mtime).toEqual(time)
      const name = Buffer.concat([Buffer.from(`${storageOf(there)}/${tree}/`), Buffer.of(0xff, 0x27, 0x6c)])
      expect(statSync(name).mode & 0o777).toBe(0o604)
      expect(leftovers()).toEqual([])
      expect(await programs(here)).toBe('')
    },
    300_000,
  )

  test.each([
    ['one', 'two', 'source-push'],
    ['two', 'one', 'destination-pull'],
  ] as const)(
    'from %s to %s goes on at the kept byte when this service has lost its sessions',
    async (from, to, strategy) => {
      const [here, there] = from === 'one' ? [one, two] : [two, one]
      const size = 64 * mebibyte
      const name = `cut-${from}`
      writeFileSync(join(storageOf(here), name), randomBytes(size))
      await here.limit('40mbit')
      const before = await passed()
      const id = await begin(from, name, to)
      await until('bytes at the destination', 120, () => unfinished(there) > 4 * mebibyte)
      // What comes no further is what has been counted, once the site has been asked again.
      await one.run('pkill -STOP -x ssh')
      const kept = await until('the count of the kept bytes', 120, async () => {
        const { live } = await read(id)
        return live?.sentBytes === unfinished(there) && live.sentBytes
      })
      await here.limit()
      await one.dropSessions()
      const end = await ended(id)
      await one.run('pkill -KILL -x ssh || :')
      expect(kept).toBeGreaterThan(0)
      expect(end).toMatchObject({ status: 'completed', sentBytes: size, route: { strategy } })
      expect(treeOf(storageOf(there))[name]).toBe(treeOf(storageOf(here))[name])
      expect((await passed()) - before).toBe(0)
      expect(leftovers()).toEqual([])
    },
    400_000,
  )

  test('goes through this service where the site has no ssh program, and says so', async () => {
    writeFileSync(join(storageOf(one), 'bare'), randomBytes(9 * mebibyte))
    await one.run('mount --bind /dev/null /usr/bin/ssh')
    try {
      expect(await ended(await begin('one', 'bare', 'two'))).toMatchObject({
        status: 'completed',
        route: { strategy: 'gateway', reason: expect.stringMatching(/not source-push: .*ssh/) },
      })
    } finally {
      await one.run('umount /usr/bin/ssh')
    }
    expect(treeOf(storageOf(two))['bare']).toBe(treeOf(storageOf(one))['bare'])
  }, 300_000)

  test('no link is followed, neither to the file nor to the folder it goes to', async () => {
    writeFileSync(join(storageOf(one), 'behind'), randomBytes(9 * mebibyte))
    await one.run(
      'mkdir /srv/linked /tmp/outside && ln -s ../behind /srv/linked/link && ln -s /tmp/outside /srv/away',
    )
    await two.run('mkdir -p /tmp/outside && ln -s /tmp/outside /srv/away')
    const end = await ended(await begin('one', 'linked', 'two'))
    expect(end).toMatchObject({ status: 'completed', transferredBytes: 0 })
    const through = await ended(await begin('one', 'behind', 'two', { destinationPath: 'away/behind' }))
    expect(through).toMatchObject({ status: 'failed', error: expect.stringContaining('"away"') })
    expect((await two.run('ls /tmp/outside')).stdout).toBe('')
    expect(leftovers()).toEqual([])
  }, 300_000)

  test('a way that brings nothing for too long is given up, and its programs end', async () => {
    const sessions = openSshSessions()
    const shellOf = (host: SshHost, forwardAgent: boolean) =>
      sessions.shell({
        ...{ host: host.address, port: host.port, username: host.user, forwardAgent },
        secret: () => Promise.resolve({ privateKey: site.key.privateKey }),
        hostKeys: { policy: 'strict', knownHosts: host.knownHosts() },
      })
    const source = openShellStorage({ shell: shellOf(one, true), base: '/srv' })
    const destination = openShellStorage({ shell: shellOf(two, false), base: '/srv', stallMs: 3_000 })
    writeFileSync(join(storageOf(one), 'still'), randomBytes(64 * mebibyte))
    await one.limit('40mbit')
    const continued = await destination.openUpload!(at('still'), { name: 'still', earlier: [], sizeBytes: 1 })
    const file = (await source.fileAtSite?.(at('still'))) as SiteFile
    const door = { host: two.address, port: two.port, username: two.user, knownHosts: two.knownHosts() }
    const writing = faultOf(
      destination.writeFrom?.(at('still'), file, {
        ...{ by: 'source-push', door, continued, sizeBytes: 64 * mebibyte },
        ...{ onBytes: () => undefined, digest: () => source.digest(at('still')) },
      }) ?? Promise.resolve(),
    )
    await until('bytes at the destination', 120, () => unfinished(two) > 0)
    await one.run('pkill -STOP -x ssh')
    expect(await writing).toBe('late')
    await one.limit()
    await one.run('pkill -CONT -x ssh || :')
    for (const host of [one, two])
      await until('the end of the programs', 60, async () => (await programs(host)) === '')
    await destination.discard(at('still'), continued.upload)
    await sessions.close()
    expect(leftovers()).toEqual([])
  }, 300_000)

  test('goes through this service where the site finds another host key, and says so', async () => {
    writeFileSync(join(storageOf(one), 'masked'), randomBytes(9 * mebibyte))
    const before = await passed()
    const end = await ended(await begin('one', 'masked', 'masked'))
    expect(end).toMatchObject({
      status: 'completed',
      route: {
        strategy: 'gateway',
        reason: expect.stringMatching(/not source-push: .*Host key verification failed/),
      },
    })
    expect((await passed()) - before).toBeGreaterThanOrEqual(18 * mebibyte)
    expect(treeOf(storageOf(two))['masked']).toBe(treeOf(storageOf(one))['masked'])
  }, 300_000)

  test('goes through this service where it is to keep a rate, and says so', async () => {
    writeFileSync(join(storageOf(one), 'slow'), randomBytes(9 * mebibyte))
    const end = await ended(await begin('one', 'slow', 'two', { bytesPerSecond: 100_000_000 }))
    expect(end).toMatchObject({
      status: 'completed',
      route: { strategy: 'gateway', reason: expect.stringContaining('rate') },
    })
  }, 300_000)

  test('a cancelled one leaves nothing at either site, no program either', async () => {
    writeFileSync(join(storageOf(one), 'stopped'), randomBytes(64 * mebibyte))
    await one.limit('40mbit')
    const id = await begin('one', 'stopped', 'two')
    await until('bytes at the destination', 120, () => unfinished(two) > 0)
    await service.post(`/storage-downloads/${id}/cancel/`)
    expect(await ended(id)).toMatchObject({ status: 'cancelled' })
    await one.limit()
    expect(leftovers()).toEqual([])
    expect(Object.keys(treeOf(storageOf(two)))).not.toContain('stopped')
    for (const host of [one, two])
      await until('the end of the programs', 60, async () => (await programs(host)) === '')
  }, 300_000)

  test('a file that is written to all the time fails by name, and nothing of it arrives', async () => {
    writeFileSync(join(storageOf(one), 'moving'), randomBytes(16 * mebibyte))
    await one.limit('100mbit')
    const id = await begin('one', 'moving', 'two')
    const writing = setInterval(() => writeFileSync(join(storageOf(one), 'moving'), 'x', { flag: 'a' }), 50)
    try {
      const end = await ended(id)
      expect(end).toMatchObject({ status: 'failed', error: expect.stringContaining('"moving"') })
    } finally {
      clearInterval(writing)
      await one.limit()
    }
    expect(Object.keys(treeOf(storageOf(two)))).not.toContain('moving')
    expect(leftovers()).toEqual([])
  }, 300_000)

  test('a file in the place of a conflict stays as it is', async () => {
    writeFileSync(join(storageOf(one), 'taken'), randomBytes(9 * mebibyte))
    await two.run('printf mine >/srv/taken')
    const end = await ended(await begin('one', 'taken', 'two'))
    expect(end).toMatchObject({ status: 'failed', error: expect.stringContaining('"taken"') })
    expect(statSync(join(storageOf(two), 'taken')).size).toBe(4)
    expect(leftovers()).toEqual([])
  }, 300_000)
})
