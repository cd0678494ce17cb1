import { posix } from 'node:path'
import type { RuntimeDriver } from '../drivers/runtime/contract/driver.ts'
import type { SiteDriver, WaysOut } from '../drivers/runtime/contract/kind.ts'
import { openDriverKeeper } from '../drivers/runtime/driver-keeper.ts'
import { kindOf } from '../drivers/runtime/registry.ts'
import { withRoots } from '../drivers/runtime/contract/rooted.ts'
import type { SiteShell } from '../drivers/shell.ts'
import type { ContainerDriver } from '../drivers/runtime/container/driver.ts'
import { withTransfers, type TransferFacts } from '../drivers/transfer/staging-driver.ts'
import type { End, Reach } from '../drivers/transfer/transfer.ts'
import { openHostCores, type HostCores } from './host-cores.ts'
import { usualAhead } from './book-state.ts'
import { isOwnMachine, placer, rehearsalSite, type Place, type SiteFacts } from './sites.ts'

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
  /** What drivers of other sites are opened with. */
  ways: WaysOut
  localShell: SiteShell
  /** Other sites that a connection may copy to by itself. */
  reachOf: (connectionId: string) => Promise<readonly Reach[]>
  hostId: string
  workRoot: string
  cores: HostCores
  taskVariable: string
  /** How long a driver that nobody uses stays open. */
  idleMs?: number
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
  const keeper = openDriverKeeper(parts.idleMs === undefined ? {} : { idleMs: parts.idleMs })
  /** Held by the runs that use them: the last one takes them along. */
  const cores = new Map<string, WeakRef<HostCores>>()

  const coresHeld = (key: string, place: Place, facts: SiteFacts): HostCores | undefined => {
    const known = cores.get(key)?.deref()
    if (known !== undefined || kindOf(place.kind).schedulesItself) return known
    const opened = coresOf(place, facts)
    for (const [other, held] of cores) if (held.deref() === undefined) cores.delete(other)
    if (opened !== undefined) cores.set(key, new WeakRef(opened))
    return opened
  }
  const remoteOf = (place: Place, facts: SiteFacts): Remote => {
    // The configuration belongs to it: another run may reach the same site with another work directory.
    const key = JSON.stringify([place.site, place.configuration])
    const { site: runtime, connectionId, configuration } = place
    const opened = keeper.of(key, () => {
      const { open } = kindOf(place.kind)
      if (open === undefined) throw new Error(`sites of kind ${place.kind} have no driver of their own`)
      return open({ runtime, taskVariable: parts.taskVariable, connectionId, configuration }, parts.ways)
    })
    return { ...opened, cores: coresHeld(key, place, facts) }
  }

  const endOf = async (place: Place, facts: SiteFacts, mounts: readonly Mount[]): Promise<End> => {
    const runtimes = new Set(bindingsAt(place, facts).map(({ runtimeId }) => runtimeId))
    const own = mounts.filter(({ runtimeId }) => runtimes.has(runtimeId)).map(({ storageId, path }) => ({ storageId, path }))
    if (isOwnMachine(place)) return { site: place.site, shell: parts.localShell, host: parts.hostId, mounts: own }
    const { shell } = remoteOf(place, facts)
    if (place.connectionId === undefined) return { site: place.site, shell, host: parts.hostId, mounts: own }
    // Of a cluster a runtime sees its own volume and nothing else.
    const host = kindOf(place.kind).sharesFiles ? place.connectionId : place.site
    return { site: place.site, shell, host, mounts: own, reach: await parts.reachOf(place.connectionId) }
  }

  /** Where the files of a site lie; of a remote one, learnt at the first contact. */
  const rootOf = (place: Place, facts: SiteFacts): Promise<string> =>
    isOwnMachine(place) ? Promise.resolve(parts.workRoot) : remoteOf(place, facts).driver.root()

  return {
    /** `places`: all sites of the run, so that data can come from them. */
    of(place: Place, places: ReadonlyMap<string, Place>, facts: SiteFacts, mounts: readonly Mount[]): OpenSite {
      if (place.site === rehearsalSite) return { driver: parts.rehearsal, hostId: parts.hostId, cores: undefined, aheadPerLane: usualAhead }
      const local = isOwnMachine(place)
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
      if (isOwnMachine(place)) return { driver: parts.local, shell: parts.localShell, root: () => Promise.resolve(parts.workRoot) }
      const { driver, shell } = remoteOf(place, facts)
      return { driver, shell, root: driver.root }
    },

    /** Drivers of other sites that are open now. */
    opened: () => keeper.count(),

    close: () => keeper.close(),
  }
}

export type SiteDrivers = ReturnType<typeof openSiteDrivers>

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
