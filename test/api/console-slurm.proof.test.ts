import { expect } from '@jest/globals'
import { sites } from '../../sites/requirements.ts'
import { startSlurm, type SlurmSite } from '../../sites/slurm.ts'
import { until } from '../failures/programs.ts'
import { attachTo, openTerminal } from '../support/console-streams.ts'
import { consoleEnvironment } from '../support/consoles.ts'
import { needs } from '../support/needs.ts'
import { connectionTo, makeVaultKeyFile } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'

const { afterAll, beforeAll, test } = needs(...sites.slurm)

/** The console of a cluster that Slurm schedules: its login node, and its nodes. */

let slurm: SlurmSite
let service: TestService
beforeAll(async () => {
  ;[slurm, service] = await Promise.all([
    startSlurm({ nodes: 1 }),
    openService({
      environment: {
        SERVICE_CONSOLE_ENABLED: 'true',
        SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
        SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
      },
    }),
  ])
  await service.post('/ssh-keys/import/', { id: 'lab', privateKey: slurm.key.privateKey })
  const configuration = { connectionId: 'lab-login', partition: 'main' }
  const cluster = { driver: 'slurm', configuration }
  // A file stands where the folder of the holder would be.
  const workDirectory = `/home/${slurm.user}/plain`
  await slurm.login.run(`mkdir ${workDirectory}; touch ${workDirectory}/console`, 'account')
  await service.post(
    '/environments/',
    consoleEnvironment(
      'lab',
      {
        cluster: { ...cluster, type: 'hpc_cluster' },
        node: { ...cluster, type: 'hpc_machine' },
        plain: {
          driver: 'slurm',
          configuration: { ...configuration, workDirectory },
          type: 'hpc_machine',
        },
        closed: {
          driver: 'slurm',
          configuration: { connectionId: 'lab-login', partition: 'nowhere' },
          type: 'hpc_machine',
        },
      },
      [connectionTo('lab-login', slurm.login, 'lab')],
    ),
  )
}, 180_000)
afterAll(async () => {
  await service?.[Symbol.asyncDispose]()
  await slurm?.stop()
})

const typed = async (resourceId: string, keys: string, wanted: string | RegExp): Promise<string> => {
  const desk = await attachTo(service, await openTerminal(service, resourceId))
  desk.ws.send(keys)
  await desk.shows(wanted)
  desk.ws.send('exit\n')
  await desk.closed
  return desk.text()
}
const ended = (id: string) =>
  until('the end of the session', 200, async () => {
    const session = await service.get(`/console-sessions/${id}/`)
    return session.finishedAt === undefined ? undefined : session
  })
const jobsOf = async (id: string): Promise<string[]> =>
  (await slurm.slurm(`squeue -h -t PD,R -n orrery-console-${id} -o %A`)).split('\n').filter(Boolean)

test('a command of a cluster is a job on one of its nodes', async () => {
  const done = await service.post('/console-commands/', {
    resourceId: 'cluster',
    command: 'hostname; echo wrong >&2; exit 3',
  })
  expect(done).toMatchObject({ status: 'failed', exitCode: 3, stderr: 'wrong\n' })
  expect(done.stdout).toBe(`${slurm.nodes[0]!.name}\n`)
  expect(done.externalId).toMatch(/^\d+_0$/)
}, 180_000)

test('a terminal of a cluster is on its login node, one of a node is a job there', async () => {
  const login = await typed('cluster', 'echo host-$(hostname)\n', /host-\w+\r\n/)
  expect(login).toContain(`host-${slurm.login.name}`)
  const node = await typed('node', 'echo host-$(hostname)-$SLURM_JOB_NAME\n', /host-\w+-orrery/)
  expect(node).toContain(`host-${slurm.nodes[0]!.name}-orrery-console-`)
  await slurm.idle()
}, 240_000)

test('what the cluster refuses stands on the terminal and in the record', async () => {
  const { id } = await service.post('/console-sessions/', { resourceId: 'closed' })
  await until('the end', 120, async () => (await service.get(`/console-sessions/${id}/`)).status === 'closed')
  const log = await service.call('GET', `/console-sessions/${id}/log/`)
  expect(log.text).toMatch(/invalid partition specified: nowhere/)
}, 180_000)

test('where no holder may run, a terminal of a node is a job, too', async () => {
  const id = await openTerminal(service, 'plain')
  expect((await service.get(`/console-sessions/${id}/`)).externalId).toBe('pty')
  const desk = await attachTo(service, id)
  // srun takes no size before the shell is there.
  await desk.shows(/\$/)
  desk.ws.send(JSON.stringify({ type: 'resize', rows: 31, columns: 117 }))
  desk.ws.send('stty size; echo host-$(hostname)-$SLURM_JOB_NAME\n')
  await desk.shows(`host-${slurm.nodes[0]!.name}-orrery-console-${id}`)
  await desk.shows('31 117')
  await service.call('DELETE', `/console-sessions/${id}/`)
  expect((await ended(id)).status).toBe('closed')
  await slurm.idle()
}, 240_000)

test('a job that the cluster ends takes its terminal along, with the reason; what it showed stays', async () => {
  const id = await openTerminal(service, 'node')
  const desk = await attachTo(service, id)
  desk.ws.send('printf "mark-%d\\n" $((6*7))\n')
  await desk.shows('mark-42')
  const [job] = await jobsOf(id)
  await slurm.slurm(`scancel ${job!}`)
  expect((await desk.closed)[0]).toBe(1000)
  expect(await ended(id)).toMatchObject({
    status: 'failed',
    failure: 'the cluster ended the job of the terminal: CANCELLED',
  })
  expect((await service.call('GET', `/console-sessions/${id}/log/`)).text).toMatch(/mark-42[^]*CANCELLED/)
}, 240_000)

test('a shell that ends with an error of its own has no failure', async () => {
  const id = await openTerminal(service, 'node')
  const desk = await attachTo(service, id)
  desk.ws.send('exit 3\n')
  await desk.closed
  const { status, failure } = await ended(id)
  expect([status, failure]).toEqual(['closed', undefined])
}, 240_000)

test('the job of a terminal whose login node ends without a signal is ended', async () => {
  const id = await openTerminal(service, 'node')
  const desk = await attachTo(service, id)
  await desk.shows(/\$/)
  expect(await jobsOf(id)).toHaveLength(1)
  await slurm.login.run(`pkill -KILL -f '[o]rrery-console-${id}'`)
  await ended(id)
  await until('the end of its job', 120, async () => (await jobsOf(id)).length === 0)
}, 240_000)
