import { afterAll, beforeAll, beforeEach, describe, expect, test } from '@jest/globals'
import { mkdtempSync } from 'node:fs'
import { join } from 'node:path'
import { openDatabase, type Database } from '../../src/db/pool.ts'
import { sql } from '../../src/db/sql.ts'
import { signRecord } from '../../src/domains/audit-events/seal.ts'
import { sealRecords } from '../../src/domains/audit-events/sealer.ts'
import { recordAudit } from '../../src/domains/audit-events/store.ts'
import { verifyAudit } from '../../src/domains/audit-events/verify.ts'
import { ensureKeyFile, openVaultKeys, type VaultKeys } from '../../src/vault/keys.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'
import { runFolder } from '../support/run-folder.ts'

let clone: TestDatabase
let db: Database
let keys: VaultKeys
beforeAll(async () => {
  const file = join(mkdtempSync(join(runFolder(), 'keys-')), 'vault.key')
  await ensureKeyFile(file)
  keys = await openVaultKeys(file)
})
beforeEach(async () => {
  clone = await cloneDatabase()
  db = openDatabase(clone.url, { sign: (text) => signRecord(keys, text) })
  for (let n = 1; n <= 6; n++)
    await recordAudit(db, {
      eventType: 'thing.changed',
      actorId: `a${String(n)}`,
      outcome: 'succeeded',
      summary: `thing ${String(n)}`,
      metadata: { b: n, a: [1.5, { z: 1, y: 'é' }] },
    })
})
const closing: (() => Promise<void>)[] = []
afterAll(async () => {
  for (const close of closing) await close()
})
beforeEach(() => {
  const [one, other] = [db, clone]
  closing.push(async () => {
    await one[Symbol.asyncDispose]()
    await other.drop()
  })
})

const idOf = async (number: number): Promise<string> =>
  (
    await db.prepared<{ id: string }>('by_number', 'select id from audit_events where seal_number = $1', [
      number,
    ])
  )[0]?.id ?? ''
const verdict = () => verifyAudit(db, keys)
const seal = () => sealRecords(db, keys)

describe('the chain of audit records', () => {
  test('is whole while nobody changes one; numbers have no gaps', async () => {
    expect(await verdict()).toEqual({ sealed: 0, unsealed: 6, head: null })
    expect(await seal()).toBe(6)
    await recordAudit(db, { eventType: 'thing.changed', outcome: 'failed', summary: 'later' })
    expect(await verdict()).toMatchObject({ sealed: 6, unsealed: 1, head: { number: 6 } })
    expect([await seal(), await seal()]).toEqual([1, 0])
    expect(await verdict()).toMatchObject({
      sealed: 7,
      unsealed: 0,
      head: { number: 7, seal: expect.stringMatching(/^[0-9a-f]{64}$/) },
    })
    expect((await verdict()).first).toBeUndefined()
  })

  test.each([
    [
      'a text that is changed',
      `update audit_events set summary = 'nothing' where seal_number = 3`,
      3,
      /^changed/,
    ],
    [
      'a time that is changed',
      `update audit_events set occurred_at = occurred_at - interval '1 hour' where seal_number = 3`,
      3,
      /^changed/,
    ],
    [
      'metadata that are changed',
      `update audit_events set metadata = metadata || '{"b": 7}' where seal_number = 5`,
      5,
      /^changed/,
    ],
    ['a record that is removed', `delete from audit_events where seal_number = 4`, 3, /^removed/],
    ['the first record that is removed', `delete from audit_events where seal_number = 1`, 2, /^removed/],
    [
      'a record that is removed where those behind it move up',
      'delete from audit_events where seal_number = 4; update audit_events set seal_number = ' +
        'seal_number - 1 where seal_number > 4',
      4,
      /^swapped/,
    ],
    ['the newest records that are removed', `delete from audit_events where seal_number > 4`, 6, /^removed/],
    [
      'the newest records that are removed with the head put back',
      'delete from audit_events where seal_number > 4; update audit_head set number = 4, event_id = ' +
        '(select id from audit_events where seal_number = 4), seal = (select seal from audit_events ' +
        'where seal_number = 4)',
      4,
      /head/,
    ],
    [
      'two records that are swapped',
      'update audit_events set seal_number = -1 where seal_number = 2; update audit_events set ' +
        'seal_number = 2 where seal_number = 5; update audit_events set seal_number = 5 where seal_number = -1',
      2,
      /^swapped/,
    ],
    [
      'a record that is inserted at the end',
      `insert into audit_events (id, event_type, outcome, summary, seal_number, digest, seal, seal_key,
        signature, signature_key)
        select 'fake', event_type, outcome, 'fake', 7, digest, seal, seal_key, signature, signature_key
          from audit_events where seal_number = 6`,
      7,
      /^inserted/,
    ],
    [
      'a record that is inserted without a seal',
      `insert into audit_events (id, event_type, outcome, summary) values ('fake', 'thing.changed', ` +
        `'succeeded', 'fake')`,
      'fake',
      /^inserted/,
    ],
  ])('%s', async (_name, tampering, at, reason) => {
    await seal()
    const before = typeof at === 'number' ? await idOf(at) : at
    const client = await db.client()
    try {
      await client.query(tampering)
    } finally {
      client.release()
    }
    // What was moved is named by the record that stands there now.
    const id = before === '' || String(reason) === '/^swapped/' ? await idOf(at as number) : before
    expect((await verdict()).first).toEqual({ id, reason: expect.stringMatching(reason) })
  })

  test('a record that somebody inserts before it is sealed is named after it is sealed too', async () => {
    await seal()
    await db.run(
      sql`insert into audit_events (id, event_type, outcome, summary)
        values ('fake', 'thing.changed', 'succeeded', 'fake')`,
    )
    await recordAudit(db, { eventType: 'thing.changed', outcome: 'failed', summary: 'later' })
    await seal()
    expect((await verdict()).first).toEqual({ id: 'fake', reason: expect.stringMatching(/^inserted/) })
  })

  test('whoever has the database and not the key cannot seal anew', async () => {
    await seal()
    await db.run(
      sql`update audit_events set summary = 'nothing', seal_number = null, digest = null, seal = null,
        signature_key = 'sha256'`,
    )
    await db.run(sql`delete from audit_head`)
    await sealRecords(db, undefined)
    expect(await verdict()).toMatchObject({ sealed: 6, unsealed: 0 })
    const { first } = await verdict()
    expect(first?.reason).toMatch(/^(inserted|changed)/)
  })

  test('records of a version before are sealed as they are, and several daemons seal each once', async () => {
    const { db: plain } = clone
    await plain.run(sql`delete from audit_events`)
    await plain.run(
      sql`insert into audit_events (id, event_type, outcome, summary) select 'old' || i, 'old', 'started', ''
        from generate_series(1, 2500) i`,
    )
    while (Math.max(...(await Promise.all([seal(), seal(), seal()]))) > 0);
    expect(await verdict()).toMatchObject({ sealed: 2_500, unsealed: 0, head: { number: 2_500 } })
    expect((await verdict()).first).toBeUndefined()
  })
})
