import { cpSync, existsSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect } from '@jest/globals'
import { quote } from '../../src/shell/quote.ts'
import { freePort } from '../../src/embedded/ports.ts'
import { until } from '../embedded/folder.ts'
import { run, type CommandAnswer } from '../../sites/ground.ts'
import { dataFolder, openApi, type Api } from './api.ts'
import { newestMigration, olderCommit, olderFolders, olderRecordsFile } from './older-records.ts'
import { openImageEngine, root, type ImageEngine } from './engine.ts'
import { buildFleetImages, buildOlderImage, composeImage, fleetImages } from './fleet-images.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterAll, beforeAll, describe, test } = needs(...sites.docker, 'openssl')

const image = 'orrery:test'
const olderImage = `orrery-test-older:${olderCommit}`
const hosts = ['api', 'worker-1', 'worker-2']
/**
 * Every character that a URL, a shell or Compose could take for its own; Temporal's configuration
 * takes all of these.
 */
const passwords = { orrery: 'o/r@r:e%2Fy $p?#&', temporal: 't/e@m:p%o', superuser: 's/u@p:e%r' }
const token = 'fleet-test-token'

/**
 * The commands of a section of docs/operations.md, without those that fetch and build what this
 * test has built.
 */
const documented = (heading: string): string => {
  const text = readFileSync(join(root, 'docs/operations.md'), 'utf8')
  const block = new RegExp(`^### ${heading}\\n(?:(?!^#)[^])*?^\`\`\`sh\\n([^]*?)^\`\`\``, 'm').exec(text)?.[1]
  if (block === undefined) throw new Error(`docs/operations.md has no commands below "${heading}"`)
  return block.replaceAll(/^(?:git pull|docker compose build)\n/gm, '')
}

/** A folder as a user has it, and the commands that a user has there. */
const openProject = (engine: ImageEngine) => {
  const folder = join(engine.scratch, 'orrery')
  const commands = join(engine.scratch, 'commands')
  for (const each of [folder, commands]) mkdirSync(each)
  // Docker Compose is in an image: this machine's packages have none that is new enough.
  const inContainer =
    `docker run --rm --interactive --network none --volume ${engine.socket}:${engine.socket} --env ` +
    `DOCKER_HOST --volume ${folder}:${folder} --workdir "$PWD" ${composeImage} docker-compose`
  writeFileSync(
    join(commands, 'docker'),
    `#!/bin/sh\nexport DOCKER_HOST=unix://${engine.socket} PATH=/usr/bin:/bin\n[ "$1" = compose ] ` +
      `|| exec docker "$@"\nshift\nexec ${inContainer} "$@"\n`,
    { mode: 0o755 },
  )
  writeFileSync(join(commands, 'sudo'), '#!/bin/sh\nexec "$@"\n', { mode: 0o755 })
  const shell = (script: string, mayFail = false): Promise<CommandAnswer> =>
    run('/bin/sh', ['-euc', `cd ${quote(folder)}\n${script}`], {
      environment: { PATH: `${commands}:/usr/sbin:/usr/bin:/sbin:/bin`, HOME: engine.scratch },
      deadlineMs: 900_000,
      mayFail,
    })
  return {
    folder,
    shell,
    /**
     * The compose file of a checkout with what it mounts, and an override file that names images
     * only.
     */
    use(checkout: string, images: Readonly<Record<string, string>>): void {
      for (const name of [
        'docker-compose.yml',
        '.env.example',
        'temporal-config',
        'postgres-config',
        'deploy',
      ])
        if (existsSync(join(checkout, name)))
          cpSync(join(checkout, name), join(folder, name), { recursive: true })
      const services = Object.fromEntries(
        Object.entries(images).map(([name, each]) => [name, { image: each }]),
      )
      writeFileSync(join(folder, 'docker-compose.override.yml'), JSON.stringify({ services }))
    },
    /** Sets variables in `.env`. */
    set(values: Readonly<Record<string, string | number>>): void {
      const file = join(folder, '.env')
      const others = (existsSync(file) ? readFileSync(file, 'utf8') : '')
        .split('\n')
        .filter((line) => !Object.hasOwn(values, line.split('=')[0] ?? ''))
      writeFileSync(
        file,
        [...others, ...Object.entries(values).map(([name, value]) => `${name}='${value}'`), ''].join('\n'),
      )
    },
  }
}

const suite = (): void => {
  let engine: ImageEngine
  let project: ReturnType<typeof openProject>
  let api: Api
  const docker = (...args: string[]) => engine.docker(...args)
  const compose = async (command: string): Promise<string> =>
    (await project.shell(`docker compose ${command}`)).stdout.trim()
  const containerOf = (service: string): Promise<string> => compose(`ps --all --quiet ${service}`)
  const sql = async (database: string, statement: string): Promise<string[]> =>
    (
      await compose(
        `exec -T postgres sh -c 'exec psql -U "$POSTGRES_USER" -Atc "$2" "$1"' sh ${database} ${quote(statement)}`,
      )
    ).split('\n')
  const openGate = async (host: string): Promise<void> => {
    await compose(`exec -T ${host} touch ${dataFolder}/gate`)
  }
  /** The run has come to its last step, which waits for the gate. */
  const isAtGate = async (id: string): Promise<boolean> => {
    const { items } = await api.get(`/execution-runs/${id}/activities/`)
    return items.some((item: any) => item.activityId === 'gate' && item.status === 'running')
  }
  /** SQL over provenance, which a role reads that the service makes. */
  const statementAnswer = (): Promise<any> =>
    api.post('/provenance/sql/', { statement: "select id from runs where id = 'before'" })
  const useToday = (): void =>
    project.use(root, { ...fleetImages, ...Object.fromEntries(hosts.map((host) => [host, image])) })
  const start = documented('Start')

  /**
   * The installation of an older commit with a completed run, an open one and a credential; the
   * same records where the clone lacks the commit.
   */
  const openOlder = async (ports: { api: number; page: number }): Promise<void> => {
    const checkout = await buildOlderImage(engine, olderCommit, olderImage)
    const { 'postgres-roles': _, ...images } = fleetImages
    if (checkout === undefined) {
      useToday()
      await project.shell(start.replace(/^docker compose up.*\n/m, ''))
      project.set({ POSTGRES_USER: 'orrery', POSTGRES_PASSWORD: 'older', ORRERY_PORT: ports.api })
      await project.shell(
        'docker compose up --wait postgres && docker compose run --rm --no-TTY postgres-roles',
      )
      await project.shell(
        `docker compose exec -T postgres psql -q -v ON_ERROR_STOP=1 -U orrery orrery < ${quote(olderRecordsFile)}`,
      )
      await project.shell(
        'docker compose run --rm --no-deps --no-TTY --entrypoint mkdir api -p ' +
          olderFolders.map((folder) => `${dataFolder}/${folder}`).join(' '),
      )
      await project.shell('rm .env vault.key')
      return
    }
    project.use(checkout, { ...images, ...Object.fromEntries(hosts.map((host) => [host, olderImage])) })
    // Its ports are fixed, and somebody may use them here.
    const file = join(project.folder, 'docker-compose.yml')
    writeFileSync(
      file,
      readFileSync(file, 'utf8')
        .replace(':8080:8080', `:${ports.api}:8080`)
        .replace(':8233:8080', `:${ports.page}:8080`),
    )
    project.set({ POSTGRES_PASSWORD: 'older', SERVICE_API_TOKEN: token })
    await project.shell('docker compose up --wait')
    await api.storeHello()
    await api.runToEnd('before')
    await api.storeSteps(hosts)
    await api.start('open', 'steps-api')
    await until(() => isAtGate('open'), 'the run waits at its gate', 300_000)
    if (process.env['UPDATE_OLDER_RECORDS'] === '1')
      await project.shell(
        'docker compose exec -T postgres pg_dump -U orrery --inserts --no-owner --no-privileges ' +
          `orrery | grep -Ev '^(--.*|\\\\.*|)$' > ${quote(olderRecordsFile)}`,
      )
  }

  beforeAll(async () => {
    engine = await openImageEngine()
    await buildFleetImages(engine, image)
    project = openProject(engine)
  }, 3_600_000)

  afterAll(async () => {
    await engine[Symbol.asyncDispose]()
  }, 300_000)

  test('an installation of an older commit is upgraded, and its open run goes on', async () => {
    const ports = { api: await freePort(), page: await freePort() }
    api = openApi(`http://127.0.0.1:${ports.api}/api`, token)
    await openOlder(ports)
    expect(await sql('orrery', 'select max(number) from schema_migrations')).toEqual(['8'])

    rmSync(join(project.folder, '.env'), { force: true })
    useToday()
    await project.shell(start.replace(/^docker compose up.*\n/m, ''))
    expect(statSync(join(project.folder, '.env')).mode & 0o777).toBe(0o600)
    project.set({ POSTGRES_USER: 'orrery', POSTGRES_PASSWORD: 'older', SERVICE_API_TOKEN: token })
    project.set({
      ORRERY_DATABASE_PASSWORD: passwords.orrery,
      TEMPORAL_DATABASE_PASSWORD: passwords.temporal,
    })
    project.set({
      ORRERY_PORT: ports.api,
      TEMPORAL_UI_PORT: ports.page,
      ORRERY_ADMIN_PORT: await freePort(),
      WORKER_1_ADMIN_PORT: await freePort(),
      WORKER_2_ADMIN_PORT: await freePort(),
    })
    await project.shell(documented('Upgrade the containers'))

    expect(await sql('orrery', 'select max(number) from schema_migrations')).toEqual([
      String(newestMigration()),
    ])
    expect((await api.get('/execution-runs/open/')).run.status).toBe('running')
    await openGate('api')
    await api.completed('open', 300)
    expect(await api.get('/execution-runs/open/activities/gate/outputs/gate.txt')).toBe('open\n')
    expect((await api.get('/execution-runs/before/')).run.status).toBe('completed')

    expect(await statementAnswer()).toContainEqual({ id: 'before' })

    // The superuser serves neither, and no role enters the databases of the other.
    expect(await sql('postgres', 'select rolname from pg_roles where rolsuper')).toEqual(['orrery'])
    expect(
      await sql(
        'postgres',
        "select distinct datname || ' ' || usename from pg_stat_activity where client_addr is not " +
          "null and backend_type = 'client backend' order by 1",
      ),
    ).toEqual([
      expect.stringMatching(/^orrery orrery_reader_[0-9a-f]{16}$/),
      'orrery orrery_service',
      'temporal temporal',
      'temporal_visibility temporal',
    ])
    for (const [role, database] of [
      ['temporal', 'orrery'],
      ['orrery_service', 'temporal'],
    ])
      expect(
        await sql('postgres', `select has_database_privilege('${role}', '${database}', 'connect')`),
      ).toEqual(['f'])
  }, 1_800_000)

  test('workflows complete in the API and in both workers although each program of the fleet is killed', async () => {
    expect((await fetch(`${api.url}/workflow-definitions/`)).status).toBe(401)
    await Promise.all(hosts.map((host) => compose(`exec -T ${host} rm -f ${dataFolder}/gate`)))
    expect(await api.post('/ssh-keys/', { id: 'lab' })).toMatchObject({ credentialRef: 'vault:ssh-key/lab' })
    for (const host of hosts) await api.start(`on-${host}`, `steps-${host}`)

    const ask = async (id: string, what: string): Promise<string> => docker('inspect', '--format', what, id)
    for (const service of ['postgres', 'temporal', ...hosts, 'temporal-ui']) {
      const id = await containerOf(service)
      const pid = Number(await ask(id, '{{.State.Pid}}'))
      process.kill(pid, 'SIGKILL')
      await until(
        async () => {
          const [state, health, now] = (
            await ask(
              id,
              '{{.State.Status}} {{if .State.Health}}{{.State.Health.Status}}{{else}}healthy{{end}} {{.State.Pid}}',
            )
          ).split(' ')
          return state === 'running' && health === 'healthy' && Number(now) !== pid
        },
        `${service} is up again`,
        300_000,
      )
    }
    for (const host of hosts)
      expect([
        host,
        (await until(() => api.get(`/execution-runs/on-${host}/`).catch(() => undefined), 'the API answers'))
          .run.status,
      ]).toEqual([host, 'running'])
    await Promise.all(hosts.map(openGate))
    for (const host of hosts) {
      await api.completed(`on-${host}`, 300)
      const { items } = await api.get(`/execution-runs/on-${host}/handles/`)
      expect(new Set(items.map((handle: any) => handle.metadata.hostId))).toEqual(new Set([host]))
    }
  }, 1_800_000)

  test('a missing vault key is an error that names the file, and no folder is made in its place', async () => {
    const key = join(project.folder, 'vault.key')
    const kept = readFileSync(key)
    rmSync(key)
    await compose('rm --stop --force worker-2')
    const { code, stderr } = await project.shell('docker compose up --wait worker-2', true)
    expect(code).not.toBe(0)
    expect(stderr).toContain(`bind source path does not exist: ${key}`)
    expect(existsSync(key)).toBe(false)
    const remedy = /^\| Docker: `bind source path does not exist: …\/vault\.key` \|.*$/m.exec(
      readFileSync(join(root, 'docs/operations.md'), 'utf8'),
    )?.[0]
    const command = /`(\(umask 077; openssl rand[^`]*)`/.exec(remedy ?? '')?.[1]
    await project.shell(
      `${command ?? 'false'}; cat > vault.key <<'END'\n${kept.toString()}END\ndocker compose up --wait worker-2`,
    )
  }, 600_000)

  test('a stop is in order, and a backup restored into empty volumes gives everything back', async () => {
    const histories = async (): Promise<number> => {
      const { TEMPORAL_UI_PORT: port } = Object.fromEntries(
        readFileSync(join(project.folder, '.env'), 'utf8')
          .split('\n')
          .map((line) => line.split(/='?|'$/)),
      )
      const answer = await fetch(`http://127.0.0.1:${port}/api/v1/namespaces/default/workflow-count`)
      return Number(((await answer.json()) as { count?: string }).count ?? 0)
    }
    const [before, kept] = [await api.get('/execution-runs/'), await histories()]
    expect(kept).toBeGreaterThan(3)
    await compose('stop')
    for (const host of hosts) {
      const id = await containerOf(host)
      expect([host, await docker('inspect', '--format', '{{.State.ExitCode}}', id)]).toEqual([host, '0'])
      const log = await docker('logs', id)
      expect(log).toMatch(/orrery(?:-worker)? stopped/)
      for (const secret of [token, ...Object.values(passwords)]) expect(log).not.toContain(secret)
    }
    await compose('up --wait')
    await project.shell(documented('Back up the containers'))
    await compose('down --volumes')

    project.set({
      POSTGRES_USER: 'postgres',
      POSTGRES_PASSWORD: passwords.superuser,
      ORRERY_DATABASE_PASSWORD: 'o:t/h@e%r',
    })
    await project.shell(documented('Restore the containers'))
    expect(await sql('postgres', 'select rolname from pg_roles where rolsuper')).toEqual(['postgres'])
    expect(await api.get('/execution-runs/')).toEqual(before)
    // With its new password the service's role makes the role of the statements again.
    expect(await statementAnswer()).toContainEqual({ id: 'before' })
    expect(await histories()).toBe(kept)
    expect(await api.get('/execution-runs/on-api/activities/one/logs/')).toBe('step one\n')
    expect(await api.get('/execution-runs/on-api/activities/gate/outputs/gate.txt')).toBe('open\n')
    // The files of a worker's tasks are read where they are.
    for (const host of hosts)
      expect(await compose(`exec -T ${host} find ${dataFolder}/work -name gate.txt -exec cat {} +`)).toMatch(
        /^(?:open\s?)+$/,
      )
    // The credential opens with the same key, and new work is done.
    expect(await compose('exec -T api node dist/src/programs/vault-keys.js status')).toMatch(
      /^[0-9a-f]{16} +1 credentials, \d+ audit records, seals$/m,
    )
    await api.storeHelloOn('worker-1')
    await api.runToEnd('after')
  }, 1_800_000)
}

describe('docker-compose.yml, brought up', suite)
