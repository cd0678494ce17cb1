import { resolve } from 'node:path'
import { ConfigError, configFromEnvironment } from './config.ts'
import { backUp, restore } from './embedded/backup.ts'
import { openLog } from './observability/log.ts'

// `backup FILE` and `restore FILE`: the embedded databases of a stopped service to one file and back.
const [verb, file, ...rest] = process.argv.slice(2)
if ((verb !== 'backup' && verb !== 'restore') || file === undefined || rest.length > 0) {
  process.stderr.write('usage: npm run backup -- FILE | npm run restore -- FILE\n')
  process.exit(2)
}
try {
  const { dataDir, cacheDir, databaseUrl } = configFromEnvironment()
  if (databaseUrl !== undefined)
    throw new ConfigError([
      'SERVICE_DATABASE_URL is set: only the embedded database is backed up here; use the tools of your PostgreSQL server',
    ])
  const options = { dataDir, cacheDir, log: openLog('warn') }
  if (verb === 'backup') {
    await backUp(options, resolve(file))
    process.stdout.write(`${dataDir} is backed up in ${resolve(file)}\n`)
  } else {
    const aside = await restore(options, resolve(file))
    process.stdout.write(`${dataDir} is restored from ${resolve(file)}${aside === undefined ? '' : `; what was there is in ${aside}`}\n`)
  }
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`)
  process.exit(error instanceof ConfigError ? 2 : 1)
}
