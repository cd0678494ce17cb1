import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { Client, Connection } from '@temporalio/client'
import { historyToJSON } from '@temporalio/common/lib/proto-utils.js'
import { Worker } from '@temporalio/worker'
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmdirSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { ensureKeyFile, makeKey, openVaultKeys, replaceKeys } from '../../src/vault/keys.ts'
import { payloadCodec } from '../../src/vault/payload-codec.ts'
import { until } from '../failures/programs.ts'
import { openService, temporalAddress, type TestService } from '../support/service.ts'
import { makeWorld } from '../support/worlds.ts'
import { runFolder } from '../support/run-folder.ts'
import { proved } from '../support/share.ts'
import { workflowBundle } from '../support/workflow-bundle.ts'

let folder: string
let file: string
let service: TestService
let bundle: { codePath: string }
let connection: Connection
beforeAll(async () => {
  folder = mkdtempSync(join(runFolder(), 'orrery-histories-'))
  file = join(folder, 'vault.key')
  await ensureKeyFile(file)
  service = await openService({ environment: { SERVICE_VAULT_KEY_FILE: file } })
  bundle = await workflowBundle()
  connection = await Connection.connect({ address: temporalAddress() })
})
afterAll(async () => {
  await connection?.close()
  await service?.[Symbol.asyncDispose]()
  rmSync(folder, { recursive: true, force: true })
})

const payloadsOf = (value: any): any[] =>
  typeof value !== 'object' || value === null
    ? []
    : typeof value.data === 'string' && value.metadata !== undefined
      ? [value]
      : Object.values(value).flatMap(payloadsOf)
/**
 * Payloads that Temporal itself writes and reads stay plain: search attributes, names of patches,
 * and of local activities their type, their times and a number.
 */
const own = new Set(['searchAttributes', 'patch-data'])
const kept = (event: any): any =>
  JSON.parse(
    JSON.stringify(event, (name, value) => {
      if (name !== 'markerRecordedEventAttributes' || value.markerName !== 'core_local_activity')
        return own.has(name) ? undefined : value
      const { data, ...details } = value.details
      const known = JSON.parse(Buffer.from(data.payloads[0].data, 'base64').toString())
      expect(Object.keys(known).sort()).toEqual([
        'activity_id',
        'activity_type',
        'attempt',
        'backoff',
        'complete_time',
        'original_schedule_time',
        'seq',
      ])
      return { ...value, details }
    }),
  )

test('with a vault key, histories hold only encrypted payloads; over a rotation the runs go on, and all replay', async () => {
  const world = await makeWorld(service, {
    name: 'hidden',
    launch: 'none',
    tasks: [{ name: 'a' }, { name: 'b', after: ['a'] }],
  })
  await service.post('/execution-runs/', { id: 'before', schedulePlanId: world.planId, mode: 'real' })
  expect((await service.finished('before')).run.status).toBe('completed')
  const keys = await openVaultKeys(file)
  await replaceKeys(file, [makeKey(), ...(await keys.all())])
  await service.post('/execution-runs/', { id: 'after', schedulePlanId: world.planId, mode: 'real' })
  expect((await service.finished('after')).run.status).toBe('completed')

  const dataConverter = { payloadCodecs: [payloadCodec(keys)] }
  const client = new Client({ connection, namespace: service.namespace, dataConverter })
  const used = new Set<string>()
  for (const id of ['before', 'after']) {
    const workflowId = `execution-run/${id}/1`
    await client.workflow.getHandle(workflowId).result()
    const json = JSON.parse(historyToJSON(await client.workflow.getHandle(workflowId).fetchHistory()))
    const payloads = payloadsOf(kept(json))
    expect(payloads.length).toBeGreaterThan(2)
    for (const { metadata } of payloads) {
      expect(Buffer.from(metadata.encoding, 'base64').toString()).toBe('binary/encrypted')
      used.add(Buffer.from(metadata['encryption-key-id'], 'base64').toString())
    }
    await Worker.runReplayHistory({ workflowBundle: bundle, dataConverter }, json, workflowId)
  }
  expect([...used].sort()).toEqual((await keys.all()).map(({ id }) => id).sort())
  // People still find a record's workflow by its id.
  const found: string[] = []
  await until('the workflow by its id', 120, async () => {
    for await (const one of client.workflow.list({ query: 'RecordId = "after"' })) found.push(one.workflowId)
    return found.length > 0
  })
  expect(found).toEqual(['execution-run/after/1'])
})

test('while the key file cannot be read, the workers go on and requests say how to mend it', async () => {
  const go = join(folder, 'go')
  const world = await makeWorld(service, {
    name: 'unread',
    tasks: [
      { name: 'a', run: `until [ -e ${go} ]; do sleep 0.1; done` },
      { name: 'b', after: ['a'] },
    ],
  })
  await service.post('/execution-runs/', { id: 'unread', schedulePlanId: world.planId, mode: 'real' })
  await until('the task runs', 120, async () => {
    const { activities } = await service.get('/execution-runs/unread/')
    return activities.some(({ status }: any) => status === 'running')
  })
  renameSync(file, `${file}.away`)
  mkdirSync(file)
  try {
    const refused = await service.call('POST', '/kubernetes-tokens/', { id: 'unread', token: 'x' })
    expect(refused).toMatchObject({
      status: 503,
      body: {
        code: 'unavailable',
        error: expect.stringContaining(`${file} (SERVICE_VAULT_KEY_FILE) is not a file`),
      },
    })
    expect(refused.headers.get('retry-after')).toBe('30')
    writeFileSync(go, '')
    expect((await service.finished('unread')).run.status).toBe('completed')
    const dataConverter = { payloadCodecs: [payloadCodec(await openVaultKeys(`${file}.away`))] }
    const client = new Client({ connection, namespace: service.namespace, dataConverter })
    await client.workflow.getHandle('execution-run/unread/1').result()
  } finally {
    rmdirSync(file)
    renameSync(`${file}.away`, file)
  }
  expect(await service.call('POST', '/kubernetes-tokens/', { id: 'unread', token: 'x' })).toMatchObject({
    status: 201,
  })
})

proved('histories from before there was a key replay with one', async () => {
  const dataConverter = { payloadCodecs: [payloadCodec(await openVaultKeys(file))] }
  const recorded = join(import.meta.dirname, '../workflows/histories')
  const files = readdirSync(recorded).filter((name) => name.endsWith('.json'))
  expect(files.length).toBeGreaterThan(0)
  for (const name of files)
    await Worker.runReplayHistory(
      { workflowBundle: bundle, dataConverter },
      JSON.parse(readFileSync(join(recorded, name), 'utf8')),
      name,
    )
})
