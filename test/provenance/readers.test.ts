import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { connect, type Socket } from 'node:net'
import { Readable } from 'node:stream'
import { setTimeout } from 'node:timers/promises'
import { fileId, recordRun, taskId } from '../../bench/provenance/rows.ts'
import { openReader, type Reader } from '../../src/db/reader.ts'
import { sql } from '../../src/db/sql.ts'
import { provenanceRoutes } from '../../src/domains/provenance/routes.ts'
import { openStatements } from '../../src/domains/provenance/sql.ts'
import { until } from '../failures/programs.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'
import { proved } from '../support/share.ts'

let app: OpenedRoutes
let reader: Reader
/** Another daemon on the same records. */
let other: ReturnType<typeof provenanceRoutes>
beforeAll(async () => {
  app = await openRoutes(
    (db, atClose, databaseUrl) => {
      reader = atClose.use(openReader({ databaseUrl, readerUrl: undefined }))
      other = provenanceRoutes({ db, reader })
      return provenanceRoutes({ db, reader })
    },
    // Answers that break off are logged.
    { errorsExpected: true },
  )
  await recordRun(app.db, {
    name: 'w',
    activities: 200,
    edges: Array.from({ length: 199 }, (_, n) => [n, n + 1] as const),
    files: () => 10,
  })
})
afterAll(() => app.close())

const ask = (statement: string) => app.call('POST', '/provenance/sql/', { statement })

/** Asks for much CSV and reads only its beginning. */
const stalled = async (): Promise<Socket> => {
  const socket = connect(app.port, '127.0.0.1')
  socket.on('error', () => undefined)
  const body = JSON.stringify({
    statement: 'select a.*, b.* from data_instances a join data_instances b on a.id <> b.id',
  })
  socket.write(
    'POST /api/provenance/sql/ HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/csv\r\n' +
      `Content-Type: application/json\r\nContent-Length: ${String(Buffer.byteLength(body))}\r\n\r\n${body}`,
  )
  await new Promise<void>((resolve) =>
    socket.once('data', () => {
      socket.pause()
      resolve()
    }),
  )
  return socket
}

proved('readers that stop reading are cut off, and hold up no later statement', async () => {
  const sockets = await Promise.all(Array.from({ length: 4 }, stalled))
  expect((await ask('select id from runs')).status).toBe(503)
  const began = performance.now()
  await until('the sessions of the stalled readers to end', 30, async () => {
    const [row] = await app.db.prepared<{ n: number }>(
      'busy',
      'select count(*)::int as n from pg_stat_activity where datname = current_database() ' +
        "and usename like 'orrery_reader%'",
      [],
    )
    return row?.n === 0
  })
  expect((performance.now() - began) / 1_000).toBeGreaterThan(5)
  expect((await ask('select id from runs')).body).toEqual([{ id: 'w-run' }])
  for (const socket of sockets) socket.destroy()
})

proved('the time that PostgreSQL needs for its rows is not that of the reader', async () => {
  const slow = async function* (): AsyncGenerator<Buffer> {
    for (const text of ['id\n', 'one\n', 'two\n']) {
      await setTimeout(3_000)
      yield Buffer.from(text)
    }
  }
  const copy = () => Promise.resolve(Readable.from(slow(), { objectMode: false }))
  const { csv } = openStatements({ copy } as Partial<Reader> as Reader, { stalledSeconds: 1 })
  let text = ''
  for await (const chunk of await csv({ statement: 'select id from runs' }, new AbortController().signal))
    text += String(chunk)
  expect(text).toBe('id\none\ntwo\n')
})

test('a statement whose client goes while PostgreSQL computes ends with it', async () => {
  const gone = new AbortController()
  const statement =
    'select count(*) from data_instances a join data_instances b on a.id <> b.id ' +
    'join data_instances c on b.id <> c.id'
  const answer = openStatements(reader).csv({ statement }, gone.signal)
  const ended = expect(answer).rejects.toThrow('the client has gone')
  const computing = async (): Promise<number> => {
    const [row] = await app.db.prepared<{ n: number }>(
      'computing',
      // Their states are hidden from the service, and their locks are not.
      `select count(distinct pid)::int as n from pg_locks join pg_stat_activity using (pid)
        where datname = current_database() and usename like 'orrery_reader%' and locktype = 'relation'`,
      [],
    )
    return row?.n ?? 0
  }
  await until('the statement to begin', 120, async () => (await computing()) === 1)
  gone.abort(new Error('the client has gone'))
  await ended
  await until('the end of its session', 120, async () => (await computing()) === 0)
})

test('records that lead back to themselves are walked once', async () => {
  await app.db
    .run(sql`insert into resources (id, environment_version_id, name, provider_id, type, parent_resource_id)
    values ('ring-a', 'w-env', 'a', 'a', 'host', null), ('ring-b', 'w-env', 'b', 'b', 'host', 'ring-a')`)
  await app.db.run(sql`update resources set parent_resource_id = 'ring-b' where id = 'ring-a'`)
  const { nodes, truncated } = (await app.call('GET', '/provenance/lineage/resources/ring-a/?depth=5')).body
  expect([nodes.map(({ id }: { id: string }) => id).toSorted(), truncated]).toEqual([
    ['ring-a', 'ring-b'],
    false,
  ])
  for (const direction of ['prior', 'downstream']) {
    const answer = await app.call(
      'GET',
      `/provenance/lineage/resources/ring-a/closure/?direction=${direction}`,
    )
    expect(
      answer.text
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line) as unknown),
    ).toEqual([{ entity: 'resources', id: 'ring-b' }])
  }
})

test('what one daemon writes, the closure of another has at once', async () => {
  const closure = async (): Promise<number> => {
    const route = other.find(({ path }) => path.endsWith('/closure/'))
    if (route === undefined) throw new Error('no route of the closure')
    const reply = (await (route.handle as (call: object) => Promise<{ stream: AsyncIterable<Buffer> }>)({
      params: { entity: 'data_instances', id: fileId('w', 5, 0) },
      query: { direction: 'downstream' },
    })) as { stream: AsyncIterable<Buffer> }
    let text = ''
    for await (const chunk of reply.stream) text += String(chunk)
    return text.split('\n').filter((line) => line.includes('"data_instances"')).length
  }
  const before = await closure()
  await app.db.transaction(async (tx) => {
    await tx.run(sql`insert into data_object_instances (id, data_object_id, execution_run_id, producer_activity_id,
        relative_path, size_bytes)
      values ('late', 'data-w-199-0', 'w-run', 'w-a199', 'late.dat', 1)`)
    await tx.run(
      sql`update execution_runs set last_event_sequence = last_event_sequence + 1 where id = 'w-run'`,
    )
    await tx.run(sql`insert into operation_events (operation_id, sequence, event_type, aggregate_type, aggregate_id)
      select 'w-run', last_event_sequence, 'activity.completed', 'activity_execution', ${taskId('w', 199)}
      from execution_runs where id = 'w-run'`)
  })
  expect(await closure()).toBe(before + 1)
  const { text } = await app.call(
    'GET',
    `/provenance/lineage/data_instances/${fileId('w', 5, 0)}/closure/?direction=downstream`,
  )
  expect(text.split('\n').filter((line) => line.includes('"data_instances"'))).toHaveLength(before + 1)
})

test('a run whose workflow was deleted keeps its lineage', async () => {
  await app.db.run(sql`delete from workflow_definitions where id = 'w'`)
  const { status, body } = await app.call(
    'GET',
    `/provenance/lineage/data_instances/${fileId('w', 7, 0)}/?direction=prior&depth=3`,
  )
  expect(status).toBe(200)
  expect(body.nodes.map(({ entity }: { entity: string }) => entity)).toEqual(
    expect.arrayContaining(['data_instances', 'task_executions']),
  )
})
