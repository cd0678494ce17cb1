import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { TextReader, Uint8ArrayWriter, ZipWriter } from '@zip.js/zip.js'
import { expect } from '@jest/globals'
import pg from 'pg'
import { fromBufferPromise } from 'yauzl'
import { archiveTables, withSnapshot } from '../../src/db/archive-schema.ts'
import { readMigrations } from '../../src/db/migrations.ts'
import { cloneDatabase } from '../support/database.ts'
import type { TestService } from '../support/service.ts'

/** Exports that services of earlier schemas made (`make-export.ts`). */
export const exportsFolder = join(import.meta.dirname, 'exports')

/** Their schemas, the oldest first. */
export const exportedSchemas = (): number[] =>
  readdirSync(exportsFolder)
    .filter((name) => name.endsWith('.zip'))
    .map((name) => Number.parseInt(name, 10))
    .sort((a, b) => a - b)

/** Every later schema of which no service left an export. */
export const unexportedSchemas = async (): Promise<number[]> => {
  const made = exportedSchemas()
  const numbers = (await readMigrations()).map(({ number }) => number)
  return numbers.filter((number) => number > (made[0] ?? Infinity) && !made.includes(number))
}

const textsOf = async (zip: Buffer): Promise<Map<string, string>> => {
  const file = await fromBufferPromise(zip, { lazyEntries: true })
  const texts = new Map<string, string>()
  for await (const entry of file.eachEntry()) {
    const chunks: Buffer[] = []
    for await (const chunk of await file.openReadStreamPromise(entry)) chunks.push(chunk as Buffer)
    texts.set(entry.fileName, Buffer.concat(chunks).toString('utf8'))
  }
  return texts
}

/** Loads the rows of an export as they are written; numbers stay PostgreSQL's. */
const loadRows = async (client: pg.Client, ndjson: string): Promise<void> => {
  const tables = await archiveTables(client, 'public')
  await client.query('begin')
  for (const { name } of tables.toReversed()) await client.query(`delete from ${pg.escapeIdentifier(name)}`)
  const lines = ndjson.split('\n').values()
  for (const line of lines) {
    if (line === '') continue
    const { table, columns, rows } = JSON.parse(line) as { table: string; columns: string[]; rows: number }
    const [into, list] = [pg.escapeIdentifier(table), columns.map(pg.escapeIdentifier).join(', ')]
    const row = `json_populate_record(null::${into}, $1)`
    for (let left = rows; left > 0; left--)
      await client.query(`insert into ${into} (${list}) overriding system value select ${list} from ${row}`, [
        lines.next().value,
      ])
  }
  await client.query('commit')
}

/**
 * The export of an instance that was at the schema of the last real export before `schema`, and was
 * then brought to `schema` by its migrations: what a service of that version exported after its first
 * start on older records.
 */
export const derivedExport = async (schema: number): Promise<Buffer> => {
  const base = exportedSchemas().findLast((number) => number < schema) ?? 0
  const texts = await textsOf(readFileSync(join(exportsFolder, `${String(base)}.zip`)))
  const database = await cloneDatabase()
  const session = async (): Promise<pg.Client> => {
    const client = new pg.Client({ connectionString: database.url })
    await client.connect()
    return client
  }
  const client = await session()
  const apply = async (after: number, upTo: number): Promise<void> => {
    for (const { number, text } of await readMigrations())
      if (number > after && number <= upTo) await client.query(text)
  }
  try {
    await client.query("set timezone = 'UTC'")
    await client.query(
      'drop schema if exists provenance cascade; drop schema public cascade; create schema public',
    )
    await apply(0, base)
    await loadRows(client, texts.get('database/instance.ndjson') ?? '')
    await apply(base, schema)
    const rows = await withSnapshot(session, async (snapshot) => {
      let lines = ''
      for (const table of snapshot.tables) {
        const heading = { table: table.name, columns: table.columns, rows: await snapshot.count(table.name) }
        lines += `${JSON.stringify(heading)}\n`
        for await (const some of snapshot.rows(table)) lines += some
      }
      return lines
    })
    const manifest = {
      ...(JSON.parse(texts.get('manifest.json') ?? '') as object),
      schemaVersion: schema,
      checksums: { 'database/instance.ndjson': createHash('sha256').update(rows).digest('hex') },
    }
    const zip = new ZipWriter(new Uint8ArrayWriter(), { useWebWorkers: false, extendedTimestamp: false })
    const entries = { 'database/instance.ndjson': rows, 'manifest.json': JSON.stringify(manifest) }
    for (const [name, text] of Object.entries(entries))
      await zip.add(name, new TextReader(text), { dataDescriptor: false })
    return Buffer.from(await zip.close())
  } finally {
    await client.end()
    await database.drop()
  }
}

/** Imports an export and reads its runs, plan, lineage and crate. */
export const importsAndReads = async (service: TestService, schema: number, zip: Buffer): Promise<void> => {
  const answer = await fetch(`${service.baseUrl}/instances/import/`, {
    method: 'POST',
    headers: { 'content-type': 'application/zip' },
    body: new Uint8Array(zip),
  })
  const imported = (await answer.json()) as { id: string; schemaVersion: number }
  expect([answer.status, imported]).toMatchObject([
    201,
    {
      schemaVersion: schema,
      contents: { runs: 2, plans: 1, workflows: 1, artifacts: 1 },
    },
  ])
  await service.ok('POST', `/instance-activations/${imported.id}/`)
  try {
    const { run, activities } = await service.get('/execution-runs/first/')
    expect([run.status, run.mode, activities.length]).toEqual(['completed', 'real', 2])
    expect((await service.get('/execution-runs/rehearsed/')).run.mode).toBe('simulation')
    expect((await service.get('/schedule-plans/hello-plan/')).id).toBe('hello-plan')
    const { items } = await service.get('/provenance/entities/data_instances/')
    const file = items.find((item: { relative_path: string }) => item.relative_path === 'greeting.txt')
    const lineage = await service.get(`/provenance/lineage/data_instances/${String(file?.id)}/?depth=5`)
    expect(lineage.nodes.map((node: { entity: string }) => node.entity)).toEqual(
      expect.arrayContaining(['data_instances', 'task_executions', 'runs', 'workflow_versions']),
    )
    const rows = await service.post('/provenance/sql/', {
      statement: 'select external_id from attempts where execution_run_id = ? order by 1',
      params: ['first'],
    })
    expect(rows).toEqual([{ external_id: 'greet' }, { external_id: 'shout' }])
    expect((await service.get('/search/?q=hello')).total).toBeGreaterThan(2)
    expect((await fetch(`${service.baseUrl}/execution-runs/first/crate/`)).status).toBe(200)
    expect((await service.call('GET', '/execution-runs/first/activities/greet/logs/')).status).toBe(404)
  } finally {
    await service.ok('POST', '/instance-activations/default/')
  }
}
