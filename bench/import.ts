import { startDaemon } from './daemon.ts'
import type { Benchmark } from './report.ts'
import { interleaved, median, secondsOf } from './rounds.ts'
import { epigenomicsWorkload } from './workloads.ts'

export const importing: Benchmark = {
  about:
    'import of a workflow of 9,995 tasks over HTTP (Epigenomics in WfFormat), beside JSON.parse of the same text',
  async run({ rounds, tiny }) {
    const { instance, origin } = epigenomicsWorkload(tiny)
    const text = JSON.stringify(instance)
    const tasks = instance.workflow.specification.tasks.length
    const daemon = await startDaemon()
    try {
      let number = 0
      const { cold, warm } = await interleaved(rounds, {
        import: async () => {
          const name = `import-${String(++number)}`
          let answer: any
          const seconds = await secondsOf(async () => {
            const response = await fetch(
              `${daemon.facts().baseUrl}/workflow-definitions/import/?name=${name}`,
              {
                method: 'POST',
                headers: { 'content-type': 'application/json' },
                body: text,
              },
            )
            answer = await response.text()
            if (response.status !== 201)
              throw new Error(
                `the import answered ${String(response.status)}: ${String(answer).slice(0, 500)}`,
              )
          })
          const { version } = JSON.parse(answer)
          const stored = version.activityCount ?? version.activities.length
          if (stored !== tasks)
            throw new Error(`${String(stored)} activities were stored, the document has ${String(tasks)}`)
          return seconds
        },
        'JSON.parse': () => secondsOf(() => JSON.parse(text) as unknown),
      })
      return {
        sides: [
          { name: 'POST /workflow-definitions/import/', unit: 's', cold: cold.import, warm: warm.import },
          { name: 'JSON.parse', unit: 's', cold: cold['JSON.parse'], warm: warm['JSON.parse'] },
        ],
        goals: [
          { what: 'import', unit: ' s', measured: median(warm.import), sense: 'most', goal: 2, aim: 0.5 },
        ],
        notes: [
          'the answer is read whole; its number of activities is checked',
          `${String(tasks)} tasks, ${(Buffer.byteLength(text) / 1e6).toPrecision(2)} MB of JSON; workload: ${origin}`,
        ],
        versions: {},
      }
    } finally {
      await daemon.stop()
    }
  },
}
