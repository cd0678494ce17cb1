import { afterAll, beforeAll, beforeEach, describe, expect, test } from '@jest/globals'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { openDatabase, type Database } from '../../src/db/pool.ts'
import { sql } from '../../src/db/sql.ts'
import { signRecord } from '../../src/domains/audit-events/seal.ts'
import { sealAll, sealRecords } from '../../src/domains/audit-events/sealer.ts'
import { recordAudit } from '../../src/domains/audit-events/store.ts'
import { verifyAudit, type Proof } from '../../src/domains/audit-events/verify.ts'
import { openWitness, renewWitness, type Witness } from '../../src/domains/audit-events/witness.ts'
import { ensureKeyFile, openVaultKeys, type VaultKeys } from '../../src/vault/keys.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'
import { runFolder } from '../support/run-folder.ts'
import { recordStatements } from '../support/statements.ts'

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
let witness: Witness
beforeEach(() => {
  witness = openWitness(join(mkdtempSync(join(runFolder(), 'witness-')), 'audit-witness.json'))
})
const verdict = () => verifyAudit(db, keys, { witness })
const seal = () => sealRecords(db, keys)
const bearWitness = () => renewWitness(db, keys, witness)
/** Statements of somebody who has the database and not the key. */
const tamper = async (text: string) => {
  const client = await db.client()
  try {
    await client.query(text)
  } finally {
    client.release()
  }
}

describe('the chain of audit records', () => {
  test('is whole while nobody changes one; numbers have no gaps', async () => {
    const none = { head: null, signedFrom: null, witness: null }
    expect(await verdict()).toEqual({ sealed: 0, unsealed: 6, ...none })
    expect(await seal()).toBe(6)
    expect(await verdict()).toMatchObject({ signedFrom: 1, witness: null })
    await bearWitness()
    const summary = 'later, with bytes \0 from outside'
    await recordAudit(db, { eventType: 'thing.changed', outcome: 'failed', summary, metadata: { summary } })
    expect(await verdict()).toMatchObject({ sealed: 6, unsealed: 1, head: { number: 6 } })
    expect([await seal(), await seal()]).toEqual([1, 0])
    expect(await verdict()).toMatchObject({ witness: { number: 6, since: 6 } })
    await bearWitness()
    expect(await verdict()).toMatchObject({
      ...{ signedFrom: 1, witness: { number: 7, since: 6 } },
      sealed: 7,
      unsealed: 0,
      head: { number: 7, seal: expect.stringMatching(/^[0-9a-f]{64}$/) },
    })
    expect((await verdict()).first).toBeUndefined()
  })

  test('one statement finds that every record is sealed', async () => {
    expect(await seal()).toBe(6)
    const recorded = recordStatements(db)
    expect(await sealRecords(recorded.db, keys)).toBe(0)
    expect(recorded.statements).toHaveLength(1)
  })

  test('the walk goes on behind a record whose proof fails, and names the break of the chain too', async () => {
    await seal()
    const proofs: Proof[] = [
      (_, { metadata }) => Promise.resolve([2, 4].includes(Number(metadata?.['b'])) ? 'differs' : undefined),
    ]
    const found = () => verifyAudit(db, keys, { witness, proofs })
    const [second, third] = [
      { id: await idOf(2), reason: 'differs' },
      { id: await idOf(4), reason: 'differs' },
    ]
    expect(await found()).toMatchObject({ first: second, further: [third] })
    await tamper("update audit_events set summary = 'nothing' where seal_number = 5")
    const broken = { id: await idOf(5), reason: expect.stringMatching(/^changed/) }
    expect(await found()).toMatchObject({ first: second, further: [third, broken] })
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
    await tamper(tampering)
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

  test('a chain that was never signed, and one without a witness, do not pass as proved', async () => {
    await tamper('update audit_events set signature = null, signature_key = null')
    await sealRecords(db, undefined)
    expect(await verdict()).toMatchObject({ sealed: 6, signedFrom: null, witness: null })
    await recordAudit(db, { eventType: 'thing.changed', outcome: 'failed', summary: 'later' })
    await seal()
    const proved = await verdict()
    expect([proved.signedFrom, proved.first]).toEqual([7, undefined])
  })
})

describe('with a link outside of the database, whoever has the database alone cannot', () => {
  const later = async () => {
    await recordAudit(db, { eventType: 'thing.changed', outcome: 'failed', summary: 'later' })
    await seal()
    await bearWitness()
  }

  test('make the chain anew without the key, and later records do not hide it', async () => {
    await seal()
    await bearWitness()
    const before = await idOf(6)
    await tamper(`update audit_events set summary = 'nothing', signature = null, signature_key = null,
      seal_number = null, digest = null, seal = null, seal_key = null; delete from audit_head`)
    await sealRecords(db, undefined)
    const fault = { id: before, reason: expect.stringMatching(/^changed: a file outside/) }
    expect((await verdict()).first).toEqual(fault)
    await later()
    expect((await verdict()).first).toEqual(fault)
  })

  test.each([
    ['remove all', 'delete from audit_events; delete from audit_head'],
    [
      'put back an older head with the records of its time',
      `delete from audit_events where seal_number > 6; update audit_head set (number, event_id, seal,
        signature, signature_key) = (select number, event_id, seal, signature, signature_key from older)`,
    ],
    [
      'begin the chain behind the link with a reset of their own',
      `update audit_events set seal_number = seal_number + 10, event_type = 'instance.reset', seal_key = 'sha256',
        metadata = '{"previousHead": {"number": 10, "seal": ""}}'; update audit_head set number = 17`,
    ],
  ])('%s', async (_name, tampering) => {
    await seal()
    await tamper('create table older as select * from audit_head')
    await later()
    const [link, last] = [await witness.read(), await idOf(7)]
    await tamper(tampering)
    expect((await verdict()).first).toBeDefined()
    if (!tampering.includes('instance.reset'))
      expect((await verdict()).first).toEqual({
        id: last,
        reason: expect.stringMatching(/^removed: .* holds the seal of number 7/),
      })
    await later()
    expect(await witness.read()).toEqual(link)
    await later()
    expect((await verdict()).first).toBeDefined()
  })

  test('nor write the file: one that the service did not write is a fault', async () => {
    await seal()
    await bearWitness()
    const link = await witness.read()
    await witness.write({ ...link!, number: 3 })
    expect((await verdict()).first?.reason).toMatch(/^changed: .*audit-witness.json was not written/)
    writeFileSync(witness.file, 'nonsense')
    expect((await verdict()).first?.reason).toMatch(/^cannot be checked: .*audit-witness.json/)
  })

  test('a vault that gives no answer is no fault of the file', async () => {
    await seal()
    await bearWitness()
    const away = { ...keys, find: () => Promise.reject(new Error('the vault is away')) }
    await expect(verifyAudit(db, away, { witness })).rejects.toThrow('the vault is away')
  })

  test('a factory reset goes on with the numbers, and the link goes with it', async () => {
    const reset = () =>
      db.transaction(async (tx) => {
        const { number, eventId, seal } = (await sealAll(tx, keys))!
        await tx.run(sql`truncate audit_events, audit_head`)
        await recordAudit(tx, {
          ...{ eventType: 'instance.reset', outcome: 'succeeded', summary: 'reset' },
          metadata: { previousHead: { number, eventId, seal } },
        })
      })
    await seal()
    await bearWitness()
    await reset()
    await reset()
    await later()
    const proved = await verdict()
    expect(proved).toMatchObject({ sealed: 2, head: { number: 9 }, witness: { number: 9, since: 6 } })
    expect(proved.first).toBeUndefined()
    await tamper(`update audit_events set metadata = '{}' where seal_number = 8`)
    expect((await verdict()).first).toBeDefined()
  })
})
