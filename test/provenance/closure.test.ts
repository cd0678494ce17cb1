import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { fileId, recordRun, taskId } from '../../bench/provenance/rows.ts'
import { sql, type Db } from '../../src/db/sql.ts'
import { closureOf } from '../../src/domains/provenance/closure.ts'
import { openRunGraphs } from '../../src/domains/provenance/run-graphs.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'
import { stepsOfChain } from './chain-steps.ts'

let clone: TestDatabase
beforeAll(async () => {
  clone = await cloneDatabase()
})
afterAll(() => clone.drop())

/** The same numbers for the same seed (mulberry32). */
const dice = (seed: number) => {
  let state = seed
  return (below: number): number => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), 1 | state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return Math.floor((((t ^ (t >>> 14)) >>> 0) / 2 ** 32) * below)
  }
}

/** Files and tasks that a record leads to or comes of, by PostgreSQL alone. */
const recursive = async (
  db: Db,
  entity: string,
  id: string,
  direction: 'prior' | 'downstream',
): Promise<string[]> => {
  const [from, to] = direction === 'prior' ? ['b', 'a'] : ['a', 'b']
  const rows = await db.prepared<{ node: string }>(
    `recursive_${direction}`,
    `with recursive edges (a, b) as materialized (
       select 'data_instances:' || u.data_object_instance_id, 'task_executions:' || u.task_execution_id
         from provenance.data_uses u
       union all
       select 'task_executions:' || t.id, 'data_instances:' || i.id from data_object_instances i
       join task_executions t on t.execution_run_id = i.execution_run_id
         and t.activity_id = i.producer_activity_id and t.attempt = i.attempt
     ), reach (node) as (select $1::text collate "C" union select e.${to} from reach r join edges e
       on e.${from} = r.node)
     select node from reach where node <> $1`,
    [`${entity}:${id}`],
  )
  return rows.map(({ node }) => node).toSorted()
}

test('the closure is that of a recursive query after every write, for every daemon', async () => {
  const { db } = clone
  const random = dice(7)
  const activities = 24
  const edges = Array.from({ length: activities }, (_, to) =>
    to === 0 ? [] : Array.from({ length: 1 + random(3) }, () => [random(to), to] as const),
  ).flat()
  const declared = new Map<number, { producer: number; name: string }[]>()
  for (const [from, to] of edges)
    if (to % 7 === 3)
      declared.set(to, [...(declared.get(to) ?? []), { producer: from, name: `out/a${String(from)}-0.dat` }])
  for (const [consumer, names] of declared)
    declared.set(consumer, [...new Map(names.map((one) => [one.producer, one])).values()])
  await recordRun(db, { name: 'w', activities, edges, files: () => 0, declared })
  await db.run(sql`update execution_runs set status = 'running', last_event_sequence = 0`)
  await db.run(sql`delete from operation_events`)
  await db.run(sql`update task_executions set status = 'blocked', handle_name = null`)

  let sequence = 0
  /** A change of a task with its event, in one transaction, as the engine commits it. */
  const write = (event: string, task: string, work: (tx: Db) => Promise<unknown>): Promise<void> =>
    db.transaction(async (tx) => {
      await work(tx)
      sequence++
      await tx.run(
        sql`insert into operation_events (operation_id, sequence, event_type, aggregate_type, aggregate_id)
          values ('w-run', ${sequence}, ${event}, 'activity_execution', ${task})`,
      )
      await tx.run(sql`update execution_runs set last_event_sequence = ${sequence}`)
    })
  const daemons = [openRunGraphs(), openRunGraphs()]
  const known: { entity: string; id: string }[] = []
  let compared = 0
  const compare = async (): Promise<void> => {
    for (let n = 0; n < 2; n++) {
      const root = known[random(known.length)] as { entity: string; id: string }
      const direction = random(2) === 0 ? 'prior' : 'downstream'
      const expected = await recursive(db, root.entity, root.id, direction)
      // One of them may have missed many writes.
      const graphs = daemons[random(10) === 0 ? 1 : 0] as (typeof daemons)[number]
      const found: string[] = []
      await db.transaction(async (tx) => {
        for await (const nodes of closureOf(tx, graphs, root, direction))
          found.push(...nodes.map(({ entity, id }) => `${entity}:${id}`))
      })
      const own = found.filter((key) => /^(task_executions|data_instances):/.test(key))
      expect([root, direction, own.toSorted()]).toEqual([root, direction, expected])
      expect(new Set(found).size).toBe(found.length)
      compared += expected.length
    }
  }

  for (let position = 0; position < activities; position++) {
    const id = taskId('w', position)
    await write('activity.started', id, (tx) =>
      tx.run(sql`update task_executions set status = 'running', handle_name = 't' where id = ${id}`),
    )
    known.push({ entity: 'task_executions', id })
    await compare()
    const again = random(6) === 0
    const maker = again ? `${id}:2` : id
    if (again) {
      // A failed attempt leaves a file that nobody is given.
      await write('activity.failed', id, async (tx) => {
        await tx.run(sql`update task_executions set status = 'failed', latest = false where id = ${id}`)
        await tx.run(sql`insert into data_object_instances (id, data_object_id, execution_run_id,
          producer_activity_id, attempt, relative_path, size_bytes)
          values (${`lost-${String(position)}`}, 'x', 'w-run', ${`w-a${String(position)}`}, 1, 'lost', 1)`)
        await tx.run(sql`insert into task_executions (id, execution_run_id, activity_position,
          plan_assignment_id, activity_id, external_id, planned_resource_id, attempt, status)
          select ${maker}, execution_run_id, activity_position, plan_assignment_id, activity_id, external_id,
            planned_resource_id, 2, 'ready' from task_executions where id = ${id}`)
      })
      await write('activity.started', maker, (tx) =>
        tx.run(sql`update task_executions set status = 'running', handle_name = 't' where id = ${maker}`),
      )
      await compare()
    }
    const files = random(3)
    await write('activity.completed', maker, async (tx) => {
      await tx.run(sql`update task_executions set status = 'completed' where id = ${maker}`)
      for (let n = 0; n < files; n++)
        await tx.run(sql`insert into data_object_instances (id, data_object_id, execution_run_id,
          producer_activity_id, attempt, relative_path, size_bytes)
          values (${fileId('w', position, n)}, 'x', 'w-run', ${`w-a${String(position)}`}, ${again ? 2 : 1},
            ${`out/a${String(position)}-${String(n)}.dat`}, 1)`)
    })
    for (let n = 0; n < files; n++) known.push({ entity: 'data_instances', id: fileId('w', position, n) })
    await compare()
  }
  // So that empty answers on both sides are no success.
  expect(compared).toBeGreaterThan(300)
}, 600_000)

test('the uses of a graph are those of the view, for the run of the test above', async () => {
  const { db } = clone
  const pairs = await db.prepared<{ task: string; file: string }>(
    'pairs',
    'select task_execution_id as task, data_object_instance_id as file from provenance.data_uses ' +
      "where execution_run_id = 'w-run'",
    [],
  )
  const uses = (await openRunGraphs().of(db, 'w-run'))?.uses() ?? []
  const sorted = (list: readonly { task: string; file: string }[]) =>
    list.map(({ task, file }) => `${task} ${file}`).toSorted()
  expect(uses.length).toBeGreaterThan(20)
  expect(sorted(uses)).toEqual(sorted(pairs))
})

test('a run that takes the id of a deleted one has its own closure, whatever was asked before', async () => {
  const { db } = clone
  const chain = [
    [0, 1],
    [1, 2],
  ] as const
  const fork = [
    [0, 1],
    [0, 2],
  ] as const
  const graphs = openRunGraphs()
  const root = { entity: 'data_instances', id: fileId('again', 1, 0) }
  const compared = async (): Promise<string[]> => {
    const found: string[] = []
    await db.transaction(async (tx) => {
      for await (const nodes of closureOf(tx, graphs, root, 'downstream'))
        found.push(...nodes.map(({ entity, id }) => `${entity}:${id}`))
    })
    const own = found.filter((key) => /^(task_executions|data_instances):/.test(key)).toSorted()
    expect(own).toEqual(await recursive(db, root.entity, root.id, 'downstream'))
    return own
  }
  const seen: string[][] = []
  // Equal generations and numbers of events, then more events than before.
  for (const [edges, events] of [
    [chain, 3],
    [fork, 3],
    [chain, 5],
  ] as const) {
    await recordRun(db, { name: 'again', activities: 3, edges: [...edges] })
    await db.run(sql`update execution_runs set last_event_sequence = ${events} where id = 'again-run'`)
    seen.push(await compared())
    for (const statement of [
      sql`delete from data_objects where workflow_version_id = 'again-v1'`,
      sql`delete from operation_events where operation_id = 'again-run'`,
      sql`delete from execution_runs where id = 'again-run'`,
      sql`delete from schedule_plans where id = 'again-plan'`,
      sql`delete from workflow_versions where workflow_id = 'again'`,
      sql`delete from workflow_definitions where id = 'again'`,
      sql`delete from execution_scopes where id = 'again-scope'`,
      sql`delete from environments where id = 'again'`,
    ])
      await db.run(statement)
  }
  expect(seen.map((keys) => keys.length)).toEqual([2, 0, 2])
})

test('a lineage of 20,000 steps is walked', async () => {
  const activities = 10_000
  expect(await stepsOfChain(clone.db, activities)).toBe(2 * activities - 1)
})
