import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { readFileSync } from 'node:fs'
import { fileId, recordRun, taskId } from '../../bench/provenance/rows.ts'
import { openReader } from '../../src/db/reader.ts'
import { sql } from '../../src/db/sql.ts'
import { columnNames } from '../../src/domains/provenance/catalogue.ts'
import { provenanceRoutes } from '../../src/domains/provenance/routes.ts'
import type { Answer } from '../support/client.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'

let app: OpenedRoutes
beforeAll(async () => {
  app = await openRoutes((db, atClose, databaseUrl) => {
    const reader = atClose.use(openReader({ databaseUrl, readerUrl: undefined }))
    return provenanceRoutes({ db, reader })
  })
  // 0 → 1 → 2 → 3, of which 2 leaves nothing; 4 takes only one of the files of 0.
  await recordRun(app.db, {
    name: 'w',
    activities: 5,
    edges: [
      [0, 1],
      [1, 2],
      [2, 3],
      [0, 4],
      [1, 4],
    ],
    files: (position) => (position === 2 ? 0 : 2),
    declared: new Map([[4, [{ producer: 0, name: 'out/a0-0.dat' }]]]),
  })
})
afterAll(() => app.close())

const get = (path: string): Promise<Answer> => app.call('GET', path)
const ask = (statement: string, params?: unknown[], headers: Record<string, string> = {}): Promise<Answer> =>
  app.call('POST', '/provenance/sql/', { statement, ...(params === undefined ? {} : { params }) }, headers)

test('an integer that a double would round is no value of a statement, but is one as text', async () => {
  const long = '9007199254740993'
  const asked = (params: string) =>
    app.request('/api/provenance/sql/', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: `{"statement": "SELECT id FROM data_instances WHERE size_bytes < ?", "params": [${params}]}`,
    })
  for (const [params, path] of [
    [long, 'params.0'],
    [`-${long}`, 'params.0'],
    [`[1, ${long}]`, 'params.0.1'],
  ] as const) {
    const { status, body } = await asked(params)
    expect([params, status, body.details]).toEqual([
      params,
      422,
      [{ path, message: expect.stringContaining('would lose digits') }],
    ])
  }
  for (const params of [`"${long}"`, '9007199254740992', '1.5', '1e18'])
    expect([params, (await asked(params)).status]).toEqual([params, 200])
})

describe('entities', () => {
  test('the catalogue names every entity with fields, types and links', async () => {
    const { body } = await get('/provenance/entities/')
    expect(body.items.map(({ name }: { name: string }) => name)).toEqual([
      ...[
        'environments',
        'resources',
        'execution_scopes',
        'workflows',
        'workflow_versions',
        'activities',
        'planning_sessions',
        'plans',
        'runs',
      ],
      ...['task_executions', 'data_objects', 'data_instances', 'data_uses', 'transfers', 'audit_events'],
    ])
    const runs = body.items.find(({ name }: { name: string }) => name === 'runs')
    expect(runs.links).toEqual([{ field: 'schedule_plan_id', targetEntity: 'plans', targetField: 'id' }])
    expect(runs.fields).toContainEqual({
      name: 'makespan_seconds',
      label: 'Makespan seconds',
      type: 'duration',
    })
  })

  test('records are filtered, searched, sorted and paged; every entity can be read', async () => {
    const page = await get('/provenance/entities/task_executions/?pageSize=2&sortField=id&sortOrder=desc')
    expect(page.body).toMatchObject({
      page: 1,
      pageSize: 2,
      total: 5,
      hasNext: true,
      entity: { name: 'task_executions' },
    })
    expect(page.body.items.map(({ id }: { id: string }) => id)).toEqual([taskId('w', 4), taskId('w', 3)])
    expect((await get('/provenance/entities/task_executions/?page=9')).body).toMatchObject({
      items: [],
      hasNext: false,
      total: 5,
    })
    expect((await get('/provenance/entities/data_instances/?q=A3-1')).body.items).toMatchObject([
      { id: fileId('w', 3, 1), size_bytes: 10 },
    ])
    expect((await get('/provenance/entities/data_instances/?q=%25')).body.total).toBe(0)
    expect(
      (
        await get(
          `/provenance/entities/data_uses/?filterField=task_execution_id&filterValue=${taskId('w', 4)}`,
        )
      ).body.items,
    ).toMatchObject([
      {
        basis: 'declared',
        data_object_instance_id: fileId('w', 0, 0),
        producer_task_execution_id: taskId('w', 0),
      },
    ])
    const [use] = (await get('/provenance/entities/data_uses/?pageSize=1')).body.items
    expect(
      (await get(`/provenance/entities/data_uses/?filterField=id&filterValue=${encodeURIComponent(use.id)}`))
        .body.items,
    ).toEqual([use])
    const [run] = (await get('/provenance/entities/runs/?filterField=makespan_seconds&filterValue=60')).body
      .items
    expect(run).toMatchObject({ id: 'w-run', started_at: expect.stringMatching(/^\d{4}-.*\.\d{3}Z$/) })
    expect(
      (await get(`/provenance/entities/runs/?filterField=started_at&filterValue=${run.started_at}`)).body
        .total,
    ).toBe(1)
    for (const { name } of (await get('/provenance/entities/')).body.items)
      expect([name, (await get(`/provenance/entities/${name}/?q=w`)).status]).toEqual([name, 200])
  })

  test.each([
    '/provenance/entities/credentials/',
    '/provenance/entities/execution_runs/',
    '/provenance/entities/runs/?sortField=configuration',
    '/provenance/entities/runs/?filterField=seed&filterValue=1',
    '/provenance/entities/runs/?filterField=cost&filterValue=much',
    '/provenance/entities/runs/?filterField=created_at&filterValue=yesterday',
    '/provenance/entities/runs/?filterField=created_at&filterValue=2026-01-31T12:00:00',
    '/provenance/entities/runs/?filterField=created_at&filterValue=2026-02-30T00:00:00Z',
    '/provenance/entities/resources/?filterField=schedulable&filterValue=1',
    '/provenance/entities/runs/?filterValue=1',
    '/provenance/entities/runs/?sortOrder=up',
    '/provenance/lineage/credentials/x/',
    '/provenance/lineage/runs/w-run/?direction=sideways',
    '/provenance/lineage/runs/w-run/?workflowVersionId=w-v1',
    '/provenance/lineage/runs/w-run/closure/?direction=both',
  ])('%s is 400', async (path) => {
    const { status, body } = await get(path)
    expect([status, typeof body.error]).toEqual([400, 'string'])
  })
})

describe('SQL', () => {
  test('rows come bare, by the name of the table and by that of the entity, with values for placeholders', async () => {
    const rows = await ask(
      'SELECT id, makespan_seconds, transferred_bytes FROM execution_runs WHERE id = ?',
      ['w-run'],
    )
    expect([rows.status, rows.body]).toEqual([
      200,
      [{ id: 'w-run', makespan_seconds: 60, transferred_bytes: 0 }],
    ])
    expect(
      (await ask('select id from runs where id in (?, ?) order by id;', ['w-run', 'other'])).body,
    ).toEqual([{ id: 'w-run' }])
    expect((await ask('select count(*) as n from data_uses')).body).toEqual([{ n: 7 }])
    const values = ["it's", 'a "b" \\', 'é €', 5, 1.5, true, null]
    const echo = await ask(
      'select ? as a, ? as b, ? as c, ?::int as d, ?::float8 as e, ?::boolean as f, ? as g from runs',
      values,
    )
    expect(Object.values(echo.body[0])).toEqual(values)
    expect((await ask('select id from runs where id = any(?)', [['w-run', 'a"b\\', null]])).body).toEqual([
      { id: 'w-run' },
    ])
    expect(
      (await ask(`select '?' as "?", id -- ?\n from runs /* ? /* ? */ */ where '{"w": 1}'::jsonb ?? 'w'`))
        .body,
    ).toEqual([{ '?': '?', id: 'w-run' }])
    expect((await ask('select status from runs where id = ?', ['nothing'])).body).toEqual([])
  })

  test('a statement that is asked again has other values, of other types, and places without a type', async () => {
    const statement = 'select count(*) as n from runs where makespan_seconds > ?'
    for (const [value, n] of [
      [59, 1],
      [59.5, 1],
      [60, 0],
      ['1e1', 1],
      [null, 0],
    ])
      expect([value, (await ask(statement, [value])).body]).toEqual([value, [{ n }]])
    const bad = await ask(statement, ['many'])
    expect([bad.status, bad.body.error]).toEqual([
      400,
      'statement: invalid input syntax for type double precision: "many" (at character 57)',
    ])
    // A parameter of concat or of a JSON object has no type of its own.
    for (const time of [1, 2, 3])
      expect(
        (await ask('select concat(?, id) as c, json_build_object(?, ?) as o from runs', ['a', 'k', time]))
          .body,
      ).toEqual([{ c: 'aw-run', o: { k: String(time) } }])
    // JSON keeps its form in type json, with its line breaks.
    expect((await ask(`select '{"a":\n1}'::json as j from runs`)).body).toEqual([{ j: { a: 1 } }])
  })

  test('a column may have any name', async () => {
    for (const name of ['q', 'r', 'j', 'row', 'Q', 'a b', 'é'])
      expect((await ask(`select id as "${name}" from runs where id = ?`, ['w-run'])).body).toEqual([
        { [name]: 'w-run' },
      ])
    expect((await ask('select count(*) as q, ? as r from runs as q', ['x'])).body).toEqual([{ q: 1, r: 'x' }])
  })

  test('a session that holds many planned statements is replaced by another one', async () => {
    for (const from of [0, 150])
      for (let n = 0; n < 300; n += 1) {
        const kind = from + (n % 150)
        const answer = await ask(`select ${String(kind)} as kind from runs`)
        if (answer.body[0]?.kind !== kind) throw new Error(answer.text)
      }
    expect((await ask('select 299 as kind from runs')).body).toEqual([{ kind: 299 }])
  })

  test('the schema lists what may be read and nothing that is hidden', async () => {
    const { items } = (await get('/provenance/sql/schema/')).body
    const names = items.map(({ name }: { name: string }) => name)
    expect(names).toEqual(names.toSorted())
    expect(names).toHaveLength(37)
    const columns = items.flatMap((item: { columns: { name: string }[] }) =>
      item.columns.map(({ name }) => name),
    )
    expect(columnNames).toEqual(new Set(columns))
    for (const hidden of [
      'configuration',
      'metadata',
      'raw_definition',
      'credential_ref',
      'credential_reference',
      'payload',
    ])
      expect(columns).not.toContain(hidden)
    for (const { name } of items)
      expect([name, (await ask(`select * from "${String(name)}"`)).status]).toEqual([name, 200])
  })

  test('what cannot run is 400 with the reason, and with the place where PostgreSQL names one', async () => {
    const told = async (statement: string, params?: unknown[]): Promise<string> => {
      const answer = await ask(statement, params)
      expect([statement, answer.status]).toEqual([statement, 400])
      return answer.body.error
    }
    expect(await told("select /* é */ 'é', nothing from runs")).toBe(
      'statement: column "nothing" does not exist (at character 21)',
    )
    expect(
      await told('select id from runs where id = ? and nothing', ['a long value that moves the place']),
    ).toMatch(/at character 38/)
    expect(await told('select from from')).toMatch(/syntax error.*at character 13/)
    expect(await told('select 1/0 from runs')).toMatch(/division by zero/)
    expect(await told('select id from runs where id = ?')).toMatch(/0 values, the statement 1/)
    expect(await told('select id from runs where id = ?', ['a', 'b'])).toMatch(/2 values/)
    expect(await told('select id from runs where id = $1', ['a'])).toMatch(/placeholders are \?/)
    expect(await told('select r.id from runs r join plans p on true')).toMatch(
      /reads execution_runs and schedule_plans/,
    )
    expect(await told('with recursive r as (select id from runs) select * from r')).toMatch(/WITH RECURSIVE/)
    expect(await told('select 1')).toMatch(/no entity/)
    expect(await told('')).toMatch(/empty/)
    expect(await told(`select '${'x'.repeat(65_536)}' from runs`)).toMatch(/65536 bytes/)
    expect(await told('select 1 from runs', Array<number>(1_001).fill(1))).toMatch(/1001 values/)
  })

  test('10,000 rows and 32 MiB are the most, and the answer says which', async () => {
    const wide = Array.from({ length: 6 }, (_, i) => `data_uses ${String.fromCharCode(97 + i)}`).join(', ')
    const rows = await ask(`select a.id from ${wide}`)
    expect([rows.status, rows.headers.get('x-truncated'), rows.body.length]).toEqual([200, 'rows', 10_000])
    const long = `'${'x'.repeat(30_000)}'`
    const bytes = await ask(`select ${long} as t from ${wide}`)
    expect([bytes.status, bytes.headers.get('x-truncated')]).toEqual([200, 'bytes'])
    expect(bytes.text.length).toBeGreaterThan(31 * 2 ** 20)
    expect(bytes.text.length).toBeLessThanOrEqual(32 * 2 ** 20)
    expect((await ask('select id from runs')).headers.get('x-truncated')).toBeNull()
  })

  test('CSV is streamed whole, beyond the limit of rows', async () => {
    const answer = await ask('select id, status from runs', [], { accept: 'text/csv' })
    expect([answer.status, answer.headers.get('content-type'), answer.text]).toEqual([
      200,
      'text/csv; charset=utf-8',
      'id,status\nw-run,completed\n',
    ])
    const many = await ask(
      'select a.id from data_uses a, data_uses b, data_uses c, data_uses d, data_uses e',
      [],
      { accept: 'text/csv' },
    )
    expect(many.text.split('\n')).toHaveLength(7 ** 5 + 2)
    expect((await ask('select nothing from runs', [], { accept: 'text/csv' })).status).toBe(400)
  })

  test('every question of docs/provenance.md is answered', async () => {
    const text = readFileSync(new URL('../../docs/provenance.md', import.meta.url), 'utf8')
    const questions = [...text.matchAll(/^```sql\n([\s\S]*?)^```$/gm)].map(([, statement = '']) => statement)
    expect(questions).toHaveLength(12)
    for (const statement of questions) {
      const params = [...statement.matchAll(/\?(::timestamptz)?/g)].map(([, time]) =>
        time === undefined ? 'w-run' : '2026-01-01T00:00:00Z',
      )
      expect([statement, (await ask(statement, params)).status]).toEqual([statement, 200])
    }
    const [made] = (
      await ask('select inputs, outputs from attempts where execution_run_id = ? and ? = any(outputs)', [
        'w-run',
        'out/a3-0.dat',
      ])
    ).body
    expect(made).toEqual({
      inputs: ['out/a1-0.dat', 'out/a1-1.dat'],
      outputs: ['out/a3-0.dat', 'out/a3-1.dat'],
    })
  })

  test('a plan is shown and the statement not run', async () => {
    const { status, body } = await app.call('POST', '/provenance/sql/explain/', {
      statement: 'select 1 / (seed - seed), id from runs where id = ?',
      params: ['x'],
    })
    expect(status).toBe(200)
    expect(body).toMatchObject({
      entity: 'execution_runs',
      plan: { Plan: { 'Node Type': expect.any(String) } },
    })
    expect(JSON.stringify(body.plan)).not.toContain('Actual')
  })

  test('the role reads the views and nothing else', async () => {
    const client = await app.db.client()
    try {
      const { rows } =
        await client.query(`select rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls,
          (select count(*)::int from pg_class c where c.relkind in ('r', 'v')
            and c.relnamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace,
              'provenance'::regnamespace)
            and has_table_privilege(r.oid, c.oid, 'select, insert, update, delete')) as others,
          (select count(*)::int from pg_class c where c.relkind = 'v'
            and c.relnamespace = 'provenance'::regnamespace and has_table_privilege(r.oid, c.oid,
              'insert, update, delete')) as written,
          has_schema_privilege(r.oid, 'public', 'create') or has_schema_privilege(r.oid, 'provenance',
            'create') as makes
        from pg_roles r where rolname like 'orrery_reader_%' and has_database_privilege(r.oid,
          current_database(), 'connect')
          and has_table_privilege(r.oid, 'provenance.runs', 'select')`)
      expect(rows).toEqual([
        {
          ...{
            rolsuper: false,
            rolcreatedb: false,
            rolcreaterole: false,
            rolreplication: false,
            rolbypassrls: false,
          },
          ...{ others: 0, written: 0, makes: false },
        },
      ])
    } finally {
      client.release()
    }
  })
})

describe('lineage', () => {
  const keysOf = (body: { nodes: { key: string }[] }): string[] => body.nodes.map(({ key }) => key).toSorted()

  test('leads from a file over the task that made it to the files which that was given', async () => {
    const { body } = await get(`/provenance/lineage/data_instances/${fileId('w', 1, 0)}/?direction=prior`)
    expect(body.root).toBe(`data_instances:${fileId('w', 1, 0)}`)
    expect(keysOf(body)).toEqual(
      expect.arrayContaining([
        `task_executions:${taskId('w', 1)}`,
        `data_instances:${fileId('w', 0, 0)}`,
        'runs:w-run',
        'activities:w-a1',
      ]),
    )
    expect(body.edges).toContainEqual({
      source: `data_instances:${fileId('w', 0, 0)}`,
      target: `task_executions:${taskId('w', 1)}`,
      label: 'data_uses',
    })
    expect(body.edges).toContainEqual({
      source: 'plans:w-plan',
      target: 'runs:w-run',
      label: 'schedule_plan_id',
    })
    expect(body.nodes.find(({ key }: { key: string }) => key === 'activities:w-a1')).toMatchObject({
      entity: 'activities',
      label: 'Activity 1',
      record: { external_id: 'a1' },
    })
    expect(body.truncated).toBe(false)
  })

  test('stays within its bounds and says when it was cut', async () => {
    expect((await get('/provenance/lineage/runs/w-run/?depth=1&direction=prior')).body.nodes).toHaveLength(2)
    const cut = await get('/provenance/lineage/runs/w-run/?maxNodes=3&depth=9')
    expect([cut.body.nodes.length, cut.body.truncated]).toEqual([3, true])
    const keys = new Set(keysOf(cut.body))
    for (const { source, target } of cut.body.edges)
      expect([keys.has(source), keys.has(target)]).toEqual([true, true])
  })

  test('has every node and use where it is not cut, of tasks that were given many files each', async () => {
    // A step leaves 100 files for 50 tasks, and a last task is given a file of each.
    const [many, last] = [100, 51]
    const middle = Array.from({ length: 50 }, (_, n) => n + 1)
    await recordRun(app.db, {
      name: 'many',
      activities: last + 1,
      edges: middle.flatMap((n) => [[0, n] as const, [n, last] as const]),
      files: (position) => (position === 0 ? many : 1),
    })
    const files = Array.from({ length: many }, (_, n) => `data_instances:${fileId('many', 0, n)}`)
    const tasks = middle.map((n) => `task_executions:${taskId('many', n)}`)
    const uses = files.flatMap((file) => tasks.map((task) => `${file} ${task}`))
    const ends = new Set([...files, ...tasks])
    const shown = async (position: number, query: string) => {
      const path = `/provenance/lineage/task_executions/${taskId('many', position)}/?maxNodes=500&${query}`
      const { body } = await get(path)
      const used = body.edges
        .filter(({ label }: { label: string }) => label === 'data_uses')
        .map(({ source, target }: { source: string; target: string }) => `${source} ${target}`)
        .filter((pair: string) => pair.split(' ').every((end) => ends.has(end)))
      return {
        ends: keysOf(body).filter((key) => ends.has(key)),
        used: used.toSorted(),
        truncated: body.truncated,
      }
    }
    const whole = { ends: [...ends].toSorted(), used: uses.toSorted(), truncated: false }
    expect(await shown(0, 'direction=downstream&depth=2')).toEqual(whole)
    expect(await shown(last, 'direction=prior&depth=3')).toEqual(whole)
    expect(await shown(0, 'direction=both&depth=2')).toEqual(whole)

    // The step, its files and their tasks are 151 nodes.
    const bounded = async (maxNodes: number) => {
      const path = `/provenance/lineage/task_executions/${taskId('many', 0)}/?direction=downstream&depth=2`
      const { body } = await get(`${path}&maxNodes=${String(maxNodes)}`)
      return { nodes: body.nodes.map(({ key }: { key: string }) => key), truncated: body.truncated }
    }
    const all = [`task_executions:${taskId('many', 0)}`, ...files.toSorted(), ...tasks.toSorted()]
    expect(await bounded(all.length)).toEqual({ nodes: all, truncated: false })
    for (const most of [all.length - 1, many + 2, many + 1, 50])
      expect(await bounded(most)).toEqual({ nodes: all.slice(0, most), truncated: true })
  })

  test('an unknown record is 404; an activity id that versions share is 422 and names what decides', async () => {
    expect((await get('/provenance/lineage/runs/nothing/')).status).toBe(404)
    expect((await get('/provenance/lineage/data_uses/nothing/')).status).toBe(404)
    expect((await get('/provenance/lineage/runs/nothing/closure/')).status).toBe(404)
    await app.db.run(
      sql`insert into workflow_versions (id, workflow_id, version, definition_hash, activity_count,
        dependency_count, embedded) values ('w-v1#x', 'w', 1, 'x', 1, 0, true)`,
    )
    await app.db
      .run(sql`insert into activity_definitions (workflow_version_id, position, id, activity_type_id,
        external_id, name, capabilities, command_spec, resource_requirements, policy)
      values ('w-v1#x', 0, 'w-a0', 'w-type', 'a0', 'Other', '[]', '{}', '{}', '{}')`)
    const shared = await get('/provenance/lineage/activities/w-a0/')
    expect([shared.status, shared.body.error]).toEqual([422, expect.stringMatching(/\?workflowVersionId=/)])
    const one = await get('/provenance/lineage/activities/w-a0/?workflowVersionId=w-v1%23x&direction=prior')
    expect(keysOf(one.body)).toEqual(['activities:w-a0', 'workflow_versions:w-v1#x', 'workflows:w'])
    // Of a run it is the run's version.
    const task = await get(`/provenance/lineage/task_executions/${taskId('w', 0)}/?direction=prior&depth=1`)
    expect(task.body.nodes.find(({ id }: { id: string }) => id === 'w-a0').record.workflow_version_id).toBe(
      'w-v1',
    )
    await app.db.run(sql`delete from workflow_versions where id = 'w-v1#x'`)
  })

  test('the closure streams every ancestor or descendant once', async () => {
    const lines = async (path: string): Promise<string[]> => {
      const answer = await get(path)
      expect([answer.status, answer.headers.get('content-type')]).toEqual([200, 'application/x-ndjson'])
      return answer.text
        .split('\n')
        .filter((line) => line !== '')
        .map((line) => JSON.parse(line))
        .map(({ entity, id }) => `${String(entity)}:${String(id)}`)
    }
    const prior = await lines(`/provenance/lineage/data_instances/${fileId('w', 3, 0)}/closure/`)
    expect(new Set(prior).size).toBe(prior.length)
    expect(prior.filter((key) => key.startsWith('data_instances')).toSorted()).toEqual(
      [fileId('w', 0, 0), fileId('w', 0, 1), fileId('w', 1, 0), fileId('w', 1, 1)].map(
        (id) => `data_instances:${id}`,
      ),
    )
    expect(prior).toEqual(expect.arrayContaining(['workflows:w', 'execution_scopes:w-scope', 'plans:w-plan']))
    const downstream = await lines(
      `/provenance/lineage/data_instances/${fileId('w', 0, 1)}/closure/?direction=downstream`,
    )
    expect(downstream).not.toContain(`task_executions:${taskId('w', 4)}`)
    expect(downstream).toContain(`data_instances:${fileId('w', 3, 1)}`)
  })
})
