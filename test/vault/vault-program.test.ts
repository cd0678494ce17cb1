import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { spawn, spawnSync } from 'node:child_process'
import { text as whole } from 'node:stream/consumers'
import { mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { join } from 'node:path'
import { CredentialVariables } from '../../src/config.ts'
import { sql } from '../../src/db/sql.ts'
import { tryHold } from '../../src/embedded/hold.ts'
import {
  ensureKeyFile,
  makeKey,
  openVaultKeys,
  replaceKeys,
  type VaultKey,
  type VaultKeys,
} from '../../src/vault/keys.ts'
import { openVault, type Vault } from '../../src/vault/vault.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'
import { compiledOnce, runFolder } from '../support/run-folder.ts'

let folder: string
let file: string
let database: TestDatabase
let running: { keys: VaultKeys; vault: Vault }
beforeAll(async () => {
  folder = mkdtempSync(join(runFolder(), 'orrery-vault-'))
  file = join(folder, 'vault.key')
  await ensureKeyFile(file)
  database = await cloneDatabase()
  const keys = await openVaultKeys(file)
  const outside = { variables: new CredentialVariables([]), folders: [] }
  running = { keys, vault: openVault({ db: database.db, keys, outside, audit: () => Promise.resolve() }) }
  for (let i = 0; i < 250; i++)
    await running.vault.put(
      database.db,
      `t${String(i)}`,
      { kind: 'kubernetes-token', token: `token ${String(i)}` },
      {},
    )
})
afterAll(async () => {
  await database.drop()
  rmSync(folder, { recursive: true, force: true })
})

const program = join(import.meta.dirname, '../../src/programs/vault-keys.ts')
const environmentOf = (more: Record<string, string> = {}) => ({
  ...{ HOME: folder, SERVICE_DATABASE_URL: database.url, SERVICE_VAULT_KEY_FILE: file },
  ...compiledOnce(),
  ...more,
})

/** The command beside a running service, which is not told of it. */
const vault = (args: string[], environment: Record<string, string> = {}) => {
  const { status, stdout, stderr } = spawnSync(process.execPath, [program, ...args], {
    env: environmentOf(environment),
    encoding: 'utf8',
    timeout: 60_000,
  })
  return { status, stdout, stderr }
}
const open = async (id: string) =>
  running.vault.open(`vault:kubernetes-token/${id}`, { actor: 'test', purpose: 'look' })

test('one command rotates the key under a running service; the old one is retired when nothing needs it', async () => {
  const old = (await running.keys.primary()).id
  const secretLine = readFileSync(file, 'utf8').split('\n')[1] ?? ''
  expect(vault(['status'])).toMatchObject({
    status: 0,
    stdout: `${file}\n${old}  250 credentials, 0 audit records, seals\n`,
  })
  const rotated = vault(['rotate'])
  expect([rotated.status, rotated.stderr]).toEqual([0, ''])
  const [next = ''] = rotated.stdout.split(' ')
  expect(rotated.stdout).toMatch(/250 credentials are wrapped under/)
  expect(statSync(file).mode & 0o777).toBe(0o600)
  expect(await open('t0')).toMatchObject({ token: 'token 0' })
  expect(await open('t249')).toMatchObject({ token: 'token 249' })
  await running.vault.put(database.db, 'later', { kind: 'kubernetes-token', token: 'x' }, {})
  expect(vault(['status']).stdout).toBe(
    `${file}\n${next}  251 credentials, 1 audit records, seals\n${old}  0 credentials, 0 audit records\n`,
  )
  expect(vault(['retire', next])).toMatchObject({ status: 1, stderr: expect.stringMatching(/seals/) })
  expect(vault(['retire', old]).status).toBe(0)
  expect(readFileSync(file, 'utf8')).not.toContain(secretLine)
  expect(await open('later')).toMatchObject({ token: 'x' })
  expect(vault(['rewrap']).stdout).toMatch(/^0 credentials/)
  const recorded = await database.db.prepared(
    'recorded',
    `select event_type as type, metadata ->> 'key' as key, signature_key as signer from audit_events
      where event_type like 'vault.key.%' order by sequence`,
    [],
  )
  expect(recorded).toEqual([
    { type: 'vault.key.rotated', key: next, signer: next },
    { type: 'vault.key.retired', key: old, signer: next },
  ])
})

test('a key that audit records need is retired only with --forget-audit', async () => {
  const [sealing, other, away] = [await running.keys.primary(), makeKey(), makeKey()]
  await replaceKeys(file, [sealing, other])
  const write = async (signer: VaultKey, sealer?: VaultKey) => {
    const text = randomUUID()
    await database.db
      .run(sql`insert into audit_events (id, event_type, outcome, summary, signature_key, seal_key)
      values (${text}, 'thing.changed', 'succeeded', '', ${signer.id}, ${sealer?.id ?? null})`)
  }
  await write(other, sealing)
  await write(sealing, other)
  await write(other, other)
  await write(away)
  const { stdout } = vault(['status'])
  expect(stdout).toMatch(new RegExp(`^${other.id}  0 credentials, 3 audit records$`, 'm'))
  expect(stdout).toMatch(new RegExp(`^${away.id}  0 credentials, 1 audit records, NOT IN THE FILE`, 'm'))
  const before = readFileSync(file, 'utf8')
  expect(vault(['retire', other.id])).toMatchObject({
    status: 1,
    stderr: expect.stringMatching(/3 audit records.*--forget-audit/),
  })
  expect(readFileSync(file, 'utf8')).toBe(before)
  expect(vault(['status', '--forget-audit'])).toMatchObject({ status: 2 })
  expect(vault(['retire', other.id, '--forget-audit'])).toMatchObject({ status: 0, stderr: '' })
  expect((await running.keys.all()).map(({ id }) => id)).toEqual([sealing.id])
})

test('two rotations at once wait for each other, and the file has the keys of both', async () => {
  const held = await tryHold(folder, 'vault-keys')
  const rotations = Array.from({ length: 2 }, () =>
    spawn(process.execPath, [program, 'rotate'], { env: environmentOf(), timeout: 60_000 }),
  )
  const waiting = rotations.map(({ stderr }) => once(stderr, 'data'))
  const answers = rotations.map(({ stdout, stderr }) => Promise.all([whole(stdout), whole(stderr)]))
  expect(String((await Promise.all(waiting)).join('\n'))).toMatch(/waits for its end/)
  await held?.release()
  const made = (await Promise.all(answers)).map(([stdout]) => stdout.split(' ')[0])
  expect((await running.keys.all()).map(({ id }) => id)).toEqual(expect.arrayContaining(made))
  expect(vault(['rewrap']).status).toBe(0)
})

test('a rewrap goes on behind credentials whose key is lost or whose record was changed', async () => {
  const [sealing, lost, next] = [await running.keys.primary(), makeKey(), makeKey()]
  // The first and the second in the order of the rewrap.
  for (const [id, change] of [
    ['t0', sql`key_id = ${lost.id}`],
    ['t1', sql`content = 'x', data_key = 'x'`],
  ] as const)
    await database.db.run(sql`update credentials set ${change} where id = ${id}`)
  await replaceKeys(file, [next, sealing])
  expect(vault(['rewrap'])).toMatchObject({
    status: 1,
    stderr: expect.stringMatching(
      /^249 credentials are wrapped .*lacks the keys of vault:kubernetes-token\/t0 .*token\/t1 do not open/,
    ),
  })
  expect(await open('t100')).toMatchObject({ token: 'token 100' })
  expect([...(await running.vault.usage())]).toEqual(
    expect.arrayContaining([
      [next.id, 249],
      [lost.id, 1],
      [sealing.id, 1],
    ]),
  )
})

test('what cannot be done is said with its remedy, and changes nothing', () => {
  const before = readFileSync(file, 'utf8')
  for (const [args, environment, status, says] of [
    [[], {}, 2, /npm run vault -- status/],
    [['rotate', 'x'], {}, 2, /npm run vault -- status/],
    [['retire'], {}, 2, /npm run vault -- status/],
    [['retire', 'ffffffffffffffff'], {}, 1, /holds no key ffffffffffffffff.*status/],
    [['status'], { SERVICE_VAULT_KEY_FILE: '' }, 2, /SERVICE_VAULT_KEY_FILE is not set/],
    [['status'], { SERVICE_VAULT_KEY_FILE: join(folder, 'absent') }, 1, /does not exist.*openssl rand/],
    [
      ['status'],
      { SERVICE_VAULT_KEY_FILE: '', SERVICE_DATABASE_URL: '', SERVICE_DATA_DIR: folder },
      1,
      /no daemon runs/,
    ],
  ] as const) {
    const answer = vault([...args], environment)
    expect([args, answer.status, answer.stderr]).toEqual([args, status, expect.stringMatching(says)])
  }
  expect(readFileSync(file, 'utf8')).toBe(before)
})
