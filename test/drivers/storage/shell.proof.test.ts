import { expect } from '@jest/globals'
import { spawnSync } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { mkdirSync, mkdtempSync, realpathSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { openSshSessions } from '../../../src/clients/ssh/sessions.ts'
import { openLocalShell } from '../../../src/shell/local-shell.ts'
import { openShellStorage } from '../../../src/drivers/storage/shell/driver.ts'
import { sites } from '../../../sites/requirements.ts'
import { startSsh } from '../../../sites/ssh.ts'
import { needs } from '../../support/needs.ts'
import { runFolder } from '../../support/run-folder.ts'
import { at, bytesFrom, contentOf, faultOf, storageConformance, storageKinds } from './conformance.ts'
import { hostileFolder } from './hostile.ts'

const opened = () => {
  const folder = join(realpathSync(mkdtempSync(join(runFolder(), 'storage-'))), 'endpoint')
  mkdirSync(folder)
  const shell = openLocalShell()
  const again = () => openShellStorage({ shell, base: folder })
  const stop = async (): Promise<void> => {
    await shell.close()
    rmSync(join(folder, '..'), { recursive: true, force: true })
  }
  return { folder, driver: again(), again, stop }
}

storageConformance('a folder behind a shell', storageKinds.shell, () => Promise.resolve(opened()))
hostileFolder('a folder behind a shell', () => Promise.resolve(opened()), { swaps: 3_000 })

const { describe, test } = needs(...sites.ssh)

test('a digest whose reading ends early is refused, and not that of the bytes that were read', async () => {
  const { folder, driver, stop } = opened()
  const name = `endless-${randomUUID()}`
  writeFileSync(join(folder, name), '')
  truncateSync(join(folder, name), 2 ** 40)
  const refused = faultOf(driver.digest(at(name)))
  while (spawnSync('pkill', ['-9', '-f', `^dd if=./${name}`]).status !== 0) await sleep(20)
  expect(await refused).toBe('refused')
  await stop()
})

describe('over SSH', () => {
  const overSsh = async () => {
    const site = await startSsh({ hosts: 1 })
    const [host] = site.hosts
    const sessions = openSshSessions()
    const shell = sessions.shell({
      ...{ host: host.address, port: host.port, username: host.user },
      secret: () => Promise.resolve({ privateKey: site.key.privateKey }),
      hostKeys: { policy: 'strict', knownHosts: host.knownHosts() },
    })
    await shell.run(`mkdir -p ${host.home}/endpoint`)
    const again = () => openShellStorage({ shell, base: `${host.home}/endpoint` })
    const stop = async (): Promise<void> => {
      await sessions.close()
      await site.stop()
    }
    return { host, shell, driver: again(), again, stop }
  }

  storageConformance('a folder at an SSH host', storageKinds.shell, overSsh)

  test('a full disk, a cut link and a denied folder are named, and nothing stays under the name', async () => {
    const { host, shell, stop } = await overSsh()
    const small = openShellStorage({ shell, base: host.smallDisk })
    expect(await faultOf(small.write(at('large'), bytesFrom(Buffer.alloc(80 * 1024 * 1024, 7))))).toBe('full')
    expect((await small.list([], { limit: 10 })).entries).toEqual([])
    const root = openShellStorage({ shell, base: '/' })
    expect(await faultOf(root.read(at('root/.ssh/authorized_keys')))).toBe('denied')
    expect(await faultOf(root.write(at('etc/new'), bytesFrom('x')))).toBe('denied')

    const { Readable } = await import('node:stream')
    const slow = Readable.from(
      (async function* () {
        for (let i = 0; i < 100; i++) {
          yield Buffer.alloc(100_000, i)
          await new Promise((resolve) => setTimeout(resolve, 20))
        }
      })(),
      { objectMode: false },
    )
    const writing = faultOf(small.write(at('cut'), slow))
    await new Promise((resolve) => setTimeout(resolve, 500))
    await host.dropSessions()
    expect(await writing).toBe('away')
    expect(await faultOf(small.stat(at('cut')))).toBe('missing')
    await small.write(at('cut'), bytesFrom('again'))
    expect((await contentOf(small, at('cut'))).toString()).toBe('again')
    await stop()
  })
})
