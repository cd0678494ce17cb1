import { execFile } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { performance } from 'node:perf_hooks'
import { promisify } from 'node:util'
import { makeSshKey } from '../../src/clients/ssh/keys.ts'
import { userDataOf } from '../../src/drivers/cloud/contract.ts'
import { sshMissing } from '../../sites/ssh.ts'
import { newFolder } from '../folder.ts'
import { allMissing, programsMissing, rootMissing } from '../needs.ts'
import { pythonProgram, pythonProgramMissing } from '../python.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, median, medianRatio } from '../rounds.ts'
import {
  addEnvironment,
  addTarget,
  awaitOperations,
  callsOf,
  environmentId,
  openProvider,
} from './provider.ts'

const aws = { name: 'awscli-1.46.3', packages: ['awscli==1.46.3'], program: 'aws', probe: ['--version'] }
const ansible = '/usr/bin/ansible-playbook'
const account = 'akoflow'

/** What a machine gets: the same playbook on both sides. */
const playbook = `- hosts: all
  gather_facts: false
  tasks:
    - {name: a folder, file: {path: /home/${account}/site, state: directory}}
    - {name: a file, copy: {dest: /home/${account}/site/name, content: "ready"}}
    - {name: a check, command: "test -s /home/${account}/site/name"}
`

type Provider = Awaited<ReturnType<typeof openProvider>>

/** What a person writes in a shell: one request for all, the CLI's wait, one playbook for all. */
const shellSide = async ({ site }: Provider, count: number) => {
  const program = await pythonProgram(aws)
  const folder = newFolder('cloud-shell-')
  const { privateKey, publicKey } = makeSshKey('bench')
  const files = {
    key: join(folder, 'key'),
    userData: join(folder, 'user-data'),
    playbook: join(folder, 'playbook.yml'),
  }
  writeFileSync(files.key, privateKey, { mode: 0o600 })
  writeFileSync(files.userData, userDataOf({ username: account, publicKey }))
  writeFileSync(files.playbook, playbook)
  const script = `set -eu
aws ec2 run-instances --count ${String(count)} --image-id ami-debian12 --instance-type m5.large \\
  --user-data file://${files.userData} --query 'Instances[].InstanceId' --output text > ids
aws ec2 wait instance-running --instance-ids $(cat ids)
aws ec2 describe-instances --instance-ids $(cat ids) \\
  --query 'Reservations[].Instances[].PublicIpAddress' --output text | tr '\\t' '\\n' > addresses
${ansible} -f ${String(count)} -i addresses -u ${account} --private-key ${files.key} ${files.playbook} > play.log
`
  const environment = {
    ...{ HOME: folder, PATH: `${join(program, '..')}:/usr/bin:/bin`, AWS_PAGER: '' },
    ...{ AWS_ACCESS_KEY_ID: site.accessKey.accessKeyId, AWS_DEFAULT_REGION: site.region },
    ...{ AWS_SECRET_ACCESS_KEY: site.accessKey.secretAccessKey, AWS_ENDPOINT_URL: site.endpoint },
    ...{ ANSIBLE_HOST_KEY_CHECKING: 'false', ANSIBLE_PIPELINING: '1' },
  }
  const shell = (text: string) =>
    promisify(execFile)('/bin/sh', ['-c', text], { cwd: folder, env: environment, timeout: 300_000 })
  return {
    ready: () => shell(script),
    end: () => shell('aws ec2 terminate-instances --instance-ids $(cat ids) > ended'),
  }
}

/** What a user of the service does: as many requests as machines. */
const ownSide = async ({ daemon, site }: Provider, count: number) => {
  await addEnvironment(daemon, site)
  await daemon.ok('POST', '/machine-configurations/', { id: 'bench', name: 'bench' })
  const version = { id: 'bench-v1', status: 'published', playbookYaml: playbook }
  await daemon.ok('POST', '/machine-configurations/bench/versions/', version)
  await addTarget(daemon, 'workers', 'bench-v1')
  let round = 0
  const names = (): string[] => Array.from({ length: count }, (_, k) => `bench-${String(round)}-${String(k)}`)
  return {
    async ready() {
      round++
      const operations = await Promise.all(
        names().map((name) =>
          daemon.ok('POST', `/environments/${environmentId}/cloud-instances/`, {
            ...{ capacityTargetId: 'workers', name, instanceId: name },
          }),
        ),
      )
      await awaitOperations(
        daemon,
        operations.map(({ id }) => id as string),
      )
    },
    async end() {
      const ended = await Promise.all(
        names().map((name) => daemon.ok('POST', `/cloud-instances/${name}/destroy/`)),
      )
      await awaitOperations(
        daemon,
        ended.map(({ id }) => id as string),
      )
    },
  }
}

/** The requests to the provider since `before`, by action. */
const madeSince = ({ site }: Provider, before: ReadonlyMap<string, number>): string =>
  [...site.calls]
    .map(([action, times]) => [action, times - (before.get(action) ?? 0)] as const)
    .filter(([, times]) => times > 0)
    .map(([action, times]) => `${action} ${String(times)}`)
    .join(', ')

export const cloudInstances: Benchmark = {
  about:
    '20 machines of a cloud from the request to ready, with a playbook, against the AWS CLI and one ' +
    'ansible-playbook; requests to the provider meanwhile',
  missing: async () =>
    rootMissing() ??
    allMissing(
      await sshMissing(),
      programsMissing({ 'ansible-playbook': 'ansible-core', bwrap: 'bubblewrap' }),
      pythonProgramMissing(aws),
    ),
  async run({ rounds, tiny }) {
    const count = tiny ? 2 : 20
    await using provider = await openProvider()
    const sides = { Orrery: await ownSide(provider, count), shell: await shellSide(provider, count) }
    const calls: Record<keyof typeof sides, number[]> = { Orrery: [], shell: [] }
    const polled: number[] = []
    let byAction = ''
    const measured = (name: keyof typeof sides) => async (): Promise<number> => {
      const before = callsOf(provider.site)
      const counts = new Map(provider.site.calls)
      const began = performance.now()
      await sides[name].ready()
      const seconds = (performance.now() - began) / 1_000
      const made = callsOf(provider.site) - before
      calls[name].push(made)
      if (name === 'Orrery') {
        polled.push(made / (count * seconds))
        byAction = madeSince(provider, counts)
      }
      await sides[name].end()
      const left = [...provider.site.machines.values()].filter(({ state }) => state !== 'terminated')
      if (left.length > 0) throw new Error(`${name} left ${String(left.length)} machines`)
      return seconds
    }
    const { cold, warm } = await interleaved(rounds, {
      Orrery: measured('Orrery'),
      shell: measured('shell'),
    })
    const names = ['Orrery', 'shell'] as const
    return {
      sides: [
        ...names.map((name) => ({
          ...{ name: `${name}, ${String(count)} machines`, unit: 's', cold: cold[name], warm: warm[name] },
        })),
        ...names.map((name) => ({
          ...{
            name: `${name}, requests`,
            unit: 'requests',
            cold: calls[name][0]!,
            warm: calls[name].slice(1),
          },
        })),
      ],
      goals: [
        {
          ...{ what: 'time against the shell', unit: '×', sense: 'most', goal: 1.2 },
          measured: medianRatio(warm.Orrery, warm.shell),
        },
        {
          what: 'requests against one a second and machine',
          ...{ unit: '×', sense: 'most', goal: 0.1 },
          measured: median(polled.slice(1)),
        },
      ],
      notes: [
        'Shell: `aws ec2 run-instances --count`, `wait instance-running` (which looks every 15 s), ' +
          '`describe-instances`, one `ansible-playbook -f`. It accepts any host key; Orrery reads each ' +
          'key from the console first, gives each machine an SSH key of its own, and keeps every step.',
        'All machines are gone after each round, outside the measured time.',
        `Orrery's requests of the last round: ${byAction}. Each machine has a key of its own in its user ` +
          'data, so each has a RunInstances; EC2 shows the console of one machine at a time.',
      ],
      versions: { awscli: '1.46.3' },
    }
  },
}
