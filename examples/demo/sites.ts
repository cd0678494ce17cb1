import { slurmMissing, startSlurm } from '../../test/sites/slurm.ts'
import { sshMissing, startSsh, type SshHost } from '../../test/sites/ssh.ts'

/** Where a run of the demo goes beside this machine: the folders of documents in `examples/mosaic`. */
export const siteKinds = ['ssh', 'slurm', 'spanning'] as const
export type SiteKind = (typeof siteKinds)[number]

/** How a connection of the documents reaches its site; `name` is the connection's. */
export interface Contact {
  name: string
  address: string
  port: number
  username: string
  /** The host's line of `known_hosts`. */
  knownHosts: string
  /** Lets a public key in. */
  authorize(publicKey: string): void
}

export interface Sites {
  contacts: readonly Contact[]
  /** What was started, a line each. */
  lines: readonly string[]
  stop(): Promise<void>
}

const contactOf = (name: string, host: SshHost): Contact => ({
  name,
  address: host.address,
  port: host.port,
  username: host.user,
  knownHosts: host.knownHosts(),
  authorize: (publicKey) => host.authorize(publicKey),
})

/** What the machine lacks for the sites of a kind, in words; undefined when nothing. */
export const sitesMissing = async (kind: SiteKind): Promise<string | undefined> => (kind === 'ssh' ? sshMissing() : slurmMissing())

/** Starts hosts and cluster as network namespaces of this machine; they end with this process at the latest. */
export const startSites = async (kind: SiteKind): Promise<Sites> => {
  const started: { stop(): Promise<void> }[] = []
  const contacts: Contact[] = []
  const lines: string[] = []
  const stop = async (): Promise<void> => {
    await Promise.all(started.splice(0).map((site) => site.stop()))
  }
  try {
    if (kind !== 'slurm') {
      const site = await startSsh({ hosts: kind === 'ssh' ? 2 : 1 })
      started.push(site)
      contacts.push(...site.hosts.map((host) => contactOf(host.name, host)))
      for (const host of site.hosts) lines.push(`${host.name}: sshd at ${host.address}, files and processes of its own`)
    }
    if (kind !== 'ssh') {
      const site = await startSlurm()
      started.push(site)
      contacts.push(contactOf('login node', site.login))
      lines.push(`Slurm: login node ${site.login.address}, compute nodes ${site.nodes.map(({ name }) => name).join(', ')}`)
    }
    return { contacts, lines, stop }
  } catch (error) {
    await stop()
    throw error
  }
}
