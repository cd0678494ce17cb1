import { openDatabase } from '../../src/db/pool.ts'
import { recordRun } from '../provenance/rows.ts'
import { startDaemon } from '../daemon.ts'
import type { Benchmark } from '../report.ts'
import { median, seeded } from '../rounds.ts'
import { memoryDuring, timedGet } from './measure.ts'

export const recordCrate: Benchmark = {
  about: 'the crate of a run of 10,000 activities, and the memory that it takes',
  async run({ rounds, tiny }) {
    const activities = tiny ? 200 : 10_000
    const random = seeded(5)
    const daemon = await startDaemon()
    await using db = openDatabase(daemon.databaseUrl(), { max: 2 })
    try {
      const edges = Array.from({ length: activities }, (_, to) =>
        to < 3 ? [] : Array.from({ length: 3 }, () => [Math.floor(random() * to), to] as const),
      ).flat()
      await recordRun(db, { name: 'big', activities, edges })
      const warm: number[] = []
      const grown: number[] = []
      let bytes = 0
      for (let round = 0; round <= rounds; round += 1) {
        const found = await memoryDuring(daemon.facts().pids.daemon, () =>
          timedGet(daemon, '/execution-runs/big-run/crate/'),
        )
        bytes = found.value.body.length
        warm.push(found.value.ms / 1_000)
        grown.push(found.grown)
      }
      const [cold = 0] = warm.splice(0, 1)
      return {
        sides: [
          { name: 'crate', unit: 's', cold, warm },
          { name: 'memory of the daemon', unit: 'MiB', warm: grown },
        ],
        goals: [
          { what: 'crate', unit: ' s', measured: median(warm), sense: 'most', goal: 5 },
          {
            what: 'memory above the daemon at rest',
            unit: ' MiB',
            measured: Math.max(...grown),
            sense: 'most',
            goal: 256,
          },
        ],
        notes: [
          `${String(activities)} activities of 3 predecessors and a file each; a ZIP file of ${String(bytes)} bytes`,
        ],
        versions: {},
      }
    } finally {
      await daemon.stop()
    }
  },
}
