import { configFromEnvironment } from '../../src/config.ts'
import { migrate } from '../../src/db/migrate.ts'
import { openDatabase } from '../../src/db/pool.ts'
import { openPostgres } from '../../src/embedded/postgres.ts'
import { openTemporal } from '../../src/embedded/temporal.ts'
import { openLog } from '../../src/observability/log.ts'
import { serversFolder } from './run-folder.ts'

/** The servers that the teardown ends; both files run in one process. */
export const servers = new AsyncDisposableStack()

/** Makes the database that every test file clones (25 ms in memory): the newest schema, without rows. */
const makeTemplate = async (databaseUrl: string): Promise<void> => {
  await using admin = openDatabase(databaseUrl, { max: 1 })
  const client = await admin.client()
  await client.query('create database template_orrery')
  client.release()
  await using template = openDatabase(databaseUrl.replace(/\/[^/]+$/, '/template_orrery'), { max: 1 })
  await migrate(template)
}

/**
 * Starts one PostgreSQL and one Temporal for the whole test run, as the service starts its own.
 * Every test file clones the template database and has a Temporal namespace of its own (30 ms).
 */
export default async function setup(): Promise<void> {
  // The files of planted.ts use no server.
  if (process.env['ORRERY_TEST_SERVERS'] === 'none') return
  if (process.env['ORRERY_TEST_SERVERS'] === 'fail') throw new Error('the set-up fails on demand')
  const { cacheDir, temporalBinary, childEnvironment } = configFromEnvironment()
  const log = openLog('warn')
  const settings = { synchronous_commit: 'off' }
  const postgres = await openPostgres({ dataDir: serversFolder(), cacheDir, log, fsync: false, settings })
  servers.defer(() => postgres.stop())
  await makeTemplate(postgres.databaseUrl)
  process.env['ORRERY_TEST_DATABASE'] = postgres.databaseUrl

  const temporal = await openTemporal({
    dataDir: serversFolder(),
    cacheDir,
    namespace: 'default',
    program: temporalBinary,
    environment: childEnvironment,
    log,
    // preparePrograms() has made the program.
    onProgress: () => undefined,
    readyWithinMs: 300_000,
  })
  servers.defer(() => temporal.kill())
  process.env['ORRERY_TEST_TEMPORAL'] = temporal.address
}
