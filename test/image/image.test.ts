import { randomBytes } from 'node:crypto'
import { chownSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect } from '@jest/globals'
import { configFromEnvironment } from '../../src/config.ts'
import { freePort } from '../../src/embedded/ports.ts'
import { findTemporalProgram } from '../../src/embedded/temporal-program.ts'
import { openLog } from '../../src/observability/log.ts'
import { until } from '../embedded/folder.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'
import { makeNamespace, temporalAddress } from '../support/service.ts'
import { openEngine, type Engine } from '../sites/docker.ts'
import { debianBase } from './debian-base.ts'
import { openApi, type Api } from './api.ts'
import { runFolder } from '../support/remover.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../support/requirements.ts'

const { afterAll, beforeAll, describe, test } = needs(...sites.docker)

const root = new URL('../../', import.meta.url).pathname
const image = 'orrery:test'
const readyFile = '/var/lib/orrery/ready.json'
/** Compose on the same base: its release is as new as the base. */
const composeImage = 'orrery-test-compose'
const token = 'image-test-token'

/** As docker-compose.yml runs them; host network, because the servers of the test run listen on loopback only. */
const confined = ['--network', 'host', '--cap-drop', 'ALL', '--security-opt', 'no-new-privileges']
const variables = (values: Record<string, string>): string[] =>
  Object.entries(values).flatMap(([name, value]) => ['--env', `${name}=${value}`])

/** Hosts whose processes the tasks of a run were. */
const hostsOf = async (api: Api, runId: string): Promise<unknown[]> =>
  (await api.get(`/execution-runs/${runId}/handles/`)).items.map((handle: any) => handle.metadata.hostId)

const suite = (): void => {
  const { cacheDir, childEnvironment } = configFromEnvironment()
  const scratch = mkdtempSync(join(runFolder(), 'orrery-image-'))
  /** How to close what is open, in the order of opening. */
  const opened: (() => Promise<unknown>)[] = []
  let engine: Engine
  let database: TestDatabase
  const docker = (...args: string[]) => engine.docker(...args)

  const removeContainers = async (): Promise<void> => {
    const ids = async (...args: string[]): Promise<string[]> => (await docker(...args, '--quiet')).split('\n').filter((id) => id !== '')
    for (const container of await ids('ps', '--all')) await docker('rm', '--force', '--volumes', container)
    for (const volume of await ids('volume', 'ls')) await docker('volume', 'rm', volume)
  }

  /** Starts a container and waits until its health check says yes. */
  const start = async (name: string, environment: Record<string, string>, options: string[] = [], command: string[] = []) => {
    const adminPort = await freePort()
    const settings = {
      SERVICE_LISTEN_ADDRESS: '127.0.0.1:0',
      SERVICE_ADMIN_ADDRESS: `127.0.0.1:${adminPort}`,
      SERVICE_HOST_ID: name,
      ...environment,
    }
    await docker(
      'run',
      '--detach',
      '--name',
      name,
      ...confined,
      '--volume',
      `${name}:/var/lib/orrery`,
      ...options,
      ...variables(settings),
      image,
      ...command,
    )
    const health = (): Promise<string> => docker('inspect', '--format', '{{.State.Status}} {{.State.Health.Status}}', name)
    await until(
      async () => {
        const state = await health()
        if (state.startsWith('exited')) throw new Error(`${name} ended:\n${await docker('logs', name)}`)
        return state === 'running healthy'
      },
      `${name} is healthy`,
      180_000,
    )
    const ready = () => fetch(`http://127.0.0.1:${adminPort}/readyz`)
    await until(async () => (await ready()).status === 200, `${name} is ready`, 180_000).catch(async (error: unknown) => {
      throw new Error(`${await (await ready()).text()}\n${await docker('logs', name)}`, { cause: error })
    })
  }
  const apiFrom = (ready: string): Api => openApi((JSON.parse(ready) as { baseUrl: string }).baseUrl, token)
  /** Stops a container as an orchestrator does, gives its exit code and what it said. */
  const stop = async (name: string) => {
    await docker('stop', '--time', '40', name)
    return { exitCode: Number(await docker('inspect', '--format', '{{.State.ExitCode}}', name)), said: await docker('logs', name) }
  }

  /** API and workers as docker-compose.yml has them, with the servers of the test run in place of its own: these listen on loopback only, hence the host network. */
  const openStack = async (servers: Record<string, string>) => {
    const names = ['api', 'worker-1', 'worker-2']
    const override = ['services:']
    for (const name of names) {
      const settings = { ...servers, SERVICE_LISTEN_ADDRESS: '127.0.0.1:0', SERVICE_ADMIN_ADDRESS: `127.0.0.1:${await freePort()}` }
      override.push(
        `  ${name}:`,
        '    network_mode: host',
        '    depends_on: !reset null',
        '    ports: !reset null',
        `    environment: ${JSON.stringify(settings)}`,
      )
    }
    const file = join(scratch, 'override.yml')
    writeFileSync(file, `${override.join('\n')}\n`)
    const vaultKeyFile = join(scratch, 'vault.key')
    writeFileSync(vaultKeyFile, `${randomBytes(32).toString('base64')}\n`, { mode: 0o600 })
    chownSync(vaultKeyFile, 10_001, 10_001)
    const given = variables({
      ORRERY_IMAGE: image,
      SERVICE_API_TOKEN: token,
      POSTGRES_PASSWORD: 'not-used',
      SERVICE_VAULT_KEY_FILE: vaultKeyFile,
      DOCKER_HOST: `unix://${engine.socket}`,
    })
    const shared = [root, scratch].flatMap((path) => ['--volume', `${path}:${path}:ro`])
    const compose = (...args: string[]) =>
      docker(
        'run',
        '--rm',
        '--network',
        'none',
        '--volume',
        `${engine.socket}:${engine.socket}`,
        ...shared,
        ...given,
        composeImage,
        'docker-compose',
        '--project-name',
        'orrery',
        '--file',
        join(root, 'docker-compose.yml'),
        '--file',
        file,
        ...args,
      )
    return { compose, api: async () => apiFrom(await compose('exec', '-T', 'api', 'cat', readyFile)) }
  }

  beforeAll(async () => {
    engine = await openEngine({ data: join(cacheDir, 'test-engine') })
    opened.push(() => engine[Symbol.asyncDispose]())
    // Also what a test run has left that was killed.
    await removeContainers()
    opened.push(async () => {
      await removeContainers()
      await docker('image', 'prune', '--force')
      await docker('builder', 'prune', '--force', '--keep-storage', '4GB')
    })
    const base = await debianBase(engine, { cacheDir, scratch })
    await docker('build', '--network', 'host', '--build-arg', `BASE=${base}`, '--tag', image, root)
    writeFileSync(
      join(scratch, 'Dockerfile'),
      `FROM ${base}\nRUN apt-get update && apt-get install -y --no-install-recommends docker-compose && rm -rf /var/lib/apt/lists/*\n`,
    )
    await docker('build', '--network', 'host', '--tag', composeImage, scratch)
    database = await cloneDatabase()
    opened.push(() => database.drop())
  }, 1_800_000)

  afterAll(async () => {
    for (const close of opened.reverse()) await close()
    rmSync(scratch, { recursive: true, force: true })
  }, 120_000)

  test('the image runs Node 24 without rights, with what production needs and nothing else', async () => {
    const inside = (...command: string[]) =>
      docker('run', '--rm', ...confined, '--entrypoint', command[0] ?? '', image, ...command.slice(1))
    expect(await inside('id')).toBe('uid=10001(orrery) gid=10001(orrery) groups=10001(orrery)')
    expect(await inside('node', '--version')).toMatch(/^v24\./)
    const packages = (await inside('ls', 'node_modules')).split('\n')
    expect(packages).toEqual(expect.arrayContaining(['express', 'pg', 'zod', 'swagger-ui-dist']))
    expect(packages.filter((name) => ['typescript', 'jest', 'oxlint', 'knip', 'fast-check'].includes(name))).toEqual([])
    expect(await inside('find', '/app', '-writable', '-not', '-type', 'l')).toBe('')
    expect(await inside('node', 'dist/src/main.js', '--print-config')).toContain('/var/lib/orrery')
  }, 120_000)

  test('the API and the workers of docker-compose.yml run a workflow, each on its own files, and stop in order', async () => {
    const namespace = `image-${new URL(database.url).pathname.slice(3)}`
    await makeNamespace(namespace)
    const stack = await openStack({
      SERVICE_DATABASE_URL: database.url,
      SERVICE_TEMPORAL_ADDRESS: temporalAddress(),
      SERVICE_TEMPORAL_NAMESPACE: namespace,
    })
    await stack.compose('config', '--quiet')
    await stack.compose('up', '--no-build', '--wait', '--wait-timeout', '180', 'api', 'worker-1', 'worker-2')
    expect(await stack.compose('exec', '-T', 'api', 'id', '-u')).toBe('10001')

    const api = await stack.api()
    expect((await fetch(`${api.url}/workflow-definitions/`)).status).toBe(401)
    await api.storeHello()
    expect(await api.post('/ssh-keys/', { id: 'lab' })).toMatchObject({ credentialRef: 'vault:ssh-key/lab' })

    await api.runToEnd('real')
    expect(await hostsOf(api, 'real')).toEqual(['api', 'api'])
    expect(await api.text('/execution-runs/real/activities/shout/logs/')).toMatch(/^HELLO FROM \S+\n$/)
    expect(await api.text('/execution-runs/real/activities/shout/outputs/shout.txt')).toMatch(/^HELLO FROM \S+\n$/)

    // The same workflow on a runtime that names the worker's host: its tasks are processes of the worker's container.
    await api.storeHelloOn('worker-1')
    await api.runToEnd('elsewhere')
    expect(await hostsOf(api, 'elsewhere')).toEqual(['worker-1', 'worker-1'])
    expect(await stack.compose('exec', '-T', 'worker-1', 'find', '/var/lib/orrery/work', '-name', 'shout.txt')).not.toBe('')

    await stack.compose('stop')
    for (const [name, last] of [
      ['api', 'orrery stopped'],
      ['worker-1', 'orrery-worker stopped'],
      ['worker-2', 'orrery-worker stopped'],
    ] as const) {
      const container = await stack.compose('ps', '--all', '--quiet', name)
      expect([name, await docker('inspect', '--format', '{{.State.ExitCode}}', container)]).toEqual([name, '0'])
      const said = await docker('logs', container)
      expect(said).toContain(last)
      expect(said).not.toContain(token)
    }

    // What was recorded and what the tasks left are there when the containers are replaced.
    await stack.compose('rm', '--force')
    await stack.compose('up', '--no-build', '--wait', '--wait-timeout', '180', 'api')
    const again = await stack.api()
    expect((await again.get('/execution-runs/real/')).run.status).toBe('completed')
    expect(await again.text('/execution-runs/real/activities/greet/logs/')).toMatch(/^hello from \S+\n$/)
  }, 600_000)

  test('one container alone runs a workflow on its embedded servers, given the temporal program', async () => {
    const program = await findTemporalProgram({
      named: undefined,
      cacheDir,
      environment: childEnvironment,
      log: openLog('silent'),
      onProgress: () => undefined,
    })
    await start('alone', { SERVICE_API_TOKEN: token, SERVICE_TEMPORAL_BINARY: '/opt/temporal' }, [
      '--volume',
      `${program}:/opt/temporal:ro`,
    ])
    const api = apiFrom(await docker('exec', 'alone', 'cat', readyFile))
    await api.storeHello()
    await api.runToEnd('real')
    expect(await api.text('/execution-runs/real/activities/shout/logs/')).toMatch(/^HELLO FROM \S+\n$/)
    expect((await stop('alone')).exitCode).toBe(0)
  }, 600_000)
}

describe('the container image', suite)
