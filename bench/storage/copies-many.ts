import { mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { startDaemon } from '../daemon.ts'
import { newFolder } from '../folder.ts'
import { memoryDuring } from '../records/measure.ts'
import type { Benchmark } from '../report.ts'
import { environmentOf, localStorage, plantSmall, secondsOfJob } from './lab.ts'

export const copiesMany: Benchmark = {
  about: 'copy of 1,000,000 files of 4 KiB between two folders, against 10,000: time a file, and memory',
  async run({ tiny }) {
    const [few, many] = tiny ? [200, 2_000] : [10_000, 1_000_000]
    const root = newFolder('storages-')
    for (const [name, files] of Object.entries({ few, many })) {
      mkdirSync(join(root, name))
      plantSmall(join(root, name), files)
    }
    const daemon = await startDaemon({ SERVICE_LOCAL_STORAGE_ROOT: root })
    try {
      await daemon.call('POST', '/environments/', environmentOf('lab', [localStorage('here', root)]))
      const copied = async (name: 'few' | 'many', to: string): Promise<number> => {
        const body = { path: name, destinationStorageId: 'here', destinationPath: to }
        const seconds = await secondsOfJob(daemon, '/storages/here/copies/', body)
        rmSync(join(root, to), { recursive: true })
        return seconds
      }
      const cold = await copied('few', 'first')
      const before = await copied('few', 'second')
      const { value: whole, grown } = await memoryDuring(daemon.facts().pids.daemon, () =>
        copied('many', 'third'),
      )
      const behind = await copied('few', 'fourth')
      const each = { few: (before + behind) / 2 / few, many: whole / many }
      return {
        sides: [
          {
            ...{ name: `${few.toLocaleString('en')} files`, unit: 's', warm: [before, behind] },
            cold,
          },
          { name: `${many.toLocaleString('en')} files`, unit: 's', warm: [whole], cold: whole },
        ],
        goals: [
          {
            ...{ what: 'time a file, many over few', unit: '×', sense: 'most', goal: 1.5 },
            measured: each.many / each.few,
          },
          { what: 'growth of memory', unit: ' MiB', sense: 'most', goal: 200, measured: grown },
        ],
        notes: [
          `A file of many takes ${(each.many * 1e6).toFixed(0)} µs. The few are copied before and behind the many.`,
          'The many are copied once, whatever --rounds says.',
          'The growth is garbage of V8, whose limit is 4 GiB here: with NODE_OPTIONS=--max-old-space-size=700 ' +
            'it was 82 MiB.',
        ],
        versions: {},
        rounds: 1,
      }
    } finally {
      await daemon.stop()
      rmSync(root, { recursive: true, force: true })
    }
  },
}
