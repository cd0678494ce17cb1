import { posix } from 'node:path'
import { ownRecords } from '../db/own-records.ts'
import type { RuntimeDriver } from '../drivers/runtime/contract/driver.ts'
import type { SiteDriver, WaysOut } from '../drivers/runtime/contract/kind.ts'
import type { TerminalHost } from '../drivers/runtime/contract/terminal.ts'
import { openDriverPool } from '../drivers/runtime/driver-pool.ts'
import { kindOf } from '../drivers/runtime/registry.ts'
import { withRoots } from '../drivers/runtime/contract/rooted.ts'
import type { SiteShell } from '../shell/site-shell.ts'
import type { ContainerDriver } from '../drivers/runtime/container/driver.ts'
import { withArtifacts, type ArtifactOptions, type Deliveries } from '../drivers/transfer/artifacts.ts'
import { withKeeping } from '../drivers/transfer/keeping-driver.ts'
import { withTransfers } from '../drivers/transfer/staging-driver.ts'
import type { TransferSide, Reach } from '../drivers/transfer/transfer.ts'
import type { TransferFacts } from './attempt.ts'
import { openHostCores, type HostCores } from './host-cores.ts'
import { usualAhead } from './scheduling-state.ts'
import { runScope } from './names.ts'
import {
  isOwnMachine,
  machineHost,
  ownPlace,
  placer,
  rehearsalSite,
  runsOnMachines,
  type Place,
  type SiteFacts,
} from './sites.ts'

/** The parts of a site's executor. */
export interface OpenSite {
  driver: RuntimeDriver
  /**
   * The owner of the site's lanes and files: this host, or the site itself where it is another
   * machine.
   */
  hostId: string
  /**
   * Real cores of that host, shared by all runs of this worker; undefined where only the site
   * counts them.
   */
  cores: HostCores | undefined
  /**
   * How many tasks of a lane may be intended ahead of their turn while short ones run, so that each
   * follows the one before without a commit in between. For sites whose `find` always answers; 0 by
   * default.
   */
  aheadPerLane?: number
  /**
   * Sets the one listener for transfers from other sites for a task, called before the task is passed
   * on; absent: no files come from other sites.
   */
  onTransfer?: (listener: (name: string, facts: TransferFacts) => Promise<void>) => void
  /** Ends the kept containers of a run. */
  closeScope?: (scope: string) => Promise<void>
  /**
   * Gives up what is on its way to the site for tasks, and passes none of them on; absent: nothing
   * is ever on its way.
   */
  leave?: () => void
}

export interface SiteDriverParts {
  local: ContainerDriver
  rehearsal: RuntimeDriver
  /** The ways out for drivers of other sites. */
  ways: WaysOut
  localShell: SiteShell
  /** Other sites to which a connection may copy by itself. */
  reachOf: (connectionId: string) => Promise<readonly Reach[]>
  hostId: string
  workRoot: string
  cores: HostCores
  taskVariable: string
  /** How long an unused driver stays open. */
  idleMs?: number
}

/** A storage at a runtime: its mount path at the site. */
export interface RuntimeMount {
  runtimeId: string
  storageId: string
  path: string
}

/** How the executables of a run come to its sites. */
export type ArtifactHooks = Pick<
  ArtifactOptions,
  'scope' | 'ready' | 'begun' | 'delivered' | 'failed' | 'brings' | 'ran'
>

const usualCacheBytes = 20 * 2 ** 30

interface Remote {
  driver: SiteDriver
  shell: SiteShell
  cores: HostCores | undefined
}

/** The hooks; while the database is away, their tasks wait for it. */
const outlasting = (hooks: ArtifactHooks): ArtifactHooks => ({
  ...hooks,
  ready: (id) => ownRecords(hooks.ready(id)),
  begun: (...args) => ownRecords(hooks.begun(...args)),
  delivered: (...args) => ownRecords(hooks.delivered(...args)),
  failed: (...args) => ownRecords(hooks.failed(...args)),
})

/** The driver of a place with the executables of one run; without hooks as it is. */
const withExecutables = (
  own: RuntimeDriver & Pick<OpenSite, 'closeScope'>,
  place: Place,
  at: Pick<ArtifactOptions, 'ends' | 'root'>,
  { hooks, deliveries }: { hooks: ArtifactHooks | undefined; deliveries: Deliveries },
): RuntimeDriver & Pick<OpenSite, 'closeScope'> => {
  if (hooks === undefined) return own
  const { artifactCacheBytes } = place.configuration
  const cacheBytes = typeof artifactCacheBytes === 'number' ? artifactCacheBytes : usualCacheBytes
  return withArtifacts(own, { ...outlasting(hooks), ...at, site: place.site, cacheBytes }, deliveries)
}

/**
 * The cores of sites by key. The runs that use them keep them: they are freed with the last run.
 */
const openCoresHeld = () => {
  const cores = new Map<string, WeakRef<HostCores>>()
  return (key: string, place: Place, facts: SiteFacts): HostCores | undefined => {
    const known = cores.get(key)?.deref()
    if (known !== undefined || kindOf(place.kind).schedulesItself) return known
    const opened = coresOf(place, facts)
    for (const [other, held] of cores) if (held.deref() === undefined) cores.delete(other)
    if (opened !== undefined) cores.set(key, new WeakRef(opened))
    return opened
  }
}

/** A driver that other runs use as well, which the end of one does not close. */
const shared = <Shared extends RuntimeDriver>(driver: Shared): Shared => ({
  ...driver,
  close: () => Promise.resolve(),
})

/**
 * The drivers of all sites that this process works for. A driver, its link and its cores are opened
 * at first use and shared by all runs; a site is contacted only when it has work.
 */
export const openSiteDrivers = (parts: SiteDriverParts) => {
  const pool = openDriverPool(parts.idleMs === undefined ? {} : { idleMs: parts.idleMs })
  const deliveries: Deliveries = new Map()
  const coresHeld = openCoresHeld()
  const remoteOf = (place: Place, facts: SiteFacts): Remote => {
    // The key includes the configuration: another run may reach the same site with another work
    // directory.
    const key = JSON.stringify([place.site, place.machine, place.configuration])
    const { site: runtime, connectionId, machine, configuration } = place
    const opened = pool.of(key, () => {
      const { open } = kindOf(place.kind)
      if (open === undefined) throw new Error(`sites of kind ${place.kind} have no driver of their own`)
      return open(
        { runtime, taskVariable: parts.taskVariable, connectionId, machine, configuration },
        parts.ways,
      )
    })
    return { ...opened, cores: coresHeld(key, place, facts) }
  }

  const endOf = async (
    place: Place,
    facts: SiteFacts,
    mounts: readonly RuntimeMount[],
  ): Promise<TransferSide> => {
    const runtimes = new Set(bindingsAt(place, facts).map(({ runtimeId }) => runtimeId))
    const own = mounts
      .filter(({ runtimeId }) => runtimes.has(runtimeId))
      .map(({ storageId, path }) => ({ storageId, path }))
    if (isOwnMachine(place))
      return { site: place.site, shell: parts.localShell, host: parts.hostId, mounts: own }
    const { shell } = remoteOf(place, facts)
    if (runsOnMachines(place)) return { site: place.site, shell, host: hostOf(place), mounts: [] }
    if (place.connectionId === undefined) return { site: place.site, shell, host: parts.hostId, mounts: own }
    // At a cluster a runtime has only its own volume.
    const host = kindOf(place.kind).sharesFiles ? place.connectionId : place.site
    return { site: place.site, shell, host, mounts: own, reach: await parts.reachOf(place.connectionId) }
  }

  /** The root of a site's files; for a remote site, known from the first contact on. */
  const rootOf = (place: Place, facts: SiteFacts): Promise<string> =>
    isOwnMachine(place) ? Promise.resolve(parts.workRoot) : remoteOf(place, facts).driver.root()

  /** Files of a machine that ends are brought here before an attempt there is over. */
  const keeping = (place: Place, facts: SiteFacts, driver: SiteDriver): SiteDriver =>
    runsOnMachines(place)
      ? withKeeping(driver, {
          from: () => endOf(place, facts, []),
          to: { site: `local@${parts.hostId}`, shell: parts.localShell, host: parts.hostId, mounts: [] },
          ...{ workRoot: parts.workRoot, host: parts.hostId },
          // A machine cannot name the folder of another run.
          folder: facts.effectKey === undefined ? undefined : runScope(facts.effectKey),
        })
      : driver
  const hostOf = (place: Place): string => {
    if (place.machine !== undefined) return machineHost(place.machine)
    return place.connectionId === undefined ? parts.hostId : place.site
  }

  return {
    /**
     * `places`: all sites of the run, so that data can come from them. `hooks`: for a run with
     * executables.
     */
    of(
      place: Place,
      places: ReadonlyMap<string, Place>,
      facts: SiteFacts,
      mounts: readonly RuntimeMount[],
      hooks?: ArtifactHooks,
    ): OpenSite {
      if (place.site === rehearsalSite)
        return { driver: parts.rehearsal, hostId: parts.hostId, cores: undefined, aheadPerLane: usualAhead }
      const local = isOwnMachine(place)
      const remote = local ? undefined : remoteOf(place, facts)
      const held = {
        hostId: hostOf(place),
        cores: local ? parts.cores : remote?.cores,
      }
      const placeNamed = (site: string): Place => {
        const own = ownPlace(parts.hostId)
        const named = places.get(site) ?? (site === own.site ? own : undefined)
        if (named === undefined) throw new Error(`no runtime of the run is at ${site}`)
        return named
      }
      const ends = (site: string): Promise<TransferSide> => endOf(placeNamed(site), facts, mounts)
      const site = remote === undefined ? shared(parts.local) : keeping(place, facts, remote.driver)
      const at = { ends, root: () => rootOf(place, facts) }
      const own = withExecutables(site, place, at, { hooks, deliveries })
      const closing = own.closeScope === undefined ? {} : { closeScope: own.closeScope.bind(own) }
      if (local && places.size === 1) {
        const leave = (): void => void own.close()
        return { driver: own, ...held, ...closing, leave, aheadPerLane: usualAhead }
      }
      let report: (name: string, facts: TransferFacts) => Promise<void> = () => Promise.resolve()
      const bringing = withTransfers(own, {
        ...{ site: place.site, ends },
        ...(facts.effectKey === undefined ? {} : { scope: runScope(facts.effectKey) }),
        incomingRoot: async () => posix.join(await rootOf(place, facts), 'incoming'),
        onTransfer: (name, transfer) => report(name, transfer),
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
          report = listener
        },
        leave: () => void bringing.close(),
      }
    },

    /**
     * The driver that knows the attempts of a place, and a shell to its files, for reads outside a
     * run's execution.
     */
    at: (
      place: Place,
      facts: SiteFacts,
    ): { driver: RuntimeDriver; shell: SiteShell; root: () => Promise<string> } => {
      if (isOwnMachine(place))
        return { driver: parts.local, shell: parts.localShell, root: () => Promise.resolve(parts.workRoot) }
      const { driver, shell } = remoteOf(place, facts)
      return { driver, shell, root: driver.root }
    },

    /** The place of a terminal: one of its own where the kind has that, else the site's shell. */
    terminalAt(place: Place, facts: SiteFacts, name: string): TerminalHost {
      const { site: runtime, connectionId, configuration } = place
      const site = { runtime, taskVariable: parts.taskVariable, connectionId, configuration }
      const own = kindOf(place.kind).terminalPlace?.(site, parts.ways, name)
      if (own !== undefined) return own
      const nothing = (): Promise<void> => Promise.resolve()
      const shell = isOwnMachine(place) ? parts.localShell : remoteOf(place, facts).shell
      const root = (): Promise<string> => rootOf(place, facts)
      return { shell, root, ownEnvironment: false, ready: nothing, remove: nothing, close: nothing }
    },

    /** Drivers of other sites that are open now. */
    opened: () => pool.count(),

    close: () => pool.close(),
  }
}

export type SiteDrivers = ReturnType<typeof openSiteDrivers>

const bindingsAt = (place: Place, facts: SiteFacts) => {
  const placed = placer(facts)
  return facts.runtimeBindings.filter(
    ({ runtimeId, resourceId }) => placed(runtimeId, resourceId).site === place.site,
  )
}

/**
 * Real cores behind a connection: the runtime's number, else the sum over the site's resources;
 * with neither, the plan's lanes are the only limit.
 */
const coresOf = (place: Place, facts: SiteFacts): HostCores | undefined => {
  const { cores } = place.configuration
  if (typeof cores === 'number' && cores >= 1) return openHostCores(Math.floor(cores))
  const bound = new Set(bindingsAt(place, facts).map(({ resourceId }) => resourceId))
  const sum = facts.resources
    .filter(({ id }) => bound.has(id))
    .reduce((total, { cpuCores }) => total + cpuCores, 0)
  return sum > 0 ? openHostCores(sum) : undefined
}
