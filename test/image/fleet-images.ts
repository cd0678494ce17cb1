import { execFile } from 'node:child_process'
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { configFromEnvironment } from '../../src/config.ts'
import { makeOnce, thriftyGo } from '../../src/embedded/go-build.ts'
import { leash } from '../../src/embedded/leash.ts'
import { logTail } from '../../src/embedded/server-log.ts'
import { findTemporalProgram } from '../../src/embedded/temporal-program.ts'
import { openLog } from '../../src/observability/log.ts'
import { mirror } from './debian-base.ts'
import { root, type ImageEngine } from './engine.ts'

const run = promisify(execFile)

/** The release that docker-compose.yml names by default. */
const releaseOf = (variable: string): string => {
  const release = new RegExp(`\\$\\{${variable}:-([^}]+)\\}`).exec(
    readFileSync(join(root, 'docker-compose.yml'), 'utf8'),
  )?.[1]
  if (release === undefined) throw new Error(`docker-compose.yml names no release in ${variable}`)
  return release
}
const temporalModule = `go.temporal.io/server@v${releaseOf('TEMPORAL_VERSION')}`
const pageModule = `github.com/temporalio/ui-server/v2@v${releaseOf('TEMPORAL_UI_VERSION')}`

/**
 * The folder of `temporal-server`, `temporal-sql-tool` and `ui-server`, with the start scripts of
 * their images and the page's configuration. Built from the Go modules when it is missing: 5
 * minutes on two quiet cores. @throws Error with the compiler's last words
 */
const temporalPrograms = async (): Promise<string> => {
  const { cacheDir } = configFromEnvironment()
  const target = join(
    cacheDir,
    'temporal-images',
    [temporalModule, pageModule].map((module) => module.replace(/.*@/, '')).join('-'),
  )
  return makeOnce(
    target,
    () => process.stderr.write('another process builds the images of Temporal; waiting for it\n'),
    () => buildPrograms(mkdtempSync(join(dirname(target), 'build-')), target),
  )
}

const buildPrograms = async (temporary: string, target: string): Promise<void> => {
  const environment: Record<string, string> = {
    ...configFromEnvironment().childEnvironment,
    ...thriftyGo.environment,
    CGO_ENABLED: '0',
    // Read-only module folders could not be removed again by another account than root.
    GOFLAGS: '-mod=mod -modcacherw -buildvcs=false',
    GOMODCACHE: join(temporary, 'modules'),
    GOCACHE: join(temporary, 'objects'),
    GOTMPDIR: join(temporary, 'scratch'),
  }
  environment['PATH'] = `${environment['PATH'] ?? '/usr/bin:/bin'}:/usr/local/go/bin`
  const programs = join(temporary, 'programs')
  for (const name of ['modules', 'objects', 'scratch', 'programs']) mkdirSync(join(temporary, name))
  /**
   * Builds a program in a module of its own, so that programs do not raise each other's versions.
   */
  const compile = async (program: string, module: string, path: string): Promise<void> => {
    const directory = mkdtempSync(join(temporary, 'module-'))
    const [name = '', version = ''] = module.split('@')
    writeFileSync(join(directory, 'go.mod'), `module build\n\ngo 1.26.0\n\nrequire ${name} ${version}\n`)
    const logFile = join(temporary, 'build.log')
    const flags = [...thriftyGo.flags, '-trimpath', '-ldflags', '-s -w']
    // On a leash, so that compilers do not work on for minutes after we were stopped.
    const compiler = await leash({
      command: ['/usr/bin/env', 'go', 'build', ...flags, '-o', join(programs, program), `${name}/${path}`],
      environment,
      directory,
      logFile,
      softSignal: 'TERM',
      patienceSeconds: 1,
    })
    const code = await compiler.ended
    if (code !== 0)
      throw new Error(
        `${program} could not be built: go build ended with code ${code} (Go 1.26 or newer?)\n${logTail(logFile)}`,
      )
  }
  const keep = async (module: string, files: readonly string[]): Promise<void> => {
    const { stdout } = await run('go', ['mod', 'download', '-json', module], {
      env: environment,
      cwd: temporary,
      timeout: 600_000,
    })
    const { Dir: folder } = JSON.parse(stdout) as { Dir: string }
    for (const file of files) copyFileSync(join(folder, file), join(programs, file.replace(/.*\//, '')))
  }
  try {
    await compile('temporal-server', temporalModule, 'cmd/server')
    await compile('temporal-sql-tool', temporalModule, 'cmd/tools/sql')
    await keep(temporalModule, ['docker/scripts/sh/entrypoint.sh'])
    await compile('ui-server', pageModule, 'cmd/server')
    await keep(pageModule, ['docker/start-ui-server.sh', 'config/docker.yaml'])
    renameSync(programs, target)
  } finally {
    rmSync(temporary, { recursive: true, force: true })
  }
}

const install = (...packages: string[]): string =>
  `apt-get update && apt-get install -y --no-install-recommends ${packages.join(' ')} && rm -rf /var/lib/apt/lists/*`

/**
 * Containers of this engine have no way out: by a plain address gRPC waits for outside name servers
 * until its time is over. The older compose file gives a plain one.
 */
const temporalCommand = `#!/bin/sh
case $TEMPORAL_ADDRESS in *:///*) ;; *) export TEMPORAL_ADDRESS="passthrough:///$TEMPORAL_ADDRESS" ;; esac
exec temporal-cli "$@"
`

/**
 * What docker-compose.yml uses of the published image: its variables, its folder, its accounts, its
 * first database.
 */
const postgresStart = `#!/bin/sh
set -eu
if [ "$(id -u)" = 0 ]; then
  mkdir -p "$PGDATA"
  chown -R postgres:postgres /var/lib/postgresql
  exec setpriv --reuid postgres --regid postgres --init-groups "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  (umask 077; printf %s "$POSTGRES_PASSWORD" > /tmp/password)
  initdb --username "$POSTGRES_USER" --pwfile /tmp/password --auth-local trust \\
    --auth-host scram-sha-256 --pgdata "$PGDATA"
  rm /tmp/password
  echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
  echo "listen_addresses = '*'" >> "$PGDATA/postgresql.conf"
  [ -z "\${POSTGRES_DB:-}" ] || echo "create database $POSTGRES_DB" | postgres --single -D "$PGDATA" postgres
fi
exec "$@"
`

const dockerfiles = async () => ({
  // Debian 13 has PostgreSQL 17. A mirror that is not renewed daily has an expired list of the next
  // release, which changes daily.
  postgres: `RUN echo 'deb [check-valid-until=no] ${await mirror()} forky main' > /etc/apt/sources.list.d/forky.list \\
  && apt-get update && apt-get install -y --no-install-recommends postgresql-common \\
  && echo 'create_main_cluster = false' >> /etc/postgresql-common/createcluster.conf \\
  && ${install('--target-release', 'forky', `postgresql-${releaseOf('POSTGRES_VERSION').replace(/\..*/, '')}`)}
ENV PATH=/usr/lib/postgresql/18/bin:/usr/sbin:/usr/bin:/sbin:/bin PGDATA=/var/lib/postgresql/18/docker
COPY --chmod=755 postgres-start /usr/local/bin/
STOPSIGNAL SIGINT
ENTRYPOINT ["/usr/local/bin/postgres-start"]
CMD ["postgres"]
`,
  'admin-tools': `COPY --chmod=755 temporal temporal-cli temporal-sql-tool /usr/local/bin/
RUN useradd --uid 1000 temporal
USER temporal
`,
  temporal: `RUN ${install('netcat-openbsd', 'ca-certificates')} && useradd --uid 1000 temporal
COPY --chmod=755 temporal-server /usr/local/bin/
COPY --chmod=755 entrypoint.sh /etc/temporal/
WORKDIR /etc/temporal
USER temporal
CMD ["bash", "/etc/temporal/entrypoint.sh"]
`,
  page: `RUN useradd --uid 1000 temporal
WORKDIR /home/ui-server
COPY --chmod=755 ui-server start-ui-server.sh ./
COPY docker.yaml config/
USER temporal
ENTRYPOINT ["./start-ui-server.sh"]
`,
  // As new as the base: Docker Compose 2.26.
  compose: `RUN ${install('docker-compose')}\n`,
})

const nameOf = (image: string): string => `orrery-test-${image}`

/**
 * The images that docker-compose.yml pulls, by the names of its services, and one that holds Docker
 * Compose.
 */
export const fleetImages = {
  postgres: nameOf('postgres'),
  'postgres-roles': nameOf('postgres'),
  'temporal-schema': nameOf('admin-tools'),
  temporal: nameOf('temporal'),
  'temporal-namespace': nameOf('admin-tools'),
  'temporal-ui': nameOf('page'),
} as const
export const composeImage = nameOf('compose')

/**
 * Builds all of them, and the service's image under `image`. Short where the engine has their
 * layers.
 */
export const buildFleetImages = async (engine: ImageEngine, image: string): Promise<void> => {
  const { cacheDir, childEnvironment } = configFromEnvironment()
  const programs = await temporalPrograms()
  const scripts: Record<string, string> = { 'postgres-start': postgresStart, temporal: temporalCommand }
  const temporal = await findTemporalProgram({
    named: undefined,
    cacheDir,
    environment: childEnvironment,
    log: openLog('silent'),
    onProgress: () => undefined,
  })
  for (const [name, steps] of Object.entries(await dockerfiles())) {
    const context = mkdtempSync(join(engine.scratch, 'context-'))
    for (const [, file = ''] of steps.matchAll(/^COPY (?:--\S+ )*(.+) \S+$/gm))
      for (const each of file.split(' '))
        if (Object.hasOwn(scripts, each)) writeFileSync(join(context, each), scripts[each] ?? '')
        else copyFileSync(each === 'temporal-cli' ? temporal : join(programs, each), join(context, each))
    writeFileSync(join(context, 'Dockerfile'), `FROM ${engine.base}\n${steps}`)
    await engine.build(nameOf(name), context)
    rmSync(context, { recursive: true })
  }
  await engine.build(image, root)
}

/**
 * Builds the image of an older commit from its own Dockerfile and puts its files below the scratch
 * folder; gives that folder, or undefined where the clone does not have the commit.
 */
export const buildOlderImage = async (
  engine: ImageEngine,
  commit: string,
  image: string,
): Promise<string | undefined> => {
  const git = (...args: string[]) =>
    run('git', ['-c', `safe.directory=${root.replace(/\/$/, '')}`, '-C', root, ...args], { timeout: 60_000 })
  const archive = join(engine.scratch, 'older.tar')
  const known = await git('archive', '--output', archive, commit).then(
    () => true,
    () => false,
  )
  if (!known) return undefined
  const folder = join(engine.scratch, 'older')
  mkdirSync(folder)
  await run('tar', ['-xf', archive, '-C', folder])
  if ((await engine.docker('images', '--quiet', image)) === '') await engine.build(image, folder)
  if (!existsSync(join(folder, 'docker-compose.yml')))
    throw new Error(`the commit ${commit} has no docker-compose.yml`)
  return folder
}
