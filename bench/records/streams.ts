import { once } from 'node:events'
import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { WebSocket } from 'ws'
import { environmentOf, startDaemon } from '../daemon.ts'
import { newFolder } from '../folder.ts'
import type { Benchmark } from '../report.ts'
import { medianRatio } from '../rounds.ts'
import { localStorage, plantLarge } from '../storage/lab.ts'
import { sessionOf } from './console-site.ts'
import { latenciesOf, percentile } from './measure.ts'

export const recordStreams: Benchmark = {
  about:
    'GET beside 200 open streams (audit records, a terminal, a large file), against the same without them',
  async run({ rounds, tiny }) {
    const [streams, times] = tiny ? [12, 30] : [200, 400]
    const root = newFolder('streams-')
    plantLarge(join(root, 'file'), 16)
    const daemon = await startDaemon({ SERVICE_CONSOLE_ENABLED: 'true', SERVICE_LOCAL_STORAGE_ROOT: root })
    try {
      await daemon.ok('POST', '/environments/', {
        ...environmentOf('here', {}, [{ id: 'here', cpuCores: 1, cpuCapacity: 1 }]),
        storages: [localStorage('files', root)],
      })
      const { id: download } = await daemon.ok('POST', '/storages/files/downloads/', { path: 'file' })
      const terminal = await sessionOf({ daemon }, 'here')
      const [session] = (await daemon.ok('GET', '/console-sessions/')) as { id: string }[]
      terminal.write('while sleep 0.1; do date; done\n')
      const { baseUrl } = daemon.facts()
      const sides = { idle: [] as number[], streams: [] as number[] }
      const received = { audit: 0, terminal: 0, file: 0 }
      const fetched = async (kind: 'audit' | 'file', path: string, signal: AbortSignal): Promise<void> => {
        const headers = { accept: kind === 'file' ? '*/*' : 'text/event-stream' }
        const answer = await fetch(`${baseUrl}${path}`, { headers, signal })
        if (answer.status !== 200) throw new Error(`${path} answered ${String(answer.status)}`)
        const read = async (): Promise<void> => {
          for await (const chunk of answer.body ?? []) {
            received[kind] += chunk.length
            // A slow reader: the file lasts for longer than the questions.
            if (kind === 'file') await sleep(100)
          }
        }
        read().catch(() => undefined)
      }
      const watched = async (signal: AbortSignal): Promise<void> => {
        const path = `/console-sessions/${session!.id}/stream/?mode=watch`
        const ws = new WebSocket(`${baseUrl.replace('http', 'ws')}${path}`)
        signal.addEventListener('abort', () => ws.terminate())
        ws.on('message', (data: Buffer) => (received.terminal += data.length))
        await once(ws, 'open')
      }
      const openers = [
        (signal: AbortSignal) => fetched('audit', '/audit-events/', signal),
        watched,
        (signal: AbortSignal) => fetched('file', `/storage-downloads/${download}/content/`, signal),
      ] as const
      const p99 = async (): Promise<number> => {
        await latenciesOf(daemon, ['/instance/'], 20)
        return percentile(await latenciesOf(daemon, ['/instance/'], times), 0.99)
      }
      for (let round = 0; round < rounds; round += 1) {
        sides.idle.push(await p99())
        const stop = new AbortController()
        await Promise.all(Array.from({ length: streams }, (_, n) => openers[n % 3]!(stop.signal)))
        for (let n = 0; n < 20; n += 1)
          await daemon.ok('PUT', `/user-preferences/streamed-${String(n)}-client/`, { theme: 'dark' })
        sides.streams.push(await p99())
        stop.abort()
        await sleep(500)
      }
      if (Object.values(received).includes(0)) throw new Error(`silent streams: ${JSON.stringify(received)}`)
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
        notes: [
          `bytes that were sent over the streams, a third of them of each kind: ${JSON.stringify(received)}`,
          'the terminal prints a line ten times a second, at rest too; a reader of the file rests 100 ms ' +
            'after each piece',
        ],
        versions: {},
      }
    } finally {
      await daemon.stop()
      rmSync(root, { recursive: true, force: true })
    }
  },
}
