import { expect } from '@jest/globals'
import { hostname } from 'node:os'
import { foundHost, hostScript, readHost } from '../../../src/connections/discovery/host.ts'
import { run } from '../../../sites/ground.ts'
import { startLoopbackSsh, type LoopbackSite } from '../../../sites/loopback.ts'
import { needs } from '../../support/needs.ts'
import { sites } from '../../../sites/requirements.ts'

const { afterAll, beforeAll, test } = needs(...sites.sshd)

let site: LoopbackSite
beforeAll(async () => {
  site = await startLoopbackSsh()
})
afterAll(() => site?.stop())

const output = `@@ name
login1
@@ machine
x86_64
@@ system
Linux 6.1.0
@@ cores
64
@@ memory
MemTotal:       263000000 kB
MemFree:         1000000 kB
MemAvailable:  200000000 kB
@@ load
3.50 2.00 1.00 1/900 1234
@@ gpus
NVIDIA A100-SXM4-80GB, 81920
NVIDIA A100-SXM4-80GB, 81920
@@ engines
apptainer
@@ mounts
/dev/sda1 / ext4 rw,relatime 0 0
fs1:/export/home /home nfs4 rw,vers=4.2 0 0
10.0.0.1@o2ib:/scratch /scratch\\040of\\040all lustre ro,flock 0 0
tmpfs /tmp tmpfs rw 0 0
@@ sizes
Filesystem        1024-blocks      Used Available Capacity Mounted on
/dev/sda1          102400000   1000000 101400000       1% /
fs1:/export/home  1000000000 900000000 100000000      90% /home
10.0.0.1@o2ib:/scratch 5000 100 4900 2% /scratch of all
@@ end
`

test('facts of a machine: cores, memory, load, graphics processors, engines, and what it shares with others', () => {
  const facts = readHost(output)
  expect(facts).toEqual({
    name: 'login1',
    architecture: 'x86_64',
    system: 'Linux 6.1.0',
    cores: 64,
    memoryBytes: 263_000_000 * 1024,
    memoryUsedBytes: 63_000_000 * 1024,
    load: 3.5,
    gpus: [
      { model: 'NVIDIA A100-SXM4-80GB', memoryMiB: 81_920 },
      { model: 'NVIDIA A100-SXM4-80GB', memoryMiB: 81_920 },
    ],
    containerEngines: ['apptainer'],
    shared: [
      {
        source: 'fs1:/export/home',
        path: '/home',
        type: 'nfs',
        readOnly: false,
        capacityBytes: 1_024_000_000_000,
      },
      {
        source: '10.0.0.1@o2ib:/scratch',
        path: '/scratch of all',
        type: 'lustre',
        readOnly: true,
        capacityBytes: 5_120_000,
      },
    ],
    warnings: [],
  })
  const found = foundHost(facts, { connectionId: 'c', driver: 'ssh' })
  expect(found.resources[0]).toMatchObject({
    key: 'host/login1',
    cpuCores: 64,
    metadata: { gpus: 2 },
    observed: { cpuUsed: 3.5 },
  })
  expect(found.storages.map(({ path, runtimes }) => [path, runtimes])).toEqual([
    ['/home', ['ssh']],
    ['/scratch of all', ['ssh']],
  ])
})

test('an output that breaks off is not taken for the whole', () => {
  for (const length of [0, 10, 100, output.length - 8])
    expect(() => readHost(output.slice(0, length))).toThrow('cut off')
})

test('what a machine cannot tell is a warning, not a wrong number', () => {
  const { cores, memoryBytes, warnings } = readHost(
    '@@ name\nh\n@@ cores\n@@ memory\n@@ mounts\nfs:/a /a nfs rw 0 0\n@@ sizes\n@@ end\n',
  )
  expect([cores, memoryBytes]).toEqual([0, 0])
  expect(warnings).toEqual([
    expect.stringContaining('cores'),
    expect.stringContaining('memory'),
    expect.stringContaining('fs:/a'),
  ])
})

test('a real host tells its facts under a POSIX shell', async () => {
  const { address, port, user } = site.hosts[0]!
  const { stdout } = await run(
    'ssh',
    [...site.sshOptions, '-p', String(port), `${user}@${address}`, '/bin/sh -s'],
    { input: hostScript },
  )
  const facts = readHost(stdout)
  expect(facts).toMatchObject({
    name: hostname(),
    architecture: expect.stringMatching(/\w/),
    system: expect.stringContaining('Linux'),
  })
  expect(facts.cores).toBeGreaterThan(0)
  expect(facts.memoryBytes).toBeGreaterThan(64 * 1024 * 1024)
  expect(facts.memoryUsedBytes).toBeLessThan(facts.memoryBytes)
})
