import { startDaemon } from '../daemon.ts'
import type { Benchmark } from '../report.ts'
import { medianRatio } from '../rounds.ts'
import { latenciesOf, percentile } from './measure.ts'

export const recordStreams: Benchmark = {
  about: 'GET beside 200 open streams of audit records, against the same without them',
  async run({ rounds, tiny }) {
    const [streams, times] = tiny ? [10, 30] : [200, 400]
    const daemon = await startDaemon()
    try {
      const sides = { idle: [] as number[], streams: [] as number[] }
      let received = 0
      const p99 = async (): Promise<number> => {
        await latenciesOf(daemon, ['/instance/'], 20)
        return percentile(await latenciesOf(daemon, ['/instance/'], times), 0.99)
      }
      for (let round = 0; round < rounds; round += 1) {
        sides.idle.push(await p99())
        const stop = new AbortController()
        await Promise.all(
          Array.from({ length: streams }, async () => {
            const answer = await fetch(`${daemon.facts().baseUrl}/audit-events/`, {
              headers: { accept: 'text/event-stream' },
              signal: stop.signal,
            })
            const read = async (): Promise<void> => {
              for await (const chunk of answer.body ?? []) received += chunk.length
            }
            read().catch(() => undefined)
          }),
        )
        for (let n = 0; n < 20; n += 1)
          await daemon.ok('PUT', `/user-preferences/streamed-${String(n)}-client/`, { theme: 'dark' })
        sides.streams.push(await p99())
        stop.abort()
        await new Promise((resolve) => setTimeout(resolve, 500))
      }
      if (received === 0) throw new Error('no stream sent anything')
      return {
        sides: [
          { name: 'p99 at rest', unit: 'ms', warm: sides.idle },
          { name: `p99 beside ${String(streams)} streams`, unit: 'ms', warm: sides.streams },
        ],
        goals: [
          {
            ...{ what: 'p99 beside streams against p99 at rest', unit: '×', sense: 'most', goal: 2 },
            measured: medianRatio(sides.streams, sides.idle),
          },
        ],
        notes: [`${String(received)} bytes of events were sent over the streams`],
        versions: {},
      }
    } finally {
      await daemon.stop()
    }
  },
}
