import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { configFromEnvironment } from '../../src/config.ts'
import { allowApptainer, haveApptainer } from '../../sites/apptainer.ts'
import { startCloud } from '../../sites/cloud.ts'
import { openDockerEngine, type DockerEngine } from '../../sites/docker.ts'
import { startFunctions } from '../../sites/functions.ts'
import { kubernetesImages } from '../../sites/kubernetes-images.ts'
import { kubernetesMissing, startKubernetes } from '../../sites/kubernetes.ts'
import { slurmMissing, startSlurm } from '../../sites/slurm.ts'
import { startLoopbackSsh, type LoopbackHost } from '../../sites/loopback.ts'
import { siteLacks, siteNeeds, type WantedSite } from '../../sites/needs.ts'
import { sshMissing, startSsh, type SshHost } from '../../sites/ssh.ts'
import type { Api } from './api.ts'
import {
  atCloud,
  atCluster,
  atHosts,
  withConfiguration,
  type Contact,
  type Environment,
} from './documents.ts'

/**
 * Sites for a run of the demo beside this machine: the folders of documents in `examples/mosaic`.
 */
export const siteKinds = ['ssh', 'slurm', 'spanning', 'docker', 'kubernetes', 'serverless', 'cloud'] as const
export type SiteKind = (typeof siteKinds)[number]

export interface Sites {
  /** The started parts, a line each. */
  lines: readonly string[]
  /** Image on the site, for tasks in containers; absent: that of the workflow. */
  image?: string
  /** The engine that builds the image of the tasks, and the image to build on. */
  builder?: { socket: string; base: string; format: 'sif' | 'oci' }
  /**
   * Stores the connections' credentials in the service, under the id of this run of the demo. The
   * private half of a key never leaves the service.
   * @returns the environment with the connections' real addresses
   */
  reach(api: Api, id: string, environment: Environment, say: (line: string) => void): Promise<Environment>
  stop(): Promise<void>
}

interface HostContact extends Contact {
  /** Authorizes a public key. */
  authorize(publicKey: string): void
}

const contactOf = (name: string, host: SshHost | LoopbackHost): HostContact => ({
  name,
  address: host.address,
  port: host.port,
  username: host.user,
  knownHosts: host.knownHosts(),
  authorize: (publicKey) => host.authorize(publicKey),
})

/** A site of the demo. `loopback`: SSH hosts without root, each a port of this machine. */
export interface ChosenSite {
  kind: SiteKind
  loopback: boolean
  /** With Slurm: the tasks run from a SIF file, by Apptainer. */
  sif: boolean
}

/** The site to start. A run across several sites starts the one with the most requirements. */
const wantedSite = ({ kind, loopback }: ChosenSite): WantedSite =>
  kind === 'spanning'
    ? { kind: 'slurm' }
    : kind === 'docker'
      ? { kind, demoImages: true }
      : { kind, loopback }

/** All requirements of the sites of a kind, in one line. */
export const sitesNeed = (chosen: ChosenSite): string => siteNeeds(wantedSite(chosen))

/** Whether the demo makes the image of its tasks. */
export const makesImage = ({ kind, sif }: ChosenSite): boolean => kind === 'docker' || sif

/** The requirements that this machine does not meet; undefined where it meets all. */
export const sitesMissing = async (chosen: ChosenSite): Promise<string | undefined> => {
  const lacks =
    siteLacks(wantedSite(chosen)) ??
    (makesImage(chosen) ? siteLacks({ kind: 'docker', demoImages: true }) : undefined)
  if (lacks !== undefined || chosen.loopback) return lacks
  if (chosen.kind === 'ssh' || chosen.kind === 'cloud') return sshMissing()
  if (chosen.kind === 'kubernetes') return kubernetesMissing()
  return chosen.kind === 'slurm' || chosen.kind === 'spanning' ? slurmMissing() : undefined
}

/**
 * Starts hosts, cluster, engine or function on this machine. They end with this process at the
 * latest.
 */
export const startSites = ({ kind, loopback, sif }: ChosenSite): Promise<Sites> => {
  if (sif) return startSif()
  if (kind === 'kubernetes') return startCluster()
  if (kind === 'docker') return startEngine()
  if (kind === 'cloud') return startProvider()
  return kind === 'serverless' ? startFunction() : startHosts(kind, loopback)
}

const startHosts = async (kind: 'ssh' | 'slurm' | 'spanning', loopback: boolean): Promise<Sites> => {
  const started: { stop(): Promise<void> }[] = []
  const contacts: HostContact[] = []
  const lines: string[] = []
  const stop = async (): Promise<void> => {
    await Promise.all(started.splice(0).map((site) => site.stop()))
  }
  try {
    if (kind !== 'slurm') {
      const wanted = { hosts: kind === 'ssh' ? 2 : 1 }
      const site = loopback ? await startLoopbackSsh(wanted) : await startSsh(wanted)
      started.push(site)
      contacts.push(...site.hosts.map((host) => contactOf(host.name, host)))
      for (const { name, address, port } of site.hosts)
        lines.push(
          loopback
            ? `${name}: sshd at port ${port} of this machine`
            : `${name}: sshd at ${address}, files and processes of its own`,
        )
    }
    if (kind !== 'ssh') {
      const site = await startSlurm()
      started.push(site)
      contacts.push(contactOf('login node', site.login))
      lines.push(
        `Slurm: login node ${site.login.address}, compute nodes ${site.nodes.map(({ name }) => name).join(', ')}`,
      )
    }
  } catch (error) {
    await stop()
    throw error
  }
  return { lines, stop, reach: reachHosts(contacts) }
}

/** Lets a key of the service in at hosts. */
const reachHosts =
  (contacts: readonly HostContact[]): Sites['reach'] =>
  async (api, id, environment, say) => {
    const { credentialRef, publicKey, fingerprint } = await api.post('/ssh-keys/', { id, comment: 'demo' })
    const names = contacts.map(({ name }) => name).join(', ')
    say(`key ${id}:\n${fingerprint},\nlet in at ${names}; from here on it is ${credentialRef}`)
    for (const contact of contacts) contact.authorize(publicKey)
    return atHosts(environment, contacts, credentialRef)
  }

const startProvider = async (): Promise<Sites> => {
  const site = await startCloud({ machines: 'ssh' })
  return {
    lines: [
      `EC2: an endpoint at ${site.endpoint} that speaks its protocol;`,
      'each machine is a host with sshd, files and processes of its own',
    ],
    stop: () => site.stop(),
    async reach(api, id, environment, say) {
      const { credentialRef } = await api.post('/cloud-credentials/', {
        ...{ id, provider: 'aws', credential: site.accessKey },
      })
      say(`access key ${id}: from here on it is ${credentialRef}`)
      return atCloud(environment, { endpoint: site.endpoint, credentialRef })
    },
  }
}

const startCluster = async (): Promise<Sites> => {
  const site = await startKubernetes()
  return {
    lines: [
      `Kubernetes: API server ${site.server}, namespace ${site.namespace}, nodes ` +
        site.nodes.map(({ name }) => name).join(', '),
    ],
    image: site.images.gnu,
    stop: () => site.stop(),
    async reach(api, id, environment, say) {
      const { credentialRef } = await api.post('/kubernetes-tokens/', { id, token: await site.token() })
      say(
        `token ${id}: of an account that may make Jobs in ${site.namespace};\nfrom here on it is ${credentialRef}`,
      )
      const { server, certificateAuthority, namespace } = site
      const runtime = {
        namespace,
        volume: { persistentVolumeClaim: site.volume.claim },
        helperImage: site.images.gnu,
      }
      return atCluster(environment, { server, certificateAuthority, namespace, credentialRef, runtime })
    },
  }
}

/** An image of the programs that every Debian has, including perl. */
const systemImage = async ({ docker }: DockerEngine): Promise<string> => {
  const { gnu } = await kubernetesImages(configFromEnvironment().cacheDir)
  await docker('load', '--quiet', '--input', gnu)
  return 'local/gnu:1'
}

/** A Slurm cluster whose nodes run Apptainer, and an engine here that builds. */
const startSif = async (): Promise<Sites> => {
  await haveApptainer()
  const builder = await startEngine()
  try {
    const cluster = await startSlurm()
    const stop = async (): Promise<void> => {
      await Promise.all([cluster.stop(), builder.stop()])
    }
    for (const node of [cluster.login, ...cluster.nodes]) await allowApptainer(node)
    const { base = '', socket = '' } = builder.builder ?? {}
    const hosts = reachHosts([contactOf('login node', cluster.login)])
    return {
      lines: [
        `Slurm with Apptainer: login node ${cluster.login.address}, compute nodes ` +
          cluster.nodes.map(({ name }) => name).join(', '),
        `an engine that builds: ${socket}`,
      ],
      builder: { base, socket, format: 'sif' },
      stop,
      reach: async (...given) => {
        const environment = await hosts(...given)
        const runtimes = withConfiguration(environment.runtimes, 'slurm', { containerRuntime: 'apptainer' })
        return {
          ...environment,
          runtimes: runtimes.map((runtime) =>
            runtime['driver'] === 'slurm'
              ? { ...runtime, capabilities: { ...(runtime['capabilities'] as object), container: true } }
              : runtime,
          ),
        }
      },
    }
  } catch (error) {
    await builder.stop()
    throw error
  }
}

const startEngine = async (): Promise<Sites> => {
  const data = mkdtempSync(path.join(tmpdir(), 'orrery-demo-images-'))
  const engine = await openDockerEngine({ data, kind: 'tasks', buildkit: true })
  const stop = async (): Promise<void> => {
    await engine[Symbol.asyncDispose]()
    rmSync(data, { recursive: true, force: true })
  }
  try {
    return {
      lines: [
        `Docker: an engine of its own at ${engine.socket}, with an image made of programs of this machine`,
      ],
      builder: { socket: engine.socket, base: await systemImage(engine), format: 'oci' },
      stop,
      reach: (_api, _id, environment) =>
        Promise.resolve({
          ...environment,
          runtimes: withConfiguration(environment.runtimes, 'local', {
            containerRuntime: 'docker',
            containerHost: `unix://${engine.socket}`,
          }),
        }),
    }
  } catch (error) {
    await stop()
    throw error
  }
}

const startFunction = async (): Promise<Sites> => {
  const site = await startFunctions()
  return {
    lines: [`Functions: one that runs commands, by the functions framework at ${site.framework}`],
    stop: () => site.stop(),
    reach: (_api, _id, environment) =>
      Promise.resolve({
        ...environment,
        runtimes: withConfiguration(environment.runtimes, 'serverless', {
          endpoint: site.gateway,
          shape: 'http',
        }),
      }),
  }
}
