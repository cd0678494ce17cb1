import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { Client, Connection } from '@temporalio/client'
import { existsSync, readdirSync, readFileSync, truncateSync, writeFileSync } from 'node:fs'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { openEngine } from '../../src/engine.ts'
import { durableKinds } from '../../src/kinds.ts'
import { readOperation } from '../../src/operations/records.ts'
import { until } from '../failures/programs.ts'
import { historyOf, replayed } from '../support/histories.ts'
import { temporalAddress, type TestService } from '../support/service.ts'
import { proved } from '../support/share.ts'
import { openEveryKind } from './every-kind.ts'

/** What the buttons of Temporal's page do to each kind of operation. */

let opened: Awaited<ReturnType<typeof openEveryKind>>
let service: TestService
let temporal: Connection
beforeAll(async () => {
  opened = await openEveryKind()
  ;({ service } = opened)
  temporal = await Connection.connect({ address: temporalAddress() })
  // Holes take no space, and to read and hash so many takes hours.
  writeFileSync(join(opened.root, 'folder', 'large'), '')
  truncateSync(join(opened.root, 'folder', 'large'), 2 ** 42)
})
afterAll(async () => {
  await temporal?.close()
  await opened?.close()
})

const workflowOf = (kind: string, id: string) =>
  new Client({ connection: temporal, namespace: service.namespace }).workflow.getHandle(`${kind}/${id}/1`)
/** The state of the record; a command that was cancelled is shown as failed. */
const stateOf = async (name: string, id: string): Promise<string | undefined> => {
  const kind = durableKinds.find((one) => one.name === name)
  return kind && (await readOperation(service.db, kind, { id }))?.status
}
const audits = async (eventType: string, id: string): Promise<any[]> =>
  (await service.get(`/audit-events/?limit=1000&eventType=${eventType}`)).filter(
    ({ externalId }: any) => externalId === id,
  )

interface Pressed {
  kind: string
  /** First part of the types of its events and audit records. */
  events: string
  path: string
  body?: object
  read: (id: string) => Promise<any>
  /** Whether its work is under way. */
  works: (record: any) => boolean
}

const isLive = ({ live }: any): boolean => live !== undefined
const copy: Pressed = {
  ...{ kind: 'storage-download', events: 'storage.download', path: '/storages/files/copies/' },
  body: {
    ...{ path: 'folder/large', destinationStorageId: 'files', destinationPath: 'copied' },
    bytesPerSecond: 1_024,
  },
  ...{ read: (id) => service.get(`/storage-downloads/${id}/`), works: isLive },
}
const index: Pressed = {
  ...{ kind: 'storage-index', events: 'storage.index', path: '/storages/files/index-runs/' },
  body: { checksums: true },
  read: async (id) => (await service.get('/storages/files/index-runs/')).find((run: any) => run.id === id),
  works: isLive,
}
const command = (): Pressed => ({
  ...{ kind: 'console-command', events: 'console.command', path: '/console-commands/' },
  body: {
    ...{ resourceId: 'here', timeoutSeconds: 3_600 },
    command: `echo $$ >> ${join(opened.root, 'pids')}; exec sleep 86400`,
  },
  read: (id) => service.get(`/console-commands/${id}/`),
  works: () => existsSync(join(opened.root, 'pids')),
})

/** Asks for one, and waits until its work is under way. @returns its id */
const working = async ({ path, body, read, works }: Pressed): Promise<string> => {
  const { status, body: record } = await service.call('POST', path, body, { prefer: 'respond-async' })
  expect([status, record.error]).toEqual([202, undefined])
  await until(`the work of ${record.id}`, 120, async () => works(await read(record.id)))
  return record.id
}

const cancelled = async ({ kind, events }: Pressed, id: string): Promise<void> => {
  await workflowOf(kind, id).cancel()
  await until(`the end of ${id}`, 120, async () => (await stateOf(kind, id)) === 'cancelled')
  await until(
    `the workflow of ${id} to end as its record`,
    120,
    async () => (await workflowOf(kind, id).describe()).status.name === 'CANCELLED',
  )
  expect(await audits(`${events}.cancelled`, id)).toContainEqual(
    expect.objectContaining({ actorId: 'temporal', actorType: 'service' }),
  )
}

const startedAgain = async ({ kind, events }: Pressed, id: string): Promise<void> => {
  const first = await workflowOf(kind, id).describe()
  await workflowOf(kind, id).terminate()
  const [note] = await until(`the restart of ${id}`, 120, async () => {
    const found = await audits(`${events}.workflow-restarted`, id)
    return found.length > 0 ? found : undefined
  })
  expect(note).toMatchObject({
    actorId: 'temporal',
    metadata: { kind, cause: 'had ended there as terminated' },
  })
  expect((await workflowOf(kind, id).describe()).runId).not.toBe(first.runId)
  expect(await service.metrics.registry.getSingleMetricAsString('orrery_workflows_restarted_total')).toMatch(
    new RegExp(`kind="${kind}"\\} [1-9]`),
  )
}

test('a discovery through a local connection is at the host that accepted it', async () => {
  const connection = { id: 'machine', name: 'machine', type: 'local', environmentId: 'lab' }
  await service.ok('PUT', '/environment-connections/machine/', connection)
  await service.post('/environment-connections/machine/discover/')
  const { json } = await historyOf(
    { connection: temporal, namespace: service.namespace },
    'connection-discovery/machine/1',
  )
  const queues = json.events.flatMap(({ activityTaskScheduledEventAttributes: of }: any) =>
    of?.activityType.name === 'discoverConnection' ? [of.taskQueue.name] : [],
  )
  expect(queues).toEqual([expect.stringMatching(new RegExp(`.@${hostname()}$`))])
})

test('the checks of a local connection are at the host that it was discovered at', async () => {
  const monitor = workflowOf('connection-monitor', 'machine')
  const at = new RegExp(`.@${hostname()}/monitors$`)
  await until('a check at its host', 120, async () => {
    await monitor.signal('wake')
    const { events = [] } = await monitor.fetchHistory()
    return (events ?? []).some(
      ({ activityTaskScheduledEventAttributes: of }) =>
        of?.activityType?.name === 'checkConnection' && at.test(of.taskQueue?.name ?? ''),
    )
  })
  const [newest] = await service.get('/environment-connections/machine/history/?limit=1')
  expect(newest.status).toBe('online')
})

test('Request Cancellation of an index run cancels the record', async () => {
  await cancelled(index, await working(index))
})

test.each([
  ['copy', () => copy],
  ['command', command],
])('a %s goes on after Terminate, and Request Cancellation cancels it', async (_, kind) => {
  const one = kind()
  const id = await working(one)
  await startedAgain(one, id)
  await until('its work again', 120, async () => one.works(await one.read(id)))
  await cancelled(one, id)
})

test('the command was adopted, not started again, and has ended', async () => {
  const pids = readFileSync(join(opened.root, 'pids'), 'utf8').trim().split('\n')
  expect(pids).toHaveLength(1)
  await until('the end of the command', 120, () => !existsSync(`/proc/${String(pids[0])}`))
})

test('nothing of the copy is left at its destination', () =>
  until(
    'the removal of what it left',
    120,
    () => !readdirSync(opened.root).some((name) => /orrery-|copied/.test(name)),
  ))

const small = { path: 'folder/one', destinationStorageId: 'files', destinationPath: 'small' }
test.each<[kind: string, path: string, body: object | undefined]>([
  ['storage-download', '/storages/files/copies/', small],
  ['storage-index', '/storages/files/index-runs/', {}],
  ['console-command', '/console-commands/', { resourceId: 'here', command: 'true' }],
  ['build-run', '/artifact-builds/image/runs/?fresh=true', undefined],
])('the history of a %s replays', async (kind, path, body) => {
  const { body: record } = await service.call('POST', path, body, { prefer: 'respond-async' })
  expect(record.error).toBeUndefined()
  await until('its workflow', 120, () =>
    workflowOf(kind, record.id)
      .describe()
      .then(
        () => true,
        () => false,
      ),
  )
  await replayed({ connection: temporal, namespace: service.namespace }, kind, `${kind}/${record.id}/1`)
})

test('the history of a removal that was left to go on replays', async () => {
  const server = { connection: temporal, namespace: service.namespace }
  const other = { ...small, destinationPath: 'other' }
  const { body: record } = await service.call('POST', '/storages/files/copies/', other)
  const ended = workflowOf('storage-download', record.id)
  await until('the end of the copy', 120, () => ended.result().then(() => true))
  const { events } = await historyOf(server, ended.workflowId)
  const places = events.map((event: any) => event.activityTaskScheduledEventAttributes?.taskQueue?.name)
  const { taskQueue } = await ended.describe()
  const place = places.findLast((name) => name !== undefined)
  const workflowId = ended.workflowId.replace('download', 'tidy')
  await new Client({ connection: temporal, namespace: service.namespace }).workflow.start('storageTidy', {
    ...{ taskQueue, workflowId },
    args: [record.id, 1, place],
  })
  await replayed(server, 'storage-tidy', workflowId)
})

test('the state of a workflow that is closed is not live', async () => {
  const { body: record } = await service.call('POST', '/storages/files/copies/', {
    ...small,
    destinationPath: 'third',
  })
  const closed = workflowOf('storage-download', record.id)
  await until('the end of the copy', 120, () => closed.result().then(() => true))
  // Temporal would still tell the last state.
  expect(await closed.query('live')).toHaveProperty('phase')
  await using engine = openEngine({
    ...{ address: temporalAddress(), namespace: service.namespace, taskQueue: 'none' },
    dataConverter: {},
  })
  const kind = durableKinds.find(({ name }) => name === 'storage-download')
  expect(await engine.live(kind!, record.id)).toBeUndefined()
})

test('an engine that is closed asks nothing more', async () => {
  const engine = openEngine({
    ...{ address: temporalAddress(), namespace: service.namespace, taskQueue: 'none' },
    dataConverter: {},
  })
  const kind = durableKinds.find(({ name }) => name === 'storage-download')
  expect(await engine.standing(kind!, 'nobody', 1)).toEqual({ state: 'missing' })
  await engine[Symbol.asyncDispose]()
  await expect(engine.standing(kind!, 'nobody', 1)).rejects.toThrow('the connection to Temporal is closed')
  await expect(engine.removeWorkflows('2020-01-01T00:00:00Z')).rejects.toThrow('is closed')
})

proved('GET /events/ has the events of each kind under its topic', async () => {
  const topics = ['storage-download', 'storage-index', 'console-command', 'build-run']
  const read = async (topic: string): Promise<any[]> =>
    (await service.get(`/events/?after=0&topic=${topic}`)).items
  for (const topic of topics) {
    const items = await until(`events of ${topic}`, 120, async () => {
      const found = await read(topic)
      return found.length > 1 ? found : undefined
    })
    expect([topic, [...new Set(items.map(({ kind }) => kind))]]).toEqual([topic, [topic]])
    for (const { operationId, event } of items) {
      expect(await stateOf(topic, operationId)).toBeDefined()
      expect(event.occurredAt).toMatch(/Z$/)
    }
  }
  await service.ok('PUT', '/environment-connections/gone/', {
    ...{
      id: 'gone',
      name: 'gone',
      environmentId: 'clouds',
      type: 'kubernetes',
      endpoint: 'https://cluster.invalid',
    },
  })
  await service.call('POST', '/environment-connections/gone/discover/')
  for (const topic of ['connection-discovery', 'connection'])
    await until(`events of ${topic}`, 120, async () => (await read(topic)).length > 0)
  const both = await read('connection-discovery,storage-index')
  expect(new Set(both.map(({ kind }) => kind))).toEqual(new Set(['connection-discovery', 'storage-index']))
})
