import { expect } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { openSshSessions } from '../../../src/clients/ssh/sessions.ts'
import { openSftpStorage } from '../../../src/drivers/storage/sftp/driver.ts'
import { sites } from '../../../sites/requirements.ts'
import { startSsh } from '../../../sites/ssh.ts'
import { needs } from '../../support/needs.ts'
import { at, bytesFrom, contentOf, faultOf, storageConformance, storageKinds } from './conformance.ts'

/** A chrooted account with `internal-sftp` at a real sshd. */

const opened = async () => {
  const site = await startSsh({ hosts: 1, sftpOnly: true, diskMiB: 16 })
  const [host] = site.hosts
  const sessions = openSshSessions()
  const target = {
    ...{ host: host.address, port: host.port, username: host.user },
    secret: () => Promise.resolve({ privateKey: site.key.privateKey }),
    hostKeys: { policy: 'strict' as const, knownHosts: host.knownHosts() },
  }
  const again = (base = '/files') =>
    openSftpStorage({ files: sessions.files(() => Promise.resolve(target)), base })
  const stop = async (): Promise<void> => {
    await sessions.close()
    await site.stop()
  }
  return { host, sessions, target, folder: join(host.folder, 'srv/jail/files'), driver: again(), again, stop }
}

const { describe, test } = needs(...sites.ssh)

describe('by SFTP', () => {
  storageConformance('a folder of an account without a shell', storageKinds.sftp, async () => {
    const { driver, again, stop } = await opened()
    return { driver, again: () => again(), stop }
  })

  test('a time that SFTP cannot write becomes the nearest', async () => {
    const { driver, stop } = await opened()
    for (const [name, given, kept] of [
      ['before', Date.UTC(1969, 6, 20), 0],
      ['after', Date.UTC(2200, 0), (2 ** 32 - 1) * 1_000],
    ] as const) {
      await driver.write(at(name), bytesFrom('x'), { attributes: { modifiedAt: given } })
      expect([name, (await driver.stat(at(name))).modifiedAt]).toEqual([name, kept])
    }
    await driver.close()
    await stop()
  }, 60_000)

  test('no link is followed, a full disk, a cut link and what is not there are named', async () => {
    const { host, sessions, target, folder, driver, again, stop } = await opened()
    await expect(sessions.shell(target).run(':', { deadlineMs: 10_000 })).rejects.toThrow(/shell|link/)
    mkdirSync(join(folder, 'dir'))
    writeFileSync(join(folder, 'dir', 'file'), 'x')
    symlinkSync('dir', join(folder, 'way'))
    symlinkSync('dir/file', join(folder, 'link'))
    expect(await faultOf(driver.stat(at('way/file')))).toBe('link')
    expect(await faultOf(driver.list(at('way'), { limit: 9 }))).toBe('link')
    expect(await faultOf(driver.read(at('link')))).toBe('link')
    expect(await faultOf(driver.write(at('way/new'), bytesFrom('x')))).toBe('link')
    expect(await faultOf(driver.delete(at('way/file')))).toBe('link')
    expect(await faultOf(again('/nowhere').list([], { limit: 9 }))).toBe('away')
    execFileSync('mkfifo', [join(folder, 'dir', 'fifo')])
    const special = { type: 'special', readable: false, writable: false }
    expect((await driver.list(at('dir'), { limit: 9 })).entries).toMatchObject([special, { name: 'file' }])
    expect(await driver.stat(at('dir/fifo'))).toMatchObject(special)
    // Nothing waits for a writer.
    expect(await faultOf(driver.read(at('dir/fifo')))).toBe('notFile')
    expect(await faultOf(driver.digest(at('dir/fifo')))).toBe('notFile')
    await host.run('mount -t tmpfs -o size=8m,mode=1777 small /srv/jail/files')
    expect(await faultOf(driver.write(at('large'), bytesFrom(Buffer.alloc(20_000_000, 7))))).toBe('full')
    expect((await driver.list([], { limit: 10 })).entries).toEqual([])
    const slow = Readable.from(
      (async function* () {
        for (let i = 0; i < 60; i++) {
          yield Buffer.alloc(50_000, i)
          await new Promise((resolve) => setTimeout(resolve, 20))
        }
      })(),
      { objectMode: false },
    )
    const writing = faultOf(driver.write(at('cut'), slow))
    await new Promise((resolve) => setTimeout(resolve, 400))
    await host.dropSessions()
    expect(await writing).toBe('away')
    expect(await faultOf(driver.stat(at('cut')))).toBe('missing')
    await driver.write(at('cut'), bytesFrom('again'))
    expect((await contentOf(driver, at('cut'))).toString()).toBe('again')
    await driver.close()
    await stop()
  }, 120_000)
})
