import { spawn } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from '@jest/globals'
import { needs } from '../support/needs.ts'
import { until } from '../../sites/ground.ts'
import { siteKinds, siteLacks, siteNeeds } from '../../sites/needs.ts'
import { nfsNeeds } from '../../sites/requirements.ts'

const program = join(import.meta.dirname, '../../sites/site.ts')
/** Sites are found by their names on the whole machine. */
const named = (name: string): string[] => ['--name', `${name}-${process.pid}`]

interface Call {
  said: () => string
  ended: Promise<number | null>
  child: ReturnType<typeof spawn>
}
const call = (...args: string[]): Call => {
  const child = spawn(process.execPath, [program, ...args], { stdio: ['ignore', 'pipe', 'pipe'] })
  let text = ''
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (chunk: Buffer) => (text += chunk.toString()))
  return { child, said: () => text, ended: new Promise((resolve) => child.once('close', resolve)) }
}
const done = async (...args: string[]): Promise<{ code: number | null; said: string }> => {
  const { ended, said } = call(...args)
  return { code: await ended, said: said() }
}

/** Keepers of sites of that name: nobody else has it among its arguments. */
const keepers = (name: string): string[] =>
  readdirSync('/proc').filter((pid) => {
    try {
      return (
        /^\d+$/.test(pid) &&
        readFileSync(`/proc/${pid}/cmdline`, 'latin1').includes(`\0keep\0--name\0${name}-${process.pid}\0`)
      )
    } catch {
      return false
    }
  })

test('every site names all that it needs in one line, and all that is missing at once', () => {
  for (const kind of siteKinds) {
    expect(siteNeeds({ kind })).toMatch(new RegExp(`^The site ${kind} needs [^\\n]+\\.$`))
    // Root, and packages that no machine with every site lacks.
    if (process.getuid?.() !== 0 && !['serverless', 's3', 'gcs'].includes(kind))
      expect(siteLacks({ kind })).toContain('this account is not root')
  }
  for (const each of [
    'busybox-static',
    'docker-registry',
    'skopeo',
    'gcc',
    'libc6-dev',
    'openssl',
    'containerd',
  ])
    expect(siteNeeds({ kind: 'kubernetes' })).toMatch(new RegExp(`\\b${each}\\b`))
  expect(siteNeeds({ kind: 'slurm', accounting: true, rest: true })).toMatch(
    /mariadb-server .*slurm-wlm slurm-wlm-jwt-plugin slurmdbd slurmrestd/,
  )
  expect(siteNeeds({ kind: 'slurm' })).not.toMatch(/mariadb|slurmdbd|slurmrestd/)
  expect(siteNeeds({ kind: 'ssh', loopback: true })).toBe(
    'The site ssh --loopback needs the Debian packages openssh-client openssh-server.',
  )
})

needs('openssh-server', 'openssh-client').test(
  'SSH hosts on loopback come up and go for the account that asks, whoever it is',
  async () => {
    const name = named('loopback')
    try {
      const { code, said } = await done('ssh', 'up', '--loopback', '--hosts', '2', ...name)
      expect([code, said]).toEqual([
        0,
        expect.stringMatching(/^The site ssh --loopback needs .*\nUp:\n {2}th1 {2}127\.0\.0\.1 port \d+/),
      ])
    } finally {
      expect(await done('ssh', 'down', ...name)).toMatchObject({ code: 0 })
    }
    expect((await done('ssh', 'status', ...name)).code).toBe(1)
  },
  120_000,
)

/** What `up` of a site of a storage says, and what is there afterwards. */
const upAndDown = async (kind: string, says: RegExp): Promise<void> => {
  const name = named(kind)
  try {
    const { code, said } = await done(kind, 'up', ...name)
    expect([code, said]).toEqual([0, expect.stringMatching(says)])
    expect(await done(kind, 'status', ...name)).toEqual({ code: 0, said: expect.stringMatching(says) })
  } finally {
    expect(await done(kind, 'down', ...name)).toMatchObject({ code: 0 })
  }
  expect((await done(kind, 'status', ...name)).code).toBe(1)
  expect(keepers(kind)).toEqual([])
}

test.each([
  ['s3', /An S3 server is up: http:\/\/127\.0\.0\.1:\d+, .*"endpoint": "s3:\/\/data"/s],
  ['gcs', /A server of Google's storage is up: http:\/\/127\.0\.0\.1:\d+, .*"endpoint": "gs:\/\/data"/s],
])('%s comes up with a bucket and the storage that leads to it, and goes', upAndDown, 600_000)

needs(...nfsNeeds).test(
  'nfs comes up with an exported folder and the storage that leads to it, and goes',
  () => upAndDown('nfs', /nfs/i),
  900_000,
)

const rootful = needs('root', 'docker.io', 'runc')

rootful.test(
  'a Docker site says whom it waits for, gives up with nothing left, and comes up when the other is down',
  async () => {
    const [first, second] = [named('first'), named('second')]
    try {
      // Engines of other tests may be up, which this one has to wait for.
      expect(await done('docker', 'up', '--wait', '800', ...first)).toMatchObject({ code: 0 })
      const late = await done('docker', 'up', '--wait', '5', ...second)
      expect(late.code).toBe(1)
      const waits = new RegExp(
        'waiting until another Docker engine is down, that of npm run site -- docker up --name ' +
          `first-${process.pid} \\(`,
      )
      expect(late.said).toMatch(waits)
      expect(late.said).toMatch(/not up within 5 s; nothing of the site is left/)
      expect(keepers('second')).toEqual([])
      expect((await done('docker', 'status', ...second)).code).toBe(1)

      const interrupted = call('docker', 'up', ...second)
      await until('it waits', () => Promise.resolve(waits.test(interrupted.said())), interrupted.said)
      interrupted.child.kill('SIGINT')
      expect([await interrupted.ended, interrupted.said()]).toEqual([
        1,
        expect.stringContaining('stopped by SIGINT'),
      ])
      expect(keepers('second')).toEqual([])

      const patient = call('docker', 'up', ...second)
      await until('it waits', () => Promise.resolve(waits.test(patient.said())), patient.said)
      expect(await done('docker', 'down', ...first)).toMatchObject({ code: 0 })
      expect([await patient.ended, patient.said()]).toEqual([
        0,
        expect.stringContaining('A Docker engine is up'),
      ])
    } finally {
      await done('docker', 'down', ...first)
      await done('docker', 'down', ...second)
    }
  },
  1_200_000,
)
