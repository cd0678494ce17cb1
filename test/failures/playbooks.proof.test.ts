import { afterAll, beforeAll, expect, jest } from '@jest/globals'
import { readdirSync, readFileSync } from 'node:fs'
import { startCloud, type CloudSite } from '../../sites/cloud.ts'
import { sites } from '../../sites/requirements.ts'
import { cloudEnvironment, withoutPlaybooks } from '../support/cloud.ts'
import { needs } from '../support/needs.ts'
import { dataFolder, removeFolder, until } from './programs.ts'
import { openPrograms, type Programs } from './rounds.ts'

/** A playbook under the sudden death of its worker: nothing is left here, and it runs again. */

const { test } = needs(...sites.ssh, 'ansible-core', 'bubblewrap')
jest.setTimeout(180_000)

const dataDir = dataFolder()
let site: CloudSite
let programs: Programs
beforeAll(async () => {
  site = await startCloud({ machines: 'ssh' })
  programs = openPrograms(dataDir, {
    environment: {
      TMPDIR: dataDir,
      ...cloudEnvironment(),
    },
  })
  await programs.startDaemon()
  const { credentialRef } = await programs.post('/cloud-credentials/', {
    ...{ id: 'site', provider: 'aws', credential: site.accessKey },
  })
  await programs.post('/environments/', {
    environment: { id: 'clouds', name: 'clouds' },
    version: { id: 'clouds-v1', version: 1, status: 'published' },
    runtimes: [{ id: 'clouds-r', name: 'r', driver: 'cloud', mode: 'execution' }],
    connections: [
      {
        ...{ id: 'account', name: 'account', type: 'cloud', endpoint: site.endpoint, credentialRef },
        configuration: { provider: 'aws', region: site.region },
      },
    ],
  })
  await programs.post('/machine-configurations/', { id: 'own', name: 'own' })
  const task = (name: string) => `    - {name: ${name}, shell: "echo ${name} >> ~/ran; sleep 2"}\n`
  for (const name of ['first', 'second'])
    await programs.post('/machine-configurations/own/versions/', {
      ...{ id: name, playbookYaml: `- hosts: all\n  gather_facts: false\n  tasks:\n${task(name)}` },
    })
  await programs.post('/environments/clouds/cloud-capacity-targets/', {
    ...{ id: 't', name: 't', provider: 'aws', providerMachineType: 'm5.large', vcpu: 2, memoryMiB: 8_192 },
    ...{ imageReference: 'ami-debian12', maximumInstances: 5 },
    machineConfigurations: [
      ...withoutPlaybooks.machineConfigurations,
      ...['first', 'second', 'second'].map((configurationVersionId, place) => ({
        ...{ configurationVersionId, executionOrder: place + 1 },
      })),
    ],
  })
}, 600_000)
afterAll(async () => {
  await programs?.stop()
  await site?.stop()
  removeFolder(dataDir)
}, 60_000)

/** The sandboxes of this test's workers: their command lines name its folder. */
const sandboxes = (): string[] =>
  readdirSync('/proc').filter((pid) => {
    try {
      return /^\d+$/.test(pid) && readFileSync(`/proc/${pid}/cmdline`, 'latin1').startsWith('bwrap\0')
        ? readFileSync(`/proc/${pid}/cmdline`, 'latin1').includes(`${dataDir}/orrery-play-`)
        : false
    } catch {
      return false
    }
  })

test.each([
  ['in the middle of a playbook', undefined, ['first', 'first', 'second', 'second']],
  ['behind a playbook, before that is recorded', 'cloud-configured', ['first', 'first', 'second', 'second']],
  ['behind the second one', 'cloud-configured=2', ['first', 'second', 'second', 'second']],
  ['behind the second use of a version', 'cloud-configured=3', ['first', 'second', 'second', 'second']],
])('a worker that dies %s', async (name, failpoint, ran) => {
  const instanceId = name.replaceAll(/[^a-z]+/g, '-')
  if (failpoint !== undefined) programs.setFailpoint(failpoint)
  const { id } = await programs.post('/environments/clouds/cloud-instances/', {
    ...{ capacityTargetId: 't', instanceId },
  })
  if (failpoint === undefined) {
    await until('the first task is at work', 60, async () => {
      const { providerId } = await programs.get(`/cloud-instances/${instanceId}/`)
      const host = site.machines.get(providerId)?.host
      return (await host?.run('test -s ~/ran', 'account', { mayFail: true }))?.code === 0
    })
    await programs.killDaemon()
  } else await programs.daemon!.ended
  await until('every process of the playbook is gone', 45, async () => sandboxes().length === 0)
  expect(readdirSync(dataDir).filter((entry) => entry.startsWith('orrery-play-'))).toEqual([])
  await programs.startDaemon()
  const operation = await until('the end of the operation', 90, async () => {
    const found = await programs.get(`/cloud-operations/${id}/`)
    return ['queued', 'running'].includes(found.status) ? undefined : found
  })
  expect([operation.status, operation.failureReason]).toEqual(['completed', undefined])
  const { providerId } = await programs.get(`/cloud-instances/${instanceId}/`)
  const { host } = site.machines.get(providerId)!
  expect((await host!.run('cat ~/ran', 'account')).stdout.trim().split('\n')).toEqual(ran)
  await programs.post(`/cloud-instances/${instanceId}/destroy/`)
})
