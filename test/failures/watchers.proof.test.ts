import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { writeFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { openService, type TestService } from '../support/service.ts'
import { openProxy, type TcpProxy } from '../support/tcp-proxy.ts'
import { makeWorld, type World } from '../support/worlds.ts'
import { until } from './programs.ts'

/** Clients that watch: with the database away and back, and with those that go away themselves. */

const readers = 1_000

let database: TcpProxy
let service: TestService
let world: World
beforeAll(async () => {
  database = await openProxy(Number(new URL(process.env['ORRERY_TEST_DATABASE'] ?? '').port))
  service = await openService({
    databaseUrl: (url) => {
      const through = new URL(url)
      through.port = String(database.port)
      return through.href
    },
  })
  world = await makeWorld(service, {
    name: 'watched',
    cores: [1],
    // Nothing ends before all readers are there.
    tasks: Array.from({ length: 12 }, (_, i) => ({
      name: `t${String(i)}`,
      run: `until [ -e ${service.dataDir}/all ]; do sleep 0.1; done; sleep 1`,
    })),
  })
}, 120_000)
afterAll(async () => {
  await service?.[Symbol.asyncDispose]()
  await database?.close()
})

/** Reads the events of a run to their end, as a browser does: after a cut from the last one on. */
const watch = async (runId: string): Promise<{ ids: number[]; opened: number }> => {
  const ids: number[] = []
  for (let opened = 1; ; opened++) {
    const answer = await fetch(`${service.baseUrl}/execution-runs/${runId}/events/`, {
      headers: {
        accept: 'text/event-stream',
        ...(ids.length === 0 ? {} : { 'last-event-id': String(ids.at(-1)) }),
      },
    }).catch(() => undefined)
    if (answer?.status === 204) return { ids, opened }
    if (answer?.status === 200 && answer.body !== null) {
      let text = ''
      try {
        for await (const chunk of answer.body.pipeThrough(new TextDecoderStream())) {
          const blocks = `${text}${chunk}`.split('\n\n')
          text = blocks.pop() ?? ''
          for (const block of blocks) {
            const id = /^id: (\d+)$/m.exec(block)?.[1]
            if (id !== undefined) ids.push(Number(id))
          }
        }
      } catch {
        // The stream was cut.
      }
    }
    await sleep(500 + Math.random() * 1_000)
  }
}

test('a thousand readers lose no event of a run while the database is away and comes back', async () => {
  await service.post('/execution-runs/', { id: 'run', schedulePlanId: world.planId, mode: 'real' })
  const watching = Promise.all(Array.from({ length: readers }, () => watch('run')))
  await until('all are connected', 180, async () =>
    (await service.metrics.text()).includes(`orrery_event_streams ${String(readers)}`),
  )
  writeFileSync(`${service.dataDir}/all`, '')
  await database.cut()
  await sleep(3_000)
  await database.restore()
  const seen = await watching
  const { run } = await service.get('/execution-runs/run/')
  expect(run.status).toBe('completed')
  const [{ last }] = (await service.db.prepared<{ last: string }>(
    'last event',
    "select last_event_sequence as last from execution_runs where id = 'run'",
    [],
  )) as [{ last: string }]
  const all = JSON.stringify(Array.from({ length: Number(last) }, (_, i) => i + 1))
  expect(seen.filter(({ ids }) => JSON.stringify(ids) !== all)).toEqual([])
}, 480_000)

test('a hundred clients that wait and go away leave nothing behind', async () => {
  const quiet = await makeWorld(service, {
    name: 'quiet',
    cores: [1],
    tasks: [{ name: 'a', run: 'sleep 300' }],
  })
  await service.post('/execution-runs/', { id: 'quiet', schedulePlanId: quiet.planId, mode: 'real' })
  const summary = `${service.baseUrl}/execution-runs/quiet/summary/`
  await until(
    'it runs',
    30,
    async () => (await service.get('/execution-runs/quiet/summary/')).states.running === 1,
  )
  const leaving = new AbortController()
  const listening = async (): Promise<number> => {
    const [row] = await service.db.prepared<{ count: string }>(
      'listening',
      `select count(*) from pg_stat_activity where query ilike 'listen %' and datname = current_database()`,
      [],
    )
    return Number(row?.count)
  }
  const tag = (await fetch(summary)).headers.get('etag') ?? ''
  const waiting = Array.from({ length: 100 }, () =>
    fetch(summary, {
      headers: { 'if-none-match': tag, prefer: 'wait=60' },
      signal: leaving.signal,
    }).catch(() => undefined),
  )
  await until('the process listens for them', 45, async () => (await listening()) === 1)
  leaving.abort()
  await Promise.all(waiting)
  await until('nobody is listened for', 45, async () => (await listening()) === 0)
  expect((await service.call('GET', '/execution-runs/quiet/summary/')).status).toBe(200)
  await service.post('/execution-runs/quiet/cancel/')
  await service.finished('quiet')
}, 120_000)
