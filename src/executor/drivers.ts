import { posix } from 'node:path'
import { z } from 'zod'
import type { FunctionCredential } from '../clients/functions.ts'
import type { SlurmrestdServer } from '../clients/slurmrestd.ts'
import { quote } from '../drivers/quote.ts'
import type { RuntimeDriver } from '../drivers/runtime/driver.ts'
import type { FunctionPlatform, RuntimeSite, ShellSite, SiteDriver } from '../drivers/runtime/registry.ts'
import { withRoots } from '../drivers/runtime/rooted.ts'
import type { SiteShell } from '../drivers/shell.ts'
import type { ContainerDriver } from '../drivers/runtime/container.ts'
import { withTransfers, type TransferFacts } from '../drivers/transfer/staging-driver.ts'
import type { End, Reach } from '../drivers/transfer/transfer.ts'
import type { ConnectedCluster } from '../domains/environment-connections/clusters.ts'
import { openHostCores, type HostCores } from './host-cores.ts'
import { usualAhead } from './book-state.ts'
import { placer, rehearsalSite, type Place, type SiteFacts } from './sites.ts'

/** What a site's executor works with. */
export interface OpenSite {
  driver: RuntimeDriver
  /** Who holds lanes and files of the site: this host, or the site itself where it is another machine. */
  hostId: string
  cores: HostCores | undefined
  /** Intents that may be committed ahead of their turn, by lane: where a start takes no round trip. */
  aheadPerLane?: number
  /** Names who is to hear of what is brought from other sites for a task, before it is handed on; absent: nothing comes from elsewhere. */
  onTransfer?: (listener: (name: string, facts: TransferFacts) => Promise<void>) => void
  /** Ends containers that are kept for a run. */
  closeScope?: (scope: string) => Promise<void>
}

export interface SiteDriverParts {
  local: ContainerDriver
  rehearsal: RuntimeDriver
  /** Driver of a site, and a shell to its files where the driver has one of its own; one per site, configuration and process. */
  openRemote: (site: RuntimeSite) => { driver: SiteDriver; shell: SiteShell }
  /** Shell of a connection; connecting is its own affair, and is done again after a cut. */
  shellOf: (connectionId: string) => SiteShell
  /** Cluster of a connection, in the same way. */
  clusterOf: (connectionId: string) => ConnectedCluster
  localShell: SiteShell
  /** Other sites that a connection may copy to by itself. */
  reachOf: (connectionId: string) => Promise<readonly Reach[]>
  /** How Slurm is asked over HTTP; the token that a runtime's `slurmrestd.credentialRef` names is opened for each request. */
  slurmrestd: Pick<SlurmrestdServer, 'http'> & { tokenOf: (reference: string) => Promise<string> }
  /** How functions are called; the credential that a runtime's `credentialRef` names is opened for each call. */
  functions: Omit<FunctionPlatform, 'credential'> & { credentialOf: (reference: string) => Promise<FunctionCredential> }
  hostId: string
  workRoot: string
  cores: HostCores
  taskVariable: string
}

/** A storage as a runtime sees it: where it is mounted at its site. */
export interface Mount {
  runtimeId: string
  storageId: string
  path: string
}

interface Remote {
  driver: SiteDriver
  shell: SiteShell
  cores: HostCores | undefined
}

/**
 * The drivers of all sites that this process works for. A driver, its link and its cores are opened at first use and shared by all runs;
 * nothing is contacted before something has to be done there.
 */
export const openSiteDrivers = (parts: SiteDriverParts) => {
  const remotes = new Map<string, Remote>()

  const remoteOf = (place: Place, facts: SiteFacts): Remote => {
    // The configuration belongs to it: another run may reach the same site with another work directory.
    const key = JSON.stringify([place.site, place.configuration])
    let remote = remotes.get(key)
    if (remote === undefined) {
      remote = { ...parts.openRemote(siteOf(place, parts)), cores: place.kind === 'ssh' ? coresOf(place, facts) : undefined }
      remotes.set(key, remote)
    }
    return remote
  }

  const endOf = async (place: Place, facts: SiteFacts, mounts: readonly Mount[]): Promise<End> => {
    const runtimes = new Set(bindingsAt(place, facts).map(({ runtimeId }) => runtimeId))
    const own = mounts.filter(({ runtimeId }) => runtimes.has(runtimeId)).map(({ storageId, path }) => ({ storageId, path }))
    if (place.kind === 'local') return { site: place.site, shell: parts.localShell, host: parts.hostId, mounts: own }
    const { shell } = remoteOf(place, facts)
    if (place.connectionId === undefined) return { site: place.site, shell, host: parts.hostId, mounts: own }
    // Of a cluster a runtime sees its own volume and nothing else.
    const host = place.kind === 'kubernetes' ? place.site : place.connectionId
    return { site: place.site, shell, host, mounts: own, reach: await parts.reachOf(place.connectionId) }
  }

  /** Where the files of a site lie; of a remote one, learnt at the first contact. */
  const rootOf = (place: Place, facts: SiteFacts): Promise<string> =>
    place.kind === 'local' ? Promise.resolve(parts.workRoot) : remoteOf(place, facts).driver.root()

  return {
    /** `places`: all sites of the run, so that data can come from them. */
    of(place: Place, places: ReadonlyMap<string, Place>, facts: SiteFacts, mounts: readonly Mount[]): OpenSite {
      if (place.site === rehearsalSite) return { driver: parts.rehearsal, hostId: parts.hostId, cores: undefined, aheadPerLane: usualAhead }
      const local = place.kind === 'local'
      const remote = local ? undefined : remoteOf(place, facts)
      const held = {
        hostId: place.connectionId === undefined ? parts.hostId : place.site,
        cores: local ? parts.cores : remote?.cores,
      }
      const own = remote?.driver ?? parts.local
      const closing = own.closeScope === undefined ? {} : { closeScope: own.closeScope.bind(own) }
      if (local && places.size === 1) return { driver: own, ...held, ...closing, aheadPerLane: usualAhead }
      let tell: (name: string, facts: TransferFacts) => Promise<void> = () => Promise.resolve()
      const placeNamed = (site: string): Place => {
        const named =
          places.get(site) ??
          (site === `local@${parts.hostId}` ? { site, kind: 'local' as const, host: parts.hostId, configuration: {} } : undefined)
        if (named === undefined) throw new Error(`no runtime of the run is at ${site}`)
        return named
      }
      const bringing = withTransfers(own, {
        site: place.site,
        ends: (site) => endOf(placeNamed(site), facts, mounts),
        incomingRoot: async () => posix.join(await rootOf(place, facts), 'incoming'),
        onTransfer: (name, transfer) => tell(name, transfer),
      })
      return {
        driver: withRoots(
          bringing,
          () => rootOf(place, facts),
          (site) => rootOf(placeNamed(site), facts),
        ),
        ...held,
        ...closing,
        onTransfer: (listener) => {
          tell = listener
        },
      }
    },

    /** The driver that knows the attempts of a place, and a shell to its files, for reads outside a run's execution. */
    at: (place: Place, facts: SiteFacts): { driver: RuntimeDriver; shell: SiteShell; root: () => Promise<string> } => {
      if (place.kind === 'local') return { driver: parts.local, shell: parts.localShell, root: () => Promise.resolve(parts.workRoot) }
      const { driver, shell } = remoteOf(place, facts)
      return { driver, shell, root: driver.root }
    },

    async close(): Promise<void> {
      await Promise.all([...remotes.values()].map(({ driver }) => driver.close()))
    },
  }
}

export type SiteDrivers = ReturnType<typeof openSiteDrivers>

/** What the driver of a place is opened with. */
const siteOf = (place: Place, parts: SiteDriverParts): RuntimeSite => {
  const { configuration, connectionId, site: runtime } = place
  const common = { runtime, taskVariable: parts.taskVariable, configuration }
  if (place.kind === 'kubernetes') {
    const { namespace } = configuration
    const cluster = parts.clusterOf(connectionId ?? '')
    return { ...common, kind: 'kubernetes', cluster, namespace: typeof namespace === 'string' && namespace !== '' ? namespace : 'default' }
  }
  if (place.kind === 'serverless') {
    const { credentialOf, ...platform } = parts.functions
    const { credentialRef } = configuration
    const credential = typeof credentialRef === 'string' && credentialRef !== '' ? { credential: () => credentialOf(credentialRef) } : {}
    return { ...common, kind: 'serverless', shell: parts.localShell, functions: { ...platform, ...credential } }
  }
  const { workDirectory, slurmConf, slurmrestd } = configuration
  const reached = connectionId === undefined ? parts.localShell : parts.shellOf(connectionId)
  const shell = typeof slurmConf === 'string' && slurmConf !== '' ? withVariable(reached, 'SLURM_CONF', slurmConf) : reached
  const root = typeof workDirectory === 'string' && workDirectory !== '' ? { root: workDirectory } : {}
  return { ...common, ...root, shell, kind: place.kind === 'slurm' ? 'slurm' : 'ssh', ...restOf(slurmrestd, parts.slurmrestd) }
}

/** A shell whose scripts see one variable more. */
const withVariable = (shell: SiteShell, name: string, value: string): SiteShell => {
  const given = `${name}=${quote(value)}; export ${name}\n`
  return {
    run: (script, options) => shell.run(given + script, options),
    open: (script) => shell.open(given + script),
    close: () => shell.close(),
  }
}

const Rest = z.object({ url: z.url({ protocol: /^https?$/ }), user: z.string(), credentialRef: z.string() })

/** `slurmrestd: {url, user, credentialRef}` of a runtime's configuration. */
const restOf = (value: unknown, { http, tokenOf }: SiteDriverParts['slurmrestd']): Pick<ShellSite, 'slurmrestd'> => {
  const rest = Rest.safeParse(value)
  if (!rest.success) return {}
  const { url, user, credentialRef } = rest.data
  return { slurmrestd: { http, url, user, token: () => tokenOf(credentialRef) } }
}

const bindingsAt = (place: Place, facts: SiteFacts) => {
  const placed = placer(facts)
  return facts.runtimeBindings.filter(({ runtimeId, resourceId }) => placed(runtimeId, resourceId).site === place.site)
}

/** Real cores behind a connection: what the runtime says, else the sum over the site's resources; none known: no limit but the plan's lanes. */
const coresOf = (place: Place, facts: SiteFacts): HostCores | undefined => {
  const { cores } = place.configuration
  if (typeof cores === 'number' && cores >= 1) return openHostCores(Math.floor(cores))
  const bound = new Set(bindingsAt(place, facts).map(({ resourceId }) => resourceId))
  const sum = facts.resources.filter(({ id }) => bound.has(id)).reduce((total, { cpuCores }) => total + cpuCores, 0)
  return sum > 0 ? openHostCores(sum) : undefined
}
