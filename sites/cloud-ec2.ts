import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingMessage, RequestListener } from 'node:http'
import { AwsV4Signer } from 'aws4fetch'
import {
  bodyOf,
  bootLater,
  debian13,
  end,
  halt,
  hasCapacity,
  hex,
  hidden,
  makeMachine,
  powerOn,
  type CloudMachine,
  type Quota,
  type World,
} from './cloud-world.ts'
import { answerOf, type Xml } from './ec2-xml.ts'

const zones = ['us-east-1a', 'us-east-1b', 'us-east-1c']
const types: Readonly<Record<string, { vcpu: number; memoryMiB: number; architecture: string }>> = {
  't3.micro': { vcpu: 2, memoryMiB: 1_024, architecture: 'x86_64' },
  'm5.large': { vcpu: 2, memoryMiB: 8_192, architecture: 'x86_64' },
  'c5.xlarge': { vcpu: 4, memoryMiB: 8_192, architecture: 'x86_64' },
  'm7g.large': { vcpu: 2, memoryMiB: 8_192, architecture: 'arm64' },
}
/** US dollars an hour, and for a disk a GiB and month. */
export const ec2Prices: Readonly<Record<string, number>> = {
  't3.micro': 0.0104,
  'm5.large': 0.096,
  'c5.xlarge': 0.17,
}
export const ec2DiskPrices: Readonly<Record<string, number>> = { gp3: 0.08, gp2: 0.1 }
const images = [
  { id: 'ami-debian12', name: 'debian-12-amd64', architecture: 'x86_64', root: '/dev/xvda' },
  { id: 'ami-debian12-arm', name: 'debian-12-arm64', architecture: 'arm64', root: '/dev/xvda' },
  { id: debian13, name: 'debian-13-amd64', architecture: 'x86_64', root: '/dev/xvda' },
  { id: 'ami-ubuntu2404', name: 'ubuntu-24.04-amd64', architecture: 'x86_64', root: '/dev/sda1' },
]
/** Each lies in one zone. */
const subnets: Readonly<Record<string, string>> = { 'subnet-a': 'us-east-1a', 'subnet-b': 'us-east-1b' }
const imageGiB = 8

/** A refusal in the form of EC2. */
class Refused extends Error {
  readonly code: string
  readonly status: number
  constructor(code: string, message: string, status = 400) {
    super(message)
    this.code = code
    this.status = status
  }
}

interface AccessKey {
  accessKeyId: string
  secretAccessKey: string
}

/** Each site is an account of its own, of twelve digits. */
const accountOf = ({ secretAccessKey }: AccessKey): string =>
  (BigInt(`0x${createHash('sha256').update(secretAccessKey).digest('hex')}`) % 10n ** 12n)
    .toString()
    .padStart(12, '0')

/** `Filter.1.Name`, `Filter.1.Value.1` … as a list. */
const listOf = (given: URLSearchParams, prefix: string): string[] => {
  const found: string[] = []
  for (let n = 1; given.has(`${prefix}.${String(n)}`); n++)
    found.push(given.get(`${prefix}.${String(n)}`) ?? '')
  return found
}

/** The keys that the machine's user data authorizes, as cloud-init reads them. */
const keysOf = (userData: string): string[] =>
  [...userData.matchAll(/^\s*-\s*"?(ssh-(?:ed25519|rsa) [A-Za-z0-9+/=]+)/gm)].map(([, key = '']) => key)

/** The refusals of an account that has all it may have, in the words of EC2. */
const quotas: Readonly<Record<Quota, () => Refused>> = {
  machines: () =>
    new Refused(
      'InstanceLimitExceeded',
      'You have requested more instances (1) than your current instance limit of 0 allows for the ' +
        'specified instance type.',
    ),
  processors: () =>
    new Refused(
      'VcpuLimitExceeded',
      'You have requested more vCPU capacity than your current vCPU limit of 0 allows for the instance ' +
        'bucket that the specified instance type belongs to.',
    ),
}

const lacking = (type: string, zone: string): Refused =>
  new Refused('InsufficientInstanceCapacity', `There is no ${type} in ${zone}`, 500)

type Groups = Map<string, { id: string; name: string; ranges: Set<string> }>

/** @throws Refused for an image that does not exist */
const imagesOf = (ids: readonly string[]): [(typeof images)[number], ...(typeof images)[number][]] => {
  const found = ids.map((id) => images.find((image) => image.id === id))
  const unknown = ids.find((_, place) => found[place] === undefined)
  if (unknown !== undefined)
    throw new Refused('InvalidAMIID.NotFound', `The image id '[${unknown}]' does not exist`)
  return found as [(typeof images)[number], ...(typeof images)[number][]]
}

const runInstances = (world: World, groups: Groups, given: URLSearchParams): CloudMachine[] => {
  const token = given.get('ClientToken') ?? undefined
  const known = token === undefined ? [] : [...world.machines.values()].filter((one) => one.token === token)
  const [type, image] = [given.get('InstanceType') ?? '', given.get('ImageId') ?? '']
  const userData = Buffer.from(given.get('UserData') ?? '', 'base64').toString()
  const subnet = given.get('SubnetId') ?? undefined
  const zone = given.get('Placement.AvailabilityZone') ?? subnets[subnet ?? ''] ?? zones[0]!
  if (known.length > 0) {
    if (known[0]!.type !== type || known[0]!.userData !== userData)
      throw new Refused('IdempotentParameterMismatch', 'The client token was used with other parameters')
    return known
  }
  if (types[type] === undefined)
    throw new Refused('InvalidParameterValue', `Invalid value '${type}' for InstanceType`)
  if (subnet !== undefined && subnets[subnet] !== zone)
    throw new Refused('InvalidParameterValue', `The subnet '${subnet}' is not in the zone ${zone}`)
  const [{ root }] = imagesOf([image])
  if (!zones.includes(zone))
    throw new Refused('InvalidParameterValue', `Invalid availability zone: [${zone}]`)
  if (world.settings.unsupported === zone)
    throw new Refused('Unsupported', `The instance type (${type}) is not supported in your zone (${zone}).`)
  const group = given.get('SecurityGroupId.1')
  if (group !== null && !groups.has(group))
    throw new Refused('InvalidGroup.NotFound', `The security group '${group}' does not exist`)
  if (!hasCapacity(world, zone)) throw lacking(type, zone)
  if (world.settings.noQuota !== undefined) throw quotas[world.settings.noQuota]()
  const disks = new Map([[root, imageGiB]])
  for (let n = 1; given.has(`BlockDeviceMapping.${String(n)}.DeviceName`); n++) {
    const of = `BlockDeviceMapping.${String(n)}`
    disks.set(given.get(`${of}.DeviceName`)!, Number(given.get(`${of}.Ebs.VolumeSize`)))
  }
  const count = Number(given.get('MaxCount') ?? '1')
  if (!(count >= 1 && count <= 100)) throw new Refused('InvalidParameterValue', 'Invalid value for MaxCount')
  return Array.from({ length: count }, () => {
    const machine = makeMachine(world, {
      ...{ token, zone, type, image, spot: given.get('InstanceMarketOptions.MarketType') === 'spot' },
      ...{ userData, keys: keysOf(userData), disks },
    })
    for (let n = 1; given.has(`TagSpecification.1.Tag.${String(n)}.Key`); n++)
      machine.tags.set(
        given.get(`TagSpecification.1.Tag.${String(n)}.Key`)!,
        given.get(`TagSpecification.1.Tag.${String(n)}.Value`) ?? '',
      )
    bootLater(world, machine)
    return machine
  })
}

const stateCodes = {
  ...{ pending: 0, running: 16, 'shutting-down': 32, terminated: 48, stopping: 64, stopped: 80 },
}
const stateXml = (state: CloudMachine['state']): Xml => ({ code: stateCodes[state], name: state })

const machineXml = (world: World, machine: CloudMachine): Xml => ({
  ...{ instanceId: machine.id, imageId: machine.image, instanceState: stateXml(machine.state) },
  ...{ instanceType: machine.type, launchTime: new Date(machine.launchedAt).toISOString() },
  placement: { availabilityZone: machine.zone },
  ...(machine.address === undefined ? {} : { privateIpAddress: machine.address }),
  ...(machine.address === undefined || world.settings.noPublicAddress ? {} : { ipAddress: machine.address }),
  ...(machine.spot ? { instanceLifecycle: 'spot' } : {}),
  ...(machine.reason === undefined
    ? {}
    : { stateReason: { code: machine.reason, message: `${machine.reason}: taken back` } }),
  clientToken: machine.token ?? '',
  tagSet: { item: [...machine.tags].map(([key, value]) => ({ key, value })) },
})

const named = (world: World, given: URLSearchParams): CloudMachine[] =>
  listOf(given, 'InstanceId').map((id) => {
    if (!/^i-[0-9a-f]{8,17}$/.test(id))
      throw new Refused('InvalidInstanceID.Malformed', `Invalid id: "${id}"`)
    const machine = world.machines.get(id)
    if (machine === undefined || hidden(world, machine))
      throw new Refused('InvalidInstanceID.NotFound', `The instance ID '${id}' does not exist`)
    return machine
  })

/** Whether a text is one of the values of a filter, in which `*` and `?` stand for others. */
const isAmong = (values: readonly string[], text: string): boolean =>
  values.some((value) =>
    new RegExp(
      `^${value
        .replace(/[.+^${}()|[\]\\]/g, '\\$&')
        .replaceAll('*', '.*')
        .replaceAll('?', '.')}$`,
      's',
    ).test(text),
  )

const mostValues = 200

/** Whether all filters of a request fit. @throws Refused for a filter that `textsOf` does not know */
const filtered = (
  given: URLSearchParams,
  textsOf: (name: string) => readonly string[] | undefined,
): boolean => {
  for (let n = 1; given.has(`Filter.${String(n)}.Name`); n++) {
    const name = given.get(`Filter.${String(n)}.Name`)!
    const texts = textsOf(name)
    if (texts === undefined) throw new Refused('InvalidParameterValue', `The filter '${name}' is invalid`)
    const values = listOf(given, `Filter.${String(n)}.Value`)
    if (values.length > mostValues)
      throw new Refused(
        'FilterLimitExceeded',
        `The maximum number of filter values specified on a single call is ${String(mostValues)}`,
      )
    if (!texts.some((text) => isAmong(values, text))) return false
  }
  return true
}

const filterTexts = (machine: CloudMachine, name: string): string[] | undefined => {
  if (name.startsWith('tag:'))
    return [...machine.tags].flatMap(([key, value]) => (key === name.slice(4) ? [value] : []))
  return {
    'tag-key': [...machine.tags.keys()],
    'client-token': machine.token === undefined ? [] : [machine.token],
    'instance-state-name': [machine.state],
    'instance-type': [machine.type],
    'instance-id': [machine.id],
    'image-id': [machine.image],
    'availability-zone': [machine.zone],
  }[name]
}

const describeInstances = (
  world: World,
  given: URLSearchParams,
): { machines: CloudMachine[]; next?: string } => {
  const wanted = given.has('InstanceId.1') ? named(world, given) : [...world.machines.values()]
  const all = wanted.filter(
    (machine) => !hidden(world, machine) && filtered(given, (name) => filterTexts(machine, name)),
  )
  const at = Number(given.get('NextToken') ?? '0')
  const end = at + Number(given.get('MaxResults') ?? '1000')
  return { machines: all.slice(at, end), ...(end < all.length ? { next: String(end) } : {}) }
}

/** Start, stop and end. Each answers the state before and after. */
const change = (world: World, given: URLSearchParams, deed: 'start' | 'stop' | 'end'): Xml => ({
  instancesSet: {
    item: named(world, given).map((machine) => {
      const before = machine.state
      if (deed === 'end') end(machine)
      else if (['terminated', 'pending', ...(deed === 'start' ? ['stopping'] : [])].includes(before))
        throw new Refused('IncorrectInstanceState', `The instance '${machine.id}' is ${before}`)
      else if (deed === 'stop' && machine.spot)
        throw new Refused(
          'UnsupportedOperation',
          `You can't stop the Spot Instance '${machine.id}' because it is associated with a one-time Spot ` +
            'Instance request. You can only stop Spot Instances associated with persistent Spot Instance requests.',
        )
      else if (deed === 'stop' && before === 'running') halt(machine)
      else if (deed === 'start' && before === 'stopped') {
        if (!hasCapacity(world, machine.zone)) throw lacking(machine.type, machine.zone)
        powerOn(world, machine)
      }
      return {
        ...{ instanceId: machine.id, currentState: stateXml(machine.state) },
        previousState: stateXml(before),
      }
    }),
  },
})

/** A key that no machine has. */
const otherKey = `ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI${'B'.repeat(43)}`

const consoleOf = (world: World, [machine]: CloudMachine[]): Xml => {
  const own = (machine?.host ?? machine?.sshd)?.knownHosts().split(' ').slice(1).join(' ')
  const keys = world.settings.otherHostKey ? otherKey : own
  const text =
    keys === undefined || world.settings.silent
      ? ''
      : `boot\r\n-----BEGIN SSH HOST KEY KEYS-----\r\n${keys} root@machine\r\n-----END SSH HOST KEY KEYS-----\r\n`
  return {
    ...{ instanceId: machine?.id ?? '', timestamp: new Date().toISOString() },
    output: Buffer.from(text).toString('base64'),
  }
}

const groupActions = (groups: Groups, action: string, given: URLSearchParams): Xml | undefined => {
  const named = (): { id: string; name: string; ranges: Set<string> } => {
    const group = groups.get(given.get('GroupId') ?? '')
    if (group === undefined) throw new Refused('InvalidGroup.NotFound', 'The security group does not exist')
    return group
  }
  if (action === 'DescribeSecurityGroups') {
    const names = listOf(given, 'Filter.1.Value')
    const found = [...groups.values()].filter(({ name }) => names.length === 0 || names.includes(name))
    return { securityGroupInfo: { item: found.map(({ id, name }) => ({ groupId: id, groupName: name })) } }
  }
  if (action === 'CreateSecurityGroup') {
    const name = given.get('GroupName') ?? ''
    if ([...groups.values()].some((group) => group.name === name))
      throw new Refused('InvalidGroup.Duplicate', `The security group '${name}' already exists`)
    const id = `sg-${hex(8)}`
    groups.set(id, { id, name, ranges: new Set() })
    return { return: 'true', groupId: id }
  }
  if (action === 'AuthorizeSecurityGroupIngress') {
    const group = named()
    for (let n = 1; given.has(`IpPermissions.1.IpRanges.${String(n)}.CidrIp`); n++) {
      const range = given.get(`IpPermissions.1.IpRanges.${String(n)}.CidrIp`)!
      if (group.ranges.has(range)) throw new Refused('InvalidPermission.Duplicate', 'the rule exists')
      group.ranges.add(range)
    }
    return { return: 'true' }
  }
  if (action === 'DeleteSecurityGroup') {
    groups.delete(named().id)
    return { return: 'true' }
  }
  return undefined
}

const imageTexts =
  (name: string, architecture: string) =>
  (filter: string): readonly string[] | undefined =>
    ({
      ...{ name: [name], architecture: [architecture], state: ['available'], 'image-type': ['machine'] },
      ...{ 'owner-id': ['136693071363'], 'virtualization-type': ['hvm'], 'root-device-type': ['ebs'] },
    })[filter]

/** @throws Refused for a type that does not exist */
const typesOf = (names: readonly string[]) => {
  const unknown = names.find((name) => types[name] === undefined)
  if (unknown !== undefined)
    throw new Refused(
      'InvalidInstanceType',
      `The following supplied instance types do not exist: [${unknown}]`,
    )
  return Object.entries(types).filter(([name]) => names.length === 0 || names.includes(name))
}

const catalogActions: Readonly<Record<string, (given: URLSearchParams) => Xml>> = {
  DescribeRegions: () => ({
    regionInfo: { item: [{ regionName: 'us-east-1', regionEndpoint: 'ec2.us-east-1.amazonaws.com' }] },
  }),
  DescribeAvailabilityZones: () => ({
    availabilityZoneInfo: { item: zones.map((zoneName) => ({ zoneName, zoneState: 'available' })) },
  }),
  DescribeInstanceTypes: (given) => ({
    instanceTypeSet: {
      item: typesOf(listOf(given, 'InstanceType')).map(
        ([instanceType, { vcpu, memoryMiB, architecture }]) => ({
          ...{ instanceType, vCpuInfo: { defaultVCpus: vcpu }, memoryInfo: { sizeInMiB: memoryMiB } },
          processorInfo: { supportedArchitectures: { item: [architecture] } },
          supportedUsageClasses: { item: ['on-demand', 'spot'] },
        }),
      ),
    },
  }),
  DescribeInstanceTypeOfferings: () => ({
    instanceTypeOfferingSet: {
      item: Object.keys(types).flatMap((instanceType) =>
        zones.map((location) => ({ instanceType, locationType: 'availability-zone', location })),
      ),
    },
  }),
  DescribeSubnets: (given) => ({
    subnetSet: {
      item: listOf(given, 'SubnetId').map((subnetId) => ({
        ...{ subnetId, vpcId: 'vpc-site', availabilityZone: subnets[subnetId] ?? '' },
      })),
    },
  }),
  DescribeImages: (given) => ({
    imagesSet: {
      item: (given.has('ImageId.1') ? imagesOf(listOf(given, 'ImageId')) : images)
        .filter(({ name, architecture }) => filtered(given, imageTexts(name, architecture)))
        .map(({ root, id, name, architecture }) => ({
          rootDeviceName: root,
          ...{ imageId: id, name, architecture, imageState: 'available', imageOwnerId: '136693071363' },
          platformDetails: 'Linux/UNIX',
        })),
    },
  }),
}

const perform = (
  { world, groups, account }: { world: World; groups: Groups; account: string },
  action: string,
  given: URLSearchParams,
): Xml => {
  if (given.get('DryRun') === 'true')
    throw new Refused('DryRunOperation', 'Request would have succeeded, but DryRun flag is set.', 412)
  if (action === 'RunInstances')
    return {
      ...{ reservationId: `r-${hex(8)}`, ownerId: account },
      instancesSet: { item: runInstances(world, groups, given).map((one) => machineXml(world, one)) },
    }
  if (action === 'DescribeInstances') {
    const { machines, next } = describeInstances(world, given)
    return {
      reservationSet: {
        item: machines.map((machine) => ({
          ...{ reservationId: `r-${machine.id.slice(2)}`, ownerId: account },
          instancesSet: { item: [machineXml(world, machine)] },
        })),
      },
      ...(next === undefined ? {} : { nextToken: next }),
    }
  }
  if (action === 'StartInstances') return change(world, given, 'start')
  if (action === 'StopInstances') return change(world, given, 'stop')
  if (action === 'TerminateInstances') return change(world, given, 'end')
  if (action === 'GetConsoleOutput') {
    const machine = world.machines.get(given.get('InstanceId') ?? '')
    if (machine === undefined) throw new Refused('InvalidInstanceID.NotFound', 'The instance does not exist')
    return consoleOf(world, [machine])
  }
  if (action === 'GetCallerIdentity')
    return {
      GetCallerIdentityResult: {
        ...{ Arn: `arn:aws:iam::${account}:user/test`, UserId: 'AIDATEST', Account: account },
      },
    }
  const found = groupActions(groups, action, given) ?? catalogActions[action]?.(given)
  if (found === undefined) throw new Refused('InvalidAction', `The action ${action} is not valid`)
  return found
}

const productOf = (attributes: Record<string, string>, unit: string, price: number): string =>
  JSON.stringify({
    product: { sku: hex(8), attributes },
    terms: {
      OnDemand: {
        offer: { priceDimensions: { dimension: { unit, pricePerUnit: { USD: price.toFixed(10) } } } },
      },
    },
  })

/** AWS's price list: two entries a page. */
const products = (body: string): { status: number; text: string } => {
  const { Filters, NextToken = '0' } = JSON.parse(body) as {
    Filters: { Field: string; Value: string }[]
    NextToken?: string
  }
  const of = (field: string): string | undefined => Filters.find(({ Field }) => Field === field)?.Value
  const isHere = of('regionCode') === 'us-east-1'
  const all = !isHere
    ? []
    : of('productFamily') === 'Storage'
      ? Object.entries(ec2DiskPrices).map(([name, price]) =>
          productOf({ volumeApiName: name }, 'GB-Mo', price),
        )
      : Object.entries(ec2Prices).map(([name, price]) => productOf({ instanceType: name }, 'Hrs', price))
  const next = Number(NextToken) + 2
  const page = {
    ...{ FormatVersion: 'aws_v1', PriceList: all.slice(next - 2, next) },
    ...(next < all.length ? { NextToken: String(next) } : {}),
  }
  return { status: 200, text: JSON.stringify(page) }
}

/** Pricing and its refusals are JSON. */
const pricesAnswer = (world: World, body: string, isRight: boolean): { status: number; text: string } => {
  const refused = (code: string, message: string, status = 400) => ({
    status,
    text: JSON.stringify({ __type: code, message }),
  })
  if (!isRight) return refused('UnrecognizedClientException', 'The security token is invalid.')
  if (world.isThrottled('GetProducts')) return refused('ThrottlingException', 'Rate exceeded')
  if (world.settings.noPrices) return refused('AccessDeniedException', 'not authorized: pricing:GetProducts')
  return products(body)
}

/** Whether the request's signature (version 4) was made with the site's secret. */
const isSigned = async (
  key: AccessKey,
  request: IncomingMessage,
  body: string,
  url: string,
): Promise<boolean> => {
  const { authorization = '', 'x-amz-date': datetime } = request.headers
  const [, keyId = '', region = '', service = ''] =
    /Credential=([^/]+)\/\d+\/([^/]+)\/([^/]+)\//.exec(authorization) ?? []
  const [, names = ''] = /SignedHeaders=([^,]+)/.exec(authorization) ?? []
  const [, signature = ''] = /Signature=([0-9a-f]{64})/.exec(authorization) ?? []
  if (keyId !== key.accessKeyId || typeof datetime !== 'string') return false
  const headers = Object.fromEntries(
    names
      .split(';')
      .filter((name) => name !== 'host' && name !== 'x-amz-date')
      .map((name) => [name, String(request.headers[name] ?? '')]),
  )
  const signer = new AwsV4Signer({
    ...{ method: 'POST', url, headers, body, datetime, region, service, allHeaders: true },
    ...{ accessKeyId: keyId, secretAccessKey: key.secretAccessKey },
  })
  const expected = Buffer.from(await signer.signature())
  return expected.length === signature.length && timingSafeEqual(expected, Buffer.from(signature))
}

/** EC2 and STS over the machines of a world: answers requests that are signed with the key. */
export const openEc2Site = (world: World, key: AccessKey): RequestListener => {
  const site = { world, groups: new Map() as Groups, account: accountOf(key) }
  return (request, response) => {
    void (async () => {
      const body = await bodyOf(request)
      if (request.headers['x-amz-target'] === 'AWSPriceListService.GetProducts') {
        world.calls.set('GetProducts', (world.calls.get('GetProducts') ?? 0) + 1)
        const url = `http://${request.headers.host ?? ''}${request.url ?? '/'}`
        const { status, text } = pricesAnswer(world, body, await isSigned(key, request, body, url))
        response.writeHead(status, { 'content-type': 'application/x-amz-json-1.1' }).end(text)
        return
      }
      const given = new URLSearchParams(body)
      const action = given.get('Action') ?? ''
      world.calls.set(action, (world.calls.get(action) ?? 0) + 1)
      if (action === 'RunInstances' || action === 'TerminateInstances')
        world.changes.push({ action, at: Date.now() })
      const answer = await answerOf(action, async () => {
        const url = `http://${request.headers.host ?? ''}${request.url ?? '/'}`
        if (!(await isSigned(key, request, body, url)))
          throw new Refused(
            'AuthFailure',
            'AWS was not able to validate the provided access credentials',
            401,
          )
        if (world.settings.expired)
          throw action === 'GetCallerIdentity'
            ? new Refused('ExpiredToken', 'The security token included in the request is expired', 403)
            : new Refused('RequestExpired', 'Request has expired.')
        if (world.isThrottled(action))
          throw new Refused('RequestLimitExceeded', 'Request limit exceeded.', 503)
        return perform(site, action, given)
      })
      if (world.isLost(action)) {
        request.socket.destroy()
        return
      }
      response.writeHead(answer.status, { 'content-type': 'text/xml;charset=UTF-8' }).end(answer.text)
    })().catch((error: unknown) => {
      response.destroy(error as Error)
    })
  }
}

/** A machine of another owner in the same account. */
export const foreignEc2 = (world: World): CloudMachine =>
  makeMachine(world, {
    ...{ state: 'running', zone: zones[0]!, type: 'm5.large', image: 'ami-debian12' },
    tags: new Map([['Name', 'of somebody else']]),
  })
