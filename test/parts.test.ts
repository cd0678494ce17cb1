import { expect, test } from '@jest/globals'
import { randomBytes } from 'node:crypto'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import { configFromEnvironment } from '../src/config.ts'
import { openDatabase } from '../src/db/pool.ts'
import { sql } from '../src/db/sql.ts'
import { sealRecords } from '../src/domains/audit-events/sealer.ts'
import { recordAudit } from '../src/domains/audit-events/store.ts'
import { openLog } from '../src/observability/log.ts'
import { openMetrics } from '../src/observability/metrics.ts'
import { openTraces } from '../src/observability/traces.ts'
import { openParts } from '../src/parts.ts'
import { cloneDatabase } from './support/database.ts'
import { runFolder } from './support/run-folder.ts'

test('the secrets of an instance are those of its configuration, too', async () => {
  const { url, drop } = await cloneDatabase()
  try {
    const dataDir = mkdtempSync(join(runFolder(), 'data-'))
    writeFileSync(
      join(dataDir, 'temporal-codec.key'),
      `${'k'.repeat(43)}
`,
      { mode: 0o600 },
    )
    const endpoints = { databaseUrl: url, temporalAddress: '127.0.0.1:1', temporalUiUrl: undefined }
    const config = configFromEnvironment({
      ...{ SERVICE_DATA_DIR: dataDir, SERVICE_DATABASE_URL: url, SERVICE_TEMPORAL_ADDRESS: '127.0.0.1:1' },
      SERVICE_API_TOKEN: 't'.repeat(32),
      SERVICE_PROVENANCE_DATABASE_URL: 'postgresql://reader:first%2Fword@127.0.0.1:1/none?sslpassword=second',
    })
    const traces = await openTraces({ tracesEndpoint: undefined }, 'test')
    const metrics = openMetrics(undefined)
    await using parts = await openParts({ config, log: openLog('error'), metrics, traces, endpoints })
    expect(await parts.instanceSecrets()).toEqual(
      expect.arrayContaining(['t'.repeat(32), 'first/word', 'second', 'k'.repeat(43)]),
    )
  } finally {
    await drop()
  }
})

const Sessions = z.object({ sessions: z.number() })

test('a failure half-way closes what was opened: with a key file that others may read no session of the database stays', async () => {
  const { url, drop } = await cloneDatabase()
  try {
    const dataDir = mkdtempSync(join(runFolder(), 'data-'))
    const keyFile = join(dataDir, 'keys')
    writeFileSync(keyFile, '', { mode: 0o644 })
    const endpoints = {
      databaseUrl: `${url}?application_name=half-way`,
      temporalAddress: '127.0.0.1:1',
      temporalUiUrl: undefined,
    }
    const config = configFromEnvironment({
      SERVICE_DATA_DIR: dataDir,
      SERVICE_DATABASE_URL: endpoints.databaseUrl,
      SERVICE_TEMPORAL_ADDRESS: endpoints.temporalAddress,
      SERVICE_VAULT_KEY_FILE: keyFile,
    })
    const traces = await openTraces({ tracesEndpoint: undefined }, 'test')
    await expect(
      openParts({ config, log: openLog('error'), metrics: openMetrics(undefined), traces, endpoints }),
    ).rejects.toThrow(`${keyFile} (SERVICE_VAULT_KEY_FILE)`)

    await using db = openDatabase(url, { max: 1 })
    const open = async (): Promise<number> =>
      (
        await db.one(
          Sessions,
          sql`select count(*) as sessions from pg_stat_activity where datname = current_database()
            and application_name = 'half-way'`,
        )
      ).sessions
    // The server notices the end of a session a moment later; a pool that stays open would keep it
    // for a minute.
    for (let tries = 0; tries < 50 && (await open()) > 0; tries++) await sleep(100)
    expect(await open()).toBe(0)
  } finally {
    await drop()
  }
})

test('a key file that lacks the key of stored credentials and of audit records is named in a warning at the start', async () => {
  const { url, drop } = await cloneDatabase()
  try {
    const dataDir = mkdtempSync(join(runFolder(), 'data-'))
    const endpoints = { databaseUrl: url, temporalAddress: '127.0.0.1:1', temporalUiUrl: undefined }
    const traces = await openTraces({ tracesEndpoint: undefined }, 'test')
    const warnings: unknown[] = []
    const log = Object.assign(openLog('silent'), {
      warn: (fields: unknown) => void warnings.push(fields),
    })
    const openWith = (file: string) => {
      const keyFile = join(dataDir, file)
      if (!existsSync(keyFile))
        writeFileSync(keyFile, `${randomBytes(32).toString('base64')}\n`, { mode: 0o600 })
      const config = configFromEnvironment({
        SERVICE_DATA_DIR: dataDir,
        SERVICE_DATABASE_URL: url,
        SERVICE_TEMPORAL_ADDRESS: '127.0.0.1:1',
        SERVICE_VAULT_KEY_FILE: keyFile,
      })
      return openParts({ config, log, metrics: openMetrics(undefined), traces, endpoints })
    }
    {
      await using parts = await openWith('first')
      await parts.db.transaction((tx) =>
        parts.vault.put(tx, 'kept', { kind: 'kubernetes-token', token: 'x' }, { name: 'kept' }),
      )
      await sealOne(parts)
    }
    {
      await using parts = await openWith('first')
      expect([parts.vault === undefined, warnings]).toEqual([false, []])
    }
    await using parts = await openWith('second')
    expect([parts.vault === undefined, warnings]).toEqual([
      false,
      [{ key: expect.any(String), credentials: 1 }, { key: expect.any(String) }],
    ])
  } finally {
    await drop()
  }
})

/** Writes an audit record, and seals it. */
const sealOne = async ({ db, vaultKeys }: Awaited<ReturnType<typeof openParts>>): Promise<void> => {
  await recordAudit(db, { eventType: 'thing.changed', outcome: 'succeeded', summary: 's' })
  await sealRecords(db, vaultKeys)
}

test.each([
  [
    'credentials',
    ({ db, vault }: Awaited<ReturnType<typeof openParts>>) =>
      db.transaction((tx) =>
        vault.put(tx, 'kept', { kind: 'kubernetes-token', token: 'x' }, { name: 'kept' }),
      ),
  ],
  ['audit records', sealOne],
])(
  'a lost key file stops the start of an embedded installation with %s, and no other is made',
  async (what, keep) => {
    const { url, drop } = await cloneDatabase()
    try {
      const dataDir = mkdtempSync(join(runFolder(), 'data-'))
      const keyFile = join(dataDir, 'vault.key')
      const endpoints = { databaseUrl: url, temporalAddress: '127.0.0.1:1', temporalUiUrl: undefined }
      const traces = await openTraces({ tracesEndpoint: undefined }, 'test')
      const config = configFromEnvironment({ SERVICE_DATA_DIR: dataDir })
      const open = () =>
        openParts({ config, log: openLog('silent'), metrics: openMetrics(undefined), traces, endpoints })
      {
        await using parts = await open()
        await keep(parts)
      }
      const kept = readFileSync(keyFile)
      rmSync(keyFile)
      await expect(open()).rejects.toThrow(`the key file ${keyFile} is missing, and ${what} are sealed`)
      expect(existsSync(keyFile)).toBe(false)
      writeFileSync(keyFile, kept, { mode: 0o600 })
      await using parts = await open()
      expect(await parts.vault.lost()).toEqual([])
    } finally {
      await drop()
    }
  },
)
