import { expect } from '@jest/globals'
import { kubernetesStartMs } from '../../sites/kubernetes-build.ts'
import { startKubernetes, type KubernetesSite } from '../../sites/kubernetes.ts'
import { sites } from '../../sites/requirements.ts'
import { until } from '../failures/programs.ts'
import { attachTo, openTerminal } from '../support/console-streams.ts'
import { consoleEnvironment } from '../support/consoles.ts'
import { needs } from '../support/needs.ts'
import { inCluster, makeVaultKeyFile } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'

const { afterAll, beforeAll, test } = needs(...sites.kubernetes)

/** The console of a Kubernetes runtime: commands are tasks, and each terminal is a Pod. */

let cluster: KubernetesSite
let service: TestService
beforeAll(async () => {
  ;[cluster, service] = await Promise.all([
    startKubernetes(),
    openService({
      environment: {
        SERVICE_CONSOLE_ENABLED: 'true',
        SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
        SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
      },
    }),
  ])
  await service.post('/kubernetes-tokens/', { id: 'cluster', token: await cluster.token() })
  const { driver, configuration } = inCluster('pods-cluster', cluster)
  const { connectionId: _, ...found } = configuration as Record<string, unknown>
  await service.post(
    '/environments/',
    consoleEnvironment(
      'pods',
      {
        pods: { driver, configuration },
        // The connection is the environment's only one of this type, as for tasks.
        other: { driver, configuration: { ...found, image: cluster.images.gnu } },
        missing: {
          driver,
          configuration: { ...configuration, image: 'local/nothing:1', pullPatienceSeconds: 5 },
        },
        wrong: { driver, configuration: { ...configuration, root: 'relative' } },
      },
      [
        {
          ...{ id: 'pods-cluster', name: 'pods-cluster', type: 'kubernetes', endpoint: cluster.server },
          credentialRef: 'vault:kubernetes-token/cluster',
          configuration: {
            certificateAuthority: cluster.certificateAuthority,
            namespace: cluster.namespace,
          },
        },
      ],
    ),
  )
}, kubernetesStartMs)
afterAll(async () => {
  for (const { id } of (await service?.get('/console-sessions/')) ?? [])
    await service.call('DELETE', `/console-sessions/${id}/`)
  await service?.[Symbol.asyncDispose]()
  await cluster?.stop()
}, 120_000)

const podsOf = async (part: string): Promise<string[]> => {
  const found = await cluster.kubectl('get', 'pods', '-o', 'name', '-l', `orrery.dev/part=${part}`)
  return found.trim() === '' ? [] : found.trim().split('\n')
}
const ended = (id: string) =>
  until('the end of the session', 60, async () => {
    const session = await service.get(`/console-sessions/${id}/`)
    return session.finishedAt === undefined ? undefined : session
  })

test.each(['pods', 'other'])(
  'a command on %s runs in a Pod of the runtime’s image, which is gone at the end',
  async (resourceId) => {
    const record = await service.post('/console-commands/', {
      resourceId,
      command: 'echo "$(cat /etc/hostname)" "$GREETING"; pwd; echo wrong >&2; exit 3',
      environment: { GREETING: 'hello' },
      timeoutSeconds: 120,
    })
    expect(record).toMatchObject({ status: 'failed', exitCode: 3, stderr: 'wrong\n' })
    expect(record.stdout).toMatch(/^orrery-\w+-0 hello\n\/orrery\/console\/console-/)
    await until('the end of its Pod', 60, async () => (await podsOf('task')).length === 0)
  },
  180_000,
)

test('a terminal is a Pod: keys, sizes, the image’s programs, a transcript; the Pod is gone at the end', async () => {
  const id = await openTerminal(service, 'other')
  expect(await podsOf('console')).toEqual([`pod/orrery-console-${id}`])
  const desk = await attachTo(service, id)
  desk.ws.send(JSON.stringify({ type: 'resize', rows: 31, columns: 117 }))
  desk.ws.send('stty size; echo "host-$(hostname)"; echo "path-$PATH"\n')
  await desk.shows('31 117')
  await desk.shows(`host-orrery-console-${id}`)
  desk.ws.send('exit\n')
  expect((await desk.closed)[0]).toBe(1000)
  expect((await ended(id)).status).toBe('closed')
  const { text } = await service.call('GET', `/console-sessions/${id}/log/`)
  expect(text).toContain(`host-orrery-console-${id}`)
  await until('the end of its Pod', 60, async () => (await podsOf('console')).length === 0)
}, 180_000)

test('a Pod that is evicted ends its session with the reason; what it showed stays', async () => {
  const id = await openTerminal(service, 'pods')
  const desk = await attachTo(service, id)
  desk.ws.send('printf "mark-%d\\n" $((6*7))\n')
  await desk.shows('mark-42')
  const name = `orrery-console-${id}`
  await cluster.evict(name)
  expect((await desk.closed)[0]).toBe(1000)
  expect(await ended(id)).toMatchObject({ status: 'failed', failure: expect.stringContaining(`Pod ${name}`) })
  expect((await service.call('GET', `/console-sessions/${id}/log/`)).text).toContain('mark-42')
}, 180_000)

test('an image that cannot be had is the reason of the failure', async () => {
  const { id } = await service.post('/console-sessions/', { resourceId: 'missing' })
  expect((await ended(id)).failure).toMatch(/local\/nothing:1/)
  await until('the end of its Pod', 60, async () => (await podsOf('console')).length === 0)
}, 180_000)

test('a wrong configuration is 422', async () => {
  for (const [path, more] of [
    ['/console-sessions/', {}],
    ['/console-commands/', { command: 'true' }],
  ] as const) {
    const answer = await service.call('POST', path, { resourceId: 'wrong', ...more })
    expect([answer.status, answer.text]).toEqual([422, expect.stringContaining('root')])
  }
})
