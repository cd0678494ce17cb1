import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { openReader } from '../../src/db/reader.ts'
import { provenanceRoutes } from '../../src/domains/provenance/routes.ts'
import { prepare } from '../../src/domains/provenance/sql.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'
import { proved } from '../support/share.ts'
import { attributes, expressions, growing, statements } from './hostile.ts'

/** mulberry32: the same numbers for the same seed. */
const dice = (seed: number) => {
  let state = seed
  const next = (): number => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), 1 | state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32
  }
  const below = (n: number): number => Math.floor(next() * n)
  return { next, below, of: <Item>(items: readonly Item[]): Item => items[below(items.length)] as Item }
}
type Dice = ReturnType<typeof dice>

let app: OpenedRoutes
beforeAll(async () => {
  app = await openRoutes((db, atClose, databaseUrl) => {
    const reader = atClose.use(openReader({ databaseUrl, readerUrl: undefined }))
    return provenanceRoutes({ db, reader })
  })
})
afterAll(() => app.close())

const ask = (statement: string, params: readonly unknown[]) =>
  app.call('POST', '/provenance/sql/', { statement, params })

/** Works on all items, as many at a time as statements may run. */
const all = async <Item>(items: readonly Item[], work: (item: Item) => Promise<void>): Promise<void> => {
  const waiting = [...items].reverse()
  await Promise.all(
    Array.from({ length: 4 }, async () => {
      for (let item = waiting.pop(); item !== undefined; item = waiting.pop()) await work(item)
    }),
  )
}

/** The statements that are not refused as invalid with a reason. */
const passedOf = async (statements: readonly string[]): Promise<string[]> => {
  const passed: string[] = []
  await all(statements, async (statement) => {
    const params = Array.from({ length: (statement.match(/\?/g) ?? []).length }, () => 'x')
    const { status, body } = await ask(statement, params)
    if (status !== 400 || typeof body.error !== 'string' || body.error === '')
      passed.push(`${String(status)} ${statement}`)
  })
  return passed
}

const places = [
  (e: string) => `select ${e} from runs`,
  (e: string) => `select id from runs where ${e} is not null`,
  (e: string) => `select id from runs order by ${e}`,
  (e: string) => `select id, case when id = 'x' then ${e} end from runs`,
  (e: string) => `select (select ${e} from runs limit 1) from runs`,
  (e: string) => `select coalesce(${e}, null) from runs`,
  (e: string) => `select id from runs group by id having ${e} is null`,
  (e: string) => `select q.id from (select ${e} as id from runs) q`,
  (e: string) => `select array[${e}] from runs`,
  (e: string) => `select a.id from runs a join runs b on ${e} is null`,
  (e: string) => `select id from runs union all select ${e} from runs`,
  (e: string) => `select max(id) filter (where ${e} is null) from runs`,
  (e: string) => `select rank() over (partition by ${e} order by id) from runs`,
  (e: string) => `select id from runs where id between 'a' and (${e})::text`,
  (e: string) => `select not (${e}) from runs`,
]

/** Pieces of a statement outside of quotes, which may be written in other ways. */
const respell = (text: string, { next, of }: Dice): string =>
  text.replace(/'(?:[^']|'')*'|"[^"]*"|\$\$[\s\S]*?\$\$|\s+|[a-z_]+/gi, (piece) => {
    if (/^\s/.test(piece))
      return next() < 0.3 ? of(['\n', '\t', '  ', '/**/ ', ' /* x */ ', ' -- x\n', ' /* /* ? */ */ ']) : piece
    if (!/^[a-z_]+$/i.test(piece)) return piece
    return next() < 0.3
      ? [...piece].map((letter) => (next() < 0.5 ? letter.toUpperCase() : letter)).join('')
      : piece
  })

/** A hostile statement made of a hand-written form. */
const generated = (random: Dice): string => {
  const { next, of } = random
  const whole = next() < 0.4
  const text = whole ? of(statements) : of(places)(of([...expressions, ...attributes]))
  const spelled = respell(text, random)
  // What is empty alone is nothing beside another statement.
  if (/^(;+|--.*)$/.test(text)) return spelled
  if (next() < 0.1) return `select id from runs; ${spelled}`
  if (next() < 0.1) return `${spelled}\n; select id from runs`
  return spelled
}

interface Column {
  name: string
  type: 'text' | 'number' | 'time' | 'boolean'
}
const tables: Record<string, Column[]> = {
  runs: [
    { name: 'id', type: 'text' },
    { name: 'status', type: 'text' },
    { name: 'mode', type: 'text' },
    { name: 'makespan_seconds', type: 'number' },
    { name: 'cost', type: 'number' },
    { name: 'transferred_bytes', type: 'number' },
    { name: 'created_at', type: 'time' },
    { name: 'finished_at', type: 'time' },
  ],
  task_executions: [
    { name: 'id', type: 'text' },
    { name: 'execution_run_id', type: 'text' },
    { name: 'activity_id', type: 'text' },
    { name: 'attempt', type: 'number' },
    { name: 'runtime_seconds', type: 'number' },
    { name: 'queue_seconds', type: 'number' },
  ],
  attempts: [
    { name: 'activity_type', type: 'text' },
    { name: 'site', type: 'text' },
    { name: 'image', type: 'text' },
    { name: 'cpu_seconds', type: 'number' },
    { name: 'started_at', type: 'time' },
  ],
  data_instances: [
    { name: 'relative_path', type: 'text' },
    { name: 'checksum', type: 'text' },
    { name: 'size_bytes', type: 'number' },
    { name: 'discovered', type: 'boolean' },
    { name: 'created_at', type: 'time' },
  ],
  resources: [
    { name: 'name', type: 'text' },
    { name: 'cpu_cores', type: 'number' },
    { name: 'price_per_second', type: 'number' },
    { name: 'schedulable', type: 'boolean' },
  ],
  audit_events: [
    { name: 'event_type', type: 'text' },
    { name: 'summary', type: 'text' },
    { name: 'occurred_at', type: 'time' },
  ],
}

/** An honest statement with its values. */
const honest = ({ next, below, of }: Dice): { statement: string; params: (string | number)[] } => {
  const table = of(Object.keys(tables))
  const columns = tables[table] as Column[]
  const params: (string | number)[] = []
  const value = (given: string | number): string => {
    if (next() < 0.6) {
      params.push(given)
      return '?'
    }
    return typeof given === 'number' ? String(given) : `'${given.replaceAll("'", "''")}'`
  }
  const texts = ['x', "it's", 'a?b', 'select', '--', '/* ; */', '; drop table runs', '$1', '100%', 'é']
  const condition = (): string => {
    const { name, type } = of(columns)
    const column = `q."${name}"`
    switch (type) {
      case 'text':
        return of([
          () => `${column} = ${value(of(texts))}`,
          () => `${column} like ${value(`%${of(texts)}%`)}`,
          () => `lower(${column}) ~ ${value('^a')}`,
          () => `${column} in (${value('a')}, ${value('b')})`,
          () => `starts_with(${column}, ${value('run-')})`,
          () => `${column} is distinct from ${value(of(texts))}`,
        ])()
      case 'number':
        return of([
          () => `${column} > ${value(below(1_000))}`,
          () => `${column} between ${value(0)} and ${value(below(100))}`,
          () => `abs(${column} - 1) < ${value(0.5)}`,
          () => `${column}::numeric % 2 = 0`,
        ])()
      case 'time':
        return of([
          () => `${column} > ${value('2026-01-01T00:00:00Z')}::timestamptz`,
          () => `${column} > now() - interval '7 days'`,
          () => `extract(hour from ${column}) = 5`,
        ])()
      default:
        return of([column, `not ${column}`, `${column} is true`])
    }
  }
  const where = Array.from({ length: below(4) }, condition)
  const filter = where.length === 0 ? '' : ` where ${where.join(next() < 0.7 ? ' and ' : ' or ')}`
  const texty = columns.find(({ type }) => type === 'text') as Column
  const number = columns.find(({ type }) => type === 'number')
  const shape = below(6)
  // Values stand in the statement in the order in which they were made.
  if (shape === 0 && number !== undefined)
    return {
      statement:
        `SELECT q."${texty.name}" AS name, count(*), round(avg(q.${number.name})::numeric, 2), ` +
        `max(q.${number.name}) FROM ${table} q${filter} GROUP BY 1 ORDER BY 2 DESC, 1`,
      params,
    }
  if (shape === 1)
    return {
      statement:
        `select count(*) filter (where q.${texty.name} <> '') as n, min(q.${texty.name}) from ` +
        `provenance.${table} as q${filter};`,
      params,
    }
  if (shape === 2)
    return {
      statement:
        `select * from (select q.*, row_number() over (partition by q.${texty.name} order by ` +
        `q.${of(columns).name}) as place from ${table} q${filter}) ranked where place <= 3`,
      params,
    }
  if (shape === 3)
    return {
      statement:
        `select distinct q.${texty.name} from ${table} q join ${table} other on other.${texty.name} = ` +
        `q.${texty.name}${filter}`,
      params,
    }
  if (shape === 4)
    return {
      statement:
        `select case when q.${texty.name} = 'x' then 1 else 0 end as is_x, coalesce(q.${texty.name}, ` +
        `'-') || '!' from ${table} q${filter} order by 2 limit ${String(1 + below(50))} offset 1 -- the end`,
      params,
    }
  const list = columns.filter(() => next() < 0.5).map(({ name }) => `q.${name}`)
  return {
    statement:
      `/* a comment; with ? */ select ${list.length === 0 ? '*' : list.join(', ')} from "${table}" ` +
      `q${filter} order by q.${of(columns).name} desc nulls last limit 10`,
    params,
  }
}

/** Proofs make more of them, by a seed of their own. */
const proofSeed = process.env['ORRERY_SEED']
const seed = Number(proofSeed ?? 20_261_123)
const [hostileMade, honestMade] = proofSeed === undefined ? [500, 100] : [5_000, 1_000]

describe('hostile statements', () => {
  const forms = [
    ...[...expressions, ...attributes].map((expression) => `select ${expression} from runs`),
    ...statements,
  ]

  test('at least 300 forms are written by hand, all different', () => {
    expect(new Set(forms).size).toBe(forms.length)
    expect(forms.length).toBeGreaterThanOrEqual(300)
  })

  test(`every form, and ${String(hostileMade)} made of them by seed ${String(seed)}, are refused with a reason`, async () => {
    const random = dice(seed)
    const given = [...forms, ...Array.from({ length: hostileMade }, () => generated(random))]
    const before = await app.counts()
    const passed = await passedOf(given)
    process.stderr.write(
      `hostile statements: seed ${String(seed)}, ${String(passed.length)} of ${String(given.length)} passed\n`,
    )
    expect(passed).toEqual([])
    expect(await app.counts()).toEqual(before)
  })
})

proved(
  'statements whose values would grow to hundreds of megabytes are refused, again and again',
  async () => {
    const passed: string[] = []
    for (const [statement, ...params] of growing)
      for (const values of [params.map(() => 'a'), params, params]) {
        const { status, body } = await ask(statement, values)
        if (values !== params && values.length > 0) continue
        if (status !== 400 || !/may come to more than/.test(body.error))
          passed.push(`${String(status)} ${statement}`)
      }
    expect(passed).toEqual([])
  },
)

describe('honest statements', () => {
  test.each([
    ["select replace(id, '-', ', '), regexp_replace(id, '[0-9]+', 'N', 'g') from runs"],
    ["select string_agg(distinct round(cost::numeric, 2)::text, ', ') from runs group by status"],
    ["select concat_ws(', ', id, status, mode), array_to_string(array_agg(id), ', ') from runs group by 1"],
    ["select json_agg(x) from (select status, json_agg(json_build_object('id', id)) from runs group by 1) x"],
    ["select to_char(created_at, 'YYYY-MM-DD HH24:MI:SS') from (select * from runs) r order by 1"],
    [
      `select q.n, q.count, q.text, q.case from
        (select 1 as n, count(*), 'x'::text, case when true then 1 end from runs) q`,
    ],
    ['with q(a, b) as (select id, status from runs) select q.a, r.c, q.b from q join runs r(c) on r.c = q.a'],
    ['select z.id, z.place from (select *, row_number() over () as place from runs) z'],
    [
      'select j.id, k.x from runs a join runs b using (id) as j, (runs c join (select 1 as x) d on true) as k',
    ],
    ['select r.id from runs r where exists (select from (select id as k from runs) r where r.k = r.k)'],
    [
      `select l.y, u.a from runs r, lateral (select r.id as y) l,
        (select id as a from runs union select id from runs) u`,
    ],
    [
      `select s.greatest, s.array, s.exists, s.nullif, s.coalesce, s.current_date, s.row, s.id from
        (select greatest(1, 2), array[1], exists(select 1), nullif(1, 2), coalesce(1, 2), current_date, row(1),
          (select id from runs limit 1) from runs) s`,
    ],
    ['select (array[r.id])[1] as first, r.*, provenance.runs.id as other from runs r, provenance.runs'],
    ['select id from runs where id = ? or id = ?', 'a'.repeat(200_000), 'b'],
    [
      `select id from runs where id in (${Array(900).fill('?').join(', ')})`,
      ...Array(900).fill('x'.repeat(150)),
    ],
  ])('%s', async (statement, ...params) => {
    expect((await ask(statement, params)).status).toBe(200)
  })

  test(`${String(honestMade)} by seed ${String(seed)} run`, async () => {
    const random = dice(seed)
    const refused: string[] = []
    const given = Array.from({ length: honestMade }, () => honest(random))
    await all(given, async ({ statement, params }) => {
      const { status, body } = await ask(statement, params)
      if (status !== 200) refused.push(`${statement} ${JSON.stringify(params)}: ${JSON.stringify(body)}`)
    })
    process.stderr.write(
      `honest statements: seed ${String(seed)}, ${String(refused.length)} of ${String(honestMade)} refused\n`,
    )
    expect(refused).toEqual([])
  })
})

test.each<[string, ...unknown[]]>([
  ['with x as (select * from runs) select * from x'],
  [
    'with x as (select id, cost from runs where status = ?) select count(*) as n, sum(cost) as c from x where cost > ?',
    'completed',
    0.5,
  ],
  [
    'with x(a) as materialized (select id from runs) select a from x union all select a from x order by a limit 3',
  ],
  ['with x as (select id from runs), y as (select id from x) select x.id from x join y on x.id = y.id'],
  ['with runs as (select id from runs) select id from runs'],
  ['with plans as (select id from provenance.runs) select id from plans'],
  ['with execution_runs as (select id from runs) select e.id from execution_runs e, runs'],
  ['select * from (with x as (select id from runs) select * from x) q'],
  ['select id, (with x as (select 1 as n) select n from x) as one from runs'],
  [
    'with a as (select id from runs) select id from a where id in (with a as (select id from a) select id from a)',
  ],
  [
    '(with x as (select id from runs) select id from x) union (with x as (select id from runs) select id from x)',
  ],
  [
    'with x as (select id from runs) (select id from x) except select id from runs where id in (select id from x)',
  ],
])('%s runs: its names are no entities', async (statement, ...params) => {
  const { status, body } = await ask(statement, params)
  expect([status, body]).toEqual([200, expect.any(Array)])
  const explained = await app.call('POST', '/provenance/sql/explain/', { statement, params })
  expect([explained.status, explained.body.entity]).toEqual([200, 'execution_runs'])
})

test.each([
  ['select count(*), count(exit_code) from attempts', ['count']],
  ['select id, status as id from runs', ['id']],
  ['select a.id, b.id, a.status, b.status, a.mode from runs a join runs b on a.id = b.id', ['id', 'status']],
  ['select *, id from runs where id = ?', ['id'], 'x'],
  ['select 1, 2 from runs', ['?column?']],
  [`select 1 as "${'x'.repeat(63)}a", 2 as "${'x'.repeat(63)}b" from runs`, ['x'.repeat(63)]],
  ['select case when true then id end, case when true then status end from runs limit 0', ['case']],
] as const)('%s has columns of one name: it is refused', async (statement, names, ...params) => {
  // A statement that was asked before is judged as the first time.
  for (let again = 0; again < 3; again += 1) {
    const { status, body } = await ask(statement, params)
    expect([status, body.error]).toEqual([
      400,
      expect.stringContaining('give each a name of its own with AS'),
    ])
    for (const name of names) expect(body.error).toContain(JSON.stringify(name))
  }
})

test('columns under names of their own are all in the answer, and in CSV also those of one name', async () => {
  const { status, body } = await ask('select count(*) as one, count(exit_code) as other from attempts', [])
  expect([status, body]).toEqual([200, [{ one: 0, other: 0 }]])
  const csv = await app.call<string>(
    'POST',
    '/provenance/sql/',
    { statement: 'select count(*), count(exit_code) from attempts' },
    { accept: 'text/csv' },
  )
  expect([csv.status, csv.body]).toEqual([200, 'count,count\n0,0\n'])
})

test('a value stays a value: what is filled in never reads as anything else', async () => {
  const texts = [
    "'",
    "''",
    "\\'",
    '\\',
    "'; drop table runs; --",
    '/*',
    '*/',
    '$$',
    '$1',
    '?',
    '??',
    "E'",
    "x' or '1'='1",
    '\n--\n',
    "U&'",
    '"',
  ]
  for (const text of texts) {
    const ready = await prepare({
      statement: 'select id from runs where id = ? and status <> ?',
      params: [text, `${text}${text}`],
    })
    expect(ready.text).toContain(`'${text.replaceAll("'", "''")}'`)
  }
  // A ? in a text, a name or a comment is none.
  for (const statement of [
    "select '?' from runs",
    'select id as "?" from runs',
    'select $$?$$ from runs',
    "select E'\\'?' from runs",
    'select id /* ? /* ? */ ? */ from runs -- ?',
  ])
    expect((await prepare({ statement })).table).toBe('execution_runs')
  for (const statement of [
    "select 'a?' from runs where id = ?",
    "select E'a\\'?' from runs where id = ?",
    'select $x$?$x$ from runs where id = ?',
  ])
    expect((await prepare({ statement, params: ['v'] })).text).toContain("'v'")
})
