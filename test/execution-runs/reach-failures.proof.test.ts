import { expect } from '@jest/globals'
import { startSsh, type SshSite } from '../../sites/ssh.ts'
import { connectionTo, eventually, makeVaultKeyFile, onHost } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'
import { startSshServer, type SshServer } from '../support/ssh-server.ts'
import { makeWorld, type World, type WorldOptions } from '../support/worlds.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterAll, afterEach, beforeAll, describe, test } = needs(...sites.ssh)

let service: TestService
let ssh: SshSite

beforeAll(async () => {
  ;[ssh, service] = await Promise.all([
    startSsh({ hosts: 2, clockOffsetSeconds: { th2: 3_600 }, diskMiB: 16 }),
    openService({
      environment: { SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(), SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true' },
    }),
  ])
  await service.post('/ssh-keys/import/', { id: 'hosts', privateKey: ssh.key.privateKey })
}, 120_000)

afterAll(async () => {
  await service?.[Symbol.asyncDispose]()
  await ssh?.stop()
}, 60_000)

const worldOn = (
  host: number,
  name: string,
  options: Omit<WorldOptions, 'name' | 'places' | 'connections'>,
  more: object = {},
): Promise<World> =>
  makeWorld(service, {
    name,
    ...options,
    places: [onHost(`${name}-c`, { ...more })],
    connections: [connectionTo(`${name}-c`, ssh.hosts[host] as SshSite['hosts'][0], 'hosts')],
  })
const run = async (world: World, id: string, seconds = 120) => {
  await service.post('/execution-runs/', { id, schedulePlanId: world.planId, mode: 'real' })
  return service.finished(id, seconds)
}

describe('failures of a site', () => {
  test('spends none of the attempts of its activities: fifty of them with maxAttempts 1, and all complete', async () => {
    const [host] = ssh.hosts
    const once = 'if [ "$AKOFLOW_ATTEMPT" = 1 ]; then exec sleep 600; fi; echo done > result'
    const tasks = Array.from({ length: 50 }, (_, i) => ({
      name: `n${String(i)}`,
      run: once,
      outputs: ['result'],
      policy: { maxAttempts: 1 },
    }))
    const world = await worldOn(0, 'lost', { tasks, cores: [50] })
    await service.post('/execution-runs/', { id: 'lost-run', schedulePlanId: world.planId, mode: 'real' })
    const sleeping = async (): Promise<boolean> =>
      Number((await host.run('pgrep -fc "^sleep 600"; true')).stdout) >= 50
    await eventually('50 tasks that run', 60, sleeping)
    // Nobody is left who could record an end, and the link goes with it.
    await host.run(`pkill -9 -u ${host.user}; true`)
    const detail = await service.finished('lost-run', 120)
    expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
    const attempts = (await service.get('/execution-runs/lost-run/?attempts=all')).activities
    const first = attempts.filter(({ attempt }: any) => attempt === 1)
    expect(first).toHaveLength(50)
    for (const attempt of first)
      expect(attempt).toMatchObject({ status: 'failed', failureClass: 'infrastructure' })
    expect(
      detail.activities.every(({ attempt, status }: any) => attempt === 2 && status === 'completed'),
    ).toBe(true)
  }, 150_000)

  test('a clock that is wrong by an hour is corrected for', async () => {
    const began = Date.now() / 1_000
    const world = await worldOn(1, 'clock', { tasks: [{ name: 'a', run: 'date; sleep 2' }], cores: [1] })
    const detail = await run(world, 'clock-run')
    const [task] = detail.activities
    expect(task.status).toBe('completed')
    expect(task.startedAt).toBeGreaterThan(began - 5)
    expect(task.finishedAt).toBeLessThan(Date.now() / 1_000 + 5)
    expect(task.runtimeSeconds).toBeGreaterThan(1.5)
    expect(task.runtimeSeconds).toBeLessThan(30)
  })

  test('a full disk is told in the words of the site, and once there is room the run completes', async () => {
    const [host] = ssh.hosts
    await host.run(
      `mkdir -p ${host.smallDisk}/work && chmod 777 ${host.smallDisk}/work; head -c 100M /dev/zero ` +
        `> ${host.smallDisk}/filler; true`,
      'root',
      {
        mayFail: true,
      },
    )
    const world = await worldOn(
      0,
      'full',
      { tasks: [{ name: 'a', run: 'echo fits > result', outputs: ['result'] }], cores: [1] },
      {
        workDirectory: `${host.smallDisk}/work`,
      },
    )
    await service.post('/execution-runs/', { id: 'full-run', schedulePlanId: world.planId, mode: 'real' })
    const attempt = await eventually('an attempt that says why', 60, async () => {
      const { activities } = await service.get('/execution-runs/full-run/?attempts=all')
      return activities.find(({ failureReason }: any) => /no space left/i.test(failureReason ?? ''))
    })
    expect(attempt).toMatchObject({ failureClass: 'infrastructure' })
    await host.run(`rm ${host.smallDisk}/filler`)
    const detail = await service.finished('full-run', 120)
    expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
  }, 200_000)
})

describe('a login that needs a person', () => {
  let server: SshServer
  afterEach(async () => {
    await server?.close()
  })

  test('makes runs wait, and when its time is over with 200 tasks in flight none of them fails', async () => {
    let code = '111111'
    server = await startSshServer({
      second: {
        rounds: [
          {
            name: 'second factor',
            prompts: [{ prompt: 'Code: ', echo: false }],
            judge: ([given]) => given === code,
          },
        ],
      },
    })
    await service.post('/ssh-keys/import/', { id: 'person', privateKey: server.privateKey })
    const connection = {
      id: 'mfa-c',
      name: 'mfa-c',
      type: 'ssh',
      endpoint: `127.0.0.1:${String(server.port)}`,
      username: 'root',
      credentialRef: 'vault:ssh-key/person',
      configuration: { knownHosts: `[127.0.0.1]:${String(server.port)} ${server.hostKey}` },
    }
    const root = `${service.dataDir}/site`
    const tasks = Array.from({ length: 200 }, (_, i) => ({
      name: `m${String(i)}`,
      run: `echo $AKOFLOW_ACTIVITY_ID >> ${root}/ledger; sleep 12`,
    }))
    const world = await makeWorld(service, {
      name: 'mfa',
      tasks,
      cores: [200],
      places: [onHost('mfa-c', { workDirectory: root })],
      connections: [connection],
    })
    await service.post('/execution-runs/', { id: 'mfa-run', schedulePlanId: world.planId, mode: 'real' })
    const asked = (): Promise<any> =>
      eventually('the prompt', 60, async () => {
        const login = await service.get('/environment-connections/mfa-c/login/')
        return login.state === 'waiting for login' && login
      })
    expect((await asked()).prompts.prompts).toMatchObject([
      { prompt: expect.stringContaining('Code'), echo: false },
    ])
    await eventually('the run says what it waits for', 30, async () => {
      const { items } = await service.get('/execution-runs/mfa-run/activities/?pageSize=5')
      return /waiting for login/.test(items[0].metadata?.queueReason ?? '')
    })
    expect((await service.post('/environment-connections/mfa-c/login/', { answers: [code] })).state).toBe(
      'connected',
    )
    const running = async (): Promise<boolean> =>
      (await service.get('/execution-runs/mfa-run/activities/?status=running')).total >= 200
    await eventually('200 tasks in flight', 60, running)
    // The session ends and its factor is no longer good.
    code = '222222'
    server.cut()
    await asked()
    await new Promise((resolve) => setTimeout(resolve, 3_000))
    expect((await service.get('/execution-runs/mfa-run/activities/?status=failed')).total).toBe(0)
    expect((await service.post('/environment-connections/mfa-c/login/', { answers: [code] })).state).toBe(
      'connected',
    )
    const detail = await service.finished('mfa-run', 120)
    expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
    expect(detail.activities.every(({ attempt }: any) => attempt === 1)).toBe(true)
    expect(server.logins).toBe(2)
  }, 300_000)
})
