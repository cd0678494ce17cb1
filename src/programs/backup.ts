import { resolve } from 'node:path'
import { readArguments } from './arguments.ts'
import { ConfigError, configFromEnvironment } from '../config.ts'
import { backUp, restore } from '../embedded/backup.ts'
import { openLog } from '../observability/log.ts'

// `backup FILE` and `restore FILE`: the embedded databases of a stopped service to one file and
// back.
const usage = `npm run backup -- FILE      writes the embedded databases of the stopped service to FILE
npm run restore -- FILE     puts the databases of FILE in their place; what was there is kept beside them
npm run backup -- --help | --version
The service is stopped first. SERVICE_DATA_DIR names the data folder.
`
const verb = process.argv[2] === 'restore' ? 'restore' : 'backup'
const file = readArguments({ usage, positionals: [1, 1], args: process.argv.slice(3) }, ({ positionals }) =>
  resolve(positionals[0] ?? ''),
)
try {
  const { dataDir, cacheDir, databaseUrl } = configFromEnvironment()
  if (databaseUrl !== undefined)
    throw new ConfigError([
      'SERVICE_DATABASE_URL is set: only the embedded database is backed up here; use the tools of ' +
        'your PostgreSQL server',
    ])
  const options = { dataDir, cacheDir, log: openLog('warn') }
  if (verb === 'backup') {
    await backUp(options, file)
    process.stdout.write(`${dataDir} is backed up in ${file}\n`)
  } else {
    const aside = await restore(options, file)
    process.stdout.write(
      `${dataDir} is restored from ${file}${aside === undefined ? '' : `; what was there is in ${aside}`}\n`,
    )
  }
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`)
  process.exit(error instanceof ConfigError ? 2 : 1)
}
