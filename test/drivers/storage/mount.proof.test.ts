import { expect } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, realpathSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { openFilesystem } from '../../../src/drivers/storage/filesystem/driver.ts'
import { sites } from '../../../sites/requirements.ts'
import { startSsh } from '../../../sites/ssh.ts'
import { needs } from '../../support/needs.ts'
import { runFolder } from '../../support/run-folder.ts'
import { at, bytesFrom, contentOf, faultOf } from './conformance.ts'

/** A mount of this machine whose server goes away. */

needs(...sites.ssh, 'sshfs').test(
  'a mount whose link is cut delays its own requests up to their deadline, and no others',
  async () => {
    await using site = await startSsh({ hosts: 1 })
    const [host] = site.hosts
    const folder = realpathSync(mkdtempSync(join(runFolder(), 'mount-')))
    const mount = join(folder, 'mount')
    mkdirSync(mount)
    mkdirSync(join(folder, 'beside'))
    execFileSync('sshfs', [
      ...['-o', `ssh_command=ssh ${site.sshOptions.join(' ')}`],
      ...[`${host.user}@${host.address}:/srv`, mount],
    ])
    const mounted = openFilesystem({ base: mount, deadlineMs: 2_000 })
    const beside = openFilesystem({ base: join(folder, 'beside'), deadlineMs: 2_000 })
    try {
      await mounted.write(at('file'), bytesFrom('content'))
      expect((await contentOf(mounted, at('file'))).toString()).toBe('content')
      await host.cut()
      // The kernel remembers attributes for a second.
      await new Promise((resolve) => setTimeout(resolve, 21_000))
      const began = performance.now()
      const faults = await Promise.all([
        faultOf(mounted.stat(at('file'))),
        faultOf(mounted.list([], { limit: 9 })),
        faultOf(mounted.digest(at('file'))),
      ])
      expect(faults.every((fault) => fault === 'late' || fault === 'away')).toBe(true)
      expect(faults).toContain('late')
      expect(performance.now() - began).toBeLessThan(6_000)
      const started = performance.now()
      await beside.write(at('here'), bytesFrom('x'))
      expect(await faultOf(beside.stat(at('here')))).toBe('none')
      expect(performance.now() - started).toBeLessThan(2_000)
      await host.heal()
      for (let tries = 0; (await faultOf(mounted.stat(at('file')))) !== 'none' && tries < 30; tries += 1)
        await new Promise((resolve) => setTimeout(resolve, 1_000))
      expect((await contentOf(mounted, at('file'))).toString()).toBe('content')
    } finally {
      await Promise.all([mounted.close(), beside.close()])
      execFileSync('fusermount', ['-u', '-z', mount])
      rmSync(folder, { recursive: true, force: true })
    }
  },
  120_000,
)
