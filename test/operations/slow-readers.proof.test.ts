import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { recordAudit } from '../../src/domains/audit-events/store.ts'
import { until } from '../failures/programs.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, type TestService } from '../support/service.ts'
import { cutStreams, eventIds, listenTo, openSleeping } from '../support/stream-readers.ts'
import { makeWorld } from '../support/worlds.ts'

/**
 * Readers of followed logs and of the audit trail that take nothing; those of events are in
 * feed.test.ts. The kernel holds up to 10 MiB of a connection whose reader takes nothing.
 */

let service: TestService
beforeAll(async () => {
  service = await openService()
}, 180_000)
afterAll(() => service[Symbol.asyncDispose]())

const textOf = async (url: string): Promise<string> => (await fetch(url)).text()

test('nine of ten events of a run are with a reader within two seconds', async () => {
  const tasks = Array.from({ length: 20 }, (_, i) => ({ name: `t${String(i)}`, run: 'sleep 0.05' }))
  const world = await makeWorld(service, { name: 'soon', cores: [2], tasks })
  const { events, stop } = listenTo(`${service.baseUrl}/events/?topic=execution-run`)
  await service.post('/execution-runs/', { id: 'soon', schedulePlanId: world.planId, mode: 'real' })
  await until('its end', 30, () => events.at(-1)?.type === 'execution.run.completed')
  await stop()
  const late = events.filter(({ at, data }) => at - Date.parse(data.event.occurredAt) > 2_000)
  expect(late.length).toBeLessThan(events.length / 10)
})

test('a log is cut for a reader 1 MiB behind, which goes on by offset; others have it whole', async () => {
  const folder = mkdtempSync(join(runFolder(), 'slow-'))
  const go = join(folder, 'go')
  const world = await makeWorld(service, {
    name: 'writes',
    cores: [1],
    tasks: [
      {
        name: 'a',
        run: `echo first; until [ -e ${go} ]; do sleep 0.1; done
          for i in $(seq 200); do seq -f "$i %.0f" 20000; sleep 0.01; done`,
      },
    ],
  })
  await service.post('/execution-runs/', { id: 'writes', schedulePlanId: world.planId, mode: 'real' })
  const log = `${service.baseUrl}/execution-runs/writes/activities/${world.activityId('a')}/logs/`
  await until('its first line', 30, async () => (await textOf(log)) === 'first\n')
  const before = await cutStreams(service)
  const slow = await openSleeping(`${log}?follow=true&tail=3`)
  const keepsUp = fetch(`${log}?follow=true`).then((answer) => answer.text())
  // The readers have caught up before the log grows.
  await new Promise((resolve) => setTimeout(resolve, 1_000))
  writeFileSync(go, '')
  await until('the cut', 60, async () => (await cutStreams(service)) === before + 1)
  const { body, whole } = await slow.wake()
  expect(whole).toBe(false)
  const offset = Number(/^orrery-offset: (\d+)$/im.exec(slow.head)?.[1])
  expect(offset).toBe(3)
  const all = await keepsUp
  expect(all.length).toBeGreaterThan(20 * 1024 * 1024)
  expect(body.length).toBeLessThan(all.length)
  const rest = await textOf(`${log}?follow=true&offset=${String(offset + body.length)}`)
  expect(body.toString() + rest === all.slice(offset)).toBe(true)
  expect(await cutStreams(service)).toBe(before + 1)
  await service.finished('writes')
}, 120_000)

test('the audit trail is cut for a reader 1 MiB behind, which goes on by Last-Event-ID; others have it whole', async () => {
  const url = `${service.baseUrl}/audit-events/?eventType=test.event`
  const keepsUp = listenTo(url, { 'last-event-id': '0' })
  const slow = await openSleeping(url, { Accept: 'text/event-stream', 'Last-Event-ID': '0' })
  const before = await cutStreams(service)
  let written = 0
  const write = async (): Promise<void> => {
    for (let i = 0; i < 25; i++, written++)
      await recordAudit(service.db, {
        eventType: 'test.event',
        actorId: 'ada',
        actorType: 'token',
        outcome: 'succeeded',
        summary: 'something long',
        metadata: { x: 'x'.repeat(100_000) },
      })
    await until('the other has them', 45, () => keepsUp.events.length === written)
  }
  while ((await cutStreams(service)) === before && written < 500) await write()
  expect(await cutStreams(service)).toBe(before + 1)
  const { body, whole } = await slow.wake()
  expect(whole).toBe(false)
  const had = eventIds(body)
  expect(had.length).toBeLessThan(written)
  const resumed = listenTo(url, { 'last-event-id': had.at(-1) ?? '0' })
  await until('it has the rest', 45, () => had.length + resumed.events.length === written)
  expect([...had, ...resumed.events.map(({ id }) => id)]).toEqual(keepsUp.events.map(({ id }) => id))
  await Promise.all([keepsUp.stop(), resumed.stop()])
}, 120_000)
