import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { execFileSync, spawn } from 'node:child_process'
import { mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { StorageDriver } from '../../../src/drivers/storage/contract.ts'
import { nameOf, textOf } from '../../../src/drivers/storage/paths.ts'
import { allOf, at, bytesFrom, contentOf, faultOf, sha256, type StorageUnderTest } from './conformance.ts'

/** A storage whose folder this machine sees, too: what somebody at the site does to it. */
export interface FolderUnderTest extends StorageUnderTest {
  /**
   * The folder of the endpoint, as this process sees it. Its parent belongs to the test as well.
   */
  folder: string
}

const secret = 'nobody may read this'

/** Links, devices and what somebody does to a folder while it is read. */
export const hostileFolder = (
  title: string,
  open: () => Promise<FolderUnderTest>,
  { swaps }: { swaps: number },
): void => {
  describe(`${title}, among people who mean harm`, () => {
    let site: FolderUnderTest
    let driver: StorageDriver
    let outside: string
    beforeAll(async () => {
      site = await open()
      driver = site.driver
      outside = join(site.folder, '..', 'outside')
      mkdirSync(outside)
      writeFileSync(join(outside, 'secret'), secret)
    }, 600_000)
    afterAll(async () => {
      await driver.close()
      rmSync(outside, { recursive: true, force: true })
      await site.stop()
    })

    test('links are listed with where they lead, and none is followed', async () => {
      const folder = join(site.folder, 'linked')
      mkdirSync(folder)
      symlinkSync('../../outside', join(folder, 'dir'))
      symlinkSync('../../outside/secret', join(folder, 'file'))
      symlinkSync('loop', join(folder, 'loop'))
      symlinkSync('nowhere', join(folder, 'dangling'))
      symlinkSync('real', join(folder, 'inner'))
      writeFileSync(join(folder, 'real'), 'inner')
      const entries = await allOf(driver, at('linked'))
      expect(entries.map(({ name, type, linkTarget }) => [textOf(name), type, linkTarget])).toEqual([
        ['dangling', 'symlink', 'nowhere'],
        ['dir', 'symlink', '../../outside'],
        ['file', 'symlink', '../../outside/secret'],
        ['inner', 'symlink', 'real'],
        ['loop', 'symlink', 'loop'],
        ['real', 'file', undefined],
      ])
      for (const path of ['linked/dir/secret', 'linked/file/x', 'linked/loop/x'])
        expect(await faultOf(driver.stat(at(path)))).toMatch(/^(link|notDirectory)$/)
      for (const path of ['linked/file', 'linked/inner', 'linked/loop', 'linked/dangling']) {
        expect(await faultOf(driver.read(at(path)))).toBe('link')
        expect(await faultOf(driver.digest(at(path)))).toBe('link')
      }
      expect(await faultOf(driver.list(at('linked/dir'), { limit: 5 }))).toBe('link')
      expect(await faultOf(driver.write(at('linked/dir/new'), bytesFrom('x')))).toBe('link')
      expect(await faultOf(driver.delete(at('linked/dir/secret')))).toBe('link')
      expect(await faultOf(driver.makeDirectory(at('linked/dir/new')))).toBe('link')
      // A link that is overwritten or deleted goes itself.
      await driver.write(at('linked/file'), bytesFrom('new'), { overwrite: true })
      expect((await contentOf(driver, at('linked/file'))).toString()).toBe('new')
      await driver.delete(at('linked/dir'))
      expect(await faultOf(driver.stat(at('linked/dir')))).toBe('missing')
      expect(readFileSync(join(outside, 'secret'), 'utf8')).toBe(secret)
    })

    test('devices, FIFOs and sockets are shown, and nothing waits for one', async () => {
      const folder = join(site.folder, 'special')
      mkdirSync(folder)
      execFileSync('mkfifo', [join(folder, 'fifo')])
      const specials = ['fifo']
      if (process.getuid?.() === 0) {
        execFileSync('mknod', [join(folder, 'zero'), 'c', '1', '5'])
        specials.push('zero')
      }
      const began = performance.now()
      expect((await allOf(driver, at('special'))).map(({ type }) => type)).toEqual(
        specials.map(() => 'special'),
      )
      for (const name of specials) {
        const path = [...at('special'), nameOf(name)]
        expect(await driver.stat(path)).toMatchObject({ type: 'special', readable: false })
        expect(await faultOf(driver.read(path))).toBe('notFile')
        expect(await faultOf(driver.digest(path))).toBe('notFile')
      }
      expect(performance.now() - began).toBeLessThan(10_000)
    })

    test(`${swaps} swaps of a link during stat, list, read and delete lead nowhere`, async () => {
      const folder = join(site.folder, 'swapped')
      mkdirSync(join(folder, 'dir'), { recursive: true })
      writeFileSync(join(folder, 'dir', 'secret'), 'harmless')
      symlinkSync(outside, join(folder, 'link'))
      // Another process changes directory and link as fast as it can, and says how often.
      const script = `const { renameSync } = require('node:fs'); process.chdir(${JSON.stringify(folder)}); let swaps = 0
        process.on('message', () => process.send(swaps))
        const go = () => {
          for (let i = 0; i < 50; i++) {
            renameSync('dir', 'kept'); renameSync('link', 'dir')
            renameSync('dir', 'link'); renameSync('kept', 'dir'); swaps++
          }
          setImmediate(go)
        }
        go()`
      const swapper = spawn(process.execPath, ['-e', script], {
        stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
      })
      const swapped = (): Promise<number> =>
        new Promise((resolve) => {
          swapper.once('message', resolve)
          swapper.send('?')
        })
      const path = at('swapped/dir/secret')
      const seen = { inside: 0, link: 0, missing: 0 }
      try {
        await sleep(100)
        const deadline = performance.now() + 60_000
        for (
          let round = 0;
          (round < 200 || (await swapped()) < swaps) && performance.now() < deadline;
          round++
        ) {
          const asked = await Promise.all([
            faultOf(driver.stat(path).then(({ sizeBytes }) => expect(sizeBytes).toBe(8))),
            faultOf(
              driver
                .list(at('swapped/dir'), { limit: 10 })
                .then(({ entries }) => expect(entries[0]?.sizeBytes).toBe(8)),
            ),
            faultOf(contentOf(driver, path).then((content) => expect(content.toString()).toBe('harmless'))),
            faultOf(driver.digest(path).then((digest) => expect(digest).toBe(sha256('harmless')))),
            faultOf(driver.delete(at('swapped/dir/other'))),
            faultOf(
              driver.readMany!(at('swapped/dir'), [nameOf('secret')]).then((files) => {
                for (const { bytes } of files) expect(bytes.toString()).toBe('harmless')
              }),
            ),
            faultOf(
              driver.writeMany!(
                at('swapped/dir'),
                [{ name: nameOf('secret'), bytes: Buffer.from('harmless'), upload: `u${round}` }],
                { overwrite: true },
              ),
            ),
          ])
          for (const fault of asked) {
            expect(['none', 'link', 'missing', 'notDirectory', 'denied', 'away', 'changed']).toContain(fault)
            seen[fault === 'none' ? 'inside' : fault === 'link' ? 'link' : 'missing'] += 1
          }
        }
        expect(await swapped()).toBeGreaterThanOrEqual(swaps)
      } finally {
        swapper.kill('SIGKILL')
      }
      expect(seen.inside).toBeGreaterThan(0)
      expect(seen.link + seen.missing).toBeGreaterThan(0)
      expect(readFileSync(join(outside, 'secret'), 'utf8')).toBe(secret)
    }, 120_000)
  })
}
