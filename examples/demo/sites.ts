import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { configFromEnvironment } from '../../src/config.ts'
import { openEngine, type Engine } from '../../sites/docker.ts'
import { startFunctions } from '../../sites/functions.ts'
import { kubernetesImages } from '../../sites/kubernetes-images.ts'
import { kubernetesMissing, startKubernetes } from '../../sites/kubernetes.ts'
import { slurmMissing, startSlurm } from '../../sites/slurm.ts'
import { startLoopbackSsh, type LoopbackHost } from '../../sites/loopback.ts'
import { siteLacks, siteNeeds, type WantedSite } from '../../sites/needs.ts'
import { sshMissing, startSsh, type SshHost } from '../../sites/ssh.ts'
import type { Api } from './api.ts'
import { atCluster, atHosts, withConfiguration, type Contact, type Environment } from './documents.ts'

/** Where a run of the demo goes beside this machine: the folders of documents in `examples/mosaic`. */
export const siteKinds = ['ssh', 'slurm', 'spanning', 'docker', 'kubernetes', 'serverless'] as const
export type SiteKind = (typeof siteKinds)[number]

export interface Sites {
  /** What was started, a line each. */
  lines: readonly string[]
  /** Image that the site has, for tasks in containers; absent: that of the workflow. */
  image?: string
  /**
   * Gives the service what it needs to get there, under the id of this run of the demo. The private half of a key never leaves the
   * service. @returns the environment with its connections as they are reached
   */
  reach(api: Api, id: string, environment: Environment, say: (line: string) => void): Promise<Environment>
  stop(): Promise<void>
}

interface HostContact extends Contact {
  /** Lets a public key in. */
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

/** A site of the demo. `loopback`: only SSH hosts that need no root, each a port of this machine. */
export interface ChosenSite {
  kind: SiteKind
  loopback: boolean
}

/** The site that is started for it; what spans several needs the most of them. */
const wantedSite = ({ kind, loopback }: ChosenSite): WantedSite =>
  kind === 'spanning' ? { kind: 'slurm' } : kind === 'docker' ? { kind, demoImages: true } : { kind, loopback }

/** All that the sites of a kind need, in one line. */
export const sitesNeed = (chosen: ChosenSite): string => siteNeeds(wantedSite(chosen))

/** What the machine lacks for them; undefined when nothing. */
export const sitesMissing = async (chosen: ChosenSite): Promise<string | undefined> => {
  const lacks = siteLacks(wantedSite(chosen))
  if (lacks !== undefined || chosen.loopback) return lacks
  if (chosen.kind === 'ssh') return sshMissing()
  if (chosen.kind === 'kubernetes') return kubernetesMissing()
  return chosen.kind === 'slurm' || chosen.kind === 'spanning' ? slurmMissing() : undefined
}

/** Starts hosts, cluster, engine or function on this machine; they end with this process at the latest. */
export const startSites = ({ kind, loopback }: ChosenSite): Promise<Sites> => {
  if (kind === 'kubernetes') return startCluster()
  if (kind === 'docker') return startEngine()
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
          loopback ? `${name}: sshd at port ${port} of this machine` : `${name}: sshd at ${address}, files and processes of its own`,
        )
    }
    if (kind !== 'ssh') {
      const site = await startSlurm()
      started.push(site)
      contacts.push(contactOf('login node', site.login))
      lines.push(`Slurm: login node ${site.login.address}, compute nodes ${site.nodes.map(({ name }) => name).join(', ')}`)
    }
  } catch (error) {
    await stop()
    throw error
  }
  return {
    lines,
    stop,
    async reach(api, id, environment, say) {
      const { credentialRef, publicKey, fingerprint } = await api.post('/ssh-keys/', { id, comment: 'demo' })
      const names = contacts.map(({ name }) => name).join(', ')
      say(`key ${id}:\n${fingerprint},\nlet in at ${names}; from here on it is ${credentialRef}`)
      for (const contact of contacts) contact.authorize(publicKey)
      return atHosts(environment, contacts, credentialRef)
    },
  }
}

const startCluster = async (): Promise<Sites> => {
  const site = await startKubernetes()
  return {
    lines: [`Kubernetes: API server ${site.server}, namespace ${site.namespace}, nodes ${site.nodes.map(({ name }) => name).join(', ')}`],
    image: site.images.gnu,
    stop: () => site.stop(),
    async reach(api, id, environment, say) {
      const { credentialRef } = await api.post('/kubernetes-tokens/', { id, token: await site.token() })
      say(`token ${id}: of an account that may make Jobs in ${site.namespace};\nfrom here on it is ${credentialRef}`)
      const { server, certificateAuthority, namespace } = site
      const runtime = { namespace, volume: { persistentVolumeClaim: site.volume.claim }, helperImage: site.images.gnu }
      return atCluster(environment, { server, certificateAuthority, namespace, credentialRef, runtime })
    },
  }
}

/** What every Debian has, perl with it, as an image. */
const systemImage = async ({ docker }: Engine): Promise<string> => {
  const { gnu } = await kubernetesImages(configFromEnvironment().cacheDir)
  await docker('load', '--quiet', '--input', gnu)
  return 'local/gnu:1'
}

const startEngine = async (): Promise<Sites> => {
  const data = mkdtempSync(path.join(tmpdir(), 'orrery-demo-images-'))
  const engine = await openEngine({ data, kind: 'tasks' })
  const stop = async (): Promise<void> => {
    await engine[Symbol.asyncDispose]()
    rmSync(data, { recursive: true, force: true })
  }
  try {
    return {
      lines: [`Docker: an engine of its own at ${engine.socket}, with an image made of programs of this machine`],
      image: await systemImage(engine),
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
        runtimes: withConfiguration(environment.runtimes, 'serverless', { endpoint: site.gateway, shape: 'http' }),
      }),
  }
}
