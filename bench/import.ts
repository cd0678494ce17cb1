import { readFileSync } from 'node:fs'
import { tracePath } from './dag.ts'
import { startDaemon } from './daemon.ts'
import type { Benchmark } from './report.ts'
import { interleaved, median, secondsOf } from './rounds.ts'

export const importing: Benchmark = {
  about: 'import of a recorded workflow of 9,995 tasks over HTTP (WfFormat, 7 MB of JSON), beside JSON.parse of the same text',
  async run({ rounds }) {
    const text = readFileSync(tracePath('wfgen-epigenomics-10000.json'), 'utf8')
    const document = JSON.parse(text) as { workflow: { specification: { tasks: unknown[] } } }
    const daemon = await startDaemon()
    try {
      let number = 0
      const { cold, warm } = await interleaved(rounds, {
        import: async () => {
          const name = `import-${String(++number)}`
          let answer: any
          const seconds = await secondsOf(async () => {
            const response = await fetch(`${daemon.facts().baseUrl}/workflow-definitions/import/?name=${name}`, {
              method: 'POST',
              headers: { 'content-type': 'application/json' },
              body: text,
            })
            answer = await response.text()
            if (response.status !== 201) throw new Error(`the import answered ${String(response.status)}: ${String(answer).slice(0, 500)}`)
          })
          const tasks = document.workflow.specification.tasks.length
          const { version } = JSON.parse(answer)
          const stored = version.activityCount ?? version.activities.length
          if (stored !== tasks) throw new Error(`${String(stored)} activities were stored, the document has ${String(tasks)}`)
          return seconds
        },
        'JSON.parse': () => secondsOf(() => JSON.parse(text) as unknown),
      })
      return {
        sides: [
          { name: 'POST /workflow-definitions/import/', unit: 's', cold: cold.import, warm: warm.import },
          { name: 'JSON.parse', unit: 's', cold: cold['JSON.parse'], warm: warm['JSON.parse'] },
        ],
        goals: [{ what: 'import', unit: ' s', measured: median(warm.import), sense: 'most', goal: 2, aim: 0.5 }],
        notes: [`the answer is read whole; its number of activities is checked`],
        versions: {},
      }
    } finally {
      await daemon.stop()
    }
  },
}
