import { execFile } from 'node:child_process'
import { mkdirSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { performance } from 'node:perf_hooks'
import { promisify } from 'node:util'
import { startDaemon } from '../daemon.ts'
import { newFolder } from '../folder.ts'
import { programsMissing } from '../needs.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, median, medianRatio, secondsOf } from '../rounds.ts'

const full = 200_000
const inFolder = 500

/** Small files in folders of 500. */
const plant = (folder: string, files: number): void => {
  for (let at = 0; at < files; at += inFolder) {
    const inner = join(folder, `d${at / inFolder}`)
    mkdirSync(inner)
    for (let k = at; k < Math.min(files, at + inFolder); k += 1) writeFileSync(join(inner, `f${k}`), `${k}`)
  }
}

export const indexRuns: Benchmark = {
  about: `index of ${full.toLocaleString('en')} files, new and unchanged, against rclone lsf and find -printf`,
  missing: () => programsMissing({ rclone: 'rclone' }),
  async run({ rounds, tiny }) {
    const files = tiny ? 1_000 : full
    const root = newFolder('storages-')
    const folder = join(root, 'data')
    mkdirSync(folder)
    plant(folder, files)
    const daemon = await startDaemon({ SERVICE_LOCAL_STORAGE_ROOT: root })
    try {
      let made = 0
      /** Registers a storage that was never indexed: another name for the same folder. */
      const register = async (): Promise<string> => {
        made += 1
        const id = `s${made}`
        await daemon.call('POST', '/environments/', {
          environment: { id, name: id },
          version: { id: `${id}-v1`, version: 1, status: 'published' },
          storages: [
            {
              ...{ id, name: id, type: 'local', endpoint: folder },
              configuration: {
                browseRoots: [{ path: '/' }],
                indexPolicy: { enabled: true, maxEntries: 10_000_000 },
              },
            },
          ],
        })
        return id
      }
      const index = async (storage: string): Promise<{ seconds: number; run: any }> => {
        const began = performance.now()
        await daemon.call('POST', `/storages/${storage}/index-runs/`, {})
        for (;;) {
          const [run] = (await daemon.call('GET', `/storages/${storage}/index-runs/`)).body
          if (run.status !== 'running') return { seconds: (performance.now() - began) / 1_000, run }
          await new Promise((resolve) => setTimeout(resolve, 50))
        }
      }
      const checked = async (storage: string, want: object): Promise<number> => {
        const { seconds, run } = await index(storage)
        for (const [name, value] of Object.entries({ status: 'completed', ...want }))
          if (run[name] !== value)
            throw new Error(`index run of ${storage}: ${name} is ${String(run[name])}, not ${String(value)}`)
        return seconds
      }
      const all = files + Math.ceil(files / inFolder)
      const known = await register()
      await checked(known, { addedEntries: all })
      let stamp = 0
      const { cold, warm } = await interleaved(
        rounds,
        {
          'Orrery, new': async () => checked(await register(), { addedEntries: all, truncated: false }),
          'Orrery, unchanged': () =>
            checked(known, { addedEntries: 0, changedEntries: 0, removedEntries: 0 }),
          'rclone lsf': () =>
            secondsOf(() =>
              promisify(execFile)('sh', [
                '-c',
                'rclone lsf --config /dev/null -R --format pst "$0" > /dev/null',
                folder,
              ]),
            ),
          'find -printf': () =>
            secondsOf(() =>
              promisify(execFile)('sh', ['-c', `find "$0" -printf '%P\\t%s\\t%T@\\n' > /dev/null`, folder]),
            ),
        },
        async () => {
          // The index has to find a file that was changed in place with an equal size.
          stamp += 1
          utimesSync(join(folder, 'd0', 'f0'), stamp, stamp)
          await checked(known, { addedEntries: 0, changedEntries: 1, removedEntries: 0 })
        },
      )
      return {
        sides: Object.entries(warm).map(([name, seconds]) => ({
          ...{ name, unit: 's', warm: seconds },
          cold: cold[name as keyof typeof cold],
        })),
        goals: [
          {
            ...{ what: 'new, over rclone lsf', unit: '×', sense: 'most', goal: 1.5 },
            measured: medianRatio(warm['Orrery, new'], warm['rclone lsf']),
          },
          {
            ...{ what: 'new, over find -printf', unit: '×', sense: 'most', goal: 3 },
            measured: medianRatio(warm['Orrery, new'], warm['find -printf']),
          },
          {
            ...{ what: 'unchanged, over new', unit: '×', sense: 'most', goal: 0.5 },
            measured: medianRatio(warm['Orrery, unchanged'], warm['Orrery, new']),
          },
        ],
        notes: [
          `${files.toLocaleString('en')} files in folders of ${inFolder}; each run ends with the ` +
            'counts it has to have, ' +
            'and after each round one file with another time is the one change that is found.',
          'rclone and find record nothing; Orrery stages each entry and puts it into the index, durably.',
          'A profile of a first run: the statements that stage entries take 0.35 of its wall, those that put ' +
            'them into the index 0.30 (half of it the check of the foreign key, row by row); in the rest the ' +
            'worker reads directories and writes parameters.',
          `An entry takes ${((median(warm['Orrery, new']) / all) * 1e6).toFixed(0)} µs.`,
        ],
        versions: {},
      }
    } finally {
      await daemon.stop()
      rmSync(root, { recursive: true, force: true })
    }
  },
}
