import { mkdirSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { run } from '../../sites/ground.ts'
import { startDaemon } from '../daemon.ts'
import { newFolder } from '../folder.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, medianRatio, median, secondsOf } from '../rounds.ts'
import { environmentOf, localStorage } from './lab.ts'

export const storageDirectories: Benchmark = {
  about: 'a directory of 100,000 entries: its first page, and later ones, against LC_ALL=C ls -1',
  async run({ rounds, tiny }) {
    const files = tiny ? 2_000 : 100_000
    const root = newFolder('storages-')
    const folder = join(root, 'many')
    mkdirSync(folder)
    for (let k = 0; k < files; k += 1) writeFileSync(join(folder, `file-${String(k).padStart(6, '0')}`), '')
    const daemon = await startDaemon({ SERVICE_LOCAL_STORAGE_ROOT: root })
    try {
      await daemon.call('POST', '/environments/', environmentOf('lab', [localStorage('here', root)]))
      const page = async (cursor = ''): Promise<{ entries: unknown[]; nextCursor: string }> =>
        (await daemon.call('GET', `/storages/here/entries/?path=many&limit=500${cursor}`)).body
      let touched = Date.now() / 1_000 - 1_000_000
      /** The service keeps the names of a directory that has not changed. */
      const change = (): void => {
        touched += 1
        utimesSync(folder, touched, touched)
      }
      let cursor = ''
      for (let k = 0; k < files / 500 / 2; k += 1) cursor = `&cursor=${(await page(cursor)).nextCursor}`
      const { cold, warm } = await interleaved(rounds, {
        'Orrery, first page': () => {
          change()
          return secondsOf(() => page())
        },
        'Orrery, a page in the middle': () => secondsOf(() => page(cursor)),
        'ls -1': () => secondsOf(() => run('ls', ['-1', folder], { environment: { LC_ALL: 'C' } })),
      })
      return {
        sides: (Object.keys(warm) as (keyof typeof warm)[]).map((name) => ({
          ...{ name, unit: 's', warm: warm[name], cold: cold[name] },
        })),
        goals: [
          {
            ...{ what: 'first page over ls -1', unit: '×', sense: 'most', goal: 1.5 },
            measured: medianRatio(warm['Orrery, first page'], warm['ls -1']),
          },
          {
            ...{ what: 'a later page', unit: 'ms', sense: 'most', goal: 30 },
            measured: median(warm['Orrery, a page in the middle']) * 1_000,
          },
        ],
        notes: [`${files.toLocaleString('en')} empty files; pages of 500 entries, over HTTP.`],
        versions: {},
      }
    } finally {
      await daemon.stop()
      rmSync(root, { recursive: true, force: true })
    }
  },
}
