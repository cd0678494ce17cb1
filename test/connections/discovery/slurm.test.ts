import { describe, expect, test } from '@jest/globals'
import fc from '../../support/fast-check.ts'
import { foundSlurm, readSlurm } from '../../../src/connections/discovery/slurm.ts'
import { gpusOf } from '../../../src/drivers/runtime/slurm/limits.ts'
import type { DiscoveredHost } from '../../../src/connections/discovery/host.ts'

const output = `@@ version
slurm-wlm 24.11.5
@@ configuration
Configuration data as of 2026-01-01T00:00:00
ClusterName             = hpc
@@ partitions
PartitionName=cpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A \
DefaultTime=NONE MaxTime=1-00:00:00 MinNodes=0 Nodes=n[1-2] State=UP TotalCPUs=24 TotalNodes=2 \
TRES=cpu=24,mem=96G,node=2
PartitionName=gpu Default=NO MaxTime=UNLIMITED Nodes=n2 State=UP TotalCPUs=16 TotalNodes=1
PartitionName=old Default=NO MaxTime=UNLIMITED Nodes=n3 State=DOWN TotalCPUs=0 TotalNodes=0
@@ nodes
NodeName=n1 Arch=x86_64 CoresPerSocket=4 CPUAlloc=4 CPUEfctv=8 CPUTot=8 CPULoad=0.10 \
AvailableFeatures=(null) Gres=(null) NodeAddr=n1 RealMemory=32768 AllocMem=1024 FreeMem=100 Sockets=2 \
State=MIXED ThreadsPerCore=1 Partitions=cpu Comment=State=DOWN Gres=gpu:9
NodeName=n2 Arch=x86_64 CPUAlloc=0 CPUEfctv=16 CPUTot=16 AvailableFeatures=a100,ib Gres=gpu:a100:2(S:0-1) \
RealMemory=65536 AllocMem=0 State=IDLE+DRAIN Partitions=cpu,gpu Reason=State=IDLE
@@ queue
cpu/PD
cpu,gpu/PD
cpu/R
@@ end
`
const login: DiscoveredHost = {
  name: 'login1',
  architecture: 'x86_64',
  system: 'Linux',
  cores: 4,
  memoryBytes: 8e9,
  memoryUsedBytes: 1e9,
  load: 0.5,
  gpus: [],
  containerEngines: [],
  shared: [{ source: 'fs:/home', path: '/home', type: 'nfs', readOnly: false, capacityBytes: 1e12 }],
  warnings: [],
}

describe('a cluster', () => {
  test.each([
    ['IDLE+CLOUD+POWERED_DOWN', true],
    ['IDLE+CLOUD+POWERING_UP', true],
    ['IDLE+POWERING_DOWN', true],
    ['IDLE+POWER', true],
    ['IDLE~', true],
    ['ALLOCATED+POWER_UP', true],
    ['DOWN+CLOUD+POWERED_DOWN', false],
    ['DOWN*+CLOUD', false],
    ['IDLE+DRAIN+POWERED_DOWN', false],
    ['IDLE+NOT_RESPONDING+POWERED_DOWN', false],
  ])('a node in state %s can get a job: %s', (state, available) => {
    const facts = readSlurm(output.replace('State=MIXED', `State=${state}`))
    expect(facts.nodes[0]).toMatchObject({ state, available })
  })

  test('is read from its own commands: partitions, nodes, graphics processors and the queue', () => {
    const facts = readSlurm(output)
    expect(facts).toMatchObject({ version: '24.11.5', cluster: 'hpc', warnings: [] })
    expect(facts.partitions).toEqual([
      {
        name: 'cpu',
        isDefault: true,
        up: true,
        cpus: 24,
        nodes: 2,
        maxTime: '1-00:00:00',
        gpus: 2,
        pending: 2,
        running: 1,
      },
      {
        name: 'gpu',
        isDefault: false,
        up: true,
        cpus: 16,
        nodes: 1,
        maxTime: 'UNLIMITED',
        gpus: 2,
        pending: 1,
        running: 0,
      },
      {
        name: 'old',
        isDefault: false,
        up: false,
        cpus: 0,
        nodes: 0,
        maxTime: 'UNLIMITED',
        gpus: 0,
        pending: 0,
        running: 0,
      },
    ])
    expect(facts.nodes).toMatchObject([
      {
        name: 'n1',
        cpus: 8,
        allocatedCpus: 4,
        memoryBytes: 32_768 * 2 ** 20,
        gpus: 0,
        available: true,
        partitions: ['cpu'],
      },
      {
        name: 'n2',
        cpus: 16,
        gpus: 2,
        gpuModel: 'a100',
        features: 'a100,ib',
        available: false,
        state: 'IDLE+DRAIN',
      },
    ])
  })

  test('becomes a tree of resources; jobs go to partitions, little and for a short time to the login node', () => {
    const found = foundSlurm(readSlurm(output), login, { connectionId: 'c', driver: 'ssh' })
    expect(found.resources.map(({ key, within, schedulable }) => [key, within, schedulable])).toEqual([
      ['cluster/hpc', [], false],
      ['login/login1', ['cluster/hpc'], false],
      ['partition/cpu', ['cluster/hpc'], true],
      ['partition/gpu', ['cluster/hpc'], true],
      ['partition/old', ['cluster/hpc'], true],
      ['node/n1', ['partition/cpu'], false],
      ['node/n2', ['partition/cpu', 'partition/gpu'], false],
    ])
    expect(found.resources[1]).toMatchObject({
      executionTarget: 'direct',
      metadata: { maxDirectCpu: 2, maxDirectMemoryBytes: 4 * 2 ** 30, maxDirectDurationSeconds: 1_800 },
    })
    expect(found.resources[2]).toMatchObject({
      cpuCores: 24,
      observed: { available: true, cpuUsed: 4, queueLength: 2 },
      metadata: { partition: 'cpu', gpus: 2 },
    })
    expect(found.resources[3]?.observed.available).toBe(false)
    expect(found.runtimes.map(({ driver, capabilities }) => [driver, capabilities.includes('gpu')])).toEqual([
      ['slurm', true],
      ['ssh', false],
    ])
    expect(found.storages).toMatchObject([{ source: 'fs:/home', runtimes: ['slurm', 'ssh'] }])
  })

  test('that does not answer says so in its own words, and one that breaks off is not taken for the whole', () => {
    const silent =
      '@@ version\nslurm-wlm 24.11.5\n@@ configuration\n@@ failed\n@@ ' +
      'partitions\nslurm_load_partitions: Unable to contact slurm controller (connect failure)\n@@ ' +
      'failed\n@@ nodes\n@@ failed\n@@ queue\n@@ failed\n@@ end\n'
    expect(() => readSlurm(silent)).toThrow('Unable to contact slurm controller')
    expect(() => readSlurm(output.slice(0, -10))).toThrow('cut off')
    expect(readSlurm(output.replace('cpu/PD', 'squeue: error\n@@ failed')).warnings).toHaveLength(0)
    expect(
      readSlurm(
        output.replace('@@ queue\ncpu/PD\ncpu,gpu/PD\ncpu/R\n', '@@ queue\nsqueue: error: no\n@@ failed\n'),
      ).warnings,
    ).toEqual([expect.stringContaining('squeue: error: no')])
  })

  test.each([
    ['gpu:a100:2(S:0-1)', 2, 'a100'],
    ['gpu:2080ti:8(S:0-1)', 8, '2080ti'],
    ['gpu:1g.10gb:7', 7, '1g.10gb'],
    ['gpu:1', 1, ''],
    ['gpu', 1, ''],
    ['gpu:a100:3g.20gb:4', 0, ''],
    ['gpu:tesla:2,gpu:kepler:2,craynetwork:4', 4, 'tesla'],
    ['(null)', 0, ''],
    ['', 0, ''],
  ])('generic resources %s are %d graphics processors', (gres, gpus, gpuModel) => {
    expect(gpusOf(gres)).toEqual({ gpus, gpuModel })
  })

  test('any text is read or refused, never half-read into wrong numbers', () => {
    fc.assert(
      fc.property(
        fc.array(fc.constantFrom(...output.split('\n'), '@@ failed', '@@ end', 'x=y', '')),
        (lines) => {
          let facts
          try {
            facts = readSlurm(lines.join('\n'))
          } catch (error) {
            expect((error as Error).message).toMatch(/cut off|does not answer/)
            return
          }
          for (const node of facts.nodes)
            expect(
              [node.cpus, node.gpus, node.memoryBytes].every((value) => Number.isFinite(value) && value >= 0),
            ).toBe(true)
        },
      ),
    )
  })
})
