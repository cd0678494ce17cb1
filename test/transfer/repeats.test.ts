import { afterAll, expect, test } from '@jest/globals'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import type { ShellStream, SiteShell } from '../../src/shell/site-shell.ts'
import { transfer, type TransferOutcome } from '../../src/drivers/transfer/transfer.ts'
import { overLink } from './links.ts'
import { fingerprint, randomFile, scratch } from './trees.ts'

/** Transfers through trouble at their sites. */

const folder = scratch()
const shell = openLocalShell()
const opened: SiteShell[] = [shell]
afterAll(async () => {
  for (const each of opened) await each.close()
  folder[Symbol.dispose]()
})

const pathsOf = (name: string): { made: string; came: string; arriving: string } => ({
  made: join(folder.path, name, 'made'),
  came: join(folder.path, name, 'in', 'came'),
  arriving: join(folder.path, name, 'in', '.came.arriving', 'files'),
})
const make = (name: string): ReturnType<typeof pathsOf> => {
  const paths = pathsOf(name)
  mkdirSync(paths.made, { recursive: true })
  for (const file of ['one', 'two']) randomFile(join(paths.made, file), 300_000)
  return paths
}

const bring = (name: string, to = shell, from = shell): Promise<TransferOutcome> =>
  transfer({
    from: { site: 'a', shell: from, mounts: [] },
    to: { site: 'b', shell: to, mounts: [] },
    source: { directory: pathsOf(name).made },
    directory: pathsOf(name).came,
    label: 'maker',
  })

/** A site whose program of this name is another one. */
const siteWith = (program: string, text: string): SiteShell => {
  const bin = join(folder.path, `bin-${program}`)
  mkdirSync(bin)
  writeFileSync(join(bin, program), `#!/bin/sh\n${text}\n`, { mode: 0o755 })
  const site = openLocalShell({ environment: { PATH: `${bin}:/usr/bin:/bin` } })
  opened.push(site)
  return site
}

test('files of which neither site can make a digest do not count as the same', async () => {
  const { made, came, arriving } = make('undigested')
  // The files have arrived, and then the link was lost.
  const cut = { calls: 0, bytes: 0, cut: { call: 4, when: 'before' as const } }
  await expect(bring('undigested', overLink(shell, cut))).rejects.toMatchObject({ trouble: 'unknown' })
  expect(readFileSync(join(arriving, 'one'))).toEqual(readFileSync(join(made, 'one')))
  // As a power cut leaves what was not on the disk yet.
  writeFileSync(join(arriving, 'one'), Buffer.alloc(300_000))

  const full = siteWith('sha256sum', 'echo "cannot fork" >&2; exit 1')
  await expect(bring('undigested', full, full)).rejects.toMatchObject({
    trouble: 'infrastructure',
    message: expect.stringContaining('cannot be verified'),
  })
  expect(existsSync(came)).toBe(false)
  await bring('undigested')
  expect(fingerprint(came)).toBe(fingerprint(made))
})

test('the digest of what arrived first does not stand for what was written over it', async () => {
  const { made, came } = pathsOf('moving')
  mkdirSync(made, { recursive: true })
  const file = join(made, 'one')
  const write = (byte: number): void => writeFileSync(file, Buffer.alloc(5_000_000, byte))
  write(1)
  const streams: ShellStream[] = []
  // In each round of sending one stream makes digests, and the other one gives the bytes.
  const changing: SiteShell = {
    ...shell,
    async open(script) {
      const round = Math.floor(streams.length / 2)
      const gives = streams.length % 2 === 1
      const digests = streams.at(-1)
      if (gives) await digests?.done
      if (gives && round < 2) write(round + 2)
      const stream = await shell.open(gives && round === 1 ? `head -c 1000000 ${file}; exit 1` : script)
      streams.push(stream)
      return stream
    },
  }
  await bring('moving', shell, changing)
  expect(readFileSync(join(came, 'one')).equals(readFileSync(file))).toBe(true)
})

test('changed files whose removal was cut off come again', async () => {
  const { made, came } = make('half')
  await bring('half')
  writeFileSync(join(came, 'one'), 'changed')
  const ends = siteWith(
    'rm',
    '[ "$1" = -rf ] || exec /bin/rm "$@"; for path; do [ ! -e "$path" ] || exit 1; done',
  )
  await expect(bring('half', ends)).rejects.toMatchObject({ trouble: 'infrastructure' })
  await bring('half')
  expect(fingerprint(came)).toBe(fingerprint(made))
})
