import { afterAll, beforeAll, expect, test } from '@jest/globals'
import type { Payload } from '@temporalio/common'
import { chmodSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { openAdmin, type Admin } from '../../src/programs/admin.ts'
import { recordAudit } from '../../src/domains/audit-events/store.ts'
import { openMetrics } from '../../src/observability/metrics.ts'
import {
  codecPrefix,
  ensureCodecKey,
  pageOrigins,
  temporalCodec,
  type PayloadAccess,
} from '../../src/temporal-codec.ts'
import { ensureKeyFile, makeKey, openVaultKeys, replaceKeys } from '../../src/vault/keys.ts'
import { payloadCodec } from '../../src/vault/payload-codec.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'
import { runFolder } from '../support/run-folder.ts'

type Json = any

const page = 'http://localhost:8233'
let folder: string
let database: TestDatabase
let key: string
let admin: Admin
let access: PayloadAccess | undefined
beforeAll(async () => {
  folder = mkdtempSync(join(runFolder(), 'orrery-codec-'))
  await ensureKeyFile(join(folder, 'vault.key'))
  database = await cloneDatabase()
  key = await ensureCodecKey(join(folder, 'codec.key'))
  access = {
    codec: payloadCodec(await openVaultKeys(join(folder, 'vault.key'))),
    audit: (event) => recordAudit(database.db, event),
  }
  admin = await openAdmin({
    address: { host: '127.0.0.1', port: 0 },
    metrics: openMetrics(undefined),
    checks: () => ({}),
    beside: {
      prefix: codecPrefix,
      answer: temporalCodec({ key, origins: () => [page, 'http://127.0.0.1:8233'], access: () => access }),
    },
  })
})
afterAll(async () => {
  await admin?.close()
  await database?.drop()
  rmSync(folder, { recursive: true, force: true })
})

const base64 = (bytes: Uint8Array | string): string => Buffer.from(bytes).toString('base64')
/** As Temporal's HTTP API writes payloads, and its page sends them on. */
const written = (payloads: readonly Payload[]): string =>
  JSON.stringify({
    payloads: payloads.map(({ metadata, data }) => ({
      metadata: Object.fromEntries(
        Object.entries(metadata ?? {}).map(([name, value]) => [name, base64(value)]),
      ),
      data: base64(data ?? ''),
    })),
  })
const plain = (text: string): Payload => ({
  metadata: { encoding: Buffer.from('json/plain') },
  data: Buffer.from(JSON.stringify(text)),
})
const sealed = async (...texts: string[]): Promise<string> =>
  written(await (access as PayloadAccess).codec.encode(texts.map(plain)))
const ask = async (
  body: string | undefined,
  {
    verb = 'decode',
    origin = page,
    as = key,
    method = 'POST',
    type = 'application/json',
  }: Record<string, string | undefined> = {},
): Promise<{ status: number; headers: Headers; text: string; body: Json }> => {
  const answer = await fetch(`${admin.url}${codecPrefix}${String(as)}/${String(verb)}`, {
    method: String(method),
    ...(body === undefined ? {} : { body }),
    headers: {
      'content-type': String(type),
      'x-namespace': 'default',
      ...(origin === 'none' ? {} : { origin: String(origin) }),
    },
  })
  const text = await answer.text()
  return {
    status: answer.status,
    headers: answer.headers,
    text,
    body: text === '' ? undefined : JSON.parse(text),
  }
}
const textsOf = (answer: Json): string[] =>
  answer.payloads.map(({ data }: Json) => JSON.parse(Buffer.from(data, 'base64').toString()))

test('what the page sends is decoded, and encoded, for the page alone', async () => {
  const decoded = await ask(await sealed('one', 'two'))
  expect([decoded.status, textsOf(decoded.body)]).toEqual([200, ['one', 'two']])
  expect(decoded.headers.get('access-control-allow-origin')).toBe(page)
  expect(decoded.headers.get('vary')).toBe('Origin')
  expect(decoded.headers.get('cache-control')).toBe('no-store')
  const encoded = await ask(written([plain('three')]), { verb: 'encode' })
  expect(encoded.text).not.toContain(base64(JSON.stringify('three')))
  expect(textsOf((await ask(encoded.text)).body)).toEqual(['three'])
  // Payloads of before there was a key, and programs that are no browsers.
  expect(textsOf((await ask(written([plain('plain')]), { origin: 'none' })).body)).toEqual(['plain'])

  const preflight = await ask(undefined, { method: 'OPTIONS' })
  expect([preflight.status, preflight.text]).toEqual([204, ''])
  expect(preflight.headers.get('access-control-allow-origin')).toBe(page)
  expect(preflight.headers.get('access-control-allow-headers')?.toLowerCase()).toContain('x-namespace')
  expect(pageOrigins('http://127.0.0.1:40123')).toEqual(['http://127.0.0.1:40123', 'http://localhost:40123'])
  expect(pageOrigins(undefined)).toEqual([])
})

test('a foreign origin, a missing or wrong key, and another path get nothing', async () => {
  const body = await sealed('secret')
  for (const method of ['POST', 'OPTIONS'])
    for (const origin of ['http://evil.example', 'http://localhost:8234', 'https://localhost:8233', 'null']) {
      const answer = await ask(method === 'POST' ? body : undefined, { origin, method })
      expect([origin, answer.status, answer.headers.get('access-control-allow-origin')]).toEqual([
        origin,
        403,
        null,
      ])
      expect(answer.text).not.toContain('secret')
    }
  for (const as of ['', 'x', `${key}x`, key.slice(1), encodeURIComponent('../livez')])
    expect([as, (await ask(body, { as })).status]).toEqual([as, 404])
  for (const verb of ['', 'download', 'decode/', 'decode/more', 'DECODE'])
    expect([verb, (await ask(body, { verb })).status]).toEqual([verb, 404])
  for (const method of ['GET', 'PUT', 'DELETE'])
    expect([method, (await ask(method === 'GET' ? undefined : body, { method })).status]).toEqual([
      method,
      405,
    ])
  expect((await fetch(`${admin.url}/livez`)).status).toBe(200)
})

test('payloads of other keys, changed ones, garbage and too much are refused with a sentence', async () => {
  const other = join(folder, 'other.key')
  await ensureKeyFile(other)
  const foreign = written(await payloadCodec(await openVaultKeys(other)).encode([plain('foreign')]))
  const changed = JSON.parse(await sealed('changed'))
  const bytes = Buffer.from(changed.payloads[0].data, 'base64')
  bytes[40] = (bytes[40] as number) ^ 1
  changed.payloads[0].data = bytes.toString('base64')
  const short = JSON.parse(await sealed('short'))
  short.payloads[0].data = base64('x')
  for (const [status, body, type] of [
    [422, foreign],
    [422, JSON.stringify(changed)],
    [422, JSON.stringify(short)],
    [400, 'no json'],
    [400, ''],
    [400, '[]'],
    [400, '{}'],
    [400, '{"payloads":[{"data":"no base64!"}]}'],
    [400, '{"payloads":[{"metadata":{"encoding":7}}]}'],
    [400, JSON.stringify({ payloads: Array.from({ length: 10_001 }, () => ({})) })],
    [415, await sealed('typed'), 'text/plain'],
    [413, `{"payloads":[{"data":"${'A'.repeat(10 * 1_048_576)}"}]}`],
  ] as const) {
    const answer = await ask(body, type === undefined ? {} : { type })
    expect([body.slice(0, 60), answer.status, Object.keys(answer.body)]).toEqual([
      body.slice(0, 60),
      status,
      ['error'],
    ])
    expect(answer.text).not.toMatch(/vault\.key|\/tmp|[0-9a-f]{16}|at .*\.ts/)
  }
  // The listener answers on.
  expect((await ask(await sealed('after'))).status).toBe(200)
})

test('payloads of a rotated key stay readable; while the service starts or stops it says so', async () => {
  const before = await sealed('before')
  const keys = await openVaultKeys(join(folder, 'vault.key'))
  await replaceKeys(keys.file, [makeKey(), ...(await keys.all())])
  expect(textsOf((await ask(before)).body)).toEqual(['before'])
  const kept = access
  access = undefined
  expect((await ask(before)).status).toBe(503)
  access = kept
})

test('reads are one audit record a minute and origin; what cannot be recorded is not read', async () => {
  const fresh = temporalCodec({ key, origins: () => [page, 'http://127.0.0.1:8233'], access: () => access })
  const own = await openAdmin({
    address: { host: '127.0.0.1', port: 0 },
    metrics: openMetrics(undefined),
    checks: () => ({}),
    beside: { prefix: codecPrefix, answer: fresh },
  })
  const read = async (origin: string): Promise<number> =>
    (
      await fetch(`${own.url}${codecPrefix}${key}/decode`, {
        method: 'POST',
        body: await sealed('x'),
        headers: { 'content-type': 'application/json', origin },
      })
    ).status
  const rows = async (): Promise<Json[]> =>
    database.db.prepared(
      'codec_audit',
      `select actor_id, metadata from audit_events where event_type = 'workflow-payloads.read' order by sequence`,
      [],
    )
  try {
    const before = (await rows()).length
    const kept = access as PayloadAccess
    access = { ...kept, audit: () => Promise.reject(new Error('the database is away')) }
    expect(await read(page)).toBe(503)
    access = kept
    expect(await Promise.all(Array.from({ length: 20 }, () => read(page)))).toEqual(Array(20).fill(200))
    expect(await read('http://127.0.0.1:8233')).toBe(200)
    const added = (await rows()).slice(before)
    expect(added.map(({ metadata }) => metadata.origin).sort()).toEqual(['http://127.0.0.1:8233', page])
    expect(added[0].actor_id).toBe('temporal-page')
  } finally {
    await own.close()
  }
})

test('the key is made once, of 256 bits, for its owner alone; a file that others may read, or of something else, is refused', async () => {
  const file = join(folder, 'made.key')
  const made = await Promise.all(Array.from({ length: 8 }, () => ensureCodecKey(file)))
  expect(new Set(made).size).toBe(1)
  expect(made[0]).toMatch(/^[\w-]{43}$/)
  expect(statSync(file).mode & 0o777).toBe(0o600)
  expect(readFileSync(file, 'utf8')).toBe(`${String(made[0])}\n`)
  chmodSync(file, 0o640)
  await expect(ensureCodecKey(file)).rejects.toThrow(/may be read by others: chmod 600/)
  writeFileSync(join(folder, 'bad.key'), 'short\n', { mode: 0o600 })
  await expect(ensureCodecKey(join(folder, 'bad.key'))).rejects.toThrow(
    /holds no key of Temporal's page: remove it/,
  )
})
