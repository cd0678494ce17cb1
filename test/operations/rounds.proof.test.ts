import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { chmodSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { dataFolder, readyOf, removeFolder, startProgram, until, type Program } from '../failures/programs.ts'
import { randomOf } from '../failures/rounds.ts'
import { kill } from '../support/kill.ts'
import { workflowBundle } from '../support/workflow-bundle.ts'

const root = join(import.meta.dirname, '../..')
const dataDir = dataFolder()
let environment: Record<string, string>
let daemon: Program
let baseUrl = ''

const start = async (): Promise<void> => {
  daemon = await startProgram('test/operations/program.ts', environment, root)
  baseUrl = (await readyOf(daemon, dataDir)).baseUrl
}
beforeAll(async () => {
  const { codePath } = await workflowBundle(join(import.meta.dirname, 'three-steps-workflow.ts'))
  chmodSync(codePath, 0o644)
  environment = {
    SERVICE_DATA_DIR: dataDir,
    SERVICE_LISTEN_ADDRESS: '127.0.0.1:0',
    THREE_STEPS_BUNDLE: codePath,
  }
  await start()
}, 400_000)
afterAll(async () => {
  daemon.child.kill('SIGTERM')
  await daemon.ended
  removeFolder(dataDir)
}, 60_000)

const call = async (method: string, path: string, body?: object): Promise<{ status: number; body: any }> => {
  const answer = await fetch(baseUrl + path, {
    method,
    headers: { 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  })
  const text = await answer.text()
  return { status: answer.status, body: text === '' ? undefined : JSON.parse(text) }
}

/** Reads a record; PostgreSQL may still recover, also after the end of an operation. */
const readOnceThere = (path: string): Promise<any> =>
  until(`an answer of ${path}`, 60, async () => {
    const { status, body } = await call('GET', path)
    return status === 503 ? undefined : body
  })

/** What the record of an operation that has ended may not be. */
const violations = async (id: string, wanted: 'completed' | 'cancelled' | 'failed'): Promise<string[]> => {
  const { operation } = await readOnceThere(`/three-steps/${id}/`)
  const events = (await readOnceThere(`/three-steps/${id}/events/?pageSize=100`)).items as {
    sequence: number
    eventType: string
  }[]
  const types = events
    .map(({ eventType }) => eventType.replace('three.steps.', ''))
    .filter((type) => type !== 'workflow-restarted')
  const found: string[] = []
  if (operation.status !== wanted) found.push(`${id} is ${operation.status}, not ${wanted}`)
  if (operation.done !== (wanted === 'completed' ? 3 : 0))
    found.push(`${id} is ${wanted} with ${String(operation.done)} steps done`)
  if (types.join() !== `started,${wanted}`) found.push(`${id} has the events ${types.join(', ')}`)
  if (events.some(({ sequence }, k) => sequence !== k + 1)) found.push(`${id} has gaps in its events`)
  return found
}

test('12 rounds of sudden death: every operation ends as it was asked to, once, with nothing lost and nothing twice', async () => {
  const random = randomOf(20_261_123)
  const wrong: string[] = []
  const blows = ['daemon', 'postgres', 'temporal', 'everything'] as const
  for (let round = 0; round < 12; round++) {
    const blow = blows[round % blows.length]!
    const kinds = ['completed', 'failed', 'cancelled'] as const
    const operations = Array.from({ length: 6 }, (_, k) => ({
      id: `r${String(round)}-${String(k)}`,
      wanted: kinds[k % 3]!,
    }))
    for (const { id, wanted } of operations) {
      const stepMs = wanted === 'cancelled' ? 60_000 : Math.floor(random() * 500)
      await call('POST', '/three-steps/', { id, stepMs, ...(wanted === 'failed' ? { failsAt: 3 } : {}) })
    }
    for (const { id, wanted } of operations) {
      if (wanted !== 'cancelled') continue
      await until(
        `the start of ${id}`,
        60,
        async () => (await call('GET', `/three-steps/${id}/`)).body.operation?.status === 'running',
      )
      expect((await call('POST', `/three-steps/${id}/cancel/`)).status).toBe(202)
    }
    await pause(random() * 700)
    const { pids } = await readyOf(daemon, dataDir)
    if (blow === 'postgres' || blow === 'everything') kill(pids.postgres)
    if (blow === 'temporal' || blow === 'everything') kill(pids.temporal)
    if (blow === 'daemon' || blow === 'everything') {
      kill(daemon.child.pid)
      await daemon.ended
      await start()
    }
    for (const { id, wanted } of operations) {
      await until(`the end of ${id} after the death of ${blow}`, 120, async () => {
        const { status, body } = await call('GET', `/three-steps/${id}/`)
        return status === 200 && ['completed', 'failed', 'cancelled'].includes(body.operation.status)
      })
      wrong.push(...(await violations(id, wanted)).map((text) => `${blow}: ${text}`))
    }
  }
  expect(wrong).toEqual([])
}, 1_200_000)
