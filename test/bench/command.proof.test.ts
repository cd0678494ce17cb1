import { chmodSync, existsSync, mkdtempSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, test } from '@jest/globals'
import { ownResults, resultsFile } from '../../bench/report.ts'
import { identify, stillRuns, type KnownProcess } from '../../src/embedded/processes.ts'
import { runFolder } from '../support/run-folder.ts'
import { startBench } from './bench.ts'

/** Any account may pass through it: the daemon's servers may have another. */
const folderOf = (name: string): string => {
  const folder = mkdtempSync(join(runFolder(), `${name}-`))
  chmodSync(folder, 0o755)
  return folder
}

describe('the command line', () => {
  test.each([
    [['no-such'], 'there is no benchmark no-such'],
    [['chain', '--rounds', '0'], '--rounds 0 is not a whole number from 1'],
    [['chain', '--tiny', '--record'], '--record goes with neither --tiny nor --output'],
    [['chain', '--fast'], '--fast'],
  ])('%j is refused in a line, without a stack', async (args, message) => {
    const { code, stderr } = await startBench(args).ended
    expect(code).toBe(2)
    expect(stderr.split('\n')[0]).toContain(message)
    expect(stderr).not.toMatch(/\n\s+at /)
  })

  test('without a name it lists every benchmark', async () => {
    const { code, stdout } = await startBench([]).ended
    expect(code).toBe(0)
    for (const name of ['montage-noop', 'kubernetes-jobs', 'import']) expect(stdout).toContain(`  ${name} `)
  })
})

describe('what is missing', () => {
  const root = process.getuid?.() === 0
  test.each([
    ['montage-processes', 'make missing (Debian: apt-get install make)'],
    [
      'ssh-tasks',
      root ? 'parallel missing (Debian: apt-get install parallel)' : 'only root can start its hosts',
    ],
    [
      'host-to-host',
      root ? 'rsync, rclone missing (Debian: apt-get install rsync rclone)' : 'only root can start its hosts',
    ],
  ])('%s: is in one line with its remedy, before anything starts', async (name, message) => {
    const temporary = folderOf('lacking')
    const { code, stdout, stderr } = await startBench([name, '--tiny'], {
      PATH: temporary,
      TMPDIR: temporary,
    }).ended
    expect(code).toBe(1)
    expect(stderr.trim().split('\n')).toHaveLength(1)
    expect(stderr).toContain(`${name} cannot run here: `)
    expect(stderr).toContain(message)
    expect(stdout).toBe('')
    expect(readdirSync(temporary)).toEqual([])
  })

  test('a folder of recorded traces that is not there is named', async () => {
    const { code, stderr } = await startBench(['import'], { ORRERY_TRACES: '/no/such/folder' }).ended
    expect(code).toBe(2)
    expect(stderr).toContain('ORRERY_TRACES=/no/such/folder is no folder')
  })
})

describe('where the figures go', () => {
  test('to a file of the user, and to that of the repository only with --record', () => {
    expect(resultsFile({ record: false })).toBe(ownResults)
    expect(resultsFile({ output: '/tmp/own.md', record: false })).toBe('/tmp/own.md')
    expect(resultsFile({ record: true })).toBe(join(import.meta.dirname, '../../bench/RESULTS.md'))
    expect(readFileSync(join(import.meta.dirname, '../../.gitignore'), 'utf8').split('\n')).toContain(
      '/bench-results.md',
    )
  })

  test('--output takes them', async () => {
    const temporary = folderOf('figures')
    const file = join(temporary, 'own.md')
    const { code, stderr } = await startBench(['import', '--tiny', '--output', file], { TMPDIR: temporary })
      .ended
    expect([code, stderr]).toEqual([0, expect.stringContaining(`the figures of import are in ${file}`)])
    expect(readFileSync(file, 'utf8')).toMatch(/^# Results\n[\s\S]*\n## import\n/)
    // The benchmark's folder is gone.
    expect(readdirSync(temporary)).toEqual(['own.md'])
  }, 300_000)
})

/** A process and all that descend from it, by the parents that /proc names. */
const descendants = (pid: number): KnownProcess[] => {
  const parents = new Map<number, number>()
  for (const entry of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    try {
      parents.set(
        Number(entry),
        Number(readFileSync(`/proc/${entry}/stat`, 'utf8').split(') ').at(-1)?.split(' ')[1]),
      )
    } catch {
      // It has ended.
    }
  }
  const own = (candidate: number | undefined): boolean =>
    candidate !== undefined && candidate > 1 && (candidate === pid || own(parents.get(candidate)))
  return [...parents.keys()].filter(own).flatMap((each) => identify(each) ?? [])
}

test.each(['SIGKILL', 'SIGTERM', 'SIGINT'] as const)(
  'a benchmark that is ended by %s leaves neither process nor folder',
  async (signal) => {
    const temporary = folderOf('killed')
    const { child, ended } = startBench(['chain', '--tiny', '--rounds', '10000'], { TMPDIR: temporary })
    let progress = ''
    child.stderr?.on('data', (chunk: Buffer) => (progress += chunk.toString()))
    // The daemon, its servers and the worker of the other side are up and at work.
    while (!progress.includes('round 1/')) {
      if (child.exitCode !== null) throw new Error(`it ended with ${String(child.exitCode)}: ${progress}`)
      await sleep(100)
    }
    const started = descendants(child.pid as number)
    expect(started.length).toBeGreaterThan(5)
    child.kill(signal)
    await ended
    const since = performance.now()
    const left = (): unknown[] => [
      ...started.filter(stillRuns),
      ...(existsSync(temporary) ? readdirSync(temporary) : []),
    ]
    while (left().length > 0 && performance.now() - since < 60_000) await sleep(200)
    expect(left()).toEqual([])
  },
  300_000,
)
