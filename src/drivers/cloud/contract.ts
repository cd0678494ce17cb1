/**
 * The calls of the service to a provider of machines. Each call is one request with a deadline;
 * none waits for a state. A provider shows new machines late, so `find` and `look` may miss a
 * machine for a minute.
 */
export interface CloudDriver {
  /** A subnet lies in one zone: a wish with a subnet and another zone is refused. */
  readonly zonalSubnets: boolean
  /** The credential's identity, as the provider names it. @throws CloudError */
  identity(): Promise<string>
  /** The account that owns the machines: of AWS its number, of Google the project. @throws CloudError */
  account(): Promise<string>
  /**
   * Requests one machine, whose tags hold `reference`. The same reference requests the same
   * machine, also when an earlier answer was lost.
   * @throws CloudError; `capacity` where a zone has none
   */
  create(wish: MachineWish): Promise<Machine>
  /**
   * The machines that exist under a reference: one, or two where a first answer was lost and
   * another zone was tried.
   */
  find(reference: string): Promise<Machine[]>
  /** The machines of these ids; machines that the provider does not show are left out. */
  look(ids: readonly string[]): Promise<Machine[]>
  /** All existing machines with the tag of this service. */
  list(service: string): Promise<Machine[]>
  /**
   * No effect on a machine that runs already. A provider may take the start and stop the machine
   * again later. @throws CloudError; `missing`, `capacity` where its zone has none
   */
  start(id: string): Promise<void>
  /** No effect on a stopped machine. @throws CloudError `missing` */
  stop(id: string): Promise<void>
  /** No effect on a machine that is gone or never existed. */
  destroy(id: string): Promise<void>
  /** A machine's console output since its start; blank until the provider has some. */
  console(id: string): Promise<string>
  /**
   * The zones of the region that may have a machine type, without images and prices. @throws
   * CloudError
   */
  zonesOf(machineType: string): Promise<string[]>
  /** The provider's offers in the region, with the prices that it tells. */
  catalog(): Promise<CloudOffers>
}

export interface MachineWish {
  /** A UUID. */
  reference: string
  /** The service that owns the machine; the sweep ends no machine of another service. */
  service: string
  /** As the name, of at most 255 characters, of any script. */
  instanceId: string
  name: string
  machineType: string
  image: string
  /** Where absent, the provider chooses. */
  zone?: string | undefined
  spot: boolean
  diskGiB?: number | undefined
  diskType?: string | undefined
  /** A subnet of the provider; where absent, its default network. */
  subnet?: string | undefined
  /** 1–65535. */
  sshPort: number
  /** Networks that may reach SSH. */
  sshSourceRanges: readonly string[]
  /** The key without a comment. */
  login: { username: string; publicKey: string }
}

export interface Machine {
  id: string
  reference?: string | undefined
  instanceId?: string | undefined
  state: 'pending' | 'running' | 'stopping' | 'stopped' | 'ending' | 'gone'
  publicAddress?: string | undefined
  privateAddress?: string | undefined
  zone?: string | undefined
  /**
   * The provider's reason for a state that nobody here asked for: `Server.SpotInstanceTermination`.
   */
  reason?: string | undefined
}

export interface CloudOffers {
  project?: string | undefined
  region: string
  machines: {
    providerTypeId: string
    zones: string[]
    family?: string
    vcpu: number
    memoryMiB: number
    architecture: string
    gpuCount: number
    gpuModel?: string
    supportsSpot: boolean
    pricePerHour?: number
    pricePerMinute?: number
    priceCurrency?: string
    priceSource?: string
  }[]
  images: {
    providerImageId: string
    name: string
    operatingSystem: string
    architecture: string
    source: string
    status: string
    minimumDiskGiB: number
    deprecated: boolean
  }[]
  disks: {
    providerTypeId: string
    name: string
    zones: string[]
    pricePerGiBMonth?: number
    priceCurrency?: string
    priceSource?: string
  }[]
  warnings: string[]
}

/** A provider's prices on demand in a region. */
export interface Prices {
  currency: string
  /** Where they are from: `aws-pricing`. */
  source: string
  /** By machine type. */
  perHour: ReadonlyMap<string, number>
  /** By disk type. */
  perGiBMonth: ReadonlyMap<string, number>
}

/**
 * - `away`: no answer, or a fault of the provider; `throttled`: asked too often; both pass
 * - `capacity`: the zone has no such machine now; another one may
 * - `quota`: the account has as much as it may have, in every zone
 * - `credential`: the provider refuses the login or lacks a right
 * - `missing`: no such machine
 * - `refused`: the provider refuses permanently
 */
export type CloudFault = 'away' | 'throttled' | 'capacity' | 'quota' | 'credential' | 'missing' | 'refused'

/** What helps beside another try; the messages of providers do not say it. */
const remedies: Partial<Record<CloudFault, string>> = {
  quota: 'end machines that are not needed, or have the quota of the account raised; then try again',
}

/**
 * The provider refused or gave no answer. The message names the provider's own code and no secret,
 * and the remedy where there is one.
 */
export class CloudError extends Error {
  readonly fault: CloudFault
  constructor(fault: CloudFault, message: string, options: { cause?: unknown } = {}) {
    const remedy = remedies[fault]
    super(remedy === undefined ? message : `${message.replace(/\.$/, '')}; ${remedy}`, options)
    this.name = 'CloudError'
    this.fault = fault
  }
  /** Whether a later request may succeed. */
  get passes(): boolean {
    return this.fault === 'away' || this.fault === 'throttled'
  }
}

/** Names of the tags that mark a machine as ours. */
export const tags = {
  service: 'orrery:service',
  reference: 'orrery:reference',
  instance: 'orrery:instance',
} as const

/** Authorizes a key for a user of its own, who may become root with sudo. */
export const userDataOf = ({ username, publicKey }: MachineWish['login']): string =>
  [
    '#cloud-config',
    'users:',
    // Bare, YAML reads null, on and yes as other things than names.
    `  - name: ${JSON.stringify(username)}`,
    '    shell: /bin/bash',
    '    sudo: "ALL=(ALL) NOPASSWD:ALL"',
    '    ssh_authorized_keys:',
    `      - ${JSON.stringify(publicKey)}`,
    'ssh_pwauth: false',
    '',
  ].join('\n')
