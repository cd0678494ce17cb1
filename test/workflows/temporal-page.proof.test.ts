import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { Client, Connection, type WorkflowExecutionDescription } from '@temporalio/client'
import type { DataConverter } from '@temporalio/common'
import {
  decodeArrayFromPayloads,
  loadDataConverter,
} from '@temporalio/common/lib/internal-non-workflow/index.js'
import { historyToJSON } from '@temporalio/common/lib/proto-utils.js'
import { Worker } from '@temporalio/worker'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, type AddressInfo } from 'node:net'
import { join } from 'node:path'
import { dataConverter } from '../../src/vault/data-converter.ts'
import { ensureKeyFile, openVaultKeys } from '../../src/vault/keys.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, temporalAddress, type TestService } from '../support/service.ts'
import { workflowBundle } from '../support/workflow-bundle.ts'
import { makeWorld, type World } from '../support/worlds.ts'

// What operators see on Temporal's page, and what its buttons do: the page calls the same frontend
// that the client here calls.

type Json = any

let folder: string
let service: TestService
let connection: Connection
let client: Client
let bundle: { codePath: string }
let converter: DataConverter
const logged: Json[] = []
let brief: World
let long: World
let failing: World

beforeAll(async () => {
  folder = mkdtempSync(join(runFolder(), 'orrery-page-'))
  const file = join(folder, 'vault.key')
  await ensureKeyFile(file)
  service = await openService({
    environment: {
      SERVICE_VAULT_KEY_FILE: file,
      SERVICE_LOG_LEVEL: 'warn',
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
    },
    log: { write: (line) => void logged.push(JSON.parse(line)) },
  })
  connection = await Connection.connect({ address: temporalAddress() })
  converter = dataConverter(await openVaultKeys(file))
  client = new Client({ connection, namespace: service.namespace, dataConverter: converter })
  bundle = await workflowBundle()
  brief = await makeWorld(service, {
    name: 'brief',
    launch: 'none',
    tasks: [{ name: 'a' }, { name: 'b', after: ['a'] }],
  })
  long = await makeWorld(service, {
    name: 'long',
    cores: [2],
    tasks: [{ name: 'a' }, { name: 'b', run: 'sleep 300', after: ['a'] }],
  })
  failing = await makeWorld(service, {
    name: 'failing',
    cores: [1],
    tasks: [
      { name: 'a', run: 'echo "secret-host port 2299" >&2; exit 3' },
      { name: 'b', after: ['a'] },
    ],
  })
}, 240_000)
afterAll(async () => {
  await connection?.close()
  await service?.[Symbol.asyncDispose]()
  rmSync(folder, { recursive: true, force: true })
}, 120_000)

const until = async <T>(
  what: string,
  ask: () => Promise<T | undefined | false>,
  seconds = 60,
): Promise<T> => {
  const end = Date.now() + seconds * 1_000
  for (;;) {
    const found = await ask()
    if (found !== undefined && found !== false) return found
    if (Date.now() > end) throw new Error(`${what}: not within ${String(seconds)} s`)
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
}
const handleOf = (id: string) => client.workflow.getHandle(id)
const describeOf = (id: string): Promise<WorkflowExecutionDescription> => handleOf(id).describe()
const ended = (id: string): Promise<WorkflowExecutionDescription> =>
  until(`${id} has ended`, async () => {
    const found = await describeOf(id).catch(() => undefined)
    return found?.status.name !== 'RUNNING' && found
  })
const runOf = async (id: string): Promise<Json> => (await service.get(`/execution-runs/${id}/`)).run
const start = (id: string, world: World, extra: Json = {}): Promise<Json> =>
  service.post('/execution-runs/', { id, schedulePlanId: world.planId, mode: 'real', ...extra })
/** A run whose first activity is over and whose second one runs for minutes. */
const running = async (id: string, world = long): Promise<void> => {
  await start(id, world)
  await until(`${id} runs`, async () => (await runOf(id)).completedActivityCount === 1)
}
const events = async (id: string): Promise<string[]> =>
  (await service.get(`/execution-runs/${id}/events/?pageSize=100`)).items.map(
    (event: Json) => event.eventType,
  )
const audits = async (query: string): Promise<Json[]> => service.get(`/audit-events/?${query}`)
const historyOf = async (id: string, runId?: string): Promise<Json> =>
  JSON.parse(historyToJSON(await client.workflow.getHandle(id, runId).fetchHistory()))

/** A history that replays. */
const replayed = async (workflowId: string): Promise<Json> => {
  const json = await historyOf(workflowId)
  await Worker.runReplayHistory({ workflowBundle: bundle, dataConverter: converter }, json, workflowId)
  return json
}

describe('a workflow ends as its record', () => {
  test('completed', async () => {
    await start('fine', brief)
    await service.finished('fine')
    expect((await ended('execution-run/fine/1')).status.name).toBe('COMPLETED')
    await replayed('execution-run/fine/1')
  })

  test('failed: as RunFailed with the reason, of which the history shows nothing in plain text', async () => {
    await start('broken', failing)
    const { run } = await service.finished('broken')
    expect([run.status, run.failureReason]).toEqual(['failed', expect.stringContaining('exit')])
    expect((await ended('execution-run/broken/1')).status.name).toBe('FAILED')
    const failure: Json = await handleOf('execution-run/broken/1')
      .result()
      .catch((error: unknown) => error)
    expect([failure.cause.type, failure.cause.nonRetryable, failure.cause.message]).toEqual([
      'RunFailed',
      true,
      run.failureReason,
    ])
    const json = await replayed('execution-run/broken/1')
    const last = json.events.at(-1).workflowExecutionFailedEventAttributes
    expect([last.failure.message, last.failure.applicationFailureInfo.type]).toEqual([
      'Encoded failure',
      'RunFailed',
    ])
    expect(JSON.stringify(json)).not.toMatch(/secret-host|exit code|\.ts:\d/)
  })

  test('cancelled over the API: as Canceled, at once, with one cancel in the history', async () => {
    await running('stopped')
    await service.post('/execution-runs/stopped/cancel/')
    await service.post('/execution-runs/stopped/cancel/')
    expect((await service.finished('stopped')).run.status).toBe('cancelled')
    expect((await ended('execution-run/stopped/1')).status.name).toBe('CANCELLED')
    const { events: found } = await replayed('execution-run/stopped/1')
    expect(
      found.filter((event: Json) => event.workflowExecutionCancelRequestedEventAttributes !== undefined),
    ).toHaveLength(1)
    const asked = await audits('executionId=stopped&eventType=execution.run.cancel')
    expect(asked.map((event) => event.actorId === 'temporal')).toEqual([false, false])
  })

  test('cancelled where Temporal did not hear of it: the workflow asks for its own cancel', async () => {
    await running('unheard')
    // As the API leaves it when Temporal is away.
    await service.db.transaction(async (tx) => {
      const connected = tx as unknown as {
        prepared: (name: string, text: string, values: unknown[]) => Promise<unknown>
      }
      await connected.prepared(
        'unheard',
        'update execution_runs set cancel_requested_at = now() where id = $1',
        ['unheard'],
      )
    })
    expect((await service.finished('unheard')).run.status).toBe('cancelled')
    expect((await ended('execution-run/unheard/1')).status.name).toBe('CANCELLED')
    await replayed('execution-run/unheard/1')
  })

  test('sessions alike: cancelled over the API, and failed with their reason', async () => {
    const big = await makeWorld(service, {
      name: 'big',
      cores: [16],
      tasks: Array.from({ length: 4_000 }, (_, i) => ({
        name: `t${String(i)}`,
        after: i < 16 ? [] : [`t${String(i - 16)}`],
      })),
    })
    const session = (id: string): Json => ({
      id,
      workflowVersionId: big.workflowVersionId,
      executionScopeId: 'big-scope',
      networkTopologyId: 'big-network',
      algorithms: [{ id: 'heft' }],
    })
    await service.post('/planning-sessions/', session('dropped'))
    await until(
      'the session runs',
      async () => (await service.get('/planning-sessions/dropped/')).session.status === 'running',
    )
    expect((await service.call('POST', '/planning-sessions/dropped/cancel/')).status).toBe(204)
    expect((await ended('planning-session/dropped/1')).status.name).toBe('CANCELLED')
    await replayed('planning-session/dropped/1')

    await service.post('/planning-sessions/', session('pressed'))
    await until(
      'the session runs',
      async () => (await service.get('/planning-sessions/pressed/')).session.status === 'running',
    )
    await handleOf('planning-session/pressed/1').cancel()
    expect((await ended('planning-session/pressed/1')).status.name).toBe('CANCELLED')
    expect((await service.get('/planning-sessions/pressed/')).session.status).toBe('cancelled')
    // The end, with the digest of the session's events, and the request.
    expect(await audits('sessionId=pressed&eventType=planning-session.cancelled')).toMatchObject([
      { actorId: 'service', metadata: { eventsDigest: expect.stringMatching(/^[0-9a-f]{64}$/) } },
      { actorId: 'temporal' },
    ])
    await replayed('planning-session/pressed/1')
  })

  test('discoveries alike: failed with their reason', async () => {
    await service.post('/environments/', {
      environment: { id: 'nowhere', name: 'nowhere' },
      version: { id: 'nowhere-v1', version: 1 },
    })
    const { credentialRef } = await service.post('/ssh-keys/', { id: 'nobody' })
    await service.ok('PUT', '/environment-connections/nowhere/', {
      ...{
        id: 'nowhere',
        name: 'nowhere',
        type: 'ssh',
        environmentId: 'nowhere',
        endpoint: '127.0.0.1:9',
        username: 'nobody',
        credentialRef,
      },
      configuration: { hostKeyFingerprints: ['SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'] },
    })
    expect(
      (await service.call('POST', '/environment-connections/nowhere/discover/')).status,
    ).toBeGreaterThanOrEqual(202)
    expect((await ended('connection-discovery/nowhere/1')).status.name).toBe('FAILED')
    const json = await replayed('connection-discovery/nowhere/1')
    expect(JSON.stringify(json)).not.toContain('127.0.0.1')
    const failure: Json = await handleOf('connection-discovery/nowhere/1')
      .result()
      .catch((error: unknown) => error)
    expect([failure.cause.type, failure.cause.message]).toEqual([
      'DiscoveryFailed',
      expect.stringContaining('127.0.0.1'),
    ])
  }, 120_000)

  test('discoveries alike: cancelled there, their record fails and says by whom', async () => {
    const mute = createServer((socket) => void socket.on('error', () => undefined))
    await new Promise<void>((resolve) => mute.listen(0, '127.0.0.1', resolve))
    const { port } = mute.address() as AddressInfo
    await service.post('/environments/', {
      environment: { id: 'mute', name: 'mute' },
      version: { id: 'mute-v1', version: 1 },
    })
    const { credentialRef } = await service.post('/ssh-keys/', { id: 'mute' })
    await service.ok('PUT', '/environment-connections/mute/', {
      ...{ id: 'mute', name: 'mute', type: 'ssh', environmentId: 'mute', username: 'nobody', credentialRef },
      endpoint: `127.0.0.1:${String(port)}`,
      configuration: { hostKeyFingerprints: ['SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'] },
    })
    const id = 'connection-discovery/mute/1'
    const answer = service.call('POST', '/environment-connections/mute/discover/')
    await until('the discovery runs', async () => {
      const found = await describeOf(id).catch(() => undefined)
      return (found?.raw.pendingActivities ?? []).length > 0
    })
    await handleOf(id).cancel()
    expect((await ended(id)).status.name).toBe('CANCELLED')
    const asked = await answer
    const { body } = await service.call('GET', '/environment-connections/mute/discoveries/1/')
    for (const { error } of [asked.body, body]) expect(error).toContain("cancelled on Temporal's page")
    expect(await audits('eventType=resource.discovery.failed&connectionId=mute')).toMatchObject([
      { actorId: 'temporal', summary: expect.stringContaining("cancelled on Temporal's page") },
    ])
    mute.close()
  })
})

describe('Request Cancellation', () => {
  test("is the record's cancel, by the actor temporal, once, however often it is pressed", async () => {
    await running('pressed')
    await handleOf('execution-run/pressed/1').cancel()
    await handleOf('execution-run/pressed/1').cancel()
    const { run } = await service.finished('pressed')
    expect([run.status, run.failureReason]).toEqual(['cancelled', 'cancelled on request'])
    expect((await ended('execution-run/pressed/1')).status.name).toBe('CANCELLED')
    expect(await audits('executionId=pressed&eventType=execution.run.cancel')).toMatchObject([
      { actorId: 'temporal', summary: "the cancel of run pressed was asked for on Temporal's page" },
    ])
    expect((await events('pressed')).at(-1)).toBe('execution.run.cancelled')
    await replayed('execution-run/pressed/1')
  })

  test('changes nothing of a run that is over, whatever its end: no event, no audit record, no restart', async () => {
    const ids = ['over-completed', 'over-failed', 'over-cancelled']
    await start('over-completed', brief)
    await start('over-failed', failing)
    await running('over-cancelled')
    await handleOf('execution-run/over-cancelled/1').cancel()
    for (const id of ids) {
      await service.finished(id)
      await ended(`execution-run/${id}/1`)
    }
    const restarts = () =>
      service.metrics.registry.getSingleMetricAsString('orrery_workflows_restarted_total')
    const found = async () => ({
      restarts: await restarts(),
      runs: await Promise.all(
        ids.map(async (id) => {
          const { runId, status, historyLength } = await describeOf(`execution-run/${id}/1`)
          return {
            ...{ id, execution: runId, end: status.name, historyLength },
            record: await service.get(`/execution-runs/${id}/`),
            audits: await audits(`executionId=${id}`),
          }
        }),
      ),
    })
    const before = await found()
    expect(before.runs.map(({ record, end }) => [record.run.status, end])).toEqual([
      ['completed', 'COMPLETED'],
      ['failed', 'FAILED'],
      ['cancelled', 'CANCELLED'],
    ])
    for (let press = 1; press <= 2; press++)
      for (const id of ids) await handleOf(`execution-run/${id}/1`).cancel()
    // The dispatcher looks each second for records whose work has to be started.
    await new Promise((resolve) => setTimeout(resolve, 3_000))
    expect(await found()).toEqual(before)
  }, 120_000)

  test('at any moment of a run it ends as its record, cancelled or completed before', async () => {
    const short = await makeWorld(service, {
      name: 'short',
      cores: [1],
      tasks: [
        { name: 'a', run: 'sleep 0.4' },
        { name: 'b', run: 'sleep 0.4', after: ['a'] },
      ],
    })
    const ids = Array.from({ length: 12 }, (_, i) => `moment-${String(i)}`)
    await Promise.all(
      ids.map(async (id, i) => {
        await start(id, short)
        await new Promise((resolve) => setTimeout(resolve, i * 150))
        // Before the workflow is there, and after its end, the page has nothing to press.
        await handleOf(`execution-run/${id}/1`)
          .cancel()
          .catch(() => undefined)
      }),
    )
    const found = []
    for (const id of ids) {
      const { run } = await service.finished(id)
      const { status } = await ended(`execution-run/${id}/1`)
      expect([id, status.name]).toEqual([id, String(run.status).toUpperCase()])
      expect(
        (await events(id)).filter((type) => type === `execution.run.${String(run.status)}`),
      ).toHaveLength(1)
      found.push(run.status)
    }
    expect(found).toContain('cancelled')
    expect(found.every((status) => ['cancelled', 'completed'].includes(status))).toBe(true)
  }, 240_000)

  test('reaches a paused run, a simulation, and a run that has only just begun', async () => {
    await running('paused')
    await service.post('/execution-runs/paused/pause/')
    await handleOf('execution-run/paused/1').cancel()
    for (const [id, world, mode] of [
      ['early', long, 'real'],
      ['simulated', long, 'simulation'],
    ] as const) {
      await start(id, world, { mode })
      await handleOf(`execution-run/${id}/1`).cancel()
    }
    for (const id of ['paused', 'early', 'simulated']) {
      const { run } = await service.finished(id)
      const { status } = await ended(`execution-run/${id}/1`)
      // A simulation may be over before it is heard.
      expect([id, run.status, status.name]).toEqual(
        id === 'simulated' && run.status === 'completed'
          ? [id, 'completed', 'COMPLETED']
          : [id, 'cancelled', 'CANCELLED'],
      )
    }
  })
})

describe('Terminate and Reset', () => {
  test('the record wins: the run goes on, with an event, an audit record, a warning and a count', async () => {
    await running('terminated')
    await running('reset')
    const before = await service.metrics.registry.getSingleMetricAsString('orrery_workflows_restarted_total')
    expect(before).not.toMatch(/kind="execution-run"\} [1-9]/)
    await handleOf('execution-run/terminated/1').terminate('pressed')
    // Closed, and so without an answer of its own: the read is the record's. An answer from before
    // serves for a second.
    await new Promise((resolve) => setTimeout(resolve, 1_100))
    const closed = await service.get('/execution-runs/terminated/')
    expect([closed.run.status, closed.live]).toEqual(['running', undefined])
    const first = (await historyOf('execution-run/reset/1')).events.findLast(
      (event: Json) => event.workflowTaskCompletedEventAttributes !== undefined,
    )
    await connection.workflowService.resetWorkflowExecution({
      namespace: service.namespace,
      workflowExecution: { workflowId: 'execution-run/reset/1' },
      reason: 'pressed',
      requestId: 'reset-1',
      workflowTaskFinishEventId: Number(first.eventId) as never,
    })
    for (const [id, cause] of [
      ['terminated', 'had ended there as terminated'],
      ['reset', 'was reset'],
    ] as const) {
      await until(
        `${id} is noted`,
        async () => (await events(id)).includes('execution.run.workflow-restarted'),
        90,
      )
      expect(await audits(`executionId=${id}&eventType=execution.run.workflow-restarted`)).toMatchObject([
        { actorId: 'temporal', metadata: { cause } },
      ])
      expect(logged).toContainEqual(
        expect.objectContaining({
          level: 'warn',
          recordId: id,
          cause,
          msg: 'the workflow of an open record was started again',
        }),
      )
      expect([(await describeOf(`execution-run/${id}/1`)).status.name, (await runOf(id)).status]).toEqual([
        'RUNNING',
        'running',
      ])
    }
    expect(
      await service.metrics.registry.getSingleMetricAsString('orrery_workflows_restarted_total'),
    ).toMatch(/kind="execution-run"\} 2/)
    for (const id of ['terminated', 'reset']) {
      await service.post(`/execution-runs/${id}/cancel/`)
      expect((await service.finished(id)).run.status).toBe('cancelled')
      expect((await ended(`execution-run/${id}/1`)).status.name).toBe('CANCELLED')
      expect((await events(id)).filter((type) => type === 'execution.run.workflow-restarted')).toHaveLength(1)
    }
  }, 240_000)

  test('over and over on one run: each is noted once, and the run still ends as its record', async () => {
    await running('pressed-often')
    const id = 'execution-run/pressed-often/1'
    const restarts = async (): Promise<number> =>
      (await events('pressed-often')).filter((type) => type === 'execution.run.workflow-restarted').length
    for (let round = 1; round <= 4; round++) {
      if (round % 2 === 1) await handleOf(id).terminate('pressed')
      else {
        const { events: found } = await historyOf(id)
        const task = found.findLast((event: Json) => event.workflowTaskCompletedEventAttributes !== undefined)
        await connection.workflowService.resetWorkflowExecution({
          namespace: service.namespace,
          workflowExecution: { workflowId: id },
          reason: 'pressed',
          requestId: `often-${String(round)}`,
          workflowTaskFinishEventId: Number(task.eventId) as never,
        })
      }
      await until(`round ${String(round)} is noted`, async () => (await restarts()) === round, 90)
      expect([(await describeOf(id)).status.name, (await runOf('pressed-often')).status]).toEqual([
        'RUNNING',
        'running',
      ])
      await until(
        'a workflow task of the new one',
        async () =>
          (await historyOf(id)).events.some(
            (event: Json) => event.workflowTaskCompletedEventAttributes !== undefined,
          ) && true,
      )
    }
    // The activity that runs was started once.
    const { activities } = await service.get('/execution-runs/pressed-often/')
    expect(activities.map(({ attempt }: Json) => attempt)).toEqual([1, 1])
    await service.post('/execution-runs/pressed-often/cancel/')
    expect((await service.finished('pressed-often')).run.status).toBe('cancelled')
    expect((await ended(id)).status.name).toBe('CANCELLED')
    expect(await restarts()).toBe(4)
  }, 420_000)

  test('a reset of an ended run changes nothing of its record', async () => {
    await start('over', brief)
    const { run } = await service.finished('over')
    await ended('execution-run/over/1')
    const { events: found } = await historyOf('execution-run/over/1')
    for (const at of found.filter(
      (event: Json) => event.workflowTaskCompletedEventAttributes !== undefined,
    )) {
      await connection.workflowService.resetWorkflowExecution({
        namespace: service.namespace,
        workflowExecution: {
          workflowId: 'execution-run/over/1',
          runId: (await handleOf('execution-run/over/1').describe()).runId,
        },
        reason: 'pressed',
        requestId: `over-${String(at.eventId)}`,
        workflowTaskFinishEventId: Number(at.eventId) as never,
      })
      expect((await ended('execution-run/over/1')).status.name).toBe('COMPLETED')
      break
    }
    expect(await runOf('over')).toEqual(run)
  })
})

describe('what the page tells', () => {
  test('summary, address and search attributes from the start, details that follow the run', async () => {
    const hostile = 'a *bold* [link](http://evil) <img src=x onerror=alert(1)>'
    await service.db.prepared('hostile', 'update workflow_definitions set name = $1 where id = $2', [
      hostile,
      long.workflowId,
    ])
    await running('told')
    const id = 'execution-run/told/1'
    const seen = await describeOf(id)
    const line = `${hostile} on long, real, 2 activities`
    expect(await seen.staticSummary()).toBe(
      line.replace('[link]', '(link)').replace('<', '‹').replace('>', '›').concat(', promised 2 s'),
    )
    const details = (await seen.staticDetails()) ?? ''
    expect(details).toContain(`<${service.baseUrl}/execution-runs/told/>`)
    expect(details).toContain('\\<img src=x onerror=alert\\(1\\)\\>')
    expect(details).not.toMatch(/(?<!\\)<img|(?<!\\)\*bold|(?<!\\)\[link/)
    const attributes = Object.fromEntries(
      Object.entries(seen.searchAttributes).map(([name, [value]]: any) => [name, value]),
    )
    expect(attributes).toMatchObject({
      RecordId: 'told',
      RunState: 'running',
      WorkflowName: hostile,
      PlanId: long.planId,
    })
    const current = (): Promise<string> =>
      handleOf(id)
        .query('__temporal_workflow_metadata')
        .then((found: Json) => found.currentDetails)
    expect(await current()).toContain('a \\*bold\\* \\[link\\]')
    await service.post('/execution-runs/told/pause/')
    await until(
      'the page says that it is paused',
      async () => (await describeOf(id)).searchAttributes['RunState']?.[0] === 'paused',
      30,
    )
    await service.post('/execution-runs/told/cancel/')
    await service.finished('told')
    expect((await ended(id)).searchAttributes['RunState']).toEqual(['cancelled'])
  }, 120_000)

  test('why a run waits, by kind and site, on the page and in live; long names are cut', async () => {
    const name = 'n'.repeat(300)
    await service.db.prepared('long_name', 'update workflow_definitions set name = $1 where id = $2', [
      name,
      long.workflowId,
    ])
    const one = await makeWorld(service, {
      name: 'one',
      cores: [1],
      tasks: [{ name: 'a', run: 'sleep 300' }],
    })
    await start('first', one)
    await until(
      'the first runs',
      async () => (await service.get('/execution-runs/first/')).activities[0].status === 'running',
    )
    await start('second', one)
    const id = 'execution-run/second/1'
    const described = await until(
      'the page says that it waits',
      async () => {
        const seen = await describeOf(id)
        return seen.searchAttributes['RunState']?.[0] === 'waiting' && seen
      },
      60,
    )
    expect(described.searchAttributes['WaitsFor']?.[0]).toMatch(/^lane /)
    const beatOf = async (of: string): Promise<Json> => {
      const { pendingActivities } = (await describeOf(of)).raw
      const payloads = pendingActivities?.[0]?.heartbeatDetails?.payloads
      return (await decodeArrayFromPayloads(loadDataConverter(converter), payloads))[0]
    }
    await until('a heartbeat that tells why it waits', async () => (await beatOf(id))?.waitsFor !== undefined)
    expect(await beatOf(id)).toEqual({
      completed: 0,
      running: 0,
      waitsFor: expect.stringContaining('its lane is held by'),
    })
    await until(
      'a heartbeat of what runs',
      async () => (await beatOf('execution-run/first/1'))?.running === 1,
    )
    const detail = await service.get('/execution-runs/second/')
    expect(detail.live).toMatchObject({
      phase: 'running',
      waitsFor: [
        { reason: expect.stringContaining('its lane is held by'), activities: 1, since: expect.any(Number) },
      ],
      sites: [{ running: 0 }],
    })
    for (const run of ['first', 'second']) {
      await service.post(`/execution-runs/${run}/cancel/`)
      await service.finished(run)
    }
    await running('named')
    expect((await describeOf('execution-run/named/1')).searchAttributes['WorkflowName']).toEqual([
      'n'.repeat(255),
    ])
    await service.post('/execution-runs/named/cancel/')
  }, 180_000)

  test('live is never behind the count of the same answer', async () => {
    const many = await makeWorld(service, {
      name: 'many',
      cores: [2],
      tasks: Array.from({ length: 120 }, (_, i) => ({ name: `t${String(i)}`, run: 'sleep 0.05' })),
    })
    await start('counted', many)
    let looks = 0
    for (;;) {
      const { run, live } = await service.get('/execution-runs/counted/')
      if (run.status === 'completed') break
      if (live !== undefined) {
        looks++
        expect(live.completed).toBe(run.completedActivityCount)
        expect(live.sites.reduce((sum: number, site: Json) => sum + site.completed, 0)).toBe(
          run.completedActivityCount,
        )
      }
    }
    expect(looks).toBeGreaterThan(5)
  })
})
