import { afterAll, beforeAll, describe, expect, jest, test } from '@jest/globals'
import { randomUUID } from 'node:crypto'
import { createServer } from 'node:http'
import { Agent } from 'node:https'
import type { AddressInfo } from 'node:net'
import { parse } from 'yaml'
import { openComputeEngine } from '../../src/clients/compute-engine.ts'
import { Ec2Error, openEc2 } from '../../src/clients/ec2.ts'
import { openHttp, type Http } from '../../src/clients/http.ts'
import { awsDriver } from '../../src/drivers/cloud/aws.ts'
import { gcpDriver } from '../../src/drivers/cloud/gcp.ts'
import type { CloudDriver, MachineWish } from '../../src/drivers/cloud/contract.ts'
import { startCloud, type CloudMachine, type CloudSite } from '../../sites/cloud.ts'
import { until } from '../failures/programs.ts'

/** The contract of providers: every driver keeps all of it. */

jest.setTimeout(60_000)
let site: CloudSite
let http: Http
beforeAll(async () => {
  site = await startCloud({ bootMs: 50 })
  http = openHttp({ addressAllowed: () => true })
})
afterAll(async () => {
  http?.close()
  await site?.stop()
})

interface Provider {
  open: (secret?: 'wrong') => CloudDriver
  foreign: () => CloudMachine
  type: string
  image: string
  zones: string[]
  actions: { create: string; list: string }
  perHour: number
  disk: string
  unpriced: string
}

const { privateKey: otherKey } = await (async () => {
  const { generateKeyPairSync } = await import('node:crypto')
  return generateKeyPairSync('rsa', {
    ...{ modulusLength: 2_048, publicKeyEncoding: { type: 'spki', format: 'pem' } },
    privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
  })
})()

const google = (secret?: 'wrong') => {
  const { endpoint, region, credential } = site.google
  return openComputeEngine({
    ...{ http, place: { project: credential.project_id, region, endpoint } },
    key: {
      clientEmail: credential.client_email,
      privateKey: secret === undefined ? credential.private_key : otherKey,
    },
  })
}

const providers: Record<string, Provider> = {
  aws: {
    open: (secret) =>
      awsDriver(
        openEc2({
          ...{ http, place: { region: site.region, endpoint: site.endpoint } },
          key: { ...site.accessKey, ...(secret === undefined ? {} : { secretAccessKey: 'x'.repeat(40) }) },
        }),
      ),
    foreign: () => site.foreign(),
    ...{ type: 'm5.large', image: 'ami-debian12', zones: ['us-east-1a', 'us-east-1b', 'us-east-1c'] },
    actions: { create: 'RunInstances', list: 'DescribeInstances' },
    ...{ perHour: 0.096, disk: 'gp2', unpriced: 'm7g.large' },
  },
  gcp: {
    open: (secret) => gcpDriver(google(secret)),
    foreign: () => site.google.foreign(),
    ...{ type: 'e2-standard-2', image: 'projects/debian-cloud/global/images/family/debian-12' },
    zones: ['us-east1-b', 'us-east1-c', 'us-east1-d'],
    actions: { create: 'instances.insert', list: 'instances.aggregatedList' },
    ...{ perHour: 2 * 0.02181159 + 8 * 0.00292353, disk: 'pd-balanced', unpriced: 't2a-standard-2' },
  },
}

describe.each(Object.keys(providers))('%s', (name) => {
  const provider = providers[name]!
  const service = randomUUID()
  let driver: CloudDriver
  beforeAll(() => {
    driver = provider.open()
  })

  const wish = (more: Partial<MachineWish> = {}): MachineWish => ({
    ...{ reference: randomUUID(), service, instanceId: 'Ünser "instance" {{1}}', name: 'a name\u0007; $(x)' },
    ...{ machineType: provider.type, image: provider.image, spot: false },
    ...{ sshPort: 22, sshSourceRanges: ['192.0.2.0/24', '2001:db8::/32'] },
    login: {
      username: 'ada',
      publicKey: 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKeyOfTheInstance0000000000000000000000',
    },
    ...more,
  })
  const reached = (id: string, state: string) =>
    until(`${id} is ${state}`, 120, async () =>
      (await driver.look([id])).find((machine) => machine.state === state),
    )
  const living = () => [...site.machines.values()].filter(({ state }) => state !== 'terminated').length

  test('a machine is made once by its reference, found, looked at, listed, stopped, started, ended', async () => {
    const asked = wish()
    const machine = await driver.create(asked)
    expect((await driver.create(asked)).id).toBe(machine.id)
    expect(machine).toMatchObject({ reference: asked.reference, zone: provider.zones[0] })
    expect((await driver.find(asked.reference)).map(({ id }) => id)).toEqual([machine.id])
    expect(await driver.find(randomUUID())).toEqual([])
    const running = await reached(machine.id, 'running')
    expect(running.publicAddress).toMatch(/^192\.0\.2\./)
    expect(site.machines.get(machine.id)!.keys).toEqual([asked.login.publicKey])
    await driver.start(machine.id)
    await driver.stop(machine.id)
    await reached(machine.id, 'stopped')
    await driver.stop(machine.id)
    await driver.start(machine.id)
    await reached(machine.id, 'running')
    expect((await driver.list(service)).map(({ id, instanceId }) => [id, instanceId])).toEqual([
      [machine.id, asked.instanceId],
    ])
    await driver.destroy(machine.id)
    await driver.destroy(machine.id)
    expect(await driver.list(service)).toEqual([])
    expect((await driver.look([machine.id])).every(({ state }) => state === 'gone')).toBe(true)
  })

  test('an id and a name of any script arrive whole, and a name of an account is a name to YAML', async () => {
    const text = '🔭'.repeat(255)
    const login = { ...wish().login, username: 'null' }
    const { id } = await driver.create(wish({ instanceId: text, name: text, login }))
    expect((await driver.look([id])).map(({ instanceId }) => instanceId)).toEqual([text])
    const { tags, description, userData } = site.machines.get(id)!
    expect(tags.get('Name') ?? description).toMatch(text)
    if (name === 'aws') expect(parse(userData).users).toMatchObject([{ name: 'null' }])
    else expect(userData).toBe(`null:${login.publicKey}`)
    await driver.destroy(id)
  })

  test('what others own is neither listed nor found, and many are looked at in one request, with some that are not there', async () => {
    const stranger = provider.foreign()
    const machines = await Promise.all(
      Array.from({ length: 5 }, () => driver.create(wish({ sshSourceRanges: ['198.51.100.0/24'] }))),
    )
    const ids = machines.map(({ id }) => id)
    expect((await driver.list(service)).map(({ id }) => id).toSorted()).toEqual(ids.toSorted())
    const before = site.calls.get(provider.actions.list) ?? 0
    expect((await driver.look(ids)).map(({ id }) => id).toSorted()).toEqual(ids.toSorted())
    expect(site.calls.get(provider.actions.list)).toBe(before + 1)
    const absent = ids[0]!.replace(/.{6}$/, '000000')
    expect((await driver.look([absent, ...ids])).map(({ id }) => id).toSorted()).toEqual(ids.toSorted())
    expect(site.calls.get(provider.actions.list)).toBe(before + 2)
    const many = Array.from({ length: 250 }, (_, at) => absent.replace(/.{3}$/, String(100 + at)))
    expect((await driver.look([...many, ...ids])).map(({ id }) => id).toSorted()).toEqual(ids.toSorted())
    expect(await driver.look([])).toEqual([])
    for (const id of ids) await driver.destroy(id)
    expect(stranger.state).toBe('running')
  })

  if (name === 'aws') {
    test('a spot machine of EC2 is not stopped', async () => {
      const { id } = await driver.create(wish({ spot: true }))
      await reached(id, 'running')
      await expect(driver.stop(id)).rejects.toMatchObject({ fault: 'refused' })
      expect(await reached(id, 'running')).toMatchObject({ id })
      await driver.destroy(id)
    })

    test('a machine that was asked for with other user data is found by its reference', async () => {
      const asked = wish()
      const { id } = await driver.create(asked)
      const login = { ...asked.login, username: 'eve' }
      await expect(driver.create({ ...asked, login })).rejects.toMatchObject({ fault: 'away', passes: true })
      expect((await driver.find(asked.reference)).map((machine) => machine.id)).toEqual([id])
      await driver.destroy(id)
    })

    test('an endpoint at AWS is that of EC2 alone; any other one is asked for the account too', async () => {
      const hosts: string[] = []
      class Noting extends Agent {
        override createConnection(
          { host }: { host?: string | null },
          callback?: (error: Error | null, stream: never) => void,
        ): undefined {
          hosts.push(host ?? '')
          process.nextTick(() => callback?.(new Error('no way out'), undefined as never))
        }
      }
      const kept = { 'http:': http.agents.kept['http:'], 'https:': new Noting() }
      for (const host of ['ec2.eu-west-1.amazonaws.com', 'cloud.example.org']) {
        const place = { region: 'eu-west-1', endpoint: `https://${host}` }
        const noting = { ...http, agents: { ...http.agents, kept } }
        await expect(openEc2({ http: noting, place, key: site.accessKey }).identity()).rejects.toBeInstanceOf(
          Ec2Error,
        )
      }
      expect(hosts).toEqual(['sts.eu-west-1.amazonaws.com', 'cloud.example.org'])
    })

    test('one look at firewall and image serves many machines; a firewall that somebody deletes is made again', async () => {
      const looks = () =>
        ['DescribeSecurityGroups', 'DescribeImages'].map((action) => site.calls.get(action) ?? 0)
      const own = wish({ sshSourceRanges: ['203.0.113.0/24'], diskGiB: 20 })
      const first = await driver.create(own)
      const before = looks()
      const second = await driver.create({ ...own, reference: randomUUID() })
      expect(looks()).toEqual(before)
      const { endpoint, accessKey: key, region } = site
      const ec2 = openEc2({ http, place: { region, endpoint }, key })
      await ec2.ask(async (client, sdk) => {
        const { SecurityGroups = [] } = await client.send(new sdk.DescribeSecurityGroupsCommand({}))
        for (const { GroupId } of SecurityGroups)
          await client.send(new sdk.DeleteSecurityGroupCommand({ GroupId }))
      })
      const third = await driver.create({ ...own, reference: randomUUID() })
      for (const { id } of [first, second, third]) {
        expect([...site.machines.get(id)!.disks.values()]).toEqual([20])
        await driver.destroy(id)
      }
    })
  }

  test('questions to the provider leave the open requests of others through the same client alone', async () => {
    const arrived = Promise.withResolvers<unknown>()
    const asked = Promise.withResolvers<unknown>()
    await using slow = createServer((_, response) => {
      arrived.resolve('')
      void asked.promise.then(() => response.end('whole'))
    })
    await new Promise<void>((resolve) => slow.listen(0, '127.0.0.1', resolve))
    const other = http.request(`http://127.0.0.1:${String((slow.address() as AddressInfo).port)}/`, {
      ...{ deadlineMs: 60_000, limitBytes: 100 },
    })
    await arrived.promise
    await driver.identity()
    await driver.catalog()
    asked.resolve('')
    expect(String(await (await other).bytes(100))).toBe('whole')
  })

  test('an answer that is lost makes no second machine', async () => {
    const count = living()
    site.faults.loseAnswers(provider.actions.create, 1)
    const asked = wish()
    await expect(driver.create(asked)).rejects.toMatchObject({ fault: 'away', passes: true })
    const machine = await driver.create(asked)
    expect(living()).toBe(count + 1)
    await driver.destroy(machine.id)
  })

  if (name === 'gcp')
    test('without a zone, Compute Engine is asked for the first one that offers the machine type', async () => {
      site.faults.unsupported(provider.zones[0])
      const { id, zone } = await driver.create(wish())
      site.faults.unsupported(undefined)
      expect(zone).toBe(provider.zones[1])
      await driver.destroy(id)
    })

  if (name === 'gcp')
    test('a stopped machine is started without a look at its state', async () => {
      const { id } = await driver.create(wish())
      await reached(id, 'running')
      await driver.stop(id)
      await reached(id, 'stopped')
      const before = site.calls.get('instances.get')
      await driver.start(id)
      expect(site.calls.get('instances.get')).toBe(before)
      await reached(id, 'running')
      await driver.destroy(id)
    })

  if (name === 'gcp')
    test('a machine that a person has suspended is started by its resumption', async () => {
      const { id } = await driver.create(wish())
      await reached(id, 'running')
      const [zone, own] = id.split('/')
      await google().change('POST', `zones/${zone!}/instances/${own!}/suspend`)
      await reached(id, 'stopped')
      await driver.start(id)
      await reached(id, 'running')
      await driver.destroy(id)
    })

  if (name === 'gcp')
    test('a zone and a subnet are one name each in the address of a request, whatever their texts are', async () => {
      const [zone, other] = provider.zones
      await expect(driver.create(wish({ zone: `${other!}/../${zone!}` }))).rejects.toMatchObject({
        ...{ fault: 'missing', message: expect.stringContaining(`${other!}%2F..%2F${zone!}`) },
      })
      await expect(driver.create(wish({ subnet: 'regions/../subnetworks/default' }))).rejects.toMatchObject({
        fault: 'refused',
      })
      for (const subnet of ['lab?alt=media', 'regions/us-east1/subnetworks/lab?alt=media'])
        await expect(driver.create(wish({ subnet }))).rejects.toMatchObject({
          ...{ fault: 'missing', message: expect.stringContaining('lab%3Falt%3Dmedia') },
        })
    })

  test('every refusal has its kind', async () => {
    site.faults.throttle(provider.actions.list, 1)
    await expect(driver.list(service)).rejects.toMatchObject({ fault: 'throttled', passes: true })
    const zone = provider.zones[0]!
    site.faults.noCapacity(zone)
    const asked = wish({ zone })
    await expect(driver.create(asked)).rejects.toMatchObject({ fault: 'capacity', passes: false })
    site.faults.unsupported(zone)
    await expect(driver.create(wish({ zone }))).rejects.toMatchObject({
      ...{ fault: name === 'aws' ? 'capacity' : 'refused', passes: false },
    })
    site.faults.unsupported(undefined)
    const elsewhere = await driver.create({ ...asked, zone: provider.zones[1]! })
    expect(elsewhere.zone).toBe(provider.zones[1])
    await reached(elsewhere.id, 'running')
    await driver.stop(elsewhere.id)
    await reached(elsewhere.id, 'stopped')
    site.faults.noCapacity(provider.zones[1])
    await expect(driver.start(elsewhere.id)).rejects.toMatchObject({ fault: 'capacity', passes: false })
    site.faults.noCapacity(undefined)
    await driver.destroy(elsewhere.id)
    for (const quota of ['machines', 'processors'] as const) {
      site.faults.noQuota(quota)
      await expect(driver.create(wish())).rejects.toMatchObject({
        ...{ fault: 'quota', passes: false, message: expect.stringContaining('quota of the account raised') },
      })
    }
    site.faults.noQuota(undefined)
    await expect(driver.create(wish({ image: 'none' }))).rejects.toMatchObject({
      fault: expect.stringMatching(/refused|missing/),
    })
    await expect(driver.create(wish({ machineType: 'none' }))).rejects.toMatchObject({ fault: 'refused' })
    const unknown = elsewhere.id.replace(/.{6}$/, '000000')
    await expect(driver.start(unknown)).rejects.toMatchObject({ fault: 'missing' })
    site.faults.expired(true)
    for (const ask of [driver.identity(), driver.list(service), driver.create(wish())])
      await expect(ask).rejects.toMatchObject({ fault: 'credential', passes: false })
    site.faults.expired(false)
    const wrong = provider.open('wrong')
    await expect(wrong.identity()).rejects.toMatchObject({ fault: 'credential' })
    await expect(wrong.list(service)).rejects.toMatchObject({
      fault: 'credential',
      message: expect.not.stringContaining('PRIVATE'),
    })
  })

  test('the zones of a machine type, without images and prices', async () => {
    const count = () => [...site.calls.values()].reduce((sum, calls) => sum + calls, 0)
    const before = count()
    expect(await driver.zonesOf(provider.type)).toEqual(provider.zones)
    expect(count() - before).toBeLessThanOrEqual(2)
  })

  test('the identity and the catalog', async () => {
    expect(await driver.identity()).toMatch(
      name === 'aws' ? /^arn:aws:iam/ : /^site@orrery-site.* in the project/,
    )
    const { machines, images, disks, warnings } = await driver.catalog()
    expect(machines.find(({ providerTypeId }) => providerTypeId === provider.type)).toMatchObject({
      ...{ vcpu: 2, memoryMiB: 8_192, architecture: 'amd64', zones: provider.zones },
    })
    expect([...new Set(images.map(({ architecture }) => architecture))].toSorted()).toEqual([
      'amd64',
      'arm64',
    ])
    expect(disks.length).toBeGreaterThan(0)
    const priced = machines.find(({ providerTypeId }) => providerTypeId === provider.type)!
    expect(priced.pricePerHour).toBeCloseTo(provider.perHour, 9)
    expect(disks.find(({ providerTypeId }) => providerTypeId === provider.disk)!.pricePerGiBMonth).toBe(0.1)
    expect(warnings).toEqual([expect.stringContaining(`no price of 1 machine types (${provider.unpriced})`)])
    site.faults.noPrices(true)
    const without = await driver.catalog()
    site.faults.noPrices(false)
    expect(without.machines.some(({ pricePerHour }) => pricePerHour !== undefined)).toBe(false)
    expect(without.warnings).toEqual([expect.stringContaining('does not tell its prices')])
  })
})
