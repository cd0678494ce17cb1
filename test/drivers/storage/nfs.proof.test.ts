import { expect } from '@jest/globals'
import { randomBytes } from 'node:crypto'
import { openSshSessions } from '../../../src/clients/ssh/sessions.ts'
import { nameOf } from '../../../src/drivers/storage/paths.ts'
import { openShellStorage } from '../../../src/drivers/storage/shell/driver.ts'
import { startNfs } from '../../../sites/nfs.ts'
import { nfsNeeds } from '../../../sites/requirements.ts'
import { needs } from '../../support/needs.ts'
import { at, bytesFrom, contentOf, faultOf, sha256 } from './conformance.ts'

/** A folder that a host with a kernel of its own mounts by NFS, behind its login. */

const opened = async () => {
  const site = await startNfs()
  const { host, mount } = site
  const sessions = openSshSessions()
  const shell = sessions.shell({
    ...{ host: host.address, port: host.ports.own, username: host.user },
    secret: () => Promise.resolve({ privateKey: host.key.privateKey }),
    hostKeys: { policy: 'strict', knownHosts: host.knownHosts },
  })
  await shell.run(`mkdir -p ${mount}/endpoint`)
  const again = (deadlineMs = 120_000) =>
    openShellStorage({
      shell,
      base: `${mount}/endpoint`,
      deadlineMs,
    })
  const elsewhere = openShellStorage({ shell, base: '/home/ada' })
  const stop = async (): Promise<void> => {
    await sessions.close()
    await site[Symbol.asyncDispose]()
  }
  return { site, driver: again(), again, elsewhere, stop }
}

const { describe, test } = needs(...nfsNeeds)

describe('by NFS', () => {
  // A process of that kernel takes a third of a second, so the whole suite would take half an hour.
  test('a folder that a host mounts by NFS is written, read, listed, resumed and cleared', async () => {
    const { driver, again, stop } = await opened()
    const content = randomBytes(1_000_000)
    await driver.makeDirectory(at('folder'))
    const written = await driver.write(at('folder/file'), bytesFrom(content), {
      attributes: { mode: 0o640, modifiedAt: 1_600_000_000_000 },
    })
    expect(written).toMatchObject({
      sha256: sha256(content),
      entry: { mode: 0o640, modifiedAt: 1_600_000_000_000 },
    })
    expect(
      (await contentOf(driver, at('folder/file'), { offset: 999_000 })).equals(content.subarray(999_000)),
    ).toBe(true)
    expect(await driver.digest(at('folder/file'))).toBe(sha256(content))
    expect(await faultOf(driver.write(at('folder/file'), bytesFrom('x')))).toBe('exists')
    await driver.write(at('parts'), bytesFrom(content.subarray(0, 400_000)), {
      part: { upload: 'u', offset: 0, last: false },
    })
    const other = again()
    expect(await other.received!(at('parts'), 'u')).toBe(400_000)
    await other.write(at('parts'), bytesFrom(content.subarray(400_000)), {
      part: { upload: 'u', offset: 400_000, last: true },
    })
    expect(await other.digest(at('parts'))).toBe(sha256(content))
    await driver.makeLink!(at('link'), nameOf('folder'))
    expect(await faultOf(driver.read(at('link/file')))).toBe('link')
    expect((await driver.list([], { limit: 9 })).entries.map(({ name, type }) => [name, type])).toEqual([
      ['folder', 'directory'],
      ['link', 'symlink'],
      ['parts', 'file'],
    ])
    await driver.delete(at('folder/file'))
    await stop()
  }, 300_000)

  test('while the server is silent requests end at their deadline, and those of other folders do not wait', async () => {
    const { site, driver, again, elsewhere, stop } = await opened()
    await driver.write(at('file'), bytesFrom('content'))
    const impatient = again(3_000)
    await site.silence()
    const began = performance.now()
    expect(await faultOf(impatient.stat(at('file')))).toBe('away')
    expect(await faultOf(impatient.list([], { limit: 9 }))).toBe('away')
    expect(performance.now() - began).toBeLessThan(15_000)
    await elsewhere.write(at('beside'), bytesFrom('x'))
    expect(await faultOf(elsewhere.stat(at('beside')))).toBe('none')
    await site.wake()
    expect((await contentOf(driver, at('file'))).toString()).toBe('content')
    await stop()
  }, 300_000)
})
