import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from '@jest/globals'
import pg from 'pg'
import { newestMigration, olderFolders, olderRecords } from '../image/older-records.ts'
import { cloneDatabase } from '../support/database.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService } from '../support/service.ts'

test('records of a schema of eight migrations are brought to the newest one, and their open run goes on', async () => {
  const older = await cloneDatabase()
  const client = new pg.Client({ connectionString: older.url })
  await client.connect()
  try {
    await client.query('drop schema public cascade; create schema public')
    await client.query(olderRecords)
    const dataDir = mkdtempSync(join(runFolder(), 'orrery-older-'))
    for (const folder of olderFolders) mkdirSync(join(dataDir, folder), { recursive: true })
    const migrations = async (): Promise<unknown> =>
      (await client.query('select max(number)::int as newest from public.schema_migrations')).rows[0]
    expect(await migrations()).toEqual({ newest: 8 })

    // The run's processes belong to the host `api`; Temporal knows nothing of it.
    await using service = await openService({
      databaseUrl: () => older.url,
      environment: { SERVICE_HOST_ID: 'api', SERVICE_DATA_DIR: dataDir },
    })
    expect(await migrations()).toEqual({ newest: newestMigration() })
    expect((await service.get('/execution-runs/before/')).run.status).toBe('completed')
    expect((await service.get('/execution-runs/open/')).run.status).toBe('running')
    writeFileSync(join(dataDir, 'gate'), '')
    expect((await service.finished('open', 120)).run).toMatchObject({
      status: 'completed',
      completedActivityCount: 4,
    })
    expect((await service.call('GET', '/execution-runs/open/activities/gate/outputs/gate.txt')).text).toBe(
      'open\n',
    )
  } finally {
    await client.end()
    await older.drop()
  }
}, 300_000)
