import { createHash } from 'node:crypto'
import { createServer, type RequestListener, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { foreignEc2, openEc2Site } from './cloud-ec2.ts'
import { foreignGoogle, openGoogleSite, type GoogleAccount } from './cloud-google.ts'
import {
  faultsOf,
  type CloudFaults,
  type CloudMachine,
  type CloudOptions,
  type World,
} from './cloud-world.ts'
import { debianSystem, openAptProxy } from './debian.ts'
import { freePort } from '../src/embedded/ports.ts'
import { openGround } from './ground.ts'
import { openNetwork } from './hosts.ts'
import { sshMissing } from './ssh.ts'

export type { CloudMachine } from './cloud-world.ts'

/**
 * One world of machines, which are hosts of this machine, behind two endpoints that are real in
 * their protocols: EC2 with STS, and Compute Engine.
 */
export interface CloudSite extends AsyncDisposable {
  readonly endpoint: string
  readonly region: 'us-east-1'
  /** It is removed with the site. */
  readonly folder: string
  /** Of machines of `loopback`. */
  readonly sshPort: number | undefined
  readonly accessKey: { accessKeyId: string; secretAccessKey: string }
  readonly google: {
    readonly endpoint: string
    readonly region: 'us-east1'
    readonly credential: GoogleAccount['file']
    /** A machine of another owner in the same project. */
    foreign(): CloudMachine
  }
  /** Those of Google's by `zone/name`. */
  readonly machines: ReadonlyMap<string, CloudMachine>
  /** The number of requests for each action: `RunInstances`, `instances.insert`. */
  readonly calls: ReadonlyMap<string, number>
  /**
   * When each request that makes or ends a machine at EC2 came, in milliseconds since the epoch.
   */
  readonly changes: readonly { action: string; at: number }[]
  readonly faults: CloudFaults
  /** A machine of another owner in the same account. */
  foreign(): CloudMachine
  stop(): Promise<void>
}

const listen = async (serve: RequestListener): Promise<{ server: Server; endpoint: string }> => {
  const server = createServer(serve)
  // Clients keep connections; one that closes under a request looks like a fault.
  server.keepAliveTimeout = 600_000
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return { server, endpoint: `http://127.0.0.1:${String((server.address() as AddressInfo).port)}` }
}

/** Starts both endpoints on loopback. @throws Error naming what the machine lacks */
export const startCloud = async (options: CloudOptions = {}): Promise<CloudSite> => {
  const wanted = { machines: 'records' as const, bootMs: 200, trixie: false, ...options }
  const isHosts = wanted.machines === 'ssh' || wanted.machines === 'debian'
  const missing = isHosts ? await sshMissing() : undefined
  if (missing !== undefined) throw new Error(`machines with SSH cannot be had: ${missing}`)
  const [system, trixie] = await Promise.all([
    wanted.machines === 'debian' ? debianSystem() : undefined,
    wanted.machines === 'debian' && wanted.trixie ? debianSystem('trixie') : undefined,
  ])
  const ground = openGround('cloud')
  const network = isHosts ? await openNetwork(ground, { name: 'akoflow', shell: '/bin/sh' }) : undefined
  const apt =
    system === undefined || network === undefined ? undefined : await openAptProxy(`${network.prefix}.1`)
  const settings: World['settings'] = {
    noCapacity: undefined,
    unsupported: undefined,
    hideMs: 0,
    noQuota: undefined,
    silent: false,
    silentSsh: false,
    noPrices: false,
    expired: false,
    otherHostKey: false,
    noPublicAddress: false,
    noStart: false,
  }
  const machines: World['machines'] = new Map()
  const { faults, isThrottled, isLost } = faultsOf(settings, machines)
  const calls = new Map<string, number>()
  const world: World = {
    ...{ ground, network, machines, hosts: 0, options: wanted, settings },
    sshPort: wanted.machines === 'loopback' ? await freePort() : undefined,
    debian: apt === undefined ? undefined : { system: system!, trixie, aptLine: apt.line },
    ...{ isThrottled, isLost, calls, changes: [], timers: new Set() },
  }
  const accessKey = {
    accessKeyId: 'AKIACLOUDSITE',
    secretAccessKey: createHash('sha256').update(ground.token).digest('hex').slice(0, 40),
  }
  const google = openGoogleSite(world)
  const servers = [await listen(openEc2Site(world, accessKey)), await listen(google.serve)] as const
  const stop = async (): Promise<void> => {
    for (const timer of world.timers) clearTimeout(timer)
    for (const { server } of servers) {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    }
    await Promise.all([...machines.values()].map(async ({ sshd }) => sshd?.stopSshd()))
    await apt?.close()
    await network?.close()
    await ground.leave()
  }
  return {
    ...{ endpoint: servers[0].endpoint, region: 'us-east-1', accessKey, folder: ground.folder },
    google: {
      ...{ endpoint: servers[1].endpoint, region: 'us-east1', credential: google.account.file },
      foreign: () => foreignGoogle(world),
    },
    sshPort: world.sshPort,
    ...{ machines: world.machines, calls, changes: world.changes, faults, stop },
    foreign: () => foreignEc2(world),
    [Symbol.asyncDispose]: stop,
  }
}
