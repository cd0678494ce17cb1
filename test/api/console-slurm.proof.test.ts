import { expect } from '@jest/globals'
import { once } from 'node:events'
import { WebSocket } from 'ws'
import { sites } from '../../sites/requirements.ts'
import { startSlurm, type SlurmSite } from '../../sites/slurm.ts'
import { until } from '../failures/programs.ts'
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
  const cluster = { driver: 'slurm', configuration: { connectionId: 'lab-login', partition: 'main' } }
  await service.post(
    '/environments/',
    consoleEnvironment(
      'lab',
      {
        cluster: { ...cluster, type: 'hpc_cluster' },
        node: { ...cluster, type: 'hpc_machine' },
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
  const { id } = await service.post('/console-sessions/', { resourceId })
  await until('the terminal', 120, async () => {
    const { status, failure } = await service.get(`/console-sessions/${id}/`)
    if (status === 'failed') throw new Error(failure)
    return status === 'connected'
  })
  const ws = new WebSocket(`${service.baseUrl.replace('http', 'ws')}/console-sessions/${id}/stream/`)
  let text = ''
  ws.on('message', (bytes: Buffer) => (text += bytes.toString()))
  const closed = once(ws, 'close')
  await once(ws, 'open')
  ws.send(keys)
  await until(`${String(wanted)} in ${JSON.stringify(text)}`, 60, () =>
    typeof wanted === 'string' ? text.includes(wanted) : wanted.test(text),
  )
  ws.send('exit\n')
  await closed
  return text
}

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
