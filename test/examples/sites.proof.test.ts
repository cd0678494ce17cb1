import { spawn } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { afterAll, describe, expect, test } from '@jest/globals'
import {
  atCloud,
  atCluster,
  atHosts,
  onMachine,
  readDocuments,
  withSuffix,
  type Environment,
} from '../../examples/demo/documents.ts'
import { siteKinds } from '../../examples/demo/sites.ts'
import { connectionProblems } from '../../src/connections/rules.ts'
import { documentProblems } from '../../src/domains/environments/rules.ts'
import { EnvironmentDefinition } from '../../src/domains/environments/schemas.ts'
import { NewCapacityTarget } from '../../src/domains/cloud/schemas.ts'
import { NetworkTopologyDocument } from '../../src/domains/network-topologies/schemas.ts'
import { cacheDir, temporaryFolder } from '../embedded/folder.ts'
import { needs } from '../support/needs.ts'
import { sites as siteNeeds } from '../../sites/requirements.ts'
import { readPng } from './png.ts'

const mosaic = path.resolve(import.meta.dirname, '../../examples/mosaic')
const folder = temporaryFolder()
const running = new Set<ReturnType<typeof spawn>>()
afterAll(() => {
  for (const child of running) child.kill('SIGKILL')
  folder[Symbol.dispose]()
})

describe.each(siteKinds)('the documents of the mosaic for %s, as the service reads them', (kind) => {
  const { environment, targets, topology } = readDocuments(mosaic, kind)

  test('the environment and each of its connections are accepted as they are', () => {
    expect(EnvironmentDefinition.safeParse(environment).error?.issues ?? []).toEqual([])
    expect(documentProblems(environment)).toEqual([])
    for (const connection of environment.connections ?? [])
      expect(connectionProblems(connection, { allowProxyCommand: false })).toEqual([])
    for (const target of targets) expect(NewCapacityTarget.safeParse(target).error?.issues ?? []).toEqual([])
  })

  test('the network joins every two resources', () => {
    expect(NetworkTopologyDocument.safeParse(topology).error?.issues ?? []).toEqual([])
    const count = environment.resources.length + targets.length
    expect(topology.links).toHaveLength((count * (count - 1)) / 2)
  })

  test('with ids of its own and the cores of a machine they are accepted too', () => {
    const own = withSuffix(readDocuments(mosaic, kind), 'x')
    const filled = reached(onMachine(own.environment, { cores: 8, memoryBytes: 2 ** 34 }, []))
    expect(documentProblems(filled)).toEqual([])
    const ids = (filled.connections ?? []).map(({ id }) => id)
    expect(ids.every((id) => id.endsWith('-x'))).toBe(true)
    // What discovery calls the namespace; under another name it would add a second one, which is
    // bound to no simulation.
    if (kind === 'kubernetes')
      expect(filled.resources).toMatchObject([{ type: 'kubernetes_namespace', providerId: 'work' }])
    const used = [...filled.runtimes, ...own.targets].map(
      ({ configuration }) => (configuration as { connectionId?: string } | undefined)?.connectionId,
    )
    expect([...new Set(used.filter((id) => id !== undefined))].toSorted()).toEqual(ids.toSorted())
    for (const connection of filled.connections ?? []) {
      expect(connectionProblems(connection, { allowProxyCommand: false })).toEqual([])
      expect(connection['credentialRef']).toMatch(/^vault:(ssh-key|kubernetes-token|cloud-credential)\/x$/)
    }
  })
})

/** The environment with its connections as hosts and a cluster would have them. */
const reached = (environment: Environment): Environment => {
  const [first] = environment.connections ?? []
  if (first?.['type'] === 'kubernetes')
    return atCluster(environment, {
      server: 'https://10.64.0.11:6443',
      certificateAuthority: '-----BEGIN CERTIFICATE-----',
      namespace: 'work',
      credentialRef: 'vault:kubernetes-token/x',
      runtime: { namespace: 'work' },
    })
  if (first?.['type'] === 'cloud')
    return atCloud(environment, {
      ...{ endpoint: 'http://127.0.0.1:1', credentialRef: 'vault:cloud-credential/x' },
    })
  const contacts = ['th1', 'th2', 'login node'].map((name) => ({
    ...{ name, address: '10.64.0.11', port: 22, username: 'ada', knownHosts: '10.64.0.11 ssh-ed25519 AAAA' },
  }))
  return atHosts(environment, contacts, 'vault:ssh-key/x')
}

const demo = (...args: string[]): Promise<{ code: number | null; said: string }> =>
  new Promise((resolve) => {
    const child = spawn(
      process.execPath,
      [path.resolve(mosaic, '../demo.ts'), '--output', path.join(folder.path, 'output'), ...args],
      {
        env: {
          PATH: '/usr/local/bin:/usr/bin:/bin',
          HOME: folder.path,
          // Short: containerd's sockets lie below it, and a socket's path has 107 bytes.
          TMPDIR: tmpdir(),
          SERVICE_DATA_DIR: path.join(folder.path, 'data'),
          SERVICE_CACHE_DIR: cacheDir,
        },
        stdio: ['ignore', 'pipe', 'pipe'],
      },
    )
    running.add(child)
    let said = ''
    for (const stream of [child.stdout, child.stderr])
      stream.on('data', (chunk: Buffer) => (said += chunk.toString()))
    child.once('close', (code) => {
      running.delete(child)
      resolve({ code, said })
    })
  })

test('an unknown site, and a workflow without documents for one, are told', async () => {
  expect(await demo('--site', 'moon')).toMatchObject({
    code: 2,
    said: expect.stringContaining('--site moon: give ssh, slurm, spanning, docker, kubernetes, serverless'),
  })
  const { code, said } = await demo('--site', 'ssh', '--workflow', 'mosaic-montage')
  expect([code, said]).toEqual([2, expect.stringContaining('only the mosaic')])
  expect(await demo('--site', 'slurm', '--loopback')).toMatchObject({
    code: 2,
    said: expect.stringContaining('only --site ssh'),
  })
})

needs('openssh-server', 'openssh-client').test(
  'on hosts that need no root: sshd on ports of this machine, for the account that started the demo',
  async () => {
    const { code, said } = await demo('--site', 'ssh', '--loopback', '--small')
    expect({ code, said }).toEqual({ code: 0, said: expect.any(String) })
    expect(said).toMatch(
      /^The site ssh --loopback needs the Debian packages openssh-client openssh-server\.\n/,
    )
    expect(said).toMatch(/th1: sshd at port \d+ of this machine\n\s+th2: sshd at port \d+ of this machine/)
    expect(said).toContain('43 of 43 done')
    const lines = said
      .split('\n')
      .filter((line) => !line.includes(folder.path) && !line.startsWith('The site'))
    expect(lines.filter((line) => line.length > 80)).toEqual([])
  },
  900_000,
)

needs(...siteNeeds.slurm, ...siteNeeds.docker, 'squashfs-tools').test.each([
  ['an engine of containers', ['--site', 'docker'], 'OCI image'],
  ['a Slurm cluster, by Apptainer', ['--site', 'slurm', '--sif'], 'SIF file'],
])(
  'from an image that the service makes, on %s: digest, time of the build, and how it came to each place',
  async (_, site, made) => {
    const { code, said } = await demo(...site, '--small')
    expect([code, code === 0 ? '' : said]).toEqual([0, ''])
    const [, digest = ''] =
      new RegExp(`${made}\\s+sha256:([0-9a-f]{64}),\\s+built in [0-9.]+`).exec(said) ?? []
    expect(digest).toHaveLength(64)
    expect(said).toContain('43 of 43 done')
    expect(said).toMatch(new RegExp(`sha256:${digest.slice(0, 12)}… (was there|brought, [0-9.]+ MiB)`))
    const picture = /picture {3}(\S+)/.exec(said)?.[1] ?? ''
    expect(readPng(readFileSync(picture))).toMatchObject({ width: 320, height: 240 })
  },
  900_000,
)

needs(...siteNeeds.slurm).test(
  'one run on this machine, on a host by SSH and on a Slurm cluster: a key, connections, discovery, the picture',
  async () => {
    const { code, said } = await demo('--site', 'spanning', '--small')
    expect({ code, said }).toEqual({ code: 0, said: expect.any(String) })
    expect(said).toContain('th1: healthy')
    expect(said).toContain('login node: healthy')
    const sites = [...said.matchAll(/^ {6}((?:local@|ssh\/|slurm\/)\S+)\s+(\d+) /gm)].map(
      ([, site, tasks]) => ({
        site,
        tasks: Number(tasks),
      }),
    )
    expect(sites.map(({ site }) => site!.replace(/[@/].*/, '')).toSorted()).toEqual(['local', 'slurm', 'ssh'])
    expect(sites.reduce((sum, { tasks }) => sum + tasks, 0)).toBe(43)
    expect(said).toMatch(/Data: \d+ × gateway/)
    const picture = /picture {3}(\S+)/.exec(said)?.[1] ?? ''
    expect(existsSync(picture)).toBe(true)
    expect(readPng(readFileSync(picture))).toMatchObject({ width: 320, height: 240 })
  },
  900_000,
)

needs(...siteNeeds.ssh).test(
  'on machines that a provider makes for the run, with a receipt to the end',
  async () => {
    const { code, said } = await demo('--site', 'cloud', '--small')
    expect([code, code === 0 ? '' : said]).toEqual([0, ''])
    expect(said).toContain('All machines of the run are gone.')
    expect(said).toMatch(/sum +\d/)
    const picture = /picture {3}(\S+)/.exec(said)?.[1] ?? ''
    expect(readPng(readFileSync(picture))).toMatchObject({ width: 320, height: 240 })
  },
  600_000,
)
