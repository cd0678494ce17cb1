import { execFile } from 'node:child_process'
import { mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { startDaemon } from './daemon.ts'
import { montageDag, type Dag } from './dag.ts'
import { newFolder } from './folder.ts'
import { programsMissing } from './needs.ts'
import { killedRun, plan, timedRun } from './planned-run.ts'
import type { Benchmark } from './report.ts'
import { interleaved, median, medianRatio, secondsOf, seeded } from './rounds.ts'

const lanes = 2

/** A Makefile with a target per task. Each target touches one file, like our tasks. */
const makefile = (dag: Dag): string =>
  `all: ${Object.keys(dag).join(' ')}\n${Object.entries(dag)
    .map(([task, parents]) => `${task}: ${parents.join(' ')}\n\t@touch $@\n`)
    .join('')}`

/**
 * Seconds of `make -j2` in an empty folder, with the locale of our tasks. Afterwards every target
 * is a file, and none is older than its prerequisites. The folder stays until all rounds are over:
 * ext4 skips recently deleted inodes, and each new file would cost 0.2 ms more.
 */
const make = async (root: string, dag: Dag, number: number): Promise<number> => {
  const folder = join(root, `make-${String(number)}`)
  mkdirSync(folder)
  writeFileSync(join(folder, 'Makefile'), makefile(dag))
  const seconds = await secondsOf(() =>
    promisify(execFile)('make', [`-j${String(lanes)}`, '-s', 'all'], {
      cwd: folder,
      env: { ...process.env, LANG: 'C.UTF-8' },
    }),
  )
  const made = new Map(Object.keys(dag).map((task) => [task, statSync(join(folder, task)).mtimeMs]))
  for (const [task, parents] of Object.entries(dag))
    for (const parent of parents)
      if ((made.get(parent) ?? Infinity) > (made.get(task) ?? 0))
        throw new Error(`make did ${task} before ${parent}`)
  return seconds
}

/** Checks the ledger that the tasks of a killed run wrote: a line per started process. */
const checkLedger = (file: string, tasks: number): void => {
  const started = readFileSync(file, 'utf8').trim().split('\n')
  const different = new Set(started)
  if (started.length !== tasks || different.size !== tasks)
    throw new Error(
      `the tasks of a killed run were started ${String(started.length)} times, ` +
        `${String(different.size)} different, of ${String(tasks)}`,
    )
}

export const montageProcesses: Benchmark = {
  about:
    '1,066-task Montage with a process per task (touch; own work directory and group, exit record, ' +
    'manifest), 2 cores, against make -j2',
  missing: () => programsMissing({ make: 'make' }),
  async run({ rounds, tiny }) {
    const { dag, origin } = montageDag(tiny)
    const root = newFolder('make-')
    const daemon = await startDaemon()
    try {
      const tasks = Object.keys(dag).length
      const runtime = { configuration: {} }
      const planned = await plan(daemon, {
        name: 'montage',
        dag,
        command: () => ({ entrypoint: 'touch', arguments: ['done'] }),
        runtime,
        lanes,
      })
      const ledger = join(root, 'ledger')
      const script = `echo "$AKOFLOW_RUN_ID $AKOFLOW_ACTIVITY_ID $AKOFLOW_ATTEMPT" >> ${ledger}; touch done`
      const noted = await plan(daemon, {
        name: 'noted',
        dag,
        command: () => ({ entrypoint: 'sh', arguments: ['-c', script] }),
        runtime,
        lanes,
      })
      let number = 0
      const took: number[] = []
      const counts: number[] = []
      const random = seeded(3)
      const moments: number[] = []
      const { cold, warm } = await interleaved(
        rounds,
        {
          Orrery: async () => {
            const run = await timedRun(daemon, planned, `run-${String(++number)}`, 100)
            took.push(run.seconds)
            counts.push(run.counts)
            return run.seconds
          },
          make: () => make(root, dag, ++number),
        },
        async (round) => {
          const seconds = random() * median(took)
          moments.push(seconds)
          process.stderr.write(
            `  killed run ${String(round + 1)}: after ${(seconds * 1_000).toFixed(0)} ms\n`,
          )
          writeFileSync(ledger, '')
          await killedRun(daemon, noted, `killed-${String(round)}`, seconds)
          checkLedger(ledger, tasks)
          // As in every other benchmark, the next measurement is not the first one of a fresh
          // process.
          await timedRun(daemon, planned, `warm-${String(round)}`, 100)
        },
      )
      const { stdout: version } = await promisify(execFile)('make', ['--version'])
      return {
        sides: [
          { name: 'Orrery', unit: 's', cold: cold.Orrery, warm: warm.Orrery },
          { name: 'make -j2', unit: 's', cold: cold.make, warm: warm.make },
          { name: 'Orrery: different counts seen by a poller', unit: 'counts', warm: counts },
        ],
        goals: [
          {
            what: 'wall against make',
            unit: '×',
            measured: medianRatio(warm.Orrery, warm.make),
            sense: 'most',
            goal: 1.5,
          },
          {
            what: 'different counts seen, at least',
            unit: '',
            measured: Math.min(...counts),
            sense: 'least',
            goal: 10,
          },
        ],
        notes: [
          `${String(tasks)} processes on both sides, order of every edge checked; make touches ` +
            'files of one folder, here each task has its own folder, session, records and a manifest with ' +
            'digests, and no shell on either side',
          `killed runs: ${String(moments.length)}, at ` +
            `${moments.map((seconds) => `${(seconds * 1_000).toFixed(0)} ms`).join(', ')}; all completed, ` +
            'and by the ledger that the tasks write each was started once',
          origin,
        ],
        versions: { make: (/\d[\d.]*/.exec(version) ?? ['unknown'])[0] },
      }
    } finally {
      await daemon.stop()
      rmSync(root, { recursive: true, force: true })
    }
  },
}
