import { randomBytes } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import { join } from 'node:path'
import { folderAt, type Ground } from './ground.ts'
import type { Host, SiteNetwork } from './hosts.ts'
import { startHost, type LoopbackHost } from './loopback.ts'
import { serveSsh, type SshHost } from './ssh.ts'

/** Faults that tests inject into the cloud. */
export interface CloudFaults {
  /** The next `times` requests of the action are answered with RequestLimitExceeded. */
  throttle(action: string, times: number): void
  /**
   * The next `times` requests of the action take effect, and their connections are cut before the
   * answer.
   */
  loseAnswers(action: string, times: number): void
  /** The zone (all zones: `*`) has no capacity until this is called with undefined. */
  noCapacity(zone: string | undefined): void
  /** The zone offers none of the machine types, until this is called with undefined. */
  unsupported(zone: string | undefined): void
  /**
   * The account's quota of machines or of processors is used up until this is called with
   * undefined.
   */
  noQuota(of: Quota | undefined): void
  /** A new machine is listed only after this time. */
  hideNew(milliseconds: number): void
  /** The console stays empty until this is called with false. */
  silentConsole(silent: boolean): void
  /** SSH of new machines gives no answer; `heal` of their hosts ends that. */
  silentSsh(silent: boolean): void
  /** The console shows a host key that is not the machine's. */
  otherHostKey(other: boolean): void
  /** EC2 shows no public address of any machine. */
  noPublicAddress(none: boolean): void
  /** The account may not read prices. */
  noPrices(refused: boolean): void
  /** Every request is refused because its credential has expired. */
  expired(expired: boolean): void
  /** A machine that is started falls back to stopped, until this is called with false. */
  noStart(none: boolean): void
  /** The provider takes a running machine back without a request, as it does with spot machines. */
  takeBack(id: string): void
}

export type Quota = 'machines' | 'processors'

/** A machine, as both protocols show it. The states are those of EC2. */
export interface CloudMachine {
  readonly id: string
  state: 'pending' | 'running' | 'stopping' | 'stopped' | 'shutting-down' | 'terminated'
  readonly tags: Map<string, string>
  readonly token: string | undefined
  readonly zone: string
  readonly type: string
  readonly image: string
  readonly spot: boolean
  /** What the machine's first start reads: cloud-config at EC2, the item `ssh-keys` at Compute Engine. */
  readonly userData: string
  /** At Compute Engine. */
  readonly description: string
  /** The public keys that may log in. */
  readonly keys: readonly string[]
  readonly launchedAt: number
  address: string | undefined
  host: SshHost | undefined
  /** Of machines of `loopback`. */
  sshd: LoopbackHost | undefined
  /** By device, in GiB: the image's own size, or that of the request. */
  readonly disks: ReadonlyMap<string, number>
  /** Why its state is what it is, where no request changed it. */
  reason?: string
  /** What the provider bills: milliseconds in which it ran, and since when it runs now. */
  ranMs: number
  runningSince: number | undefined
}

export interface CloudOptions {
  /**
   * `debian`: machines are hosts with a Debian 12 of their own, sudo, and a way to Debian's
   * mirrors; `ssh`: hosts with sshd and the programs of this machine; `loopback`: an sshd of this
   * account on an address of loopback each, all on the port `sshPort` of the site; `records`:
   * records only. The first two need root.
   */
  machines?: 'debian' | 'ssh' | 'loopback' | 'records'
  /** Machines of `debian` have Debian 13 too, under the image `ami-debian13`. */
  trixie?: boolean
  /** Milliseconds until a machine runs. */
  bootMs?: number
}

export const debian13 = 'ami-debian13'

export const hex = (bytes: number): string => randomBytes(bytes).toString('hex')
/** The body of a request, as text. */
export const bodyOf = async (request: IncomingMessage): Promise<string> => {
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk as Buffer)
  return Buffer.concat(chunks).toString()
}

/** All machines of a site, whichever protocol made them. */
export interface World {
  ground: Ground
  network: SiteNetwork | undefined
  /** Of machines of `loopback`. */
  sshPort: number | undefined
  /** Of machines with a system of their own. */
  debian: { system: string; trixie: string | undefined; aptLine: string } | undefined
  machines: Map<string, CloudMachine>
  /** The number of hosts so far. */
  hosts: number
  options: Required<CloudOptions>
  settings: {
    noCapacity: string | undefined
    unsupported: string | undefined
    hideMs: number
    noQuota: Quota | undefined
    silent: boolean
    silentSsh: boolean
    noPrices: boolean
    expired: boolean
    otherHostKey: boolean
    noPublicAddress: boolean
    noStart: boolean
  }
  /** Spends one throttling of an action, or one lost answer. */
  isThrottled: (action: string) => boolean
  isLost: (action: string) => boolean
  calls: Map<string, number>
  /** When each request that makes or ends a machine came, in milliseconds since the epoch. */
  changes: { action: string; at: number }[]
  timers: Set<NodeJS.Timeout>
}

const later = (world: World, milliseconds: number, work: () => void): void => {
  const timer = setTimeout(() => {
    world.timers.delete(timer)
    work()
  }, milliseconds)
  world.timers.add(timer)
}

/** What cloud-init makes of the user data besides keys: the account may become root. */
const applyUserData = async (
  host: Host,
  { account }: SiteNetwork,
  { aptLine }: { aptLine: string },
): Promise<void> => {
  await host.run('cat >/etc/apt/apt.conf.d/90site', 'root', { input: aptLine })
  // Only a real machine's root may raise limits, as Docker's script does.
  await host.run('cat >/etc/default/docker', 'root', { input: 'ulimit() { :; }\n' })
  await host.run('umask 227; cat >/etc/sudoers.d/90-cloud-init-users', 'root', {
    input: `${account.name} ALL=(ALL) NOPASSWD:ALL\n`,
  })
}

/** The files of a machine's image. */
const systemOf = ({ system, trixie }: NonNullable<World['debian']>, { image }: CloudMachine): string => {
  if (image !== debian13) return system
  if (trixie === undefined) throw new Error('the site was started without Debian 13')
  return trixie
}

const hostName = (world: World, { id }: CloudMachine): string =>
  id.includes('/') ? `vm${String(world.hosts++)}` : id.slice(0, 12)

/** Another one for each boot. */
const loopbackAddress = (world: World): string => {
  const number = ++world.hosts
  return `127.77.${String(number >> 8)}.${String(number & 255)}`
}

const powerOff = (machine: CloudMachine): void => {
  void machine.host?.crash()
  void machine.sshd?.stopSshd()
  machine.sshd?.dropSessions()
}

export const boot = async (world: World, machine: CloudMachine): Promise<void> => {
  if (world.network !== undefined) {
    const host = await world.network.add(hostName(world, machine), {
      ...{ diskMiB: 16, ...(world.debian === undefined ? {} : { system: systemOf(world.debian, machine) }) },
    })
    if (world.debian !== undefined) await applyUserData(host, world.network, world.debian)
    machine.host = await serveSsh(host, world.network, {
      ...{ keys: machine.keys, config: [], clockOffsetSeconds: 0 },
    })
    if (world.settings.silentSsh) await host.hide()
  }
  if (world.sshPort !== undefined) {
    const folder = folderAt(join(world.ground.folder, machine.id.replace('/', '-')))
    const [address, port] = [loopbackAddress(world), world.sshPort]
    machine.sshd = await startHost(machine.id, folder, { keys: machine.keys, address, port })
    if (world.settings.silentSsh) await machine.sshd.stopSshd()
  }
  if (machine.state !== 'pending') {
    powerOff(machine)
    return
  }
  machine.address =
    machine.host?.address ?? machine.sshd?.address ?? `192.0.2.${String((world.hosts++ % 250) + 1)}`
  machine.state = 'running'
  machine.runningSince = Date.now()
}

export const makeMachine = (world: World, given: Partial<CloudMachine>): CloudMachine => {
  const machine: CloudMachine = {
    ...{ id: `i-${hex(9).slice(0, 17)}`, state: 'pending', tags: new Map(), token: undefined },
    ...{ zone: '', type: '', image: '', spot: false, userData: '', description: '' },
    keys: [],
    ...{
      launchedAt: Date.now(),
      address: undefined,
      host: undefined,
      sshd: undefined,
      disks: new Map(),
      ranMs: 0,
      runningSince: undefined,
    },
    ...given,
  }
  world.machines.set(machine.id, machine)
  return machine
}

/** A machine runs after a while. */
export const bootLater = (world: World, machine: CloudMachine): void =>
  later(world, world.options.bootMs, () => {
    boot(world, machine).catch((error: unknown) => {
      machine.state = 'terminated'
      process.stderr.write(`a machine did not boot: ${String(error)}\n`)
    })
  })

/** The bill stops here. */
const settle = (machine: CloudMachine): void => {
  if (machine.runningSince !== undefined) machine.ranMs += Date.now() - machine.runningSince
  machine.runningSince = undefined
}

/** Power off; the disk stays. */
export const halt = (machine: CloudMachine): void => {
  settle(machine)
  machine.state = 'stopped'
  machine.address = undefined
  powerOff(machine)
}

export const hasCapacity = ({ settings: { noCapacity } }: World, zone: string): boolean =>
  noCapacity !== '*' && noCapacity !== zone

const fallBackMs = 4_000

/** Power on, under another address. */
export const powerOn = (world: World, machine: CloudMachine): void => {
  machine.state = 'pending'
  delete machine.reason
  if (world.settings.noStart) {
    later(world, fallBackMs, () => {
      if (machine.state !== 'pending') return
      machine.state = 'stopped'
      machine.reason = 'Server.InternalError'
    })
    return
  }
  machine.host?.move()
  later(world, world.options.bootMs, () => void restart(world, machine))
}

/** A machine and its disk are gone. */
export const end = (machine: CloudMachine): void => {
  settle(machine)
  machine.state = 'terminated'
  machine.address = undefined
  powerOff(machine)
}

const restart = async (world: World, machine: CloudMachine): Promise<void> => {
  await machine.host?.boot()
  await machine.host?.startSshd()
  await machine.sshd?.startSshd(loopbackAddress(world))
  if (machine.state !== 'pending') return
  machine.address = machine.host?.address ?? machine.sshd?.address ?? '192.0.2.251'
  machine.state = 'running'
  machine.runningSince = Date.now()
}

/** A provider lists a new machine late. */
export const hidden = (world: World, { launchedAt }: CloudMachine): boolean =>
  Date.now() - launchedAt < world.settings.hideMs

const stoppingMs = 5_000

/** The faults of a world, and what spends them. */
export const faultsOf = (settings: World['settings'], machines: World['machines']) => {
  const throttled = new Map<string, number>()
  const lost = new Map<string, number>()
  const spend = (of: Map<string, number>, action: string): boolean => {
    const left = of.get(action) ?? 0
    if (left > 0) of.set(action, left - 1)
    return left > 0
  }
  const faults: CloudFaults = {
    throttle: (action, times) => void throttled.set(action, times),
    loseAnswers: (action, times) => void lost.set(action, times),
    noCapacity: (zone) => (settings.noCapacity = zone),
    unsupported: (zone) => (settings.unsupported = zone),
    hideNew: (milliseconds) => (settings.hideMs = milliseconds),
    noQuota: (of) => (settings.noQuota = of),
    silentConsole: (silent) => (settings.silent = silent),
    silentSsh: (silent) => (settings.silentSsh = silent),
    otherHostKey: (other) => (settings.otherHostKey = other),
    noPublicAddress: (none) => (settings.noPublicAddress = none),
    noStart: (none) => (settings.noStart = none),
    noPrices: (refused) => (settings.noPrices = refused),
    expired: (expired) => (settings.expired = expired),
    takeBack: (id) => {
      const machine = machines.get(id)
      if (machine === undefined) throw new Error(`${id} is no machine`)
      machine.reason = 'Server.SpotInstanceTermination'
      if (!id.includes('/')) return end(machine)
      // Compute Engine shows that it stops a machine, and then the machine no more.
      halt(machine)
      machine.state = 'stopping'
      setTimeout(() => end(machine), stoppingMs).unref()
    },
  }
  return {
    faults,
    isThrottled: (action: string) => spend(throttled, action),
    isLost: (action: string) => spend(lost, action),
  }
}
