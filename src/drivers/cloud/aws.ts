import type { _InstanceType, Instance, InstanceTypeInfo, Tag, VolumeType } from '@aws-sdk/client-ec2'
import { createHash } from 'node:crypto'
import { Ec2Error, type Ec2 } from '../../clients/ec2.ts'
import { append } from '../../lists.ts'
import { awsPrices } from './aws-prices.ts'
import {
  CloudError,
  tags,
  userDataOf,
  type CloudDriver,
  type CloudFault,
  type Machine,
  type MachineWish,
} from './contract.ts'
import { openKnown, type Known } from './known.ts'
import { priced } from './priced.ts'

const states: Readonly<Record<string, Machine['state']>> = {
  pending: 'pending',
  running: 'running',
  stopping: 'stopping',
  stopped: 'stopped',
  'shutting-down': 'ending',
  terminated: 'gone',
}

const tagOf = (given: readonly Tag[] | undefined, name: string): string | undefined =>
  given?.find(({ Key }) => Key === name)?.Value

const machineOf = (instance: Instance): Machine => ({
  id: instance.InstanceId ?? '',
  reference: tagOf(instance.Tags, tags.reference),
  instanceId: tagOf(instance.Tags, tags.instance),
  state: states[instance.State?.Name ?? ''] ?? 'pending',
  publicAddress: instance.PublicIpAddress,
  privateAddress: instance.PrivateIpAddress,
  zone: instance.Placement?.AvailabilityZone,
  reason: instance.StateReason?.Code ?? undefined,
})

const throttles = new Set([
  'RequestLimitExceeded',
  'Throttling',
  'ThrottlingException',
  'EC2ThrottledException',
])
const noCapacity = new Set(['InsufficientInstanceCapacity', 'InsufficientHostCapacity', 'SpotMaxPriceTooLow'])
const noQuota = new Set([
  ...['InstanceLimitExceeded', 'VcpuLimitExceeded', 'MaxSpotInstanceCountExceeded'],
  ...['VolumeLimitExceeded', 'SecurityGroupLimitExceeded'],
])
const noLogin = new Set([
  ...[
    'AuthFailure',
    'UnauthorizedOperation',
    'InvalidClientTokenId',
    'SignatureDoesNotMatch',
    'ExpiredToken',
  ],
  ...['AccessDenied', 'OptInRequired', 'RequestExpired', 'Blocked', 'MissingAuthenticationToken'],
])

/** `zone`: the one that was asked for a machine. */
const faultOf = ({ code, status }: Ec2Error, zone: string | undefined): CloudFault => {
  if (throttles.has(code)) return 'throttled'
  if (noCapacity.has(code)) return 'capacity'
  // This zone does not have the machine type; another one may.
  if (code === 'Unsupported' && zone !== undefined) return 'capacity'
  if (noQuota.has(code)) return 'quota'
  if (noLogin.has(code)) return 'credential'
  if (code === 'InvalidInstanceID.NotFound') return 'missing'
  if (code === 'denied') return 'refused'
  // An earlier request with the token had other user data, as of another version: its machine is found
  // by its tag.
  if (code === 'IdempotentParameterMismatch') return 'away'
  return status === undefined || status >= 500 ? 'away' : 'refused'
}

const named = async <T>(work: Promise<T>, zone?: string): Promise<T> => {
  try {
    return await work
  } catch (error) {
    if (!(error instanceof Ec2Error)) throw error
    throw new CloudError(faultOf(error, zone), `aws ${error.message}`, { cause: error })
  }
}

/** One firewall for each service and set of networks: many machines share it. */
const groupName = ({ service, sshSourceRanges, sshPort }: MachineWish): string =>
  `orrery-${createHash('sha256')
    .update(JSON.stringify([service, [...sshSourceRanges].sort(), ...(sshPort === 22 ? [] : [sshPort])]))
    .digest('hex')
    .slice(0, 24)}`

/** The group of a name: the one that is there, or a new one. */
const namedGroup = async (
  ec2: Ec2,
  { service }: MachineWish,
  name: string,
  vpc: string | undefined,
): Promise<string> => {
  const find = async (): Promise<string | undefined> =>
    (
      await ec2.ask((client, sdk) =>
        client.send(
          new sdk.DescribeSecurityGroupsCommand({
            Filters: [
              { Name: 'group-name', Values: [name] },
              ...(vpc === undefined ? [] : [{ Name: 'vpc-id', Values: [vpc] }]),
            ],
          }),
        ),
      )
    ).SecurityGroups?.[0]?.GroupId
  const known = await find()
  if (known !== undefined) return known
  try {
    const made = await ec2.ask((client, sdk) =>
      client.send(
        new sdk.CreateSecurityGroupCommand({
          GroupName: name,
          Description: 'SSH of machines that Orrery makes',
          ...(vpc === undefined ? {} : { VpcId: vpc }),
          TagSpecifications: [
            { ResourceType: 'security-group', Tags: [{ Key: tags.service, Value: service }] },
          ],
        }),
      ),
    )
    return made.GroupId!
  } catch (error) {
    // Another machine of the same networks was faster.
    const other =
      error instanceof Ec2Error && error.code === 'InvalidGroup.Duplicate' ? await find() : undefined
    if (other === undefined) throw error
    return other
  }
}

const groupOf = async (ec2: Ec2, wish: MachineWish, vpc: string | undefined): Promise<string> => {
  const id = await namedGroup(ec2, wish, groupName(wish), vpc)
  try {
    await ec2.ask((client, sdk) =>
      client.send(
        new sdk.AuthorizeSecurityGroupIngressCommand({
          GroupId: id,
          IpPermissions: [
            {
              ...{ IpProtocol: 'tcp', FromPort: wish.sshPort, ToPort: wish.sshPort },
              IpRanges: wish.sshSourceRanges
                .filter((one) => !one.includes(':'))
                .map((CidrIp) => ({ CidrIp })),
              Ipv6Ranges: wish.sshSourceRanges
                .filter((one) => one.includes(':'))
                .map((CidrIpv6) => ({ CidrIpv6 })),
            },
          ],
        }),
      ),
    )
  } catch (error) {
    if (!(error instanceof Ec2Error) || error.code !== 'InvalidPermission.Duplicate') throw error
  }
  return id
}

const vpcOf = async (ec2: Ec2, subnet: string | undefined): Promise<string | undefined> =>
  subnet === undefined
    ? undefined
    : (await ec2.ask((client, sdk) => client.send(new sdk.DescribeSubnetsCommand({ SubnetIds: [subnet] }))))
        .Subnets?.[0]?.VpcId

/** What EC2 has answered: firewalls by their names and subnets, root devices by their images. */
interface AwsKnown {
  firewalls: Known
  rootDevices: Known
}

/**
 * Requests one machine in one zone. After a refusal for lack of capacity, a request with the same
 * reference may go to another zone.
 */
const runOne = async (
  ec2: Ec2,
  { firewalls, rootDevices }: AwsKnown,
  wish: MachineWish,
): Promise<Machine> => {
  const { image, diskGiB } = wish
  const firewall = `${groupName(wish)} ${wish.subnet ?? ''}`
  const find = () => firewalls.of(firewall, async () => groupOf(ec2, wish, await vpcOf(ec2, wish.subnet)))
  const disk = diskGiB === undefined ? undefined : await rootDevices.of(image, () => rootDeviceOf(ec2, image))
  try {
    return await runIn(ec2, wish, { group: await find(), disk })
  } catch (error) {
    if (!(error instanceof Ec2Error) || error.code !== 'InvalidGroup.NotFound') throw error
    // Somebody has deleted the group.
    firewalls.forget(firewall)
    return runIn(ec2, wish, { group: await find(), disk })
  }
}

/**
 * The name of an image's root device: a disk under another name would be a second one beside a
 * small root.
 */
const rootDeviceOf = async (ec2: Ec2, image: string): Promise<string> => {
  const { Images } = await ec2.ask((client, sdk) =>
    client.send(new sdk.DescribeImagesCommand({ ImageIds: [image] })),
  )
  const name = Images?.[0]?.RootDeviceName
  if (name !== undefined) return name
  throw new CloudError(
    'refused',
    `aws shows no root device of the image ${image}; name another image in imageReference of the target, or leave ` +
      'out configuration.diskSizeGiB',
  )
}

const runIn = async (
  ec2: Ec2,
  wish: MachineWish,
  { group, disk }: { group: string; disk: string | undefined },
): Promise<Machine> => {
  const marks = {
    ...{ Name: wish.name, [tags.service]: wish.service, [tags.reference]: wish.reference },
    [tags.instance]: wish.instanceId,
  }
  const own = Object.entries(marks).map(([Key, Value]) => ({ Key, Value }))
  const { Instances } = await ec2.ask((client, sdk) =>
    client.send(
      new sdk.RunInstancesCommand({
        ...{ MinCount: 1, MaxCount: 1, ImageId: wish.image },
        // Each zone has a token of its own: a token is bound to all values of its request.
        ClientToken: createHash('sha256')
          .update(JSON.stringify([wish.reference, wish.zone ?? '']))
          .digest('hex'),
        InstanceType: wish.machineType as _InstanceType,
        SecurityGroupIds: [group],
        ...(wish.subnet === undefined ? {} : { SubnetId: wish.subnet }),
        ...(wish.zone === undefined ? {} : { Placement: { AvailabilityZone: wish.zone } }),
        ...(wish.spot
          ? { InstanceMarketOptions: { MarketType: 'spot', SpotOptions: { SpotInstanceType: 'one-time' } } }
          : {}),
        ...(wish.diskGiB === undefined || disk === undefined
          ? {}
          : {
              BlockDeviceMappings: [
                {
                  DeviceName: disk,
                  Ebs: {
                    ...{ VolumeSize: Math.ceil(wish.diskGiB), DeleteOnTermination: true },
                    VolumeType: (wish.diskType ?? 'gp3') as VolumeType,
                  },
                },
              ],
            }),
        UserData: Buffer.from(userDataOf(wish.login)).toString('base64'),
        TagSpecifications: [
          { ResourceType: 'instance', Tags: own },
          { ResourceType: 'volume', Tags: own },
        ],
      }),
    ),
  )
  return machineOf(Instances![0]!)
}

/** EC2 takes as many values of a filter in one request. */
const idsAtOnce = 200

/** The machines that fit all filters. */
const describe = async (
  ec2: Ec2,
  filters: Readonly<Record<string, readonly string[]>>,
): Promise<Machine[]> => {
  const found: Machine[] = []
  let next: string | undefined
  do {
    const token = next
    const page = await ec2.ask((client, sdk) =>
      client.send(
        new sdk.DescribeInstancesCommand({
          Filters: Object.entries(filters).map(([Name, Values]) => ({ Name, Values: [...Values] })),
          ...(token === undefined ? {} : { NextToken: token }),
        }),
      ),
    )
    append(
      found,
      (page.Reservations ?? []).flatMap(({ Instances = [] }) => Instances.map(machineOf)),
    )
    next = page.NextToken
  } while (next !== undefined)
  return found
}

const architectureOf = (name: string | undefined): string =>
  name === 'x86_64' ? 'amd64' : name === undefined ? '' : name.replace(/_mac$/, '')

const mostTypes = 2_000
const mostImages = 1_000

const typesOf = async (ec2: Ec2) => {
  const found: InstanceTypeInfo[] = []
  let next: string | undefined
  do {
    const token = next
    const page = await ec2.ask((client, sdk) =>
      client.send(
        new sdk.DescribeInstanceTypesCommand({
          MaxResults: 100,
          ...(token === undefined ? {} : { NextToken: token }),
        }),
      ),
    )
    append(found, page.InstanceTypes ?? [])
    next = page.NextToken
  } while (next !== undefined && found.length < mostTypes)
  return found
}

const zonesOf = async (ec2: Ec2): Promise<string[]> =>
  (
    (await ec2.ask((client, sdk) => client.send(new sdk.DescribeAvailabilityZonesCommand({}))))
      .AvailabilityZones ?? []
  ).flatMap(({ ZoneName }) => (ZoneName === undefined ? [] : [ZoneName]))

const offersOf = async (ec2: Ec2): Promise<Awaited<ReturnType<CloudDriver['catalog']>>> => {
  const zones = await zonesOf(ec2)
  const types = await typesOf(ec2)
  const images =
    (
      await ec2.ask((client, sdk) =>
        client.send(
          new sdk.DescribeImagesCommand({
            // Debian's and Canonical's own accounts, and the caller's.
            Owners: ['136693071363', '099720109477', 'self'],
            Filters: [{ Name: 'state', Values: ['available'] }],
          }),
        ),
      )
    ).Images ?? []
  return {
    region: ec2.region,
    machines: types.map((type) => ({
      providerTypeId: type.InstanceType ?? '',
      zones,
      family: (type.InstanceType ?? '').split('.')[0] ?? '',
      vcpu: type.VCpuInfo?.DefaultVCpus ?? 0,
      memoryMiB: type.MemoryInfo?.SizeInMiB ?? 0,
      architecture: architectureOf(type.ProcessorInfo?.SupportedArchitectures?.[0]),
      gpuCount: (type.GpuInfo?.Gpus ?? []).reduce((sum, { Count = 0 }) => sum + Count, 0),
      supportsSpot: type.SupportedUsageClasses?.includes('spot') ?? false,
    })),
    images: images.slice(0, mostImages).map((image) => ({
      providerImageId: image.ImageId ?? '',
      name: image.Name ?? image.ImageId ?? '',
      operatingSystem: image.PlatformDetails ?? 'Linux/UNIX',
      architecture: architectureOf(image.Architecture),
      source: image.OwnerId ?? '',
      status: image.State ?? '',
      minimumDiskGiB: image.BlockDeviceMappings?.[0]?.Ebs?.VolumeSize ?? 0,
      deprecated: image.DeprecationTime !== undefined && Date.parse(image.DeprecationTime) < Date.now(),
    })),
    disks: ['gp3', 'gp2', 'io2', 'st1', 'sc1'].map((providerTypeId) => ({
      ...{ providerTypeId, name: providerTypeId, zones },
    })),
    warnings: [
      ...(images.length > mostImages ? [`${String(images.length - mostImages)} images are left out`] : []),
    ],
  }
}

const isThere = ({ state }: Machine): boolean => state !== 'gone' && state !== 'ending'

/** EC2 as a provider of machines. */
export const awsDriver = (
  ec2: Ec2,
  known: AwsKnown = { firewalls: openKnown(), rootDevices: openKnown() },
): CloudDriver => ({
  zonalSubnets: true,
  identity: async () => (await named(ec2.identity())).arn,
  account: async () => (await named(ec2.identity())).account,
  create: (wish) => named(runOne(ec2, known, wish), wish.zone),
  find: async (reference) =>
    (await named(describe(ec2, { [`tag:${tags.reference}`]: [reference] }))).filter(isThere),
  async look(ids) {
    const found: Machine[] = []
    // One unknown id among `InstanceIds` makes EC2 refuse the whole request; a filter leaves it out.
    for (let at = 0; at < ids.length; at += idsAtOnce)
      append(found, await named(describe(ec2, { 'instance-id': ids.slice(at, at + idsAtOnce) })))
    return found
  },
  list: async (service) =>
    (await named(describe(ec2, { [`tag:${tags.service}`]: [service] }))).filter(isThere),
  start: async (id) => {
    await named(ec2.ask((client, sdk) => client.send(new sdk.StartInstancesCommand({ InstanceIds: [id] }))))
  },
  stop: async (id) => {
    await named(ec2.ask((client, sdk) => client.send(new sdk.StopInstancesCommand({ InstanceIds: [id] }))))
  },
  async destroy(id) {
    try {
      await named(
        ec2.ask((client, sdk) => client.send(new sdk.TerminateInstancesCommand({ InstanceIds: [id] }))),
      )
    } catch (error) {
      if (!(error instanceof CloudError) || error.fault !== 'missing') throw error
    }
  },
  async console(id) {
    const { Output = '' } = await named(
      ec2.ask((client, sdk) => client.send(new sdk.GetConsoleOutputCommand({ InstanceId: id }))),
    )
    return Buffer.from(Output, 'base64').toString()
  },
  // A zone without the type refuses its machine as one without capacity does.
  zonesOf: () => named(zonesOf(ec2)),
  catalog: async () => priced('aws', await named(offersOf(ec2)), () => named(awsPrices(ec2))),
})
