import { afterAll, beforeAll, expect } from '@jest/globals'
import { randomBytes } from 'node:crypto'
import { chmodSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, utimesSync } from 'node:fs'
import { request } from 'node:http'
import { join } from 'node:path'
import { sites } from '../../sites/requirements.ts'
import { startSsh, type SshSite } from '../../sites/ssh.ts'
import { until } from '../failures/programs.ts'
import { needs } from '../support/needs.ts'
import { connectionTo, makeVaultKeyFile } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'
import { environmentOf, localStorage, plant, storageRoot, treeOf } from './world.ts'

/** Storages at real SSH hosts, one of which gives its account SFTP and no shell. */

const { describe, test } = needs(...sites.ssh)

describe('storages behind logins', () => {
  const root = storageRoot()
  let shells: SshSite
  let sftp: SshSite
  let service: TestService
  beforeAll(async () => {
    mkdirSync(join(root, 'a'))
    ;[shells, sftp] = await Promise.all([startSsh({ hosts: 1 }), startSsh({ hosts: 1, sftpOnly: true })])
    service = await openService({
      environment: {
        SERVICE_LOCAL_STORAGE_ROOT: root,
        SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
        SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
      },
    })
    for (const [id, { key }] of [
      ['shells', shells],
      ['sftp', sftp],
    ] as const)
      await service.post('/ssh-keys/import/', { id, privateKey: key.privateKey })
    const atSite = (id: string, endpoint: string) => ({
      ...{ id, name: id, type: 'ssh-filesystem', endpoint },
      configuration: { connectionId: id, browseRoots: [{ path: '/' }] },
    })
    await service.post(
      '/environments/',
      environmentOf(
        'lab',
        [localStorage('a', join(root, 'a')), atSite('shells', '/srv'), atSite('sftp', '/files')],
        {
          connections: [
            connectionTo('shells', shells.hosts[0], 'shells'),
            connectionTo('sftp', sftp.hosts[0], 'sftp'),
          ],
        },
      ),
    )
  }, 600_000)
  afterAll(async () => {
    await service?.[Symbol.asyncDispose]()
    await shells?.stop()
    await sftp?.stop()
    rmSync(root, { recursive: true, force: true })
  })

  const copied = async (from: string, path: string, to: string) => {
    const { id } = await service.post(`/storages/${from}/copies/`, { path, destinationStorageId: to })
    return until(`the end of ${id}`, 120, async () => {
      const found = await service.get(`/storage-downloads/${id}/`)
      if (found.status === 'failed') throw new Error(found.error)
      return ['completed', 'cancelled'].includes(found.status) ? found : undefined
    })
  }

  test('a tree goes from here to a shell, on to SFTP and back, with links, modes and times', async () => {
    const folder = join(root, 'a', 'tree')
    plant(folder, { 'deep/er/large': randomBytes(9_000_000), 'deep/small': 'small', "it's $x": 'y' })
    symlinkSync('deep/er/large', join(folder, 'inner'))
    symlinkSync('/etc/passwd', join(folder, 'outer'))
    chmodSync(join(folder, 'deep', 'small'), 0o600)
    const time = new Date('2021-02-03T04:05:06Z')
    utimesSync(join(folder, 'deep', 'er', 'large'), time, time)
    for (const [from, to, skipped] of [
      ['a', 'shells', 1],
      ['shells', 'sftp', 0],
    ] as const)
      expect(await copied(from, 'tree', to)).toMatchObject({ status: 'completed', skippedEntries: skipped })
    rmSync(join(folder, 'outer'))
    const want = treeOf(folder)
    const [host, jail] = [shells.hosts[0].folder, join(sftp.hosts[0].folder, 'srv', 'jail', 'files')]
    expect(treeOf(join(host, 'srv', 'tree'))).toEqual(want)
    expect(treeOf(join(jail, 'tree'))).toEqual(want)
    const facts = async (storage: string, path: string) =>
      (await service.get(`/storages/${storage}/stat/?path=${encodeURIComponent(path)}`)).modifiedAt
    expect(await facts('sftp', 'tree/deep/er/large')).toBe(time.toISOString())
    rmSync(folder, { recursive: true })
    expect(await copied('sftp', 'tree', 'a')).toMatchObject({ status: 'completed', skippedEntries: 0 })
    expect(treeOf(folder)).toEqual(want)
    for (const place of [join(host, 'srv'), jail, join(root, 'a')])
      expect(
        (readdirSync(place, { recursive: true }) as string[]).filter((path) => /\.orrery-/.test(path)),
      ).toEqual([])
  }, 240_000)

  test('thousands of small files go in packs; one whose name is taken is named, and stays as it is', async () => {
    const names = Array.from({ length: 1_500 }, (_, at) => `part-${at % 3}/file ${at}`)
    const large = { 'part-1/large': randomBytes(300_000) }
    const files = { ...large, ...Object.fromEntries(names.map((name, at) => [name, `content ${at}`])) }
    plant(join(root, 'a', 'many'), files)
    const want = treeOf(join(root, 'a', 'many'))
    const there = join(shells.hosts[0].folder, 'srv', 'many')
    await shells.hosts[0].run(
      "mkdir -p '/srv/many/part-2' && printf mine > '/srv/many/part-2/file 1001' && chown -R ada /srv/many",
    )
    await expect(copied('a', 'many', 'shells')).rejects.toThrow('"many/part-2/file 1001"')
    expect(readFileSync(join(there, 'part-2', 'file 1001'), 'utf8')).toBe('mine')
    const again = await service.post('/storages/a/copies/', {
      ...{ path: 'many', destinationStorageId: 'shells', onConflict: 'overwrite' },
    })
    const began = performance.now()
    await until('the end of the copy', 120, async () =>
      (await service.get(`/storage-downloads/${again.id}/`)).status === 'completed' ? true : undefined,
    )
    expect(performance.now() - began).toBeLessThan(60_000)
    expect(treeOf(there)).toEqual(want)
    rmSync(join(root, 'a', 'many'), { recursive: true })
    expect(await copied('shells', 'many', 'a')).toMatchObject({ status: 'completed' })
    expect(treeOf(join(root, 'a', 'many'))).toEqual(want)
    for (const place of [join(shells.hosts[0].folder, 'srv'), join(root, 'a')])
      expect(
        (readdirSync(place, { recursive: true }) as string[]).filter((path) => path.includes('.orrery-')),
      ).toEqual([])
  }, 240_000)

  test('an account without a shell is looked into, uploaded to, archived and indexed', async () => {
    expect((await service.call('POST', '/storages/sftp/health/')).body).toMatchObject({ status: 'healthy' })
    const put = await service.call('PUT', '/storages/sftp/entries/?path=up.csv', 'a,b')
    expect(put.status).toBe(201)
    const digest = await service.call('POST', '/storages/sftp/checksum/', { path: 'up.csv' })
    expect(digest.body.checksum).toMatch(/^sha256:/)
    const packed = await service.post('/storages/sftp/archives/', { path: 'tree' })
    const end = await until('the archive', 60, async () => {
      const found = await service.get(`/storage-downloads/${packed.id}/`)
      return ['ready', 'failed'].includes(found.status) ? found : undefined
    })
    expect(end).toMatchObject({ status: 'ready', path: 'tree.tar.gz' })
    await service.post('/storages/sftp/index-runs/', { checksums: true })
    await until('the index run', 60, async () =>
      (await service.get('/storages/sftp/index-runs/')).every(
        (run: { status: string }) => run.status === 'completed',
      ),
    )
    const found = await service.get(`/storages/sftp/index/?checksum=${digest.body.checksum}`)
    expect(found.entries.map(({ path }: { path: string }) => path)).toEqual(['up.csv'])
  }, 120_000)

  test('an upload goes on beside a connection that hangs', async () => {
    const content = randomBytes(12_000_000)
    const url = `${service.baseUrl}/storages/sftp/entries/?path=hung`
    const send = async (range: string, body: Buffer = Buffer.alloc(0)) => {
      const headers = { 'content-type': 'text/csv', 'content-range': `bytes ${range}/12000000` }
      const answer = await fetch(url, { method: 'PUT', headers, body: new Uint8Array(body) })
      return { status: answer.status, body: (await answer.json()) as { receivedBytes: number } }
    }
    const kept = async (): Promise<number> => (await send('*')).body.receivedBytes
    const hung = request(url, { method: 'PUT', headers: { 'content-range': 'bytes 0-7999999/12000000' } })
    const refused = new Promise<number | undefined>((resolve) => {
      hung
        .on('response', (answer) => resolve(answer.resume().statusCode))
        .on('error', () => resolve(undefined))
    })
    hung.write(content.subarray(0, 6_000_000))
    while ((await kept()) === 0);
    for (let status = 409; status === 409;) {
      const from = await kept()
      ;({ status } = await send(`${from}-11999999`, content.subarray(from)))
      expect([201, 409]).toContain(status)
    }
    hung.end(content.subarray(6_000_000, 8_000_000))
    expect([undefined, 409]).toContain(await refused)
    expect(readFileSync(join(sftp.hosts[0].folder, 'srv', 'jail', 'files', 'hung')).equals(content)).toBe(
      true,
    )
  })
})
