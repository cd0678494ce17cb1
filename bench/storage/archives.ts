import { mkdirSync, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { run } from '../../sites/ground.ts'
import { startDaemon } from '../daemon.ts'
import { newFolder } from '../folder.ts'
import { programsMissing } from '../needs.ts'
import { memoryDuring } from '../records/measure.ts'
import type { Benchmark, Goal } from '../report.ts'
import { interleaved, medianRatio, secondsOf } from '../rounds.ts'
import { environmentOf, localStorage, plantLarge, plantSmall, secondsOfJob } from './lab.ts'

export const storageArchives: Benchmark = {
  about: 'archives of 20,000 files of 4 KiB and of 1 GiB of random bytes, against tar -cz',
  missing: () => programsMissing({ tar: 'tar' }),
  async run({ rounds, tiny }) {
    const [mebibytes, files] = tiny ? [16, 500] : [1_024, 20_000]
    const root = newFolder('storages-')
    for (const name of ['large', 'small']) mkdirSync(join(root, name))
    plantLarge(join(root, 'large', 'file'), mebibytes)
    plantSmall(join(root, 'small'), files)
    const daemon = await startDaemon({ SERVICE_LOCAL_STORAGE_ROOT: root })
    const sizes: Record<string, number> = {}
    try {
      await daemon.call('POST', '/environments/', environmentOf('lab', [localStorage('here', root)]))
      const growths: number[] = []
      const sides = (load: string) => ({
        Orrery: async () => {
          const { value: seconds, grown } = await memoryDuring(daemon.facts().pids.daemon, () =>
            secondsOfJob(daemon, '/storages/here/archives/', { path: load }),
          )
          growths.push(grown)
          sizes[`${load} Orrery`] = statSync(join(root, `${load}.tar.gz`)).size
          rmSync(join(root, `${load}.tar.gz`))
          return seconds
        },
        tar: async () => {
          const file = join(root, 'theirs.tar.gz')
          const seconds = await secondsOf(() =>
            run('tar', ['-C', root, '-czf', file, load], { deadlineMs: 900_000 }),
          )
          sizes[`${load} tar`] = statSync(file).size
          rmSync(file)
          return seconds
        },
      })
      const loads = {
        small: await interleaved(rounds, sides('small')),
        large: await interleaved(rounds, sides('large')),
      }
      const names = { large: `${mebibytes} MiB`, small: `${files.toLocaleString('en')} files of 4 KiB` }
      return {
        sides: (['small', 'large'] as const).flatMap((load) =>
          (['Orrery', 'tar'] as const).map((name) => ({
            ...{ name: `${names[load]}: ${name}`, unit: 's' },
            ...{ warm: loads[load].warm[name], cold: loads[load].cold[name] },
          })),
        ),
        goals: (['small', 'large'] as const)
          .flatMap((load): Goal[] => [
            {
              ...{ what: `${names[load]}: wall over tar -cz`, unit: '×', sense: 'most' as const, goal: 0.7 },
              measured: medianRatio(loads[load].warm.Orrery, loads[load].warm.tar),
            },
            {
              ...{ what: `${names[load]}: size over tar -cz`, unit: '×', sense: 'most' as const, goal: 1.05 },
              measured: (sizes[`${load} Orrery`] ?? 0) / (sizes[`${load} tar`] ?? 1),
            },
          ])
          .concat({
            ...{ what: 'growth of memory', unit: ' MiB', sense: 'most', goal: 150 },
            measured: Math.max(...growths),
          }),
        notes: [
          'The tree has 20,000 files, a tenth of that of index-runs: a larger one has not been measured.',
          'Orrery also lists the entries into PostgreSQL, sorts them and records the end durably.',
          'The growth is garbage of V8, whose limit is 4 GiB here: with ' +
            'NODE_OPTIONS=--max-old-space-size=700 it was 324 MiB in the first job ' +
            'and at most 42 MiB in the later ones.',
        ],
        versions: { tar: (await run('tar', ['--version'])).stdout.split('\n')[0] ?? '' },
      }
    } finally {
      await daemon.stop()
      rmSync(root, { recursive: true, force: true })
    }
  },
}
