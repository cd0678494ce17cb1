import { expect } from '@jest/globals'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { checked } from './checked.ts'
import { startSlurm, type SlurmSite } from '../../sites/slurm.ts'
import { startSsh, type SshHost, type SshSite } from '../../sites/ssh.ts'
import { connectionTo, eventually, makeVaultKeyFile, onCluster, onHost } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'
import { makeWorld, recordOf, type World, type WorldOptions } from '../support/worlds.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterAll, beforeAll, describe, test } = needs(...sites.slurm)

let service: TestService
let ssh: SshSite
let slurm: SlurmSite

beforeAll(async () => {
  ;[ssh, slurm, service] = await Promise.all([
    startSsh({ hosts: 3, shared: true }),
    startSlurm(),
    openService({ environment: { SERVICE_VAULT_KEY_FILE: makeVaultKeyFile() } }),
  ])
  for (const [id, { privateKey }] of [
    ['hosts', ssh.key],
    ['cluster', slurm.key],
  ] as const)
    await service.post('/ssh-keys/import/', { id, privateKey })
}, 120_000)

afterAll(async () => {
  await service?.[Symbol.asyncDispose]()
  await Promise.all([ssh?.stop(), slurm?.stop()])
}, 60_000)

const worldAt = (
  name: string,
  options: Omit<WorldOptions, 'name'>,
  hosts = 0,
  cluster = false,
): Promise<World> =>
  makeWorld(service, {
    name,
    ...options,
    connections: [
      ...ssh.hosts.slice(0, hosts).map((host, i) => connectionTo(`${name}-c${String(i + 1)}`, host, 'hosts')),
      ...(cluster ? [connectionTo(`${name}-login`, slurm.login, 'cluster')] : []),
    ],
  })
const run = async (world: World, id: string, seconds = 90) => {
  await service.post('/execution-runs/', { id, schedulePlanId: world.planId, mode: 'real' })
  return service.finished(id, seconds)
}
const logOf = async (runId: string, activity: string): Promise<string> =>
  (await service.call('GET', `/execution-runs/${runId}/activities/${activity}/logs/`)).text

/** A fan-out with data: `seed` writes, each `part` adds its host's name, `join` reads all. */
const relay = (parts: number): WorldOptions['tasks'] => [
  { name: 'seed', run: 'echo from seed > seed.txt', outputs: ['seed.txt'], lane: [0, 0] },
  ...Array.from({ length: parts }, (_, i) => ({
    name: `part-${String(i)}`,
    after: ['seed'],
    run: `cat seed.txt; hostname | tee part-${String(i)}.txt`,
    outputs: [`part-${String(i)}.txt`],
    lane: [(i + 1) % (parts + 1), 0] as const,
  })),
  {
    name: 'join',
    after: Array.from({ length: parts }, (_, i) => `part-${String(i)}`),
    run: 'cat part-*.txt',
    lane: [0, 0],
  },
]

describe('a run at other machines', () => {
  test('goes over three SSH hosts, its data following, and everything about each activity can be read', async () => {
    const world = await worldAt(
      'three',
      { tasks: relay(2), cores: [2, 2, 2], places: [1, 2, 3].map((i) => onHost(`three-c${String(i)}`)) },
      3,
    )
    const detail = await run(world, 'three-run')
    expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
    expect(await logOf('three-run', 'three-join')).toBe('th2\nth3\n')
    expect(await logOf('three-run', 'three-part-1')).toBe('from seed\nth3\n')
    const part = detail.activities.find(({ externalId }: { externalId: string }) => externalId === 'part-1')
    expect(part).toMatchObject({
      site: 'ssh/three-c3',
      connectionId: 'three-c3',
      status: 'completed',
      exitCode: 0,
      attempt: 1,
    })
    const outputs = await service.get('/execution-runs/three-run/activities/three-part-1/outputs/')
    expect(outputs.items).toMatchObject([
      { relativePath: 'part-1.txt', sizeBytes: 4, checksum: expect.stringMatching(/^sha256:/) },
    ])
    const locations = detail.dataLocations.filter(
      ({ dataObjectInstanceId: of }: { dataObjectInstanceId: string }) => of === outputs.items[0].id,
    )
    expect(locations).toMatchObject([{ id: expect.stringMatching(/^location-/), status: 'available' }])
    expect(
      (await service.call('GET', '/execution-runs/three-run/activities/three-part-1/outputs/part-1.txt'))
        .text,
    ).toBe('th3\n')
    const script = (await service.call('GET', '/execution-runs/three-run/activities/three-part-1/script/'))
      .text
    expect(script).toContain('hostname | tee part-1.txt')
    const transfers = await service.get('/execution-runs/three-run/data-transfers/')
    expect(transfers.items).toHaveLength(4)
    for (const transfer of transfers.items)
      expect(transfer).toMatchObject({
        ...{ strategy: 'gateway', bytes: expect.any(Number) },
        route: {
          links: [],
          strategy: 'gateway',
          reason: expect.any(String),
          from: expect.stringMatching(/^ssh\/three-c/),
          to: expect.stringMatching(/^ssh\/three-c/),
        },
      })
    await checked(service, world, 'three-run')
  })

  test('is charged the price of the route for what moved: once a site for all that need the same files, and for copies within one', async () => {
    const part = (name: string, resource: number, core: number) => ({
      ...{
        name,
        after: ['seed'],
        run: `wc -c < data > ${name}.txt; rm data`,
        lane: [resource, core] as const,
      },
    })
    const tasks: WorldOptions['tasks'] = [
      { name: 'seed', run: 'head -c 40000 /dev/urandom > data; echo 1 > one', lane: [0, 0] },
      ...[part('far-1', 1, 0), part('far-2', 1, 1), part('near', 2, 0)],
    ]
    const places = ['c1', 'c2', 'c1'].map((connection) => onHost(`priced-${connection}`))
    const world = await worldAt(
      'priced',
      { tasks, cores: [1, 2, 1], places, bandwidthBitsPerSecond: 8e6, pricePerByte: 1e-6 },
      2,
    )
    const detail = await run(world, 'priced-run')
    expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
    const moved = { bytes: 40_002, filesTransferred: 2 }
    const transfers = detail.dataTransfers.map(
      ({ consumerActivityId, bytes, filesTransferred, strategy, route, cost }: any) => ({
        ...{ to: consumerActivityId, bytes, filesTransferred, strategy, links: route.links, cost },
      }),
    )
    const far = transfers.filter(({ to }: any) => to !== 'priced-near')
    expect(far.toSorted((a: any, b: any) => b.bytes - a.bytes)).toMatchObject([
      { ...moved, strategy: 'gateway', links: ['priced-link-1'], cost: expect.closeTo(0.040002, 12) },
      { bytes: 0, filesTransferred: 0, strategy: 'use-existing', cost: 0 },
    ])
    expect(transfers.filter(({ to }: any) => to === 'priced-near')).toMatchObject([
      {
        ...moved,
        strategy: 'runtime-local',
        links: ['priced-link-1', 'priced-link-2'],
        cost: expect.closeTo(0.080004, 12),
      },
    ])
    const compute = detail.activities.reduce(
      (sum: number, { startedAt, finishedAt }: any) => sum + (finishedAt - startedAt) * 0.001,
      0,
    )
    expect(detail.run.cost).toBeCloseTo(compute + 0.120006, 6)
  })

  test('holds tasks to their memory by the rule of this machine, says so, and refuses what a host cannot', async () => {
    const places = [{}, { memoryLimit: 'none' }, { memoryLimit: 'cgroup' }].map((more) =>
      onHost('memory-c1', more),
    )
    const tasks: WorldOptions['tasks'] = [
      { name: 'greedy', run: 'exec tail /dev/zero', memory: '64Mi', lane: [0, 0] },
      { name: 'free', run: 'head -c 100M /dev/zero | tail -c 100M | wc -c', memory: '32Mi', lane: [1, 0] },
      { name: 'strict', run: 'true', memory: '64Mi', lane: [2, 0] },
    ]
    const world = await worldAt('memory', { tasks, cores: [1, 1, 1], places }, 1)
    const [host] = ssh.hosts as [SshHost]
    const { stages } = await service.post('/connection-tests/', connectionTo('memory-c1', host, 'hosts'))
    const can = stages.find(({ stage }: { stage: string }) => stage === 'limits')
    expect(can).toMatchObject({ ok: true, detail: expect.stringMatching(/^(cgroup|rlimit): /) })
    const limits = can.detail.split(':')[0]
    await service.post('/execution-runs/', {
      id: 'memory-run',
      schedulePlanId: world.planId,
      mode: 'real',
      onFailure: 'finish-independent',
    })
    const detail = await service.finished('memory-run', 90)
    const of = (name: string) =>
      detail.activities.find(({ externalId }: { externalId: string }) => externalId === name)
    expect(of('greedy')).toMatchObject({ status: 'failed', failureClass: 'user', metadata: { limits } })
    expect(of('greedy').failureReason).toMatch(/memory.* \(limit 64 MiB, peak \d+ MiB/)
    expect(of('free')).toMatchObject({ status: 'completed', metadata: { limits: 'none' } })
    if (limits === 'cgroup') expect(of('strict')).toMatchObject({ status: 'completed', metadata: { limits } })
    else
      expect(of('strict')).toMatchObject({
        status: 'failed',
        failureClass: 'refused',
        failureReason: expect.stringMatching(/memoryLimit is cgroup/),
      })
  })

  test('moves nothing where both hosts mount one storage', async () => {
    const places = [1, 2].map((i) => ({
      ...onHost(`shared-c${String(i)}`, { workDirectory: `/srv/host-${String(i)}` }),
      storages: { lab: '/srv' },
    }))
    const world = await worldAt('shared', { tasks: relay(1), cores: [1, 1], places }, 2)
    const detail = await run(world, 'shared-run')
    expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
    const transfers = await service.get('/execution-runs/shared-run/data-transfers/')
    expect(transfers.items.map(({ strategy, networkBytes }: any) => [strategy, networkBytes])).toEqual([
      ['shared-storage', 0],
      ['shared-storage', 0],
    ])
  })

  test('spans this machine, an SSH host and a Slurm cluster', async () => {
    const places = [undefined, onHost('span-c1'), onCluster('span-login')]
    const world = await worldAt('span', { tasks: relay(2), cores: [1, 1, 4], places }, 1, true)
    const detail = await run(world, 'span-run', 150)
    expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
    const [first, second] = (await logOf('span-run', 'span-join')).trim().split('\n')
    expect([first, second]).toEqual(['th1', expect.stringMatching(/^n[12]$/)])
    const job = detail.activities.find(({ externalId }: { externalId: string }) => externalId === 'part-1')
    expect(job).toMatchObject({
      site: expect.stringMatching(/^slurm\//),
      siteQueueSeconds: expect.any(Number),
    })
    const handle = detail.handles.find(
      ({ activityId }: { activityId: string }) => activityId === 'span-part-1',
    )
    expect(handle.externalId).toMatch(/^\d+(_\d+)?$/)
  }, 200_000)

  test('leaves it to the scheduler of a partition what runs when: what is ready is submitted at once, as arrays', async () => {
    const tasks = Array.from({ length: 6 }, (_, i) => ({
      name: `q${String(i)}`,
      run: 'sleep 1; echo $SLURM_ARRAY_TASK_ID',
      lane: [0, 0] as const,
    }))
    const world = await worldAt(
      'queue',
      { tasks, cores: [1], places: [onCluster('queue-login')], types: ['hpc_partition'] },
      0,
      true,
    )
    slurm.forgetCalls()
    const detail = await run(world, 'queue-run')
    expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
    const times = detail.activities.map(
      ({ startedAt, finishedAt }: any) => [startedAt, finishedAt] as [number, number],
    )
    expect(Math.max(...times.map(([from]: [number, number]) => from))).toBeLessThan(
      Math.min(...times.map(([, to]: [number, number]) => to)),
    )
    expect(slurm.calls().filter((call) => call.startsWith('sbatch')).length).toBeLessThanOrEqual(2)
  }, 150_000)

  test('asks a cluster whose sbatch refuses --mem for none, where its runtime or the activity says so; the refusal names the way', async () => {
    const places = [{ requests: { memory: false } }, {}].map((more) => onCluster('nomem-login', more))
    const tasks: WorldOptions['tasks'] = [
      { name: 'site', memory: '64Mi', lane: [0, 0] },
      { name: 'task', memory: '0', lane: [1, 0] },
      { name: 'asks', memory: '64Mi', lane: [1, 1] },
    ]
    const world = await worldAt('nomem', { tasks, cores: [1, 2], places }, 0, true)
    const refuses = 'echo "sbatch: error: --mem is not allowed here" >&2; exit 1'
    slurm.disturb('sbatch', `case " $* " in *" --mem"*) ${refuses} ;; esac`)
    try {
      const schedulePlanId = world.planId
      await service.post('/execution-runs/', {
        ...{ id: 'nomem-run', schedulePlanId, mode: 'real', onFailure: 'finish-independent' },
      })
      const { activities } = await service.finished('nomem-run', 120)
      const of = (name: string) => activities.find(({ externalId }: any) => externalId === name)
      for (const name of ['site', 'task'])
        expect(of(name)).toMatchObject({ status: 'completed', attempt: 1, exitCode: 0 })
      expect(of('asks')).toMatchObject({
        ...{ status: 'failed', attempt: 1, failureClass: 'refused' },
        failureReason: expect.stringMatching(
          /--mem is not allowed.*configuration\.requests \{memory: false\}/,
        ),
      })
    } finally {
      slurm.disturb('sbatch', undefined)
    }
  }, 200_000)

  test('tries again, after a pause, what an operator has put back and holds; no held job is left', async () => {
    const ledger = join(slurm.scratch, 'held-')
    const names = ['held', 'special']
    const tasks = names.map((name, core) => ({
      name,
      run: `echo begun >> ${ledger}${name}; [ "$(wc -l < ${ledger}${name})" -gt 1 ] || exec sleep 86400`,
      lane: [0, core] as const,
    }))
    const places = [onCluster('held-login', { requeue: true })]
    const world = await worldAt('held', { tasks, cores: [2], places }, 0, true)
    const id = 'held-run'
    await service.post('/execution-runs/', { id, schedulePlanId: world.planId, mode: 'real' })
    for (const name of names)
      await eventually(`the start of ${name}`, 120, async () => existsSync(`${ledger}${name}`))
    // Within the second of its start Slurm mixes up the credentials of a job that it starts again.
    await sleep(1_500)
    const { handles } = await service.get(`/execution-runs/${id}/`)
    const jobOf = (name: string): string =>
      handles.find(({ activityId }: any) => activityId === world.activityId(name)).externalId
    const jobs = names.map(jobOf)
    await slurm.slurm(`scontrol requeuehold ${jobs[0]!}; scontrol requeuehold State=SpecialExit ${jobs[1]!}`)
    const { run: ended } = await service.finished(id, 240)
    expect([ended.failureReason, ended.status]).toEqual([undefined, 'completed'])
    const attempts = (await recordOf(service, id)).activities
    for (const name of names) {
      const own = attempts.filter(({ activityId }) => activityId === world.activityId(name))
      expect(own).toMatchObject([
        { attempt: 1, status: 'failed', failureReason: expect.stringMatching(/held|hold|special/i) },
        { attempt: 2, status: 'completed' },
      ])
      expect(readFileSync(`${ledger}${name}`, 'utf8')).toBe('begun\nbegun\n')
    }
    const left = await slurm.slurm(`squeue -h -t PENDING -j ${jobs.join()} 2>&1 || true`)
    expect(left.trim()).toMatch(/^(slurm_load_jobs error: Invalid job id specified)?$/)
  }, 400_000)

  test('is cancelled while its second attempt waits for the end of the first, which the scheduler does not confirm: no job is left', async () => {
    const impatient = await openService({
      environment: { SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(), SERVICE_SITE_PATIENCE_SECONDS: '2' },
    })
    try {
      await impatient.post('/ssh-keys/import/', { id: 'cluster', privateKey: slurm.key.privateKey })
      const ledger = join(slurm.scratch, 'left-over')
      // The link is cut before the answer to the submit.
      slurm.disturb('sbatch', `SLURM_CONF=${slurm.conf} /usr/bin/sbatch "$@"; sleep 120; exit 0`)
      slurm.disturb('scancel', 'echo "scancel: error: Unable to contact slurm controller" >&2; exit 1')
      const world = await makeWorld(impatient, {
        ...{ name: 'left', cores: [1], places: [onCluster('left-login', { commandSeconds: 110 })] },
        tasks: [{ name: 'long', run: `echo begun >> ${ledger}; exec sleep 86400` }],
        connections: [connectionTo('left-login', slurm.login, 'cluster')],
      })
      const id = 'left-run'
      await impatient.post('/execution-runs/', { id, schedulePlanId: world.planId, mode: 'real' })
      await eventually('its start', 120, async () => existsSync(ledger))
      // The nodes still reach the controller there.
      await slurm.login.hide()
      await eventually('its second attempt', 200, async () => {
        const { activities } = await impatient.get(`/execution-runs/${id}/`)
        return activities[0].attempt === 2
      })
      slurm.forgetCalls()
      slurm.disturb('sbatch', undefined)
      await slurm.login.heal()
      await eventually('the request for the end of the first', 120, async () =>
        slurm.calls().some((call) => call.startsWith('scancel')),
      )
      await impatient.post(`/execution-runs/${id}/cancel/`)
      expect((await impatient.finished(id, 240)).run.status).toBe('cancelled')
      const jobs = async (): Promise<string> => (await slurm.slurm(`squeue -h -u ${slurm.user} -o %A`)).trim()
      expect(await jobs()).toMatch(/^\d+$/)
      slurm.disturb('scancel', undefined)
      await eventually('the end of its job', 400, async () => (await jobs()) === '')
      expect(readFileSync(ledger, 'utf8')).toBe('begun\n')
    } finally {
      for (const command of ['sbatch', 'scancel'] as const) slurm.disturb(command, undefined)
      await slurm.login.heal()
      await impatient[Symbol.asyncDispose]()
    }
  }, 900_000)

  test('runs its own tasks where another service has run those of a run of the same id at the same account', async () => {
    const other = await openService({ environment: { SERVICE_VAULT_KEY_FILE: makeVaultKeyFile() } })
    try {
      await other.post('/ssh-keys/import/', { id: 'hosts', privateKey: ssh.key.privateKey })
      for (const [words, at] of [
        ['of the first', service],
        ['of the second', other],
      ] as const) {
        const tasks = [{ name: 'say', run: `echo ${words} | tee said`, outputs: ['said'] }]
        const connections = [connectionTo('same-c1', ssh.hosts[0] as SshHost, 'hosts')]
        const world = await makeWorld(at, {
          name: 'same',
          tasks,
          cores: [1],
          places: [onHost('same-c1')],
          connections,
        })
        await at.post('/execution-runs/', { id: 'same-run', schedulePlanId: world.planId, mode: 'real' })
        expect((await at.finished('same-run')).run.status).toBe('completed')
      }
      for (const [words, at] of [
        ['of the first\n', service],
        ['of the second\n', other],
      ] as const) {
        expect((await at.call('GET', '/execution-runs/same-run/activities/same-say/logs/')).text).toBe(words)
        expect((await at.call('GET', '/execution-runs/same-run/activities/same-say/outputs/said')).text).toBe(
          words,
        )
      }
    } finally {
      await other[Symbol.asyncDispose]()
    }
  })

  test('loses the link to a host and nothing else', async () => {
    const tasks = Array.from({ length: 6 }, (_, i) => ({
      name: `t${String(i)}`,
      run: 'sleep 2; echo ran >> $HOME/../../ledger',
      lane: [0, i % 2] as const,
    }))
    const world = await worldAt('cut', { tasks, cores: [2], places: [onHost('cut-c1')] }, 1)
    await service.post('/execution-runs/', { id: 'cut-run', schedulePlanId: world.planId, mode: 'real' })
    const [host] = ssh.hosts
    await new Promise((resolve) => setTimeout(resolve, 2_500))
    await host.cut()
    await new Promise((resolve) => setTimeout(resolve, 5_000))
    await host.heal()
    const detail = await service.finished('cut-run', 150)
    expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
    expect(detail.activities.map(({ attempt }: { attempt: number }) => attempt)).toEqual([1, 1, 1, 1, 1, 1])
    expect((await host.run('cat $HOME/.orrery/work/*/ledger | wc -l', 'account')).stdout.trim()).toBe('6')
  }, 200_000)

  test('is cancelled while the host is cut off, says what could not be stopped, and stops it when the host is back', async () => {
    const world = await worldAt(
      'off',
      { tasks: [{ name: 'long', run: 'exec sleep 1234.5' }], cores: [1], places: [onHost('off-c2')] },
      2,
    )
    await service.post('/execution-runs/', { id: 'off-run', schedulePlanId: world.planId, mode: 'real' })
    const host = ssh.hosts[1] as SshHost
    const alive = async (): Promise<boolean> =>
      (await host.run('pgrep -f "[s]leep 1234.5" >/dev/null && echo yes || echo no')).stdout.includes('yes')
    await eventually('the start of the task', 30, alive)
    await host.cut()
    await service.post('/execution-runs/off-run/cancel/')
    const detail = await service.finished('off-run', 60)
    expect(detail.run.status).toBe('cancelled')
    expect(detail.activities[0].failureReason).toMatch(/could not be stopped at ssh\/off-c2/)
    expect(await alive()).toBe(true)
    await host.heal()
    await eventually('the end of the task after the host was back', 60, async () => !(await alive()))
  }, 200_000)
})

describe('what a run at other machines is refused for', () => {
  test('a runtime without a connection and a connection that does not exist, all in one answer, and nothing is stored', async () => {
    const world = await worldAt('wrong', {
      tasks: [
        { name: 'a', lane: [0, 0] },
        { name: 'b', lane: [1, 0] },
      ],
      cores: [1, 1],
      places: [{ driver: 'ssh', configuration: {} }, onHost('no-such-connection')],
    })
    const answer = await service.call('POST', '/execution-runs/', {
      id: 'wrong-run',
      schedulePlanId: world.planId,
      mode: 'real',
    })
    expect([answer.status, answer.text]).toEqual([
      422,
      expect.stringContaining('has no connection of type ssh; save one and name it'),
    ])
    expect(answer.text).toContain('no-such-connection')
    expect((await service.call('GET', '/execution-runs/wrong-run/')).status).toBe(404)
  })

  test("a partition that does not exist fails with the scheduler's own words, at the first attempt", async () => {
    const places = [onCluster('nopart-login', { partition: 'nowhere' })]
    const world = await worldAt('nopart', { tasks: [{ name: 'a' }], cores: [1], places }, 0, true)
    const detail = await run(world, 'nopart-run')
    expect(detail.run.status).toBe('failed')
    expect(detail.activities[0]).toMatchObject({
      attempt: 1,
      failureClass: 'refused',
      failureReason: expect.stringMatching(/nowhere|invalid partition/i),
    })
  })
})
