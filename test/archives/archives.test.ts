import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { createHash, randomBytes } from 'node:crypto'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { request } from 'node:http'
import { dirname, join } from 'node:path'
import { PassThrough, Readable } from 'node:stream'
import { Connection } from '@temporalio/client'
import { TextReader, Uint8ArrayWriter, ZipWriter } from '@zip.js/zip.js'
import { fromBufferPromise } from 'yauzl'
import { recordRun } from '../../bench/provenance/rows.ts'
import { migrate } from '../../src/db/migrate.ts'
import { openSelected } from '../../src/db/selected.ts'
import { sql } from '../../src/db/sql.ts'
import { terminalsTable } from '../../src/domains/console/sessions.ts'
import { importInstance } from '../../src/domains/instance/archives/import.ts'
import { openSelection } from '../../src/domains/instance/archives/selection.ts'
import { finishResets } from '../../src/domains/instance/archives/reset.ts'
import { until } from '../failures/programs.ts'
import { makeVaultKeyFile } from '../support/reach.ts'
import { openService, temporalAddress, type TestService } from '../support/service.ts'
import { proved, runsOf } from '../support/share.ts'
import { tableCounts } from '../support/table-counts.ts'
import { forged, isUnread, mutated, numbersOf, ofEmptyFiles } from './zip-forms.ts'

let service: TestService
const canaries = Array.from(
  { length: 32 },
  (_, at) => `cnry${String(at)}+/"é ${randomBytes(9).toString('hex')}`,
)
beforeAll(async () => {
  service = await openService({ environment: { SERVICE_VAULT_KEY_FILE: makeVaultKeyFile() } })
  for (const [at, token] of canaries.entries()) {
    // Tokens are plain; half of them have what each kind of escaping changes.
    canaries[at] = at % 2 === 0 ? token.replaceAll(/[^\w]/g, 'x') : token.replaceAll(/["é ]/g, '~')
    await service.ok('POST', '/kubernetes-tokens/', { id: `t-${String(at)}`, token: canaries[at] })
  }
  for (const [at, token] of [...canaries].entries()) {
    const forms = [
      token,
      encodeURIComponent(token),
      Buffer.from(token).toString('base64'),
      Buffer.from(`user:${token}`).toString('base64'),
      JSON.stringify({ token }),
    ]
    await service.ok('PUT', `/user-preferences/client-${String(at)}-ok/`, { theme: 'dark' })
    const client = await service.db.client()
    await client.query('insert into environments (id, name, description) values ($1, $3, $2)', [
      `e-${String(at)}`,
      `leaked ${forms.join(' and ')} end`,
      `e-${String(at)}`,
    ])
    client.release()
  }
  await leakEverywhere()
})

/** Writes every canary in several forms into logs, the audit, environments of tasks and free texts. */
const leakEverywhere = async (): Promise<void> => {
  const { db } = service
  await recordRun(db, { name: 'leaky', activities: 1, edges: [] })
  const text = canaries
    .flatMap((token) => [token, encodeURIComponent(token), Buffer.from(token).toString('base64')])
    .join(' | ')
  const json = JSON.stringify(
    Object.fromEntries(canaries.map((token, at) => [`v${String(at)}`, `of ${token}`])),
  )
  await db.run(
    sql`update execution_runs set failure_reason = ${text}, title = ${text} where id = 'leaky-run'`,
  )
  await db.run(
    sql`update activity_definitions set command_spec = ${JSON.stringify({
      entrypoint: 'true',
      environment: JSON.parse(json) as object,
      arguments: [text],
    })} where workflow_version_id = 'leaky-v1'`,
  )
  await db.run(sql`update task_executions set failure_reason = ${text} where execution_run_id = 'leaky-run'`)
  await db.run(sql`update operation_events set payload = ${json} where operation_id = 'leaky-run'`)
  await db.run(sql`insert into audit_events (id, event_type, outcome, summary, metadata)
    values ('audit-leak', 'leak', 'failed', ${text}, ${json})`)
  await db.run(sql`insert into console_commands (id, status, resource_id, runtime_id, command, timeout_seconds,
      place, environment, stdout)
    values ('leak', 'completed', 'r', 'r', ${text}, 1, '{}', ${json}, convert_to(${text}, 'UTF8'))`)
  await db.run(sql`insert into artifact_versions (id, artifact_id, name, version, scope)
    values ('tool:1', 'tool', 'Tool', '1', 'system')`)
  await db.run(sql`insert into artifact_builds (id, artifact_version_id, source_type, context_digest,
      recipe_digest, target_format, target_os, target_architecture, cache_key, build_arguments)
    values ('b', 'tool:1', 'dockerfile', 'sha256:0', 'sha256:0', 'sif', 'linux', 'amd64', 'b', ${json})`)
  await db.run(sql`insert into build_runs (id, artifact_build_id, status, host_id, logs)
    values ('br', 'b', 'failed', 'here', ${text})`)
}
afterAll(() => service[Symbol.asyncDispose]())

const download = async (search = ''): Promise<Buffer> => {
  const answer = await fetch(`${service.baseUrl}/instances/default/export/${search}`)
  expect([answer.status, answer.headers.get('content-type')]).toEqual([200, 'application/zip'])
  expect(answer.headers.get('content-disposition')).toMatch(/^attachment; filename="[\w.-]+-instance\.zip"$/)
  return Buffer.from(await answer.arrayBuffer())
}
const upload = async (body: Buffer, type = 'application/zip') => {
  const answer = await fetch(`${service.baseUrl}/instances/import/`, {
    method: 'POST',
    headers: { 'content-type': type },
    body: new Uint8Array(body),
  })
  return { status: answer.status, body: (await answer.json()) as any }
}
const unpacked = async (zip: Buffer): Promise<Record<string, string>> => {
  const file = await fromBufferPromise(zip, { lazyEntries: true })
  const texts: Record<string, string> = {}
  for await (const entry of file.eachEntry()) {
    const chunks: Buffer[] = []
    for await (const chunk of await file.openReadStreamPromise(entry)) chunks.push(chunk as Buffer)
    texts[entry.fileName] = Buffer.concat(chunks).toString('utf8')
  }
  return texts
}
const manifestOf = (texts: Record<string, string>): any => JSON.parse(texts['manifest.json'] ?? '')
const schemas = async (): Promise<string[]> => {
  const client = await service.db.client()
  const { rows } = await client.query(
    `select nspname from pg_namespace where nspname like 'archive%' order by 1`,
  )
  client.release()
  return rows.map(({ nspname }) => nspname)
}

test('an export holds every table, its manifest last, and no secret in any form', async () => {
  const { createdAt: _, updatedAt: __, ...identity } = await service.get('/instance/')
  const [id = '', name = '', description = ''] = canaries
  await service.ok('PUT', '/instance/', {
    id: `lab-${id}`,
    name: `of ${name}`,
    description: `${description}.`,
  })
  const zip = await fetch(`${service.baseUrl}/instances/default/export/`)
  expect(zip.headers.get('content-disposition')).not.toContain(id)
  const texts = await unpacked(Buffer.from(await zip.arrayBuffer()))
  await service.ok('PUT', '/instance/', identity)
  expect(Object.keys(texts)).toEqual(['database/instance.ndjson', 'manifest.json'])
  expect(manifestOf(texts).instance).toMatchObject({
    ...{ id: 'lab-[redacted]', name: 'of [redacted]', description: '[redacted].' },
  })
  const rows = texts['database/instance.ndjson'] ?? ''
  const left = canaries.filter((token) =>
    [
      token,
      encodeURIComponent(token),
      Buffer.from(token).toString('base64').slice(0, -4),
      Buffer.from(`user:${token}`).toString('base64').slice(8, -4),
    ].some((form) => rows.includes(form)),
  )
  expect(left).toEqual([])
  // The output of a console command is bytes, written in hexadecimal.
  const hex = (text: string): string => Buffer.from(text).toString('hex')
  const inBytes = canaries.filter((token) =>
    [
      hex(token),
      hex(encodeURIComponent(token)),
      hex(Buffer.from(token).toString('base64').slice(0, -4)),
    ].some((form) => rows.includes(form)),
  )
  expect(inBytes).toEqual([])
  for (const table of ['execution_runs', 'activity_definitions', 'task_executions', 'operation_events'])
    expect(manifestOf(texts).redacted.places).toContainEqual(expect.objectContaining({ table }))
  for (const table of ['audit_events', 'console_commands', 'build_runs', 'artifact_builds'])
    expect(manifestOf(texts).redacted.places).toContainEqual(expect.objectContaining({ table }))
  expect(rows).not.toContain('vault:kubernetes-token')
  const manifest = JSON.parse(texts['manifest.json'] ?? '')
  expect(manifest.redacted.values).toBeGreaterThanOrEqual(32)
  expect(manifest.redacted.places).toContainEqual({ table: 'environments', id: 'e-3', column: 'description' })
  // A row is named by all of its key.
  for (const place of [
    { table: 'operation_events', id: 'execution-run/leaky-run/1', column: 'payload' },
    { table: 'task_executions', id: 'leaky-run:leaky-a0', column: 'failure_reason' },
    { table: 'activity_definitions', id: 'leaky-v1/0', column: 'command_spec' },
  ])
    expect(manifest.redacted.places).toContainEqual(place)
  expect(manifest.redacted.places.filter(({ id }: { id: string }) => id === '')).toEqual([])
  expect(manifest.contents.environments).toBe(33)
  expect(rows).toContain('"table":"user_preferences"')
  for (const table of ['credentials', 'idempotency_keys', 'console_records', 'site_leases'])
    expect(rows).not.toContain(`"table":"${table}"`)
})

test('ids in the form of a reference outlive an export and its import; references of the vault are counted', async () => {
  const description = 'image registry.example.org/env:latest of file:/scratch/in.fits'
  const ids = ['env:lab', 'env:cloud']
  for (const id of ids)
    await service.ok('POST', '/environments/', {
      environment: { id, name: id, description: `${description} by vault:ssh-key/mine` },
      version: { id: `${id}-v`, version: 1 },
    })
  const zip = await download()
  const texts = await unpacked(zip)
  const rows = texts['database/instance.ndjson'] ?? ''
  for (const id of ids) expect(rows).toContain(`"id":"${id}"`)
  expect(rows).toContain(`${description} by [redacted]`)
  expect(manifestOf(texts).redacted.references).toEqual(
    expect.arrayContaining([
      { table: 'environments', column: 'description', texts: 2 },
      { table: 'audit_events', column: 'resource_id', texts: expect.any(Number) },
    ]),
  )
  const imported = await upload(zip)
  expect([imported.status, imported.body.error]).toEqual([201, undefined])
  await service.ok('DELETE', `/instances/${String(imported.body.id)}/`)
  for (const id of ids) await service.ok('DELETE', `/environments/${encodeURIComponent(id)}/`)
})

test('an export imports again, is read while it is activated, and every change is refused then', async () => {
  const before = await tableCounts(service.db)
  const imported = await upload(await download())
  expect([imported.status, imported.body]).toMatchObject([
    201,
    { source: 'imported', status: 'snapshot', readOnly: true, credentialsSet: false },
  ])
  const { id } = imported.body
  expect(await tableCounts(service.db)).toEqual({
    ...before,
    instance_archives: (before['instance_archives'] ?? 0) + 1,
  })
  expect((await service.get('/instances/')).map((one: any) => one.id)).toEqual(['default', id])
  expect(await service.get(`/instances/${id}/`)).toEqual(imported.body)

  await service.ok('PUT', '/user-preferences/after-export/', { theme: 'light' })
  const activated = await service.call('POST', `/instance-activations/${id}/`)
  expect([activated.status, activated.body]).toMatchObject([
    202,
    { restarting: false, instance: { id, status: 'active' } },
  ])
  const missing = await service.call('GET', '/user-preferences/after-export/')
  expect([missing.status, missing.headers.get('orrery-instance')]).toEqual([404, id])
  expect(await service.get('/user-preferences/client-3-ok/')).toMatchObject({ theme: 'dark' })
  expect((await service.call('GET', '/search/?q=e-3')).status).toBe(200)
  // What an archive does not hold is said, and nothing is written for it; what it holds is read.
  for (const [path, isHeld] of [
    ['/attestation-key/', false],
    ['/build-runs/br/attestation/', false],
    ['/build-runs/br/logs/', false],
    ['/storages/none/entries/', false],
    ['/storages/none/index-runs/', true],
    ['/storages/none/index/', true],
    ['/storages/none/downloads/', true],
  ] as const) {
    const answer = await service.call('GET', path)
    const isSaid = answer.text.includes('not in this archive')
    expect([path, answer.status, isSaid]).toEqual([path, 404, !isHeld])
  }
  const entities = await service.call('GET', '/provenance/entities/environments/')
  expect([entities.status, entities.body.items?.length ?? entities.body.length]).toEqual([200, 33])

  const paths: Record<string, Record<string, unknown>> = (
    (await (await fetch(`${service.rootUrl}/openapi.json`)).json()) as any
  ).paths
  let refused = 0
  for (const [path, item] of Object.entries(paths))
    for (const method of Object.keys(item).filter((one) => ['post', 'put', 'delete'].includes(one))) {
      // These two only read, though their statement comes in a body.
      if (path === '/instance-activations/{instanceId}/' || path.startsWith('/provenance/sql/')) continue
      const answer = await service.call(method.toUpperCase(), path.replaceAll(/\{\w+\}/g, 'no-such'), {})
      expect([method, path, answer.status]).toEqual([method, path, 423])
      refused += 1
    }
  expect(refused).toBeGreaterThan(60)
  const ask = (statement: string) =>
    service.call('POST', '/provenance/sql/', { statement }, { 'Idempotency-Key': 'archived-sql' })
  expect((await ask('select count(*) as n from environments')).body).toEqual([{ n: 33 }])
  expect(
    (await service.call('POST', '/provenance/sql/explain/', { statement: 'select id from runs' })).status,
  ).toBe(200)
  expect((await service.call('POST', `/instance-activations/${id}/`)).status).toBe(202)
  expect((await service.call('POST', '/instance-activations/no-such/')).status).toBe(404)
  // An export is that of the default instance, and without its secrets, whatever is activated.
  const during = (await unpacked(await download()))['database/instance.ndjson'] ?? ''
  expect(during).toContain('after-export')
  expect(canaries.filter((token) => during.includes(token))).toEqual([])

  expect((await service.call('POST', '/instance-activations/default/')).body).toMatchObject({
    instance: { id: 'default', status: 'active', readOnly: false },
  })
  expect(await service.get('/user-preferences/after-export/')).toMatchObject({ theme: 'light' })
  expect(await schemas()).toHaveLength(2)
  expect((await service.call('DELETE', `/instances/${id}/`)).status).toBe(204)
  expect(await schemas()).toEqual([])
  expect((await service.call('GET', `/instances/${id}/`)).status).toBe(404)
  expect((await service.call('DELETE', '/instances/default/')).status).toBe(409)
})

/** A ZIP file of these entries, as hostile as they ask for. */
const zipOf = async (entries: readonly { name: string; text: string; mode?: number }[]): Promise<Buffer> => {
  const zip = new ZipWriter(new Uint8ArrayWriter(), { useWebWorkers: false, extendedTimestamp: false })
  for (const { name, text, mode = 0o100644 } of entries)
    await zip.add(name.replaceAll('..', '__'), new TextReader(text), {
      unixMode: mode,
      dataDescriptor: false,
    })
  const bytes = Buffer.from(await zip.close())
  for (const { name } of entries.filter((entry) => entry.name.includes('..'))) {
    const safe = Buffer.from(name.replaceAll('..', '__'))
    for (let at = bytes.indexOf(safe); at >= 0; at = bytes.indexOf(safe, at + 1)) bytes.write(name, at)
  }
  return bytes
}

/** With bytes that no entry has between the last one and the directory, whose place is corrected. */
const hidden = (zip: Buffer): Buffer => {
  const directory = zip.readUInt32LE(zip.length - 6)
  const bytes = Buffer.concat([zip.subarray(0, directory), randomBytes(100), zip.subarray(directory)])
  bytes.writeUInt32LE(directory + 100, bytes.length - 6)
  return bytes
}

/** The status of an upload that states its size and sends none of its bytes. */
const statusOfSize = (bytes: number): Promise<number | undefined> =>
  new Promise((resolve, reject) => {
    const begun = request(`${service.baseUrl}/instances/import/`, {
      method: 'POST',
      headers: { 'content-type': 'application/zip', 'content-length': String(bytes) },
    })
    begun.once('response', (response) => {
      resolve(response.statusCode)
      begun.destroy()
    })
    begun.once('error', reject)
    begun.flushHeaders()
  })

test('a hostile archive is refused with a reason, and nothing of it is left', async () => {
  const honest = await download()
  const texts = await unpacked(honest)
  const database = texts['database/instance.ndjson'] ?? ''
  const manifest = JSON.parse(texts['manifest.json'] ?? '')
  const entry = (name: string, text: string, mode?: number) => ({
    name,
    text,
    ...(mode === undefined ? {} : { mode }),
  })
  const name = 'database/instance.ndjson'
  const artifact = `artifacts/sha256/${'a'.repeat(64)}`
  /** `renamed` is put in place of a name of equal length, which no writer would write. */
  const whole = async (
    { rows = database, more = {}, ...changes }: Record<string, any> = {},
    extra: { name: string; text: string; mode?: number }[] = [],
    renamed?: [string, string],
  ) => {
    const bytes = await zipOf([
      entry(name, rows),
      ...extra,
      entry(
        'manifest.json',
        JSON.stringify({
          ...manifest,
          checksums: { [name]: createHash('sha256').update(rows).digest('hex'), ...more },
          ...changes,
        }),
      ),
    ])
    if (renamed === undefined) return bytes
    return Buffer.from(bytes.toString('latin1').replaceAll(renamed[0], renamed[1]), 'latin1')
  }
  const renamed = database.replace('"table":"user_preferences"', '"table":"credentials"')
  const broken = database.replace('"theme":"dark"', '"theme":null')
  const counts = database.replace(/("table":"user_preferences".*"rows":)(\d+)/, '$131')
  const named = Array.from({ length: 20 }, (_, at) => `artifacts/sha256/${String(at).padStart(64, '0')}`)
  /** Each of its artifacts states in both of its headers that it has 4 GiB but for two bytes. */
  const huge = named.reduce(
    (zip, one) =>
      forged(zip, one, (b, { central, local }) => {
        b.writeUInt32LE(2 ** 32 - 2, central + 24)
        b.writeUInt32LE(2 ** 32 - 2, local + 22)
      }),
    await whole(
      {},
      named.map((one) => entry(one, 'x'.repeat(1_000))),
    ),
  )
  const cases: [string, Buffer, RegExp][] = [
    ['empty', Buffer.alloc(0), /no ZIP/],
    ['no ZIP', randomBytes(5_000), /no ZIP/],
    ['truncated', honest.subarray(0, honest.length - 100), /no ZIP/],
    ['trailing data', Buffer.concat([honest, randomBytes(50)]), /no ZIP/],
    ['zip-slip', await whole({}, [entry('../../../etc/x', 'x')]), /no ZIP|does not belong/],
    ['elsewhere', await whole({}, [entry('database/x', 'x')]), /does not belong/],
    [
      'absolute',
      await whole({}, [entry('__etc/passwd', 'x')], ['__etc/passwd', '//etc/passwd']),
      /no ZIP|does not belong/,
    ],
    ['drive', await whole({}, [entry('c__x', 'x')], ['c__x', 'c:/x']), /no ZIP|does not belong/],
    [
      'backslash',
      await whole({}, [entry('artifacts_x', 'x')], ['artifacts_x', 'artifacts\\x']),
      /no ZIP|does not belong/,
    ],
    [
      'NUL',
      await whole({}, [entry('manifest_json', 'x')], ['manifest_json', 'manifest\0json']),
      /no ZIP|does not belong/,
    ],
    [
      'folder',
      await whole({}, [entry('artifacts_', '')], ['artifacts_', 'artifacts/']),
      /no ZIP|does not belong/,
    ],
    ['nested', await whole({}, [entry('artifacts/sha256/inner.zip', 'PK')]), /does not belong/],
    ['device', await whole({}, [entry(artifact, 'x', 0o020644)]), /no regular file/],
    ['directory as file', await whole({}, [entry(artifact, 'x', 0o040755)]), /no regular file/],
    ['foreign artifact', await whole({}, [entry(artifact, 'x')]), /no checksum/],
    [
      'lying digest of an artifact',
      await whole({ more: { [artifact]: 'a'.repeat(64) } }, [entry(artifact, 'x')]),
      /checksum of/,
    ],
    [
      'encrypted',
      forged(honest, name, (b, { central, local }) => {
        b[central + 8]! |= 1
        b[local + 6]! |= 1
      }),
      /encrypted|no ZIP/,
    ],
    [
      'other method',
      forged(honest, name, (b, { central, local }) => {
        b[central + 10] = 12
        b[local + 8] = 12
      }),
      /method 12/,
    ],
    [
      'bad CRC',
      forged(honest, name, (b, { central }) => {
        b[central + 16]! ^= 1
      }),
      /differs from|disagree|sizes after/,
    ],
    [
      'lying size',
      forged(honest, name, (b, { central }) => {
        b.writeUInt32LE(5, central + 24)
      }),
      /differs from|disagree|sizes after/,
    ],
    [
      'lying packed size',
      forged(honest, name, (b, { central }) => {
        b.writeUInt32LE(5, central + 20)
      }),
      /differs from|disagree|sizes after/,
    ],
    [
      'another local name',
      forged(honest, name, (b, { local }) => {
        b.write('evil', local + 30)
      }),
      /differs from|disagree/,
    ],
    [
      'overlap',
      forged(honest, 'manifest.json', (b, { central, local }) => {
        b.copy(b, 0, local, local + 43)
        b.writeUInt32LE(0, central + 42)
      }),
      /overlap|local header|differs from|disagree|no entry/,
    ],
    ['hidden bytes', hidden(honest), /no ZIP|no local header|no entry/],
    ['symlink', await whole({}, [entry('artifacts/sha256/l', '/etc/passwd', 0o120777)]), /symbolic link/],
    ['SQLite', await whole({}, [entry('database/akoflow.sqlite', 'SQLite format 3')]), /SQLite/],
    [
      'duplicate',
      await whole({}, [entry('database/instance.ndjsox', database)], ['instance.ndjsox', 'instance.ndjson']),
      /twice/,
    ],
    ['case', await whole({}, [entry('Database/instance.ndjson', database)]), /does not belong/],
    ['entries', ofEmptyFiles(Array.from({ length: 10_002 }, (_, at) => `a${String(at)}`)), /entries/],
    ['bomb', await whole({ rows: ' '.repeat(50_000_000) }), /200 times/],
    ['digest', await whole({ checksums: { 'database/instance.ndjson': '0'.repeat(64) } }), /checksum/],
    ['no digest', await whole({ checksums: {} }), /no checksum/],
    ['product', await whole({ format: 'other' }), /format/],
    ['newer', await whole({ schemaVersion: 999_999 }), /knows up to/],
    ['unknown', await whole({ schemaVersion: 10 }), /no schema/],
    ['marker', await whole({ security: undefined }), /redaction marker/],
    ['contents', await whole({ contents: { ...manifest.contents, runs: 5 } }), /counts 5 runs/],
    ['table', await whole({ rows: renamed }), /no table of an archive/],
    ['constraint', await whole({ rows: broken }), /cannot be read|constraint|theme/],
    ['count', await whole({ rows: counts }), /valid JSON|none|rows/],
    ['no manifest', await zipOf([entry('database/instance.ndjson', database)]), /manifest/],
    ['long manifest', await whole({ padding: 'x'.repeat(2 ** 20) }), /more than 1 MiB/],
    ['unpacked', huge, /more than 64 GiB/],
  ]
  const before = await tableCounts(service.db)
  for (const [name, body, reason] of cases) {
    const answer = await upload(body)
    expect([name, answer.status, answer.body.error]).toEqual([name, 422, expect.stringMatching(reason)])
  }
  // One thing of an honest one changed at random: refused, or the change was in what nothing reads.
  const seed = 20_261_124
  const random = numbersOf(seed)
  const unread = isUnread(honest, [name, 'manifest.json'])
  for (let at = 0; at < runsOf(40, 200); at += 1) {
    const { bytes, place, how } = mutated(honest, random)
    const answer = await upload(bytes)
    if (answer.status === 201) await service.ok('DELETE', `/instances/${String(answer.body.id)}/`)
    if (answer.status === 201 && (bytes.equals(honest) || unread(bytes, place))) continue
    const told = [`seed ${String(seed)}, number ${String(at)}: ${how} at ${String(place)}`, answer.status]
    expect([...told, answer.body.error]).toEqual([told[0], 422, expect.stringMatching(/\w/)])
  }
  expect((await upload(honest, 'application/json')).status).toBe(415)
  expect(await statusOfSize(9 * 1024 ** 3)).toBe(422)
  expect(await tableCounts(service.db)).toEqual(before)
  expect(await schemas()).toEqual([])
  expect(readdirSync(join(service.dataDir, 'instances'))).toEqual([])
})

const imagePath = (hex: string): string => join(service.dataDir, 'artifacts', 'images', hex.slice(0, 2), hex)

/** Puts an image into the store of artifacts, with the records of its build. @returns its digest */
const put = async (id: string, bytes: Buffer): Promise<string> => {
  const hex = createHash('sha256').update(bytes).digest('hex')
  const path = imagePath(hex)
  mkdirSync(dirname(path), { recursive: true })
  writeFileSync(path, bytes)
  const { db } = service
  await db.run(sql`insert into artifact_variants (id, artifact_version_id, digest, format)
      values (${id}, 'tool:1', ${`sha256:${hex}`}, 'sif')`)
  await db.run(sql`insert into artifact_locations (id, variant_id, scope, endpoint_id, uri, digest, available)
      values (${id}, ${id}, 'system', 'store', ${`artifact://images/${hex}`}, ${`sha256:${hex}`}, true)`)
  await db.run(sql`insert into build_runs (id, artifact_build_id, status, host_id, output_digest)
      values (${id}, 'b', 'completed', 'here', ${`sha256:${hex}`})`)
  return hex
}

proved('the bytes of artifacts travel on wish, but for those in which a secret stands', async () => {
  const image = randomBytes(300_000)
  const hex = await put('clean', image)
  // The secret begins in one piece of what an export looks at, and ends in the next.
  const leaking = Buffer.concat([
    randomBytes(256 * 1024 - 5),
    Buffer.from(canaries[7] ?? ''),
    randomBytes(50),
  ])
  const withheld = await put('leaking', leaking)
  // Whoever makes an archive can write any text where a digest belongs.
  writeFileSync(join(service.dataDir, 'beside'), 'of this host')
  await service.db.run(sql`insert into build_runs (id, artifact_build_id, status, host_id, output_digest)
    values ('forged', 'b', 'completed', 'here', '../../../../beside')`)

  const entries = await unpacked(await download('?includeArtifacts=true'))
  expect(Object.keys(entries)).toEqual([
    'database/instance.ndjson',
    `artifacts/sha256/${hex}`,
    'manifest.json',
  ])
  expect(manifestOf(entries).redacted.artifacts).toEqual([`sha256:${withheld}`])
  const { id } = (await upload(await download('?includeArtifacts=true'))).body
  const without = (await upload(await download())).body.id
  const folder = join(service.dataDir, 'instances', String(id))
  expect(readFileSync(join(folder, 'artifacts', 'sha256', hex)).equals(image)).toBe(true)

  const output = () => fetch(`${service.baseUrl}/build-runs/clean/output/`)
  await service.ok('POST', `/instance-activations/${String(id)}/`)
  rmSync(imagePath(hex))
  const archived = await output()
  expect([archived.status, Buffer.from(await archived.arrayBuffer()).equals(image)]).toEqual([200, true])
  for (const other of ['leaking', 'forged'])
    expect((await service.call('GET', `/build-runs/${other}/output/`)).status).toBe(404)
  await service.ok('POST', `/instance-activations/${String(without)}/`)
  expect((await service.call('GET', '/build-runs/clean/output/')).status).toBe(404)
  await service.ok('POST', '/instance-activations/default/')
  expect((await service.call('GET', '/build-runs/clean/output/')).status).toBe(503)
  for (const one of [id, without]) await service.ok('DELETE', `/instances/${String(one)}/`)
  expect(readdirSync(join(service.dataDir, 'instances'))).toEqual([])
})

proved(
  'an image that leaves the store while it is exported arrives whole, one that shrinks breaks the answer off',
  async () => {
    const image = Buffer.alloc(64 * 1024 ** 2)
    const hex = await put('large', image)
    const emptied = () =>
      until(
        'an empty folder of exports',
        60,
        () => readdirSync(join(service.dataDir, 'instances')).length === 0,
      )
    /** An export whose answer has begun, and is longer than what the connection holds. */
    const begun = async () => {
      const answer = await fetch(`${service.baseUrl}/instances/default/export/?includeArtifacts=true`)
      expect(answer.status).toBe(200)
      return answer
    }

    const removed = await begun()
    rmSync(imagePath(hex))
    const whole = Buffer.from(await removed.arrayBuffer())
    expect(whole.length).toBe(Number(removed.headers.get('content-length')))
    await emptied()
    const { status, body } = await upload(whole)
    expect([status, body.error]).toEqual([201, undefined])
    await service.ok('DELETE', `/instances/${String(body.id)}/`)

    writeFileSync(imagePath(hex), image)
    const shrunk = await begun()
    truncateSync(imagePath(hex), 1_000)
    await expect(shrunk.arrayBuffer()).rejects.toThrow()
    await emptied()

    writeFileSync(imagePath(hex), image)
    const left = await begun()
    await left.body?.cancel()
    await emptied()
    rmSync(imagePath(hex))
  },
)

proved(
  'an archive that cannot be migrated keeps no service from its start, and is not activated',
  async () => {
    const [one, other] = [(await upload(await download())).body, (await upload(await download())).body]
    const client = await service.db.session()
    const { rows } = await client.query<{ schema: string }>(
      'select schema_name as schema from instance_archives where id = $1',
      [one.id],
    )
    const schema = `"${rows[0]?.schema ?? ''}"`
    // Its views are older, and a table that they read is gone.
    await client.query(`drop table ${schema}.execution_runs cascade`)
    await client.query(`update ${schema}.schema_definitions set hash = 'older'`)
    await client.end()
    expect((await migrate(service.db)).old).toEqual([{ id: one.id, error: expect.any(Error) }])
    const { status, body } = await service.call('POST', `/instance-activations/${String(one.id)}/`)
    expect([status, body.error]).toEqual([409, expect.stringMatching(/delete it and import it again/)])
    await service.ok('POST', `/instance-activations/${String(other.id)}/`)
    await service.ok('POST', '/instance-activations/default/')
    for (const { id } of [one, other]) await service.ok('DELETE', `/instances/${String(id)}/`)
  },
)

proved(
  'two imports at once, a cut one, one beside an activation, and a reader that does not read',
  async () => {
    const honest = await download()
    const both = await Promise.all([upload(honest), upload(honest)])
    expect(both.map(({ status }) => status)).toEqual([201, 201])
    const [one, other] = both.map(({ body }) => String(body.id))

    /** Sends half of the archive. @returns the request, and its answer */
    const half = () => {
      const begun = request(`${service.baseUrl}/instances/import/`, {
        method: 'POST',
        headers: { 'content-type': 'application/zip', 'content-length': String(honest.length) },
      })
      begun.write(honest.subarray(0, honest.length / 2))
      const answer = new Promise<number>((resolve, reject) => {
        begun.once('response', (response) => {
          response.resume()
          resolve(response.statusCode ?? 0)
        })
        begun.once('error', reject)
      })
      answer.catch(() => undefined)
      return { begun, answer }
    }
    const onDisk = () => readdirSync(join(service.dataDir, 'instances'))
    const cut = half()
    await until('the upload', 45, () => onDisk().length === 1)
    cut.begun.destroy()
    await until('its removal', 45, () => onDisk().length === 0)

    const beside = half()
    await until('the upload', 45, () => onDisk().length === 1)
    await service.ok('POST', `/instance-activations/${String(one)}/`)
    beside.begun.end(honest.subarray(honest.length / 2))
    // What began before the activation may end; it is whole or not there.
    const status = await beside.answer
    expect([201, 423]).toContain(status)
    expect((await service.get('/instances/')).length).toBe(status === 201 ? 4 : 3)
    await service.ok('POST', '/instance-activations/default/')

    const stalled = await fetch(`${service.baseUrl}/instances/default/export/`)
    // The reader holds no transaction; a short one of the service may be between two statements.
    await until('the end of all transactions', 45, async () => {
      const [sessions] = await service.db.prepared<{ n: string }>(
        'sessions',
        "select count(*) as n from pg_stat_activity where datname = current_database() and state like 'idle in%'",
        [],
      )
      return Number(sessions?.n) === 0
    })
    expect(onDisk()).toEqual([])
    await stalled.body?.cancel()
    for (const { id } of (await service.get('/instances/')).slice(1))
      await service.ok('DELETE', `/instances/${String(id)}/`)
    expect([other, await schemas()]).toEqual([other, []])
  },
)

proved('a read that began before another instance was activated goes on', async () => {
  const { id } = (await upload(await download())).body
  const selected = openSelected(service.db)
  await using selection = openSelection({ db: service.db, selected })
  const selectionOf = async (instance: string) =>
    until('the selection', 120, async () => {
      selection.changed()
      const now = await selection.select()
      return now.id === instance ? now : undefined
    })
  await service.ok('POST', `/instance-activations/${String(id)}/`)
  const { read } = await selectionOf(String(id))
  await read('/environments/', async () => {
    const count = () =>
      selected.db.prepared('environments_read', 'select count(*) as n from environments', [])
    const before = await count()
    await service.ok('POST', '/instance-activations/default/')
    await selectionOf('default')
    expect(await count()).toEqual(before)
  })
  await service.ok('DELETE', `/instances/${String(id)}/`)
})

proved('an import ends with its time: while bytes arrive, and while the database works', async () => {
  const { db, dataDir } = service
  const spool = join(dataDir, 'late')
  const stream = new PassThrough()
  const type = 'application/zip'
  const zipped = { type, contentType: type, sizeBytes: undefined }
  const upload_ = (from: Readable) => ({ ...zipped, stream: from })
  const slow = new AbortController()
  const arriving = importInstance({ db, spool, deadline: slow.signal }, upload_(stream))
  arriving.catch(() => undefined)
  stream.write('PK')
  await until('the upload', 120, () => existsSync(spool) && readdirSync(spool).length === 1)
  slow.abort()
  await expect(arriving).rejects.toThrow(/took longer than 30 minutes/)

  const holder = await db.session()
  const tables = await tableCounts(db)
  const bytes = Readable.from([await download()])
  // An import waits for the one before.
  await holder.query('begin')
  await holder.query('select pg_advisory_xact_lock(7355608154)')
  const late = new AbortController()
  const working = importInstance({ db, spool, deadline: late.signal }, upload_(bytes))
  working.catch(() => undefined)
  await until('the wait for the lock', 120, async () => {
    const [waiting] = await db.prepared<{ n: string }>(
      'importing',
      "select count(*) as n from pg_stat_activity where datname = current_database() and wait_event = 'advisory'",
      [],
    )
    return Number(waiting?.n) > 0
  })
  late.abort()
  await expect(working).rejects.toThrow(/took longer than 30 minutes/)
  await holder.query('rollback')
  await holder.end()
  expect([await schemas(), readdirSync(spool)]).toEqual([[], []])
  expect(await tableCounts(db)).toEqual(tables)
})

test('a factory reset is refused while files of deleted runs are at other sites, and says which stay', async () => {
  const { db } = service
  await db.run(sql`insert into site_removals (site, execution_run_id, scope, names, facts, next_try_at,
      last_error)
    values ('ssh:away', 'gone', 's', '{}', '{}', now() + interval '1 day', 'no answer')`)
  const { status, body } = await service.call('POST', '/factory-reset/')
  expect([status, body.details]).toEqual([
    409,
    [{ path: 'execution-run/gone', message: 'its files are at ssh:away' }],
  ])
})

test('a factory reset is refused with a list while machines at providers may cost money', async () => {
  const { db } = service
  await db.run(sql`insert into cloud_capacity_targets (id, environment_id, name, provider, provider_machine_type,
      image_reference, vcpu, memory_mib)
    values ('target', 'e-1', 'small', 'aws', 't3', 'ami', 1, 1024)`)
  await db.run(sql`insert into cloud_instances (id, capacity_target_id, environment_id, connection_id, provider,
      name, status, region, ssh_username)
    values ('machine', 'target', 'e-1', 'c', 'aws', 'worker-1', 'ready', 'r', 'u')`)
  for (const search of ['', '?stop=true']) {
    const { status, body } = await service.call('POST', `/factory-reset/${search}`)
    expect([status, body.details]).toEqual([
      409,
      [{ path: 'cloud-instance/machine', message: 'worker-1 at aws is ready' }],
    ])
  }
  expect(await tableCounts(db)).toMatchObject({ environments: 33 })
  await db.run(sql`update cloud_instances set status = 'destroyed'`)
})

/** Registers the example `hello`, its documents as `change` makes them. */
const postHello = async (change = (text: string): string => text): Promise<void> => {
  for (const [path, file] of [
    ['/workflow-definitions/', 'workflow'],
    ['/environments/', 'environment'],
    ['/execution-scopes/', 'scope'],
    ['/schedule-plans/import/', 'plan'],
  ] as const) {
    const text = readFileSync(join(import.meta.dirname, '../../examples/hello', `${file}.yaml`), 'utf8')
    const { status } = await fetch(`${service.baseUrl}${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/yaml' },
      body: change(text),
    })
    expect([path, status]).toEqual([path, 201])
  }
}

test('a factory reset empties records, credentials and files, keeps archives and begins a new chain', async () => {
  const { id } = (await upload(await download())).body
  const { name } = await service.get('/instance/')
  // A blank name confirms nothing, and is no request without a confirmation.
  for (const confirm of [`${String(name)}x`, '']) {
    const wrong = await service.call('POST', '/factory-reset/', { confirm })
    expect([wrong.status, wrong.body.details[0].path]).toEqual([422, 'confirm'])
  }
  await service.ok('POST', `/instance-activations/${String(id)}/`)
  expect((await service.call('POST', '/factory-reset/', {})).status).toBe(423)
  await service.ok('POST', '/instance-activations/default/')
  const connection = await Connection.connect({ address: temporalAddress() })
  const workflows = async (): Promise<string[]> => {
    const { namespace } = service
    const { executions } = await connection.workflowService.listWorkflowExecutions({ namespace })
    return executions.map(({ execution }) => execution?.workflowId ?? '')
  }
  await postHello()
  await service.post('/execution-runs/', {
    id: 'before-reset',
    schedulePlanId: 'hello-plan',
    mode: 'simulation',
  })
  await service.finished('before-reset')
  await until('its workflow', 30, async () => (await workflows()).length > 0)
  const left = ['work/left', 'artifacts/logs/left', 'artifacts/images/left'].map((path) =>
    join(service.dataDir, path),
  )
  for (const path of left) mkdirSync(path, { recursive: true })
  await service.db.run(sql`update task_executions set handle_name = 't', site = ${'slurm/lab'}
    where execution_run_id = 'leaky-run'`)
  const { head } = await service.get('/audit-events/verify/')
  const once = () =>
    service.call('POST', '/factory-reset/?stop=true', { confirm: name }, { 'idempotency-key': 'reset' })
  const reset = await once()
  expect(left.filter((path) => existsSync(path))).toEqual([])
  const [event] = await service.get('/audit-events/?eventType=instance.reset')
  expect(event.metadata.sitesWithFiles).toEqual(['slurm/lab', 'ssh:away'])
  expect([reset.status, reset.body]).toEqual([
    202,
    { restarting: false, removed: expect.objectContaining({ environments: 34 }) },
  ])
  const again = await once()
  expect([again.status, again.body]).toEqual([reset.status, reset.body])
  // What comes with the service is there as after an installation.
  expect((await service.get('/machine-configurations/')).map((one: { id: string }) => one.id)).toEqual([
    'akoflow-scientific-worker',
  ])
  const counts = await tableCounts(service.db)
  expect(counts).toMatchObject({
    cloud_service: 1,
    credentials: 0,
    environments: 0,
    user_preferences: 0,
    system_instance: 1,
  })
  await until('the removal of its workflows', 30, async () => (await workflows()).length === 0)
  await connection.close()
  await until(
    'the end of the reset',
    10,
    async () => (await tableCounts(service.db))['instance_cleanups'] === 0,
  )
  expect(counts).toMatchObject({ instance_archives: 1 })
  expect(readdirSync(join(service.dataDir, 'artifacts', 'images'))).toEqual([])
  expect(readdirSync(join(service.dataDir, 'work'))).toEqual([])
  const events = await service.get('/audit-events/?eventType=instance.reset')
  expect(events).toHaveLength(1)
  const chain = await until('a link of the new chain', 120, async () => {
    const verdict = await service.get('/audit-events/verify/')
    return verdict.witness?.number > head.number && verdict.unsealed === 0 ? verdict : undefined
  })
  expect(chain.first).toBeUndefined()
  expect(chain.head.number - chain.sealed).toBeGreaterThanOrEqual(head.number)
  expect(await service.get(`/instances/${String(id)}/`)).toMatchObject({ contents: { environments: 33 } })
})

proved('a reset whose workflows cannot be removed yet removes no later file at the next start', async () => {
  const { db, dataDir } = service
  const [closed, later] = ['work/closed', 'work/later'].map((path) => join(dataDir, path)) as [string, string]
  mkdirSync(join(closed, 'a'), { recursive: true })
  for (const path of [join(closed, 'a'), closed]) chmodSync(path, 0o500)
  await db.run(sql`insert into instance_cleanups (id) values ('cut')`)
  const files = [{ root: dataDir, folders: ['work'] }]
  const start = (removeWorkflows: () => Promise<number>) =>
    finishResets({ ownDb: db, engine: { cancel: async () => false, removeWorkflows }, files })
  const cut = await start(() => Promise.reject(new Error('Temporal is away')))
  await expect(cut.rest).rejects.toThrow('Temporal is away')
  expect([existsSync(closed), existsSync(join(dataDir, 'removed', 'cut'))]).toEqual([false, false])
  mkdirSync(later)
  const { rest } = await start(async () => 0)
  await rest
  expect(existsSync(later)).toBe(true)
  expect((await tableCounts(db))['instance_cleanups']).toBe(0)
})

proved('a reset that could not move files takes no later ones at the next start', async () => {
  const { db, dataDir } = service
  const later = join(dataDir, 'work/of-a-later-run')
  mkdirSync(join(dataDir, 'removed/blocked'), { recursive: true })
  // A file where the folder of what is moved has to be.
  writeFileSync(join(dataDir, 'removed/blocked/work'), '')
  await db.run(sql`insert into instance_cleanups (id) values ('blocked')`)
  const engine = { cancel: async () => false, removeWorkflows: async () => 0 }
  const start = () => finishResets({ ownDb: db, engine, files: [{ root: dataDir, folders: ['work'] }] })
  await expect((await start()).rest).rejects.toThrow('cannot be removed')
  mkdirSync(later)
  await (
    await start()
  ).rest
  expect([existsSync(later), existsSync(join(dataDir, 'removed/blocked'))]).toEqual([true, false])
})

test('an archive gives no files, logs or states of runs that have the same ids here', async () => {
  // The second task waits for a file that never comes.
  await postHello((text) => text.replace(/run: tr .*/, 'run: until [ -e never ]; do sleep 0.1; done'))
  const run = { schedulePlanId: 'hello-plan' }
  await service.post('/execution-runs/', { ...run, id: 'over', mode: 'simulation' })
  await service.post('/execution-runs/', { ...run, id: 'both', mode: 'real' })
  await service.finished('over')
  const activityId = await until('the end of the first task', 120, async () => {
    const { activities, live } = await service.get('/execution-runs/both/')
    const [greet] = activities.filter((one: any) => one.externalId === 'greet' && one.status === 'completed')
    return live === undefined ? undefined : greet?.activityId
  })
  const title = async (): Promise<unknown> => (await service.get('/execution-runs/over/summary/')).run.title
  expect(await title()).toBeUndefined()
  const { id } = (await upload(await download())).body
  const client = await service.db.client()
  const { rows } = await client.query('select schema_name from instance_archives where id = $1', [id])
  await client.query(`update ${rows[0].schema_name}.execution_runs set title = 'of the archive'`)
  client.release()

  // Another process of the installation hears of no activation.
  await using other = openSelection({ db: service.db, selected: openSelected(service.db) })
  const seenByOther = (instance: string) =>
    until('the selection of another process', 120, async () => (await other.select()).id === instance)
  await seenByOther('default')

  /** The number of audit records, asked for under one key: the first answer of an instance comes again. */
  const counted = async (): Promise<number> => {
    const key = { 'idempotency-key': 'count' }
    const statement = 'select count(*) as n from audit_events'
    return (await service.call('POST', '/provenance/sql/', { statement }, key)).body[0].n
  }
  const here = await counted()

  const activity = `activities/${String(activityId)}`
  const files = [
    ...['logs/', 'outputs/', 'outputs/greeting.txt', 'script/'].map((path) => `${activity}/${path}`),
    ...['data=outputs', '%64ata=outputs', 'data=%6Futputs'].map((query) => `crate/?${query}`),
  ]
  const records = ['', `${activity}/`, 'crate/', 'crate/?data=', 'prov/', 'summary/', 'timeline/']
  const expectStatus = async (paths: readonly string[], status: number): Promise<void> => {
    for (const path of paths) {
      const answer = await service.call('GET', `/execution-runs/both/${path}`)
      expect([path, answer.status]).toEqual([path, status])
      if (status === 404)
        expect([path, answer.text]).toEqual([path, expect.stringMatching(/in this archive/)])
    }
  }
  await expectStatus([...files, ...records], 200)
  await service.ok('POST', `/instance-activations/${String(id)}/`)
  await seenByOther(String(id))
  await expectStatus(files, 404)
  await expectStatus(records, 200)
  expect((await service.call('GET', '/environments/hello/cloud-orphans/')).text).toMatch(/in this archive/)
  const archived = await service.get('/execution-runs/both/')
  expect([archived.run.status, archived.live]).toEqual(['running', undefined])
  expect(await title()).toBe('of the archive')
  expect(await counted()).toBeLessThan(here)
  await service.ok('POST', '/instance-activations/default/')
  await seenByOther('default')
  expect(await title()).toBeUndefined()
  expect(await counted()).toBe(here)
})

proved('a factory reset names an open run, and cancels it where it is asked to', async () => {
  const refused = await service.call('POST', '/factory-reset/')
  expect([refused.status, refused.body.details]).toEqual([
    409,
    [{ path: 'execution-run/both', message: 'is running' }],
  ])
  // Another transaction waits for a table that the reset holds, and the reset for one of its own.
  const other = await service.db.client()
  await other.query('begin')
  await other.query(`lock table ${terminalsTable} in access share mode`)
  const reset = service.call('POST', '/factory-reset/?stop=true')
  await until('the reset waits for a table', 45, async () => {
    const { rows } = await other.query(
      `select from pg_locks where not granted and mode = 'AccessExclusiveLock'`,
    )
    return rows.length > 0
  })
  await other.query('lock table execution_runs in access share mode').catch(() => undefined)
  await other.query('rollback')
  other.release()
  const { status, body } = await reset
  expect([status, body]).toEqual([202, expect.anything()])
  expect((await tableCounts(service.db))['execution_runs']).toBe(0)
})
