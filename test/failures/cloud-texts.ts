import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { userInfo } from 'node:os'
import { join } from 'node:path'
import { startCloud, type CloudMachine, type CloudSite } from '../../sites/cloud.ts'
import type { Failures } from '../../bench/tally.ts'
import { openComputeEngine } from '../../src/clients/compute-engine.ts'
import { openEc2 } from '../../src/clients/ec2.ts'
import { openHttp, type Http } from '../../src/clients/http.ts'
import { awsDriver } from '../../src/drivers/cloud/aws.ts'
import { gcpDriver } from '../../src/drivers/cloud/gcp.ts'
import {
  cloudCalls,
  cloudEnvironment,
  machinesOf,
  openClouds,
  withoutPlaybooks,
  type Provider,
} from '../support/cloud.ts'
import { hostileTexts, parts, perRound } from './hostile-texts.ts'
import { dataFolder, removeFolder } from './programs.ts'
import { openPrograms, type Programs } from './rounds.ts'

/** Templates of Ansible, YAML, XML and addresses. */
const templates = ['{{ 7*7 }}', '{%', '#}', '!unsafe', ': ', '<&>', ']]>', '%0A', '../', '#cloud-config', '+']
const providers = ['aws', 'gcp'] as const

/** The files that the playbook and the check leave on the machine. */
const playbookYaml = String.raw`- hosts: all
  gather_facts: false
  tasks:
    - {name: values, shell: {cmd: "echo {{ [texts, named, secret] | to_json | b64encode }} > ~/values"}}
    - {name: words, shell: {cmd: "printf '%s\\0' {{ texts | map('quote') | join(' ') }} > ~/words"}}
    - {name: a process, shell: {cmd: "env -0 > ~/environment"}, environment: "{{ named }}"}
`
const check = String.raw`i=0
while [ $i -lt ${String(perRound)} ]; do eval "printf '%s\\0' \"\$v$i\""; i=$((i + 1)); done > ~/checked`

interface World {
  site: CloudSite
  programs: Programs
  calls: ReturnType<typeof cloudCalls>
  http: Http
  bait: string
}

const capacityTarget = (site: CloudSite, provider: Provider, id: string) => ({
  ...{ id, name: id, ...machinesOf(provider), maximumInstances: 10_000 },
  configuration: { sshPort: site.sshPort, sshUsername: userInfo().username },
})

const targets = '/environments/clouds/cloud-capacity-targets/'

const same = (a: unknown, b: unknown): boolean => JSON.stringify(a) === JSON.stringify(b)
const shown = (value: unknown): string => JSON.stringify(value).slice(0, 2_000)

/** An id or a name that the service has to take. */
const isTakable = (text: string): boolean =>
  /\S/.test(text) && !/\p{Cc}/u.test(text) && [...text].length <= 255

/** What is wrong with an answer that has to refuse the value of a field. */
const refusalProblems = (
  field: string,
  text: string,
  { status, body }: { status: number; body: any },
): string[] => {
  const names = (body?.details ?? []).some(({ path }: { path: string }) => path === field)
  return (status === 400 || status === 422) && names
    ? []
    : [`${field} ${shown(text)} was answered ${String(status)} ${shown(body)}`]
}

/** Texts in places where the service takes them from nobody. */
const playRefused = async ({ programs, site }: World, texts: readonly string[]): Promise<string[]> => {
  const found = await Promise.all(
    texts.map(async (text, at) => {
      const provider = providers[at % providers.length]!
      if (at % 3 === 0) {
        const { configuration, ...target } = capacityTarget(site, provider, `refused-${String(at)}`)
        const body = { ...target, configuration: { ...configuration, sshUsername: text } }
        return refusalProblems('configuration.sshUsername', text, await programs.call('POST', targets, body))
      }
      const field = isTakable(text) ? 'sshUsername' : ['instanceId', 'name'][at % 2]!
      const body = { capacityTargetId: provider, [field]: text }
      const path = '/environments/clouds/cloud-instances/'
      return refusalProblems(field, text, await programs.call('POST', path, body))
    }),
  )
  return found.flat()
}

/** The instance ids that a provider answers for machines, by the ids of the machines. */
const instanceIds = async ({ site, http }: World, provider: Provider, ids: string[]) => {
  const { endpoint, region, accessKey: key } = site
  const { credential, ...google } = site.google
  const driver =
    provider === 'aws'
      ? awsDriver(openEc2({ http, place: { region, endpoint }, key }))
      : gcpDriver(
          openComputeEngine({
            ...{ http, place: { ...google, project: credential.project_id } },
            key: { clientEmail: credential.client_email, privateKey: credential.private_key },
          }),
        )
  return new Map((await driver.look(ids)).map(({ id, instanceId }) => [id, instanceId]))
}

/** What PyYAML, which cloud-init uses, reads in texts. */
const yamlOf = (texts: readonly string[]): any[] =>
  JSON.parse(
    execFileSync(
      '/usr/bin/python3',
      [
        '-I',
        '-c',
        'import json,sys,yaml; print(json.dumps([yaml.safe_load(t) for t in json.load(sys.stdin)]))',
      ],
      { input: JSON.stringify(texts), encoding: 'utf8' },
    ),
  )

/** What is wrong with what the first start of machines reads: one account with one key, and no more. */
const bootProblems = (machines: readonly CloudMachine[]): string[] => {
  const name = userInfo().username
  const isKey = (text: unknown): boolean => typeof text === 'string' && /^ssh-ed25519 [\w+/=]+$/.test(text)
  const ofEc2 = machines.filter(({ id }) => !id.includes('/'))
  const read = yamlOf(ofEc2.map(({ userData }) => userData))
  return machines.flatMap((machine) => {
    const { userData } = machine
    if (machine.id.includes('/'))
      return userData.startsWith(`${name}:`) && isKey(userData.slice(name.length + 1))
        ? []
        : [`the keys of a machine are ${shown(userData)}`]
    const found = read[ofEc2.indexOf(machine)]
    const [key] = found?.users?.[0]?.ssh_authorized_keys ?? []
    const wanted = {
      users: [{ name, shell: '/bin/bash', sudo: 'ALL=(ALL) NOPASSWD:ALL', ssh_authorized_keys: [key] }],
      ssh_pwauth: false,
    }
    return userData.startsWith('#cloud-config\n') && isKey(key) && same(found, wanted)
      ? []
      : [`the user data of a machine are ${shown(userData)}`]
  })
}

/** Each text as the id and as the name of a machine, which takes a login and is ended. */
const playInstances = async (world: World, number: number, texts: readonly string[]): Promise<string[]> => {
  const { programs, calls, site } = world
  const violations: string[] = []
  const machines: CloudMachine[] = []
  const made = await Promise.all(
    texts.map(async (text, at) => {
      // An id is taken once; the name is the text itself.
      const instanceId = `${text} ${String(number)}-${String(at)}`
      const provider = providers[at % providers.length]!
      const of = `the instance ${shown(instanceId)} at ${provider}`
      const wish = { capacityTargetId: provider, instanceId, name: text }
      const { status, body } = await calls.provision(wish)
      if (status !== 202 && !isTakable(instanceId)) {
        violations.push(...refusalProblems('instanceId', instanceId, { status, body }))
        return undefined
      }
      if (status !== 202) {
        violations.push(`${of} was answered ${String(status)} ${shown(body)}`)
        return undefined
      }
      const operation = await calls.over(body.id)
      if (operation.status !== 'completed') violations.push(`${of}: ${shown(operation)}`)
      const path = encodeURIComponent(instanceId)
      const { id, name, providerId } = await programs.get(`/cloud-instances/${path}/`)
      if (!same([id, name], [instanceId, text])) violations.push(`${of} is ${shown([id, name])}`)
      const machine = site.machines.get(providerId)
      if (machine === undefined) {
        violations.push(`${of} has no machine`)
        return undefined
      }
      machines.push(machine)
      const tag =
        provider === 'aws' ? machine.tags.get('Name') : machine.description.replace(/: made by Orrery$/, '')
      if (tag !== text) violations.push(`${of} has the name ${shown(tag)} there`)
      return { of, provider, instanceId, providerId, path }
    }),
  )
  const all = made.filter((one) => one !== undefined)
  violations.push(...bootProblems(machines))
  for (const provider of providers) {
    const own = all.filter((one) => one.provider === provider)
    const ids = own.map(({ providerId }) => String(providerId))
    const answered = await instanceIds(world, provider, ids)
    for (const { of, instanceId, providerId } of own)
      if (answered.get(providerId) !== instanceId)
        violations.push(`${of} is ${shown(answered.get(providerId))} for its provider`)
  }
  await Promise.all(
    all.map(async ({ of, path }) => {
      const operation = await calls.over((await calls.act(path, 'destroy')).body.id)
      if (operation.status !== 'completed') violations.push(`${of} was not ended: ${shown(operation)}`)
    }),
  )
  for (const { id, state } of machines)
    if (state !== 'terminated') violations.push(`the machine ${id} is left ${state}`)
  return violations
}

/** The texts as variables of a playbook and its check, which write down on a machine what came. */
const playVariables = async (world: World, number: number, texts: readonly string[]): Promise<string[]> => {
  const { programs, calls, site } = world
  const violations: string[] = []
  const provider = providers[Math.floor(number / perRound) % providers.length]!
  const id = `variables-${String(number)}`
  const named = Object.fromEntries(texts.map((text, at) => [`V${String(at)}`, text]))
  const variables = {
    // The vault keeps what is below `secret`.
    ...{ texts, named, secret: texts.slice(0, 10) },
    ...Object.fromEntries(texts.map((text, at) => [`v${String(at)}`, text])),
  }
  await programs.post(targets, {
    ...capacityTarget(site, provider, id),
    machineConfigurations: [
      ...withoutPlaybooks.machineConfigurations,
      { configurationVersionId: 'texts-v1', executionOrder: 1, variables },
    ],
  })
  const { body } = await calls.provision({ capacityTargetId: id, instanceId: id })
  const operation = await calls.over(body.id)
  if (operation.status !== 'completed') return [`the playbook with variables: ${shown(operation)}`]
  const { providerId } = await programs.get(`/cloud-instances/${id}/`)
  const folder = site.machines.get(providerId)!.sshd!.folder
  const file = (name: string): string => readFileSync(join(folder, name), 'utf8')
  const values = JSON.parse(Buffer.from(file('values'), 'base64').toString())
  if (!same(values, [texts, named, variables.secret]))
    violations.push(`the variables came as ${shown(values)}`)
  const lines = texts.map((text) => `${text}\0`).join('')
  for (const name of ['words', 'checked'])
    if (file(name) !== lines) violations.push(`${name} came as ${shown(file(name))}`)
  const environment = new Set(file('environment').split('\0'))
  for (const [name, text] of Object.entries(named))
    if (!environment.has(`${name}=${text}`)) violations.push(`${name} did not come as ${shown(text)}`)
  await calls.over((await calls.act(id, 'destroy')).body.id)
  return violations
}

/**
 * A round: fifty strings, each as the id and the name of a machine of a provider, as the account of
 * a login, and as a variable of a playbook in its sandbox. Each case is a string.
 */
export const openCloudTexts = async (): Promise<Failures> => {
  const dataDir = dataFolder()
  const site = await startCloud({ machines: 'loopback' })
  const programs = openPrograms(dataDir, { environment: cloudEnvironment() })
  const http = openHttp({ addressAllowed: () => true })
  const close = async (): Promise<void> => {
    http.close()
    await programs.stop()
    await site.stop()
    removeFolder(dataDir)
  }
  const world = { site, programs, calls: cloudCalls(programs), http, bait: join(site.folder, 'bait') }
  try {
    await programs.startDaemon()
    await openClouds(programs, site, providers)
    for (const provider of providers)
      await programs.post(targets, { ...capacityTarget(site, provider, provider), ...withoutPlaybooks })
    await programs.post('/machine-configurations/', { id: 'texts', name: 'texts' })
    await programs.post('/machine-configurations/texts/versions/', {
      ...{ id: 'texts-v1', playbookYaml, validationChecks: [{ name: 'variables', command: check }] },
    })
  } catch (error) {
    await close()
    throw error
  }
  return {
    what:
      'strings of metacharacters as ids, names, accounts and variables of machines (aws, gcp): none executed, ' +
      'each whole or refused',
    async play(number) {
      const texts = hostileTexts([...parts.all, ...templates], world.bait, number)
      const violations = (
        await Promise.all([
          playVariables(world, number, texts),
          playRefused(world, texts),
          // A living name is taken once.
          playInstances(world, number, [...new Set(texts.filter(isTakable))]),
        ])
      ).flat()
      if (existsSync(world.bait)) violations.push('something was executed')
      return { counted: perRound, violations }
    },
    close,
  }
}
