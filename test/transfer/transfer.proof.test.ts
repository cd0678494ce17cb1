import { afterAll, describe, expect, test } from '@jest/globals'
import { execFileSync, spawn, spawnSync } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  linkSync,
  mkdirSync,
  openSync,
  closeSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  symlinkSync,
  writeFileSync,
  writeSync,
} from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import fc from '../support/fast-check.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import {
  transfer,
  type TransferSide,
  type TransferOutcome,
  type TransferRequest,
} from '../../src/drivers/transfer/transfer.ts'
import { overLink, type LinkFailures } from './links.ts'
import { fingerprint, grow, plannedTree, randomFile, scratch } from './trees.ts'
import { needs } from '../support/needs.ts'

const shell = openLocalShell()
afterAll(() => shell.close())

const a: TransferSide = { site: 'a', shell, mounts: [] }
const b: TransferSide = { site: 'b', shell, mounts: [] }
const clear = (): LinkFailures => ({ calls: 0, bytes: 0 })
const mebibyte = 1024 * 1024

const bring = (folder: string, more: Partial<TransferRequest> = {}): Promise<TransferOutcome> =>
  transfer({
    from: a,
    to: b,
    source: { directory: join(folder, 'made') },
    directory: join(folder, 'in', 'came'),
    label: 'maker',
    ...more,
  })

/** A folder with `made` in it. */
const producer = (fill: (made: string) => void): ReturnType<typeof scratch> => {
  const folder = scratch()
  mkdirSync(join(folder.path, 'made'))
  fill(join(folder.path, 'made'))
  return folder
}

const expectSame = (folder: string): void => {
  expect(fingerprint(join(folder, 'in', 'came'))).toBe(fingerprint(join(folder, 'made')))
  expect(readdirSync(join(folder, 'in')).sort()).toEqual(['.came.manifest', 'came'])
}

/** Until a transfer that is asked again and again has come through. */
const insist = async (
  folder: string,
  more: Partial<TransferRequest>,
): Promise<{ outcome: TransferOutcome; failures: number }> => {
  for (let failures = 0; ; failures++) {
    try {
      return { outcome: await bring(folder, more), failures }
    } catch (error) {
      expect(error).toMatchObject({
        trouble: 'unknown',
        message: expect.stringContaining('the link was cut'),
      })
      // The answer to the last step may be the one that was lost.
      if (existsSync(join(folder, 'in', 'came'))) expectSame(folder)
      if (failures > 50) throw error
    }
  }
}

describe('files come as they are', () => {
  test('any tree: names of any bytes, sizes, modes, times, links and empty folders', async () => {
    await fc.assert(
      fc.asyncProperty(plannedTree, async (plan) => {
        using folder = producer((made) => grow(made, plan))
        const outcome = await bring(folder.path)
        expectSame(folder.path)
        expect(outcome).toMatchObject({ strategy: 'gateway', resumed: false, verified: true })
        const again = await bring(folder.path)
        expect(again).toMatchObject({
          strategy: 'use-existing',
          networkBytes: 0,
          bytes: outcome.bytes,
          files: outcome.files,
        })
      }),
      { numRuns: 6 },
    )
  }, 600_000)

  test('only the paths that were asked for, whole folders among them', async () => {
    using folder = producer((made) => {
      execFileSync(
        '/bin/sh',
        [
          '-c',
          'mkdir -p a/b c && echo 1 > a/b/one && echo 2 > a/two && echo 3 > c/three && echo 4 > ./-four',
          'sh',
        ],
        { cwd: made },
      )
    })
    await bring(folder.path, {
      source: { directory: join(folder.path, 'made'), paths: ['a/b', '-four', './c/three'] },
    })
    const came = execFileSync('find', ['.', '-type', 'f'], {
      cwd: join(folder.path, 'in', 'came'),
      encoding: 'utf8',
    })
    expect(came.trim().split('\n').sort()).toEqual(['./-four', './a/b/one', './c/three'])
  })

  test('hard links become files of their own, sparse files keep their content', async () => {
    using folder = producer((made) => {
      writeFileSync(join(made, 'one'), 'content')
      linkSync(join(made, 'one'), join(made, 'two'))
      execFileSync('truncate', ['-s', '40M', join(made, 'sparse')])
      execFileSync(
        'dd',
        [`of=${join(made, 'sparse')}`, 'bs=1', 'seek=20000000', 'conv=notrunc', 'status=none'],
        { input: 'island' },
      )
    })
    await bring(folder.path)
    expectSame(folder.path)
    expect(
      execFileSync('stat', ['-c', '%h', join(folder.path, 'in', 'came', 'one')], { encoding: 'utf8' }).trim(),
    ).toBe('1')
  })

  test('links that lead inside are relative there, also what an asked one leads to; others stay behind', async () => {
    using folder = producer((made) => {
      mkdirSync(join(made, 'd'))
      writeFileSync(join(made, 'd', 'x'), 'x')
      const links = {
        absolute: join(made, 'd/x'),
        'd/way': made,
        out: '/etc/passwd',
        far: 'out',
        l: 'd',
        gone: 'none',
      }
      for (const [path, target] of Object.entries(links)) symlinkSync(target, join(made, path))
    })
    const came = join(folder.path, 'in', 'came')
    const left = [
      { path: 'far', why: expect.stringContaining('by the link "out" to "/etc/passwd", outside') },
      { path: 'out', why: expect.stringContaining('a link to "/etc/passwd", outside') },
    ]
    const outcome = await bring(folder.path, { for: 'task' })
    expect(outcome.left?.toSorted((one, two) => (one.path < two.path ? -1 : 1))).toEqual(left)
    expect(readdirSync(came).sort()).toEqual(['absolute', 'd', 'gone', 'l'])
    expect(readlinkSync(join(came, 'absolute'))).toBe('d/x')
    expect(readlinkSync(join(came, 'd/way'))).toBe('..')
    const again = await bring(folder.path)
    expect(again).toMatchObject({ movedFor: 'task', left: outcome.left })
    const directory = join(folder.path, 'in', 'part')
    const source = { directory: join(folder.path, 'made'), paths: ['absolute', 'l/x'] }
    await bring(folder.path, { directory, source })
    expect(readdirSync(directory).sort()).toEqual(['absolute', 'd', 'l'])
    expect(readFileSync(join(directory, 'absolute'), 'utf8')).toBe('x')
  })

  test('a tree without a file', async () => {
    using folder = producer(() => undefined)
    expect(await bring(folder.path)).toMatchObject({ bytes: 0, files: 0 })
    expectSame(folder.path)
  })
})

describe('what cannot be brought is told before anything is sent', () => {
  const refusals: [
    what: string,
    fill: (made: string) => void,
    paths: string[] | undefined,
    trouble: string,
    words: RegExp,
  ][] = [
    [
      'a link to the outside that was asked for',
      (made) => symlinkSync('../secret', join(made, 'l')),
      ['l'],
      'user',
      /maker leaves "l".* a link to "\.\.\/secret", outside/,
    ],
    [
      'a path that was not made',
      (made) => writeFileSync(join(made, 'x'), ''),
      ['x', 'y'],
      'user',
      /maker did not leave "y"; declare it/,
    ],
    ['a path upwards', () => undefined, ['../x'], 'refused', /path "..\/x" of maker is not inside/],
  ]
  test.each(refusals)('%s', async (_what, fill, paths, trouble, words) => {
    using folder = producer(fill)
    const directory = join(folder.path, 'made')
    const request = bring(folder.path, { source: { directory, ...(paths === undefined ? {} : { paths }) } })
    await expect(request).rejects.toMatchObject({ trouble, message: expect.stringMatching(words) })
    expect(existsSync(join(folder.path, 'in', 'came'))).toBe(false)
  })

  test('a directory that is not there', async () => {
    using folder = scratch()
    await expect(bring(folder.path)).rejects.toMatchObject({
      trouble: 'refused',
      message: expect.stringContaining('the files of maker are not at'),
    })
  })

  test('a place that holds something else', async () => {
    using folder = producer((made) => writeFileSync(join(made, 'x'), 'new'))
    mkdirSync(join(folder.path, 'in', 'came'), { recursive: true })
    writeFileSync(join(folder.path, 'in', 'came', 'x'), 'theirs')
    await expect(bring(folder.path)).rejects.toMatchObject({
      trouble: 'refused',
      message: expect.stringContaining('holds something else'),
    })
    expect(readFileSync(join(folder.path, 'in', 'came', 'x'), 'utf8')).toBe('theirs')
  })
})

describe('nothing moves where nothing has to', () => {
  test('a storage that both sites name, under two paths', async () => {
    using folder = producer((made) => writeFileSync(join(made, 'x'), 'data'))
    // The same storage seen through another path.
    symlinkSync(folder.path, join(folder.path, 'elsewhere'))
    const outcome = await bring(folder.path, {
      from: { ...a, mounts: [{ storageId: 'scratch', path: folder.path }] },
      to: { ...b, mounts: [{ storageId: 'scratch', path: join(folder.path, 'elsewhere') }] },
    })
    expect(outcome).toMatchObject({
      strategy: 'shared-storage',
      directory: join(folder.path, 'elsewhere', 'made'),
      bytes: 4,
      networkBytes: 0,
    })
    expect(existsSync(join(folder.path, 'in'))).toBe(false)
  })

  test('a storage of that name which is another one there: the files are brought, and the reason says so', async () => {
    using folder = producer((made) => writeFileSync(join(made, 'x'), 'data'))
    const outcome = await bring(folder.path, {
      from: { ...a, mounts: [{ storageId: 'scratch', path: folder.path }] },
      to: { ...b, mounts: [{ storageId: 'scratch', path: '/proc/sys' }] },
    })
    expect(outcome.strategy).toBe('gateway')
    expect(outcome.reason).toMatch(
      /not shared-storage: the target does not see the same files at \/proc\/sys\/made/,
    )
    expectSame(folder.path)
  })

  test('two sites on one machine', async () => {
    using folder = producer((made) => writeFileSync(join(made, 'x'), 'data'))
    const outcome = await bring(folder.path, { from: { ...a, host: 'm' }, to: { ...b, host: 'm' } })
    expect(outcome).toMatchObject({
      strategy: 'runtime-local',
      directory: join(folder.path, 'made'),
      networkBytes: 0,
    })
  })
})

describe('a cut link costs nothing but time', () => {
  const fill = (made: string): void => {
    for (let at = 0; at < 30; at++) randomFile(join(made, `small${String(at)}`), 5_000)
    randomFile(join(made, 'large'), 5 * mebibyte)
    mkdirSync(join(made, 'folder'))
  }

  test('before and after each call of a transfer', async () => {
    using model = producer(fill)
    const counted = clear()
    await bring(model.path, {
      from: { ...a, shell: overLink(shell, counted) },
      to: { ...b, shell: overLink(shell, counted) },
    })
    expect(counted.calls).toBeGreaterThan(8)
    for (let call = 1; call <= counted.calls; call++) {
      for (const when of ['before', 'after'] as const) {
        using folder = producer(fill)
        const cut: LinkFailures = { ...clear(), cut: { call, when } }
        const link = overLink(shell, cut)
        const { failures } = await insist(folder.path, {
          from: { ...a, shell: link },
          to: { ...b, shell: link },
        })
        expectSame(folder.path)
        // Only the last answer can be lost without harm.
        expect(failures).toBeGreaterThanOrEqual(call <= 2 ? 0 : 1)
      }
    }
  }, 600_000)

  test('in the middle of the data, at half: not more than 1 % is sent again', async () => {
    using folder = producer((made) => {
      randomFile(join(made, 'large'), 96 * mebibyte)
      for (let at = 0; at < 500; at++) randomFile(join(made, `small${String(at)}`), 4_096)
    })
    const failures: LinkFailures = { ...clear(), cutAtBytes: 49 * mebibyte }
    await expect(
      bring(folder.path, { from: { ...a, shell: overLink(shell, failures) } }),
    ).rejects.toMatchObject({ trouble: 'unknown' })
    const rest: LinkFailures = clear()
    const outcome = await bring(folder.path, { from: { ...a, shell: overLink(shell, rest) } })
    expectSame(folder.path)
    expect(outcome.resumed).toBe(true)
    const again = 49 * mebibyte + outcome.networkBytes - outcome.bytes
    expect(again).toBeLessThan(outcome.bytes * 0.01 + 500 * 600)
  }, 300_000)

  test('that falls silent: given up after a while; the next attempt ends what waits at the target, and goes on', async () => {
    using folder = producer((made) => randomFile(join(made, 'large'), 40 * mebibyte))
    const failures: LinkFailures = { ...clear(), silentAtBytes: 20 * mebibyte }
    const arriving = join(folder.path, 'in', '.came.arriving')
    const silent = bring(folder.path, {
      from: { ...a, shell: overLink(shell, failures) },
      limits: { stallMs: 1_500 },
    })
    await expect(silent).rejects.toMatchObject({
      trouble: 'unknown',
      message: expect.stringContaining('no byte for 1.5 s'),
    })
    const waiting = spawn('/bin/sh', ['-c', 'trap : INT; cat > /dev/null; sleep 600'], {
      cwd: join(arriving, 'files'),
      stdio: ['pipe', 'ignore', 'ignore'],
    })
    const ended = new Promise((resolve) => waiting.once('exit', resolve))
    const outcome = await bring(folder.path)
    await ended
    expectSame(folder.path)
    expect(outcome.resumed).toBe(true)
    expect(outcome.networkBytes).toBeLessThan(21 * mebibyte)
  }, 300_000)

  test('a transfer that is given up stops, and nothing of it runs on', async () => {
    using folder = producer((made) => randomFile(join(made, 'large'), 100 * mebibyte))
    const stop = new AbortController()
    const failures = clear()
    const running = bring(folder.path, {
      from: { ...a, shell: overLink(shell, failures) },
      signal: stop.signal,
    })
    while (failures.bytes < mebibyte) await delay(5)
    stop.abort(new Error('nobody wants it'))
    await expect(running).rejects.toThrow('nobody wants it')
    const at = ['-mindepth', '2', '-maxdepth', '2', '-name', 'cwd', '-lname', `${folder.path}/*`]
    const left = spawnSync('find', ['/proc', ...at], { encoding: 'utf8' }).stdout
    expect(left).toBe('')
    expect(existsSync(join(folder.path, 'in', 'came'))).toBe(false)
  }, 300_000)
})

/** Other bytes in the middle of a file, its size and time kept. */
const flip = (path: string, at: number): void => {
  const file = openSync(path, 'r+')
  writeSync(file, 'FLIPPED', at)
  closeSync(file)
}

describe('what is wrong is found by its digest', () => {
  test.each([
    ['a block of a large file', 'large', 17 * mebibyte],
    ['a small file', 'small', 100],
  ])(
    'between two attempts: %s',
    async (_what, name, at) => {
      using folder = producer((made) => {
        randomFile(join(made, 'small'), 5_000)
        randomFile(join(made, 'large'), 36 * mebibyte)
      })
      const failures: LinkFailures = { ...clear(), cutAtBytes: 35 * mebibyte }
      await expect(
        bring(folder.path, { from: { ...a, shell: overLink(shell, failures) }, limits: { streams: 1 } }),
      ).rejects.toMatchObject({
        trouble: 'unknown',
      })
      flip(join(folder.path, 'in', '.came.arriving', 'files', name), at)
      const outcome = await bring(folder.path)
      expectSame(folder.path)
      expect(outcome.resumed).toBe(true)
    },
    300_000,
  )

  test('afterwards: files that changed where they were brought are brought anew', async () => {
    using folder = producer((made) => randomFile(join(made, 'x'), 5_000))
    await bring(folder.path)
    flip(join(folder.path, 'in', 'came', 'x'), 7)
    const outcome = await bring(folder.path)
    expect(outcome.reason).toContain('not use-existing: what was there had changed: "x" has another SHA-256')
    expectSame(folder.path)
  })

  test('a file that never comes through as it is: told, with both digests, and nothing is visible', async () => {
    using folder = producer((made) => randomFile(join(made, 'x'), 5_000))
    // A site whose tar spoils what it packs.
    const spoiling = openLocalShell({ environment: { PATH: `${folder.path}/bin:/usr/bin:/bin` } })
    mkdirSync(join(folder.path, 'bin'))
    writeFileSync(
      join(folder.path, 'bin', 'tar'),
      '#!/bin/sh\n/bin/tar "$@" | { dd bs=512 count=1 iflag=fullblock status=none; dd bs=16 count=1 ' +
        'iflag=fullblock status=none | tr "\\000-\\377" x; cat; }\n',
    )
    chmodSync(join(folder.path, 'bin', 'tar'), 0o755)
    await expect(bring(folder.path, { from: { ...a, shell: spoiling } })).rejects.toMatchObject({
      trouble: 'infrastructure',
      message: expect.stringMatching(
        /the files of maker cannot be verified: "x" has SHA-256 [0-9a-f]{64} at a and [0-9a-f]{64} at b/,
      ),
    })
    expect(existsSync(join(folder.path, 'in', 'came'))).toBe(false)
    await spoiling.close()
  })

  test('a file that cannot be read is named with the words of the site', async () => {
    using folder = producer((made) => writeFileSync(join(made, 'x'), 'data'))
    const blind = openLocalShell({ environment: { PATH: `${folder.path}/bin:/usr/bin:/bin` } })
    mkdirSync(join(folder.path, 'bin'))
    writeFileSync(
      join(folder.path, 'bin', 'tar'),
      '#!/bin/sh\necho "tar: ./x: Cannot open: Permission denied" >&2; exit 2\n',
    )
    chmodSync(join(folder.path, 'bin', 'tar'), 0o755)
    await expect(bring(folder.path, { from: { ...a, shell: blind } })).rejects.toMatchObject({
      trouble: 'infrastructure',
      message: expect.stringContaining('Permission denied'),
    })
    await blind.close()
  })
})

needs('root').describe('a full disk at the target', () => {
  test('is told in the words of the site with the free space; once there is room it goes on', async () => {
    using folder = producer((made) => {
      randomFile(join(made, 'large'), 20 * mebibyte)
      for (let at = 0; at < 20; at++) randomFile(join(made, `small${String(at)}`), 4_096)
    })
    const disk = join(folder.path, 'in')
    mkdirSync(disk)
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=30m', 'tmpfs', disk])
    try {
      randomFile(join(disk, 'other'), 18 * mebibyte)
      await expect(bring(folder.path)).rejects.toMatchObject({
        trouble: 'infrastructure',
        message: expect.stringMatching(/No space left on device.*KiB free at .*\/in/),
      })
      // Somebody takes what was free when it began.
      writeFileSync(join(disk, 'other'), '')
      const failures = clear()
      const running = bring(folder.path, {
        from: { ...a, shell: overLink(shell, failures) },
        limits: { streams: 1 },
      })
      while (failures.bytes < 2 * mebibyte) await delay(2)
      try {
        randomFile(join(disk, 'other'), 29 * mebibyte)
      } catch (error) {
        expect(error).toMatchObject({ code: 'ENOSPC' })
      }
      await expect(running).rejects.toMatchObject({
        trouble: 'infrastructure',
        message: expect.stringMatching(/No space left on device.*KiB free/),
      })
      expect(existsSync(join(disk, 'came'))).toBe(false)
      execFileSync('rm', [join(disk, 'other')])
      expect((await bring(folder.path)).resumed).toBe(true)
      expectSame(folder.path)
    } finally {
      execFileSync('umount', ['-l', disk])
    }
  }, 300_000)
})
