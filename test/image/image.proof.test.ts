import { expect } from '@jest/globals'
import { configFromEnvironment } from '../../src/config.ts'
import { freePort } from '../../src/embedded/ports.ts'
import { findTemporalProgram } from '../../src/embedded/temporal-program.ts'
import { openLog } from '../../src/observability/log.ts'
import { until } from '../embedded/folder.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'
import { openApi, type Api } from './api.ts'
import { openImageEngine, root, type ImageEngine } from './engine.ts'

const { afterAll, beforeAll, describe, test } = needs(...sites.docker)

const image = 'orrery:test'
const readyFile = '/var/lib/orrery/ready.json'
const token = 'image-test-token'

/** As docker-compose.yml runs them, on the host's network. */
const confined = [
  ...['--network', 'host', '--cap-drop', 'ALL'],
  ...[
    'no-new-privileges',
    `seccomp=${root}/deploy/seccomp.json`,
    'apparmor=unconfined',
    'systempaths=unconfined',
  ].flatMap((option) => ['--security-opt', option]),
]
const variables = (values: Record<string, string>): string[] =>
  Object.entries(values).flatMap(([name, value]) => ['--env', `${name}=${value}`])

const suite = (): void => {
  const { cacheDir, childEnvironment } = configFromEnvironment()
  let engine: ImageEngine
  const docker = (...args: string[]) => engine.docker(...args)

  /** Starts a container and waits until its health check says yes. */
  const start = async (
    name: string,
    environment: Record<string, string>,
    options: string[] = [],
    command: string[] = [],
  ) => {
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
    const health = (): Promise<string> =>
      docker('inspect', '--format', '{{.State.Status}} {{.State.Health.Status}}', name)
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
    await until(async () => (await ready()).status === 200, `${name} is ready`, 180_000).catch(
      async (error: unknown) => {
        throw new Error(`${await (await ready()).text()}\n${await docker('logs', name)}`, { cause: error })
      },
    )
  }
  const apiFrom = (ready: string): Api => openApi((JSON.parse(ready) as { baseUrl: string }).baseUrl, token)
  /** Stops a container as an orchestrator does, gives its exit code and what it said. */
  const stop = async (name: string) => {
    await docker('stop', '--time', '40', name)
    return {
      exitCode: Number(await docker('inspect', '--format', '{{.State.ExitCode}}', name)),
      said: await docker('logs', name),
    }
  }

  beforeAll(async () => {
    engine = await openImageEngine()
    await engine.build(image, root)
  }, 1_800_000)

  afterAll(async () => {
    await engine[Symbol.asyncDispose]()
  }, 120_000)

  test('the image runs Node 24 without rights, with what production needs and nothing else', async () => {
    const inside = (...command: string[]) =>
      docker('run', '--rm', ...confined, '--entrypoint', command[0] ?? '', image, ...command.slice(1))
    expect(await inside('id')).toBe('uid=10001(orrery) gid=10001(orrery) groups=10001(orrery)')
    expect(await inside('node', '--version')).toMatch(/^v24\./)
    const packages = (await inside('ls', 'node_modules')).split('\n')
    expect(packages).toEqual(expect.arrayContaining(['express', 'pg', 'zod', 'swagger-ui-dist']))
    expect(
      packages.filter((name) => ['typescript', 'jest', 'oxlint', 'knip', 'fast-check'].includes(name)),
    ).toEqual([])
    expect(await inside('find', '/app', '-writable', '-not', '-type', 'l')).toBe('')
    expect(await inside('node', 'dist/src/main.js', '--print-config')).toContain('/var/lib/orrery')
  }, 120_000)

  test('the sandbox of playbooks comes up in the image, and what it does not need is refused', async () => {
    const inside = (script: string) =>
      docker(
        'run',
        '--rm',
        ...confined,
        '--entrypoint',
        'node',
        image,
        '--input-type=module',
        '--eval',
        script,
      )
    const sandbox = '/app/dist/src/drivers/ansible/sandbox.js'
    expect(
      await inside(
        `const { missingProgram, sandboxFault } = await import('${sandbox}')\n` +
          'console.log(JSON.stringify([missingProgram() ?? "whole", (await sandboxFault()) ?? "up"]))',
      ),
    ).toBe('["whole","up"]')
    const sockets = `import socket
for family, kind, protocol in [(17, 3, 0), (38, 5, 0), (16, 3, 12), (16, 3, 6), (16, 3, 0), (2, 1, 0)]:
    try:
        socket.socket(family, kind, protocol)
        print("made")
    except OSError as error:
        print(error.errno)`
    const words = await docker('run', '--rm', ...confined, '--entrypoint', 'python3', image, '-c', sockets)
    expect(words.split('\n')).toEqual(['97', '97', '93', '93', 'made', 'made'])
  }, 120_000)

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
    expect(await api.get('/execution-runs/real/activities/shout/logs/')).toMatch(/^HELLO FROM \S+\n$/)
    expect((await stop('alone')).exitCode).toBe(0)
  }, 600_000)
}

describe('the container image', suite)
