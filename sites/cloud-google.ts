import type { RequestListener } from 'node:http'
import { accountNamed, bearerOf, type GoogleServiceAccount } from './google-account.ts'
import {
  bodyOf,
  bootLater,
  end,
  halt,
  hasCapacity,
  hex,
  hidden,
  makeMachine,
  powerOn,
  type CloudMachine,
  type World,
} from './cloud-world.ts'

const project = 'orrery-site'
const zones = ['us-east1-b', 'us-east1-c', 'us-east1-d']
const types = {
  'e2-standard-2': { guestCpus: 2, memoryMb: 8_192, architecture: 'X86_64' },
  'e2-standard-4': { guestCpus: 4, memoryMb: 16_384, architecture: 'X86_64' },
  't2a-standard-2': { guestCpus: 2, memoryMb: 8_192, architecture: 'ARM64' },
} as const
const images = [
  { name: 'debian-12-bookworm-v1', family: 'debian-12', architecture: 'X86_64', project: 'debian-cloud' },
  {
    name: 'debian-12-bookworm-arm64-v1',
    family: 'debian-12-arm64',
    architecture: 'ARM64',
    project: 'debian-cloud',
  },
]
/** The form of the names of everything at Compute Engine. */
const nameForm = /^[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?$/
const labelForm = /^[-_a-z0-9]{0,63}$/

export type GoogleAccount = GoogleServiceAccount

class Refused extends Error {
  readonly reason: string
  readonly status: number
  constructor(status: number, reason: string, message: string) {
    super(message)
    this.status = status
    this.reason = reason
  }
}

interface Operation {
  name: string
  status: 'DONE' | 'RUNNING'
  error?: { errors: { code: string; message: string }[] }
}

interface Insert {
  name?: string
  description?: string
  machineType?: string
  labels?: Record<string, string>
  disks?: { initializeParams?: { sourceImage?: string } }[]
  metadata?: { items?: { key: string; value: string }[] }
  scheduling?: { provisioningModel?: string }
}

interface State {
  world: World
  /** What requests were answered with, by their ids. */
  requests: Map<string, Operation>
  operations: Map<string, Operation>
  firewalls: Map<string, { sourceRanges: string[] }>
  metadata: Map<CloudMachine, { key: string; value: string }[]>
  /** Of the stopped machines, those that only `resume` brings back. */
  suspended: Set<CloudMachine>
}

const statuses: Readonly<Record<CloudMachine['state'], string>> = {
  ...{ pending: 'STAGING', running: 'RUNNING', stopping: 'STOPPING', stopped: 'TERMINATED' },
  ...{ 'shutting-down': 'STOPPING', terminated: 'STOPPING' },
}

const nameOf = ({ id }: CloudMachine): string => id.slice(id.indexOf('/') + 1)

const shown = ({ metadata, suspended }: State, machine: CloudMachine): object => ({
  ...{ kind: 'compute#instance', name: nameOf(machine) },
  status: machine.state === 'stopped' && suspended.has(machine) ? 'SUSPENDED' : statuses[machine.state],
  zone: `https://www.googleapis.com/compute/v1/projects/${project}/zones/${machine.zone}`,
  labels: Object.fromEntries(machine.tags),
  metadata: { items: metadata.get(machine) ?? [] },
  networkInterfaces: [
    machine.address === undefined
      ? { networkIP: '10.0.0.2', accessConfigs: [{}] }
      : { networkIP: machine.address, accessConfigs: [{ natIP: machine.address }] },
  ],
})

const begun = (state: State, operation: Omit<Operation, 'name' | 'status'> = {}): Operation => {
  const made: Operation = { name: `operation-${hex(8)}`, status: 'RUNNING', ...operation }
  state.operations.set(made.name, { ...made, status: 'DONE' })
  return made
}

const isGoogles = ({ id }: CloudMachine): boolean => id.includes('/')
const isThere = (state: State, machine: CloudMachine): boolean =>
  isGoogles(machine) && machine.state !== 'terminated' && !hidden(state.world, machine)

const found = (state: State, zone: string, name: string): CloudMachine => {
  const machine = state.world.machines.get(`${zone}/${name}`)
  if (machine === undefined || machine.state === 'terminated')
    throw new Refused(404, 'notFound', `The resource 'zones/${zone}/instances/${name}' was not found`)
  return machine
}

const refuseForm = ({ settings }: World, zone: string, given: Insert): void => {
  const invalid = (message: string): Refused => new Refused(400, 'invalid', message)
  if (!zones.includes(zone)) throw new Refused(404, 'notFound', `The zone '${zone}' was not found`)
  if (!nameForm.test(given.name ?? ''))
    throw invalid(`Invalid value for field 'resource.name': '${given.name ?? ''}'`)
  for (const [key, value] of Object.entries(given.labels ?? {}))
    if (!/^[a-z]/.test(key) || !labelForm.test(key) || !labelForm.test(value))
      throw invalid(`Invalid value for field 'resource.labels': '${key}'`)
  const [, type = ''] = /^zones\/[^/]+\/machineTypes\/(.+)$/.exec(given.machineType ?? '') ?? []
  if (!(type in types) || settings.unsupported === zone)
    throw invalid(`Invalid value for field 'resource.machineType': '${given.machineType ?? ''}'`)
  const image = given.disks?.[0]?.initializeParams?.sourceImage ?? ''
  if (
    !images.some(
      ({ name, family, project: of }) =>
        image.startsWith(`projects/${of}/`) &&
        (image.endsWith(`/${name}`) || image.endsWith(`/family/${family}`)),
    )
  )
    throw new Refused(404, 'notFound', `The resource '${image}' was not found`)
}

const exhausted = (zone: string) => ({
  code: 'ZONE_RESOURCE_POOL_EXHAUSTED',
  message: `The zone '${zone}' has no such machine now`,
})

/** The end of a stop or of a suspension. */
const poweredOn = (state: State, zone: string, machine: CloudMachine): Operation => {
  if (machine.state !== 'stopped') return begun(state)
  if (!hasCapacity(state.world, zone)) return begun(state, { error: { errors: [exhausted(zone)] } })
  state.suspended.delete(machine)
  powerOn(state.world, machine)
  return begun(state)
}

const insert = (state: State, zone: string, requestId: string | null, given: Insert): Operation => {
  const known = requestId === null ? undefined : state.requests.get(requestId)
  if (known !== undefined) return known
  const { world } = state
  refuseForm(world, zone, given)
  const id = `${zone}/${given.name ?? ''}`
  if (world.machines.has(id) && world.machines.get(id)!.state !== 'terminated')
    throw new Refused(409, 'alreadyExists', `The resource '${id}' already exists`)
  const items = given.metadata?.items ?? []
  const userData = items.find(({ key }) => key === 'ssh-keys')?.value ?? ''
  const keys = userData.split('\n').map((line) => line.slice(line.indexOf(':') + 1))
  const { noQuota } = world.settings
  if (noQuota === 'machines')
    throw new Refused(403, 'quotaExceeded', "Quota 'INSTANCES' exceeded.  Limit: 0.0 in region us-east1.")
  const refusal =
    noQuota === 'processors'
      ? { code: 'QUOTA_EXCEEDED', message: "Quota 'CPUS' exceeded.  Limit: 0.0 in region us-east1." }
      : hasCapacity(world, zone)
        ? undefined
        : exhausted(zone)
  const operation = begun(state, refusal === undefined ? {} : { error: { errors: [refusal] } })
  if (requestId !== null) state.requests.set(requestId, operation)
  if (refusal !== undefined) return operation
  const machine = makeMachine(world, {
    ...{ id, zone, keys, userData, token: requestId ?? undefined, type: given.machineType ?? '' },
    description: given.description ?? '',
    ...{
      image: given.disks?.[0]?.initializeParams?.sourceImage ?? '',
      tags: new Map(Object.entries(given.labels ?? {})),
    },
    spot: given.scheduling?.provisioningModel === 'SPOT',
  })
  state.metadata.set(machine, items)
  bootLater(world, machine)
  return operation
}

/** `labels.KEY=VALUE`, and names joined by OR, as the service takes them. */
const matches = (filter: string | null): ((machine: CloudMachine) => boolean) => {
  if (filter === null) return () => true
  const [, key, value] = /^labels\.([-_a-z0-9]+)=([-_a-z0-9]+)$/.exec(filter) ?? []
  if (key !== undefined) return ({ tags }) => tags.get(key) === value
  const names = [...filter.matchAll(/\(name = "([^"]+)"\)/g)].map(([, name]) => name)
  if (names.length === 0) throw new Refused(400, 'invalid', `Invalid value for field 'filter': '${filter}'`)
  return (machine) => names.includes(nameOf(machine))
}

const inZones = (member: string, of: (zone: string) => unknown[]): object => ({
  items: Object.fromEntries(
    zones.map((zone) => {
      const some = of(zone)
      return [
        `zones/${zone}`,
        some.length === 0 ? { warning: { code: 'NO_RESULTS_ON_PAGE' } } : { [member]: some },
      ]
    }),
  ),
})

/** A page of a list; the service takes at most 500 for one. */
const page = (items: readonly object[], { url }: Asked): object => {
  const at = Number(url.searchParams.get('pageToken') ?? '0')
  const end = at + Math.min(500, Number(url.searchParams.get('maxResults') ?? '500'))
  return { items: items.slice(at, end), ...(end < items.length ? { nextPageToken: String(end) } : {}) }
}

const operationOf = ({ operations }: State, name: string): Operation => {
  const operation = operations.get(name)
  if (operation === undefined) throw new Refused(404, 'notFound', `The operation '${name}' was not found`)
  return operation
}

const hostKeys = (state: State, machine: CloudMachine): object => {
  const [type, key] = (machine.host ?? machine.sshd)?.knownHosts().split(' ').slice(1) ?? []
  const isOn = state.metadata.get(machine)?.some(({ key: name }) => name === 'enable-guest-attributes')
  if (key === undefined || state.world.settings.silent || isOn !== true)
    throw new Refused(404, 'notFound', 'The requested guest attribute does not exist')
  return { queryPath: 'hostkeys/', queryValue: { items: [{ namespace: 'hostkeys', key: type, value: key }] } }
}

interface Asked {
  method: string
  url: URL
  body: unknown
}

const zoneUrl = (zone: string): string =>
  `https://www.googleapis.com/compute/v1/projects/${project}/zones/${zone}`

const sku = (
  description: string,
  [resourceFamily, usageUnit]: readonly [string, string],
  nanos: number,
  more: { usageType?: string; serviceRegions?: string[] } = {},
): object => ({
  ...{ name: `services/6F81-5844-456A/skus/${hex(4)}`, description },
  category: { serviceDisplayName: 'Compute Engine', resourceFamily, usageType: more.usageType ?? 'OnDemand' },
  serviceRegions: more.serviceRegions ?? ['us-east1', 'us-central1'],
  pricingInfo: [
    {
      pricingExpression: {
        ...{ usageUnit, displayQuantity: 1 },
        tieredRates: [{ startUsageAmount: 0, unitPrice: { currencyCode: 'USD', units: '0', nanos } }],
      },
    },
  ],
})
const [core, ram, disk] = [
  ['Compute', 'h'],
  ['Compute', 'GiBy.h'],
  ['Storage', 'GiBy.mo'],
] as const

/** Google's billing catalog, with entries that are easily taken for others. */
const skus: readonly object[] = [
  sku('E2 Instance Core running in Americas', core, 21_811_590),
  sku('E2 Instance Ram running in Americas', ram, 2_923_530),
  sku('Spot Preemptible E2 Instance Core running in Americas', core, 6_543_477, { usageType: 'Preemptible' }),
  sku('E2 Instance Core running in Frankfurt', core, 28_103_000, { serviceRegions: ['europe-west3'] }),
  sku('E2 Custom Instance Core running in Americas', core, 22_902_170),
  sku('Commitment v1: E2 Cpu in Americas for 1 Year', core, 13_741_000, { usageType: 'Commit1Yr' }),
  sku('Storage PD Capacity', disk, 40_000_000),
  sku('Balanced PD Capacity', disk, 100_000_000),
  sku('SSD backed PD Capacity', disk, 170_000_000),
]

/** Four entries a page. */
const skuPage = ({ url }: Asked): object => {
  const at = Number(url.searchParams.get('pageToken') ?? '0')
  return { skus: skus.slice(at, at + 4), nextPageToken: at + 4 < skus.length ? String(at + 4) : '' }
}

/** Each action with the form of its request below the project. */
const actions: readonly [
  name: string,
  form: RegExp,
  perform: (state: State, groups: string[], asked: Asked) => unknown,
][] = [
  ['projects.get', /^GET $/, () => ({ name: project })],
  ['regions.get', /^GET \/regions\/us-east1$/, () => ({ zones: zones.map(zoneUrl) })],
  [
    'subnetworks.get',
    /^GET \/regions\/us-east1\/subnetworks\/[-a-z0-9]+$/,
    () => ({ network: `https://www.googleapis.com/compute/v1/projects/${project}/global/networks/default` }),
  ],
  [
    'firewalls.insert',
    /^POST \/global\/firewalls$/,
    (state, _, { body }) => {
      const { name, sourceRanges } = body as { name: string; sourceRanges: string[] }
      if (!nameForm.test(name)) throw new Refused(400, 'invalid', `Invalid value for field 'resource.name'`)
      if (state.firewalls.has(name))
        throw new Refused(409, 'alreadyExists', `The firewall '${name}' already exists`)
      state.firewalls.set(name, { sourceRanges })
      return begun(state)
    },
  ],
  [
    'operations.wait',
    /^POST \/(?:global|zones\/[^/]+)\/operations\/([^/]+)\/wait$/,
    (state, [name = '']) => operationOf(state, name),
  ],
  [
    'operations.get',
    /^GET \/(?:global|zones\/[^/]+)\/operations\/([^/]+)$/,
    (state, [name = '']) => operationOf(state, name),
  ],
  [
    'instances.insert',
    /^POST \/zones\/([^/]+)\/instances$/,
    (state, [zone = ''], { url, body }) =>
      insert(state, zone, url.searchParams.get('requestId'), body as Insert),
  ],
  [
    'instances.list',
    /^GET \/zones\/([^/]+)\/instances$/,
    (state, [zone = ''], asked) => {
      const isWanted = matches(asked.url.searchParams.get('filter'))
      const all = [...state.world.machines.values()].filter((one) => isThere(state, one) && isWanted(one))
      return page(
        all.filter((one) => one.zone === zone).map((one) => shown(state, one)),
        asked,
      )
    },
  ],
  [
    'instances.aggregatedList',
    /^GET \/aggregated\/instances$/,
    (state, _, { url }) => {
      const isWanted = matches(url.searchParams.get('filter'))
      const all = [...state.world.machines.values()].filter((one) => isThere(state, one) && isWanted(one))
      return inZones('instances', (zone) =>
        all.filter((one) => one.zone === zone).map((one) => shown(state, one)),
      )
    },
  ],
  [
    'instances.get',
    /^GET \/zones\/([^/]+)\/instances\/([^/]+)$/,
    (state, [zone = '', name = '']) => shown(state, found(state, zone, name)),
  ],
  [
    'instances.delete',
    /^DELETE \/zones\/([^/]+)\/instances\/([^/]+)$/,
    (state, [zone = '', name = '']) => {
      end(found(state, zone, name))
      return begun(state)
    },
  ],
  [
    'instances.stop',
    /^POST \/zones\/([^/]+)\/instances\/([^/]+)\/stop$/,
    (state, [zone = '', name = '']) => {
      const machine = found(state, zone, name)
      if (machine.state === 'running') halt(machine)
      return begun(state)
    },
  ],
  [
    'instances.start',
    /^POST \/zones\/([^/]+)\/instances\/([^/]+)\/start$/,
    (state, [zone = '', name = '']) => {
      const machine = found(state, zone, name)
      if (state.suspended.has(machine))
        throw new Refused(400, 'resourceNotReady', `The instance '${name}' is suspended; resume it`)
      return poweredOn(state, zone, machine)
    },
  ],
  [
    'instances.suspend',
    /^POST \/zones\/([^/]+)\/instances\/([^/]+)\/suspend$/,
    (state, [zone = '', name = '']) => {
      const machine = found(state, zone, name)
      if (machine.state !== 'running')
        throw new Refused(400, 'resourceNotReady', `The instance '${name}' does not run`)
      halt(machine)
      state.suspended.add(machine)
      return begun(state)
    },
  ],
  [
    'instances.resume',
    /^POST \/zones\/([^/]+)\/instances\/([^/]+)\/resume$/,
    (state, [zone = '', name = '']) => {
      const machine = found(state, zone, name)
      if (!state.suspended.has(machine))
        throw new Refused(400, 'resourceNotReady', `The instance '${name}' is not suspended`)
      return poweredOn(state, zone, machine)
    },
  ],
  [
    'instances.getGuestAttributes',
    /^GET \/zones\/([^/]+)\/instances\/([^/]+)\/getGuestAttributes$/,
    (state, [zone = '', name = '']) => hostKeys(state, found(state, zone, name)),
  ],
  [
    'instances.getSerialPortOutput',
    /^GET \/zones\/([^/]+)\/instances\/([^/]+)\/serialPort$/,
    (state, [zone = '', name = '']) => {
      found(state, zone, name)
      return { contents: '' }
    },
  ],
  [
    'machineTypes.aggregatedList',
    /^GET \/aggregated\/machineTypes$/,
    ({ world }, _, { url }) => {
      const [, only] = /^name = "([^"]+)"$/.exec(url.searchParams.get('filter') ?? '') ?? []
      return inZones('machineTypes', (zone) =>
        Object.entries(types)
          .filter(([name]) => zone !== world.settings.unsupported && name === (only ?? name))
          .map(([name, type]) => ({ name, ...type, zone: zoneUrl(zone) })),
      )
    },
  ],
  [
    'diskTypes.aggregatedList',
    /^GET \/aggregated\/diskTypes$/,
    () =>
      inZones('diskTypes', (zone) =>
        ['pd-standard', 'pd-balanced', 'pd-ssd'].map((name) => ({ name, zone: zoneUrl(zone) })),
      ),
  ],
]

const perform = (state: State, asked: Asked): { action: string; work: () => unknown } => {
  if (asked.method === 'GET' && asked.url.pathname === '/v1/services/6F81-5844-456A/skus')
    return { action: 'skus.list', work: () => skuPage(asked) }
  const [, of = '', path = ''] = /^\/compute\/v1\/projects\/([^/]+)(.*)$/.exec(asked.url.pathname) ?? []
  if (asked.method === 'GET' && path === '/global/images')
    return {
      action: 'images.list',
      work: () => ({
        items: images
          .filter((image) => image.project === of)
          .map(({ project: _, ...image }) => ({ ...image, status: 'READY', diskSizeGb: '10' })),
      }),
    }
  for (const [action, form, work] of actions) {
    const match = form.exec(`${asked.method} ${path}`)
    if (match === null || of !== project) continue
    return { action, work: () => work(state, match.slice(1), asked) }
  }
  throw new Refused(404, 'notFound', `The requested URL ${asked.method} ${asked.url.pathname} was not found`)
}

const errorBody = ({ status, reason, message }: Refused): object => ({
  error: { code: status, message, errors: [{ message, domain: 'global', reason }] },
})

const answered = async (
  state: State,
  account: GoogleServiceAccount,
  asked: Asked,
  authorization: string,
): Promise<{ status: number; body: unknown; isLost: boolean }> => {
  const { world } = state
  let isLost = false
  try {
    const scopes = asked.url.pathname.startsWith('/v1/services/')
      ? /auth\/(?:cloud-billing(?:\.readonly)?|cloud-platform)$/
      : /auth\/(?:compute|cloud-platform)$/
    if (world.settings.expired || bearerOf(authorization, [account], scopes) === undefined)
      throw new Refused(401, 'authError', 'Request had invalid authentication credentials')
    const { action, work } = perform(state, asked)
    world.calls.set(action, (world.calls.get(action) ?? 0) + 1)
    isLost = world.isLost(action)
    if (action === 'skus.list' && world.settings.noPrices)
      throw new Refused(403, 'forbidden', 'Cloud Billing API has not been used in project')
    if (world.isThrottled(action)) throw new Refused(403, 'rateLimitExceeded', 'Rate Limit Exceeded')
    return { status: 200, body: await work(), isLost }
  } catch (error) {
    if (!(error instanceof Refused)) throw error
    return { status: error.status, body: errorBody(error), isLost }
  }
}

/** Compute Engine over the machines of a world: answers requests with a token of its account. */
export const openGoogleSite = (world: World): { serve: RequestListener; account: GoogleServiceAccount } => {
  const account = accountNamed('site', project)
  const state: State = {
    ...{ world, requests: new Map(), operations: new Map(), firewalls: new Map(), metadata: new Map() },
    suspended: new Set(),
  }
  return {
    account,
    serve: (request, response) => {
      void (async () => {
        const text = await bodyOf(request)
        const asked: Asked = {
          method: request.method ?? 'GET',
          url: new URL(request.url ?? '/', 'http://site'),
          body: text === '' ? undefined : JSON.parse(text),
        }
        const { status, body, isLost } = await answered(
          state,
          account,
          asked,
          request.headers.authorization ?? '',
        )
        if (isLost) {
          request.socket.destroy()
          return
        }
        response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
      })().catch((error: unknown) => {
        response.destroy(error as Error)
      })
    },
  }
}

/** A machine of another owner in the same project. */
export const foreignGoogle = (world: World): CloudMachine =>
  makeMachine(world, {
    ...{
      id: `${zones[0]!}/other-${hex(4)}`,
      state: 'running',
      zone: zones[0]!,
      tags: new Map([['of', 'somebody-else']]),
    },
  })
