import { expect, jest } from '@jest/globals'
import { mkdtempSync } from 'node:fs'
import { join } from 'node:path'
import { PassThrough } from 'node:stream'
import { setImmediate } from 'node:timers/promises'
import { startLoopbackSsh, type LoopbackSite } from '../../sites/loopback.ts'
import { sites } from '../../sites/requirements.ts'
import { openRunFiles } from '../../src/domains/execution-runs/run-files.ts'
import type { SiteDrivers } from '../../src/executor/drivers.ts'
import type { ShellStream } from '../../src/shell/site-shell.ts'
import { needs } from '../support/needs.ts'
import { connectionTo, makeVaultKeyFile, onHost } from '../support/reach.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, type TestService } from '../support/service.ts'
import { makeWorld } from '../support/worlds.ts'
import { checked } from './checked.ts'

const { afterAll, beforeAll, test } = needs(...sites.sshd)

let service: TestService
let ssh: LoopbackSite
beforeAll(async () => {
  ;[ssh, service] = await Promise.all([
    startLoopbackSsh({ hosts: 3 }),
    openService({
      environment: { SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(), SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true' },
    }),
  ])
  await service.post('/ssh-keys/import/', { id: 'hosts', privateKey: ssh.key.privateKey })
})
afterAll(async () => {
  await service?.[Symbol.asyncDispose]()
  await ssh?.stop()
})

test('a task that is tried again at one host, while the other host of its run goes on: its successor there gets the files of the last attempt', async () => {
  const folder = mkdtempSync(join(runFolder(), 'orrery-two-hosts-'))
  const wait = (file: string): string => `until [ -e ${folder}/${file} ]; do sleep 0.1; done`
  const world = await makeWorld(service, {
    name: 'again',
    cores: [2, 1],
    places: [1, 2].map((i) => onHost(`again-c${String(i)}`)),
    connections: ssh.hosts
      .slice(0, 2)
      .map((host, i) => connectionTo(`again-c${String(i + 1)}`, host, 'hosts')),
    tasks: [
      { name: 'goes-on', run: `touch ${folder}/runs; ${wait('made')}`, lane: [0, 0] },
      {
        name: 'made',
        run:
          `${wait('runs')}; echo "$AKOFLOW_ATTEMPT" > made.txt; ` +
          `[ "$AKOFLOW_ATTEMPT" = 2 ] || exit 1; touch ${folder}/made`,
        outputs: ['made.txt'],
        policy: { maxAttempts: 2 },
        lane: [1, 0],
      },
      { name: 'used', after: ['made'], run: 'cat made.txt', lane: [0, 1] },
    ],
  })
  await service.post('/execution-runs/', { id: 'again-run', schedulePlanId: world.planId, mode: 'real' })
  const { run } = await service.finished('again-run')
  expect([run.failureReason, run.status]).toEqual([undefined, 'completed'])
  const used = await service.call('GET', '/execution-runs/again-run/activities/again-used/logs/')
  expect(used.text).toBe('2\n')
  await checked(service, world, 'again-run')
})

test('a run goes over three SSH hosts, its data following, and everything about each activity can be read', async () => {
  const world = await makeWorld(service, {
    name: 'three',
    cores: [2, 2, 2],
    places: [1, 2, 3].map((i) => onHost(`three-c${String(i)}`)),
    connections: ssh.hosts.map((host, i) => connectionTo(`three-c${String(i + 1)}`, host, 'hosts')),
    tasks: [
      { name: 'seed', run: 'echo from seed > seed.txt', outputs: ['seed.txt'], lane: [0, 0] },
      ...[1, 2].map((i) => ({
        name: `part-${String(i)}`,
        after: ['seed'],
        run: `cat seed.txt; echo ${String(i)} | tee part-${String(i)}.txt; echo "$SSH_CONNECTION" >&2`,
        outputs: [`part-${String(i)}.txt`],
        lane: [i, 0] as const,
      })),
      { name: 'join', after: ['part-1', 'part-2'], run: 'cat part-*.txt', lane: [0, 0] },
    ],
  })
  await service.post('/execution-runs/', { id: 'three-run', schedulePlanId: world.planId, mode: 'real' })
  const detail = await service.finished('three-run')
  expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
  const logOf = async (activity: string): Promise<string> =>
    (await service.call('GET', `/execution-runs/three-run/activities/three-${activity}/logs/`)).text
  expect(await logOf('join')).toBe('1\n2\n')
  expect(await logOf('part-2')).toContain('from seed\n2\n')
  expect(
    detail.activities.find(({ externalId }: { externalId: string }) => externalId === 'part-2'),
  ).toMatchObject({ site: 'ssh/three-c3', connectionId: 'three-c3', status: 'completed', attempt: 1 })
  const outputs = await service.get('/execution-runs/three-run/activities/three-part-2/outputs/')
  expect(outputs.items).toMatchObject([
    { relativePath: 'part-2.txt', sizeBytes: 2, checksum: expect.stringMatching(/^sha256:/) },
  ])
  const transfers = await service.get('/execution-runs/three-run/data-transfers/')
  expect(transfers.items).toHaveLength(4)
  for (const transfer of transfers.items)
    expect(transfer.route).toMatchObject({
      from: expect.stringMatching(/^ssh\/three-c/),
      to: expect.stringMatching(/^ssh\/three-c/),
    })
  await checked(service, world, 'three-run')

  // A site that opens the file of a download after its reader was refused.
  const opening = Promise.withResolvers<ShellStream>()
  const asked = Promise.withResolvers<undefined>()
  const answer = { code: 0, signal: null, stdout: Buffer.from('2'), stderr: '' }
  const shell = {
    run: () => Promise.resolve(answer),
    open: () => {
      asked.resolve(undefined)
      return opening.promise
    },
  }
  const slow = { at: () => ({ shell, root: () => Promise.resolve('/') }) } as unknown as SiteDrivers
  const files = openRunFiles({ db: service.db, sites: slow, hostId: 'here' })
  const open = await files.filesOf('three-run', 'three-part-2', undefined)
  jest.useFakeTimers()
  try {
    const refused = expect(open('part-2.txt')).rejects.toThrow(/does not answer now/)
    await asked.promise
    jest.advanceTimersByTime(10_000)
    await refused
  } finally {
    jest.useRealTimers()
  }
  const stdout = new PassThrough()
  opening.resolve({ stdout } as unknown as ShellStream)
  await setImmediate()
  expect(stdout.destroyed).toBe(true)
})
