import { createHash } from 'node:crypto'
import { z } from 'zod'
import { append } from '../../lists.ts'
import { ComputeEngineError, segmentOf, type ComputeEngine } from '../../clients/compute-engine.ts'
import { gcpPrices } from './gcp-prices.ts'
import { CloudError, type CloudDriver, type CloudFault, type Machine, type MachineWish } from './contract.ts'
import { openKnown, type Known } from './known.ts'
import { priced } from './priced.ts'

/** Labels of machines. Google's keys and values are small letters, digits, - and _. */
const labels = { service: 'orrery-service', reference: 'orrery-reference' } as const
/** The instance's id may be any text, so it stands in the metadata. */
const instanceItem = 'orrery-instance'

const Instance = z.object({
  name: z.string(),
  status: z.string(),
  zone: z.string(),
  labels: z.record(z.string(), z.string()).optional(),
  metadata: z
    .object({ items: z.array(z.object({ key: z.string(), value: z.string().optional() })).optional() })
    .optional(),
  networkInterfaces: z
    .array(
      z.object({
        networkIP: z.string().optional(),
        accessConfigs: z.array(z.object({ natIP: z.string().optional() })).optional(),
      }),
    )
    .optional(),
})

const states: Readonly<Record<string, Machine['state']>> = {
  ...{ PROVISIONING: 'pending', STAGING: 'pending', RUNNING: 'running', REPAIRING: 'pending' },
  ...{ STOPPING: 'stopping', SUSPENDING: 'stopping', SUSPENDED: 'stopped', TERMINATED: 'stopped' },
}

const lastOf = (url: string): string => url.slice(url.lastIndexOf('/') + 1)
const zonePath = (zone: string): string => `zones/${segmentOf(zone)}`
/** Names are unique in a zone only. */
const idOf = (zone: string, name: string): string => `${zone}/${name}`

const machineOf = (given: z.output<typeof Instance>): Machine => {
  const zone = lastOf(given.zone)
  const [network] = given.networkInterfaces ?? []
  return {
    ...{ id: idOf(zone, given.name), zone, state: states[given.status] ?? 'pending' },
    reference: given.labels?.[labels.reference],
    instanceId: given.metadata?.items?.find(({ key }) => key === instanceItem)?.value,
    publicAddress: network?.accessConfigs?.[0]?.natIP,
    privateAddress: network?.networkIP,
  }
}

const throttles = new Set(['rateLimitExceeded', 'userRateLimitExceeded', 'RATE_LIMIT_EXCEEDED'])
const noCapacity = new Set([
  ...['ZONE_RESOURCE_POOL_EXHAUSTED', 'ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS'],
  ...['RESOURCE_POOL_EXHAUSTED', 'STOCKOUT'],
])

const noQuota = new Set(['quotaExceeded', 'QUOTA_EXCEEDED', 'limitExceeded'])

const faultOf = ({ code, status }: ComputeEngineError): CloudFault => {
  if (throttles.has(code) || status === 429) return 'throttled'
  if (noCapacity.has(code)) return 'capacity'
  if (noQuota.has(code)) return 'quota'
  if (status === 401 || status === 403) return 'credential'
  if (status === 404) return 'missing'
  if (['denied', 'redirect', 'certificate', 'no-name'].includes(code)) return 'refused'
  return status === undefined || status >= 500 ? 'away' : 'refused'
}

const named = async <T>(work: Promise<T>): Promise<T> => {
  try {
    return await work
  } catch (error) {
    if (!(error instanceof ComputeEngineError)) throw error
    throw new CloudError(faultOf(error), `gcp ${error.message}`, { cause: error })
  }
}

const digest = (value: unknown): Buffer => createHash('sha256').update(JSON.stringify(value)).digest()
/** The same values give the same UUID; Google takes a request under it once. */
const requestIdOf = (...values: unknown[]): string => {
  const hex = digest(values).toString('hex')
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-4${hex.slice(13, 16)}-8${hex.slice(17, 20)}-${hex.slice(20, 32)}`
}

const firewallName = ({ service, sshSourceRanges, sshPort, subnet = '' }: MachineWish): string =>
  `orrery-${digest([service, subnet, [...sshSourceRanges].sort(), ...(sshPort === 22 ? [] : [sshPort])])
    .toString('hex')
    .slice(0, 24)}`

const isTaken = (error: unknown): boolean => error instanceof ComputeEngineError && error.status === 409

/** A rule for each family of addresses: Google takes no mixture. */
const openFirewall = async (compute: ComputeEngine, wish: MachineWish, network: string): Promise<string> => {
  const name = firewallName(wish)
  const families = [
    [name, wish.sshSourceRanges.filter((range) => !range.includes(':'))],
    [`${name}-6`, wish.sshSourceRanges.filter((range) => range.includes(':'))],
  ] as const
  for (const [rule, sourceRanges] of families) {
    if (sourceRanges.length === 0) continue
    try {
      const begun = await compute.change('POST', 'global/firewalls', {
        ...{ name: rule, network, direction: 'INGRESS', sourceRanges, targetTags: [name] },
        ...{ allowed: [{ IPProtocol: 'tcp', ports: [String(wish.sshPort)] }] },
        description: 'SSH of machines that Orrery makes',
      })
      await compute.settle('global', begun)
    } catch (error) {
      if (!isTaken(error)) throw error
    }
  }
  return name
}

const Region = z.object({ zones: z.array(z.string()).default([]) })
const Subnetwork = z.object({ network: z.string() })

const zonesOf = async (compute: ComputeEngine): Promise<string[]> =>
  (await compute.get(`regions/${segmentOf(compute.place.region)}`, Region)).zones.map(lastOf).sort()

const imageOf = (image: string): string => (image.includes('/') ? image : `global/images/${segmentOf(image)}`)

/** The path of a subnet below its project, from its name or from any path that ends with this one. */
const subnetworkOf = (subnet: string, ownRegion: string): string => {
  const [, region = ownRegion, name = subnet] =
    /(?:^|\/)regions\/([^/]*)\/subnetworks\/([^/]*)$/.exec(subnet) ?? []
  return `regions/${segmentOf(region)}/subnetworks/${segmentOf(name)}`
}

const bodyOf = (
  wish: MachineWish,
  zone: string,
  { name, tag, place }: { name: string; tag: string; place: { network: string; subnetwork?: string } },
): object => ({
  ...{ name, description: `${wish.name}: made by Orrery`.slice(0, 2_000) },
  machineType: `${zonePath(zone)}/machineTypes/${segmentOf(wish.machineType)}`,
  labels: { [labels.service]: wish.service, [labels.reference]: wish.reference },
  tags: { items: [tag] },
  disks: [
    {
      ...{ boot: true, autoDelete: true },
      initializeParams: {
        sourceImage: imageOf(wish.image),
        ...(wish.diskGiB === undefined ? {} : { diskSizeGb: String(Math.ceil(wish.diskGiB)) }),
        ...(wish.diskType === undefined
          ? {}
          : { diskType: `${zonePath(zone)}/diskTypes/${segmentOf(wish.diskType)}` }),
      },
    },
  ],
  networkInterfaces: [{ ...place, accessConfigs: [{ type: 'ONE_TO_ONE_NAT', name: 'External NAT' }] }],
  metadata: {
    items: [
      { key: 'ssh-keys', value: `${wish.login.username}:${wish.login.publicKey}` },
      { key: 'block-project-ssh-keys', value: 'TRUE' },
      // Google's agent on the machine writes its host keys there.
      { key: 'enable-guest-attributes', value: 'TRUE' },
      { key: instanceItem, value: wish.instanceId },
    ],
  },
  scheduling: wish.spot
    ? { provisioningModel: 'SPOT', instanceTerminationAction: 'DELETE', automaticRestart: false }
    : { automaticRestart: false },
})

const makeOne = async (compute: ComputeEngine, firewalls: Known, wish: MachineWish): Promise<Machine> => {
  const { region } = compute.place
  const zone = wish.zone ?? (await zonesOfType(compute, wish.machineType))[0]
  if (zone === undefined) throw new CloudError('refused', `gcp: the region ${region} has no zones`)
  const { subnet } = wish
  const path = subnet === undefined ? undefined : subnetworkOf(subnet, region)
  const subnetwork = subnet?.includes('/') === true ? subnet : path
  const network =
    path === undefined ? 'global/networks/default' : (await compute.get(path, Subnetwork)).network
  const tag = await firewalls.of(`${firewallName(wish)} ${network}`, () =>
    openFirewall(compute, wish, network),
  )
  const name = `orrery-${wish.reference}`
  const place = { network, ...(subnetwork === undefined ? {} : { subnetwork }) }
  try {
    const begun = await compute.change(
      'POST',
      `${zonePath(zone)}/instances?requestId=${requestIdOf(wish.reference, zone)}`,
      bodyOf(wish, zone, { name, tag, place }),
    )
    await compute.settle(zonePath(zone), begun)
  } catch (error) {
    // The name is the reference: the machine is there by an earlier request.
    if (!isTaken(error)) throw error
  }
  return machineOf(await compute.get(`${zonePath(zone)}/instances/${name}`, Instance))
}

const InZone = z.object({ instances: z.array(Instance).optional() })

const listed = async (compute: ComputeEngine, filter: string): Promise<Machine[]> =>
  (await compute.list('aggregated/instances', { filter }))
    .flatMap((zone) => InZone.parse(zone).instances ?? [])
    .map(machineOf)
    .filter(({ zone = '' }) => zone.startsWith(`${compute.place.region}-`))

const MachineType = z.object({
  ...{ name: z.string(), guestCpus: z.number(), memoryMb: z.number(), zone: z.string() },
  architecture: z.string().optional(),
  accelerators: z
    .array(z.object({ guestAcceleratorType: z.string(), guestAcceleratorCount: z.number() }))
    .optional(),
})
const TypesInZone = z.object({ machineTypes: z.array(MachineType).optional() })
const Image = z.object({
  ...{ name: z.string(), family: z.string().optional(), architecture: z.string().optional() },
  ...{ status: z.string(), diskSizeGb: z.string().optional() },
  deprecated: z.object({ state: z.string().optional() }).optional(),
})
const Disk = z.object({ name: z.string(), zone: z.string().optional() })
const DisksInZone = z.object({ diskTypes: z.array(Disk).optional() })

const architectureOf = (name: string | undefined): string => (name === 'ARM64' ? 'arm64' : 'amd64')

const machinesOf = async (
  compute: ComputeEngine,
  zones: readonly string[],
  query: Readonly<Record<string, string>> = {},
) => {
  const found = (await compute.list('aggregated/machineTypes', query)).flatMap(
    (zone) => TypesInZone.parse(zone).machineTypes ?? [],
  )
  const byName = new Map<string, { type: z.output<typeof MachineType>; zones: string[] }>()
  for (const type of found) {
    const zone = lastOf(type.zone)
    if (!zones.includes(zone)) continue
    const known = byName.get(type.name)
    if (known === undefined) byName.set(type.name, { type, zones: [zone] })
    else known.zones.push(zone)
  }
  return [...byName.values()].map(({ type, zones: where }) => {
    const [gpu] = type.accelerators ?? []
    return {
      ...{ providerTypeId: type.name, zones: where.sort(), family: type.name.split('-')[0] ?? '' },
      ...{ vcpu: type.guestCpus, memoryMiB: type.memoryMb, architecture: architectureOf(type.architecture) },
      ...{ gpuCount: gpu?.guestAcceleratorCount ?? 0, supportsSpot: true },
      ...(gpu === undefined ? {} : { gpuModel: gpu.guestAcceleratorType }),
    }
  })
}

/**
 * The zones of the region that offer a machine type; all of them where none lists it, as it is with
 * custom types.
 */
const zonesOfType = async (compute: ComputeEngine, type: string): Promise<string[]> => {
  const zones = await zonesOf(compute)
  // A type of another form does not exist; its machine is refused with its name.
  const isName = /^[-a-z0-9]+$/.test(type)
  const [offer] = isName ? await machinesOf(compute, zones, { filter: `name = "${type}"` }) : []
  return offer?.zones ?? zones
}

const imageProjects = ['debian-cloud', 'ubuntu-os-cloud']
const mostImages = 500

const imagesOf = async (compute: ComputeEngine) => {
  const projects = [...new Set([...imageProjects, compute.place.project])]
  const lists = await Promise.all(
    projects.map(async (project) =>
      (await compute.list('global/images', {}, { project, most: mostImages })).map((one) => ({
        ...{ project, image: Image.parse(one) },
      })),
    ),
  )
  return lists.flat().map(({ project, image }) => ({
    providerImageId: `projects/${project}/global/images/${image.name}`,
    ...{ name: image.name, operatingSystem: image.family ?? 'Linux', source: project, status: image.status },
    architecture: architectureOf(image.architecture),
    minimumDiskGiB: Number(image.diskSizeGb ?? 0),
    deprecated: image.deprecated?.state !== undefined && image.deprecated.state !== 'ACTIVE',
  }))
}

const offersOf = async (compute: ComputeEngine): Promise<Awaited<ReturnType<CloudDriver['catalog']>>> => {
  const zones = await zonesOf(compute)
  const disks = (await compute.list('aggregated/diskTypes', {}))
    .flatMap((zone) => DisksInZone.parse(zone).diskTypes ?? [])
    .filter(({ zone = '' }) => zones.includes(lastOf(zone)))
  return {
    ...{ project: compute.place.project, region: compute.place.region },
    machines: await machinesOf(compute, zones),
    images: await imagesOf(compute),
    disks: [...new Set(disks.map(({ name }) => name))].map((providerTypeId) => ({
      ...{ providerTypeId, name: providerTypeId },
      zones: disks.filter(({ name }) => name === providerTypeId).map(({ zone = '' }) => lastOf(zone)),
    })),
    warnings: [],
  }
}

const pathOf = (id: string): string => {
  const [zone = '', name = ''] = id.split('/')
  return `${zonePath(zone)}/instances/${segmentOf(name)}`
}

const Attributes = z.object({
  queryValue: z
    .object({ items: z.array(z.object({ key: z.string(), value: z.string() })).optional() })
    .optional(),
})

/**
 * The host keys that Google's agent on the machine has written, in the form in which cloud-init
 * prints them; blank before.
 */
const hostKeysOf = async (compute: ComputeEngine, id: string): Promise<string> => {
  try {
    const { queryValue } = await compute.get(
      `${pathOf(id)}/getGuestAttributes?queryPath=hostkeys%2F`,
      Attributes,
    )
    const keys = (queryValue?.items ?? []).map(({ key, value }) => `${key} ${value}\n`)
    return keys.length === 0
      ? ''
      : `-----BEGIN SSH HOST KEY KEYS-----\n${keys.join('')}-----END SSH HOST KEY KEYS-----\n`
  } catch (error) {
    // No attribute was written yet.
    if (error instanceof ComputeEngineError && error.status === 404) return ''
    throw error
  }
}

const SerialPort = z.object({ contents: z.string().optional() })
const Project = z.object({ name: z.string() })
/** Google bounds the length of a filter. */
const idsAtOnce = 40

/** Compute Engine as a provider of machines. */
export const gcpDriver = (compute: ComputeEngine): CloudDriver => {
  const firewalls = openKnown()
  const change = async (method: 'POST' | 'DELETE', id: string, verb = ''): Promise<void> => {
    await named(compute.change(method, `${pathOf(id)}${verb}`))
  }
  const powerOn = async (id: string, verb: string): Promise<void> => {
    const [zone = ''] = id.split('/')
    const begun = await named(compute.change('POST', `${pathOf(id)}${verb}`))
    try {
      await named(compute.settle(zonePath(zone), begun))
    } catch (error) {
      // The start was taken; without an answer about its end, the state of the machine shows that.
      if (!(error instanceof CloudError) || !error.passes) throw error
    }
  }
  const project = async (): Promise<string> => (await named(compute.get('?fields=name', Project))).name
  return {
    zonalSubnets: false,
    identity: async () => `${compute.account} in the project ${await project()}`,
    account: project,
    create: (wish) => named(makeOne(compute, firewalls, wish)),
    find: (reference) => named(listed(compute, `labels.${labels.reference}=${reference}`)),
    async look(ids) {
      const found: Machine[] = []
      for (let at = 0; at < ids.length; at += idsAtOnce) {
        const some = ids.slice(at, at + idsAtOnce)
        const filter = some.map((id) => `(name = "${lastOf(id)}")`).join(' OR ')
        append(
          found,
          (await named(listed(compute, filter))).filter(({ id }) => some.includes(id)),
        )
      }
      return found
    },
    list: (service) => named(listed(compute, `labels.${labels.service}=${service}`)),
    async start(id) {
      try {
        await powerOn(id, '/start')
      } catch (error) {
        // Google starts no suspended machine.
        if (!(error instanceof CloudError) || error.fault !== 'refused') throw error
        const { status } = await named(compute.get(pathOf(id), Instance))
        if (status !== 'SUSPENDED') throw error
        await powerOn(id, '/resume')
      }
    },
    stop: (id) => change('POST', id, '/stop'),
    async destroy(id) {
      try {
        await change('DELETE', id)
      } catch (error) {
        if (!(error instanceof CloudError) || error.fault !== 'missing') throw error
      }
    },
    async console(id) {
      const keys = await named(hostKeysOf(compute, id))
      if (keys !== '') return keys
      return (await named(compute.get(`${pathOf(id)}/serialPort?port=1`, SerialPort))).contents ?? ''
    },
    zonesOf: (machineType) => named(zonesOfType(compute, machineType)),
    async catalog() {
      const offers = await named(offersOf(compute))
      return priced('gcp', offers, () => named(gcpPrices(compute, offers.machines)))
    },
  }
}
