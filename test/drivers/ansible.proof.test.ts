import { afterAll, beforeAll, describe, expect, jest } from '@jest/globals'
import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { maskOf } from '../../src/domains/cloud/masks.ts'
import { runPlay, type Play, type PlayEvent } from '../../src/drivers/ansible/play.ts'
import { startSsh, type SshSite } from '../../sites/ssh.ts'
import { sites } from '../../sites/requirements.ts'
import { kill } from '../support/kill.ts'
import { needs } from '../support/needs.ts'
import { runFolder } from '../support/run-folder.ts'

/** Playbooks against hosts with sshd: what they do there, and that they do nothing here. */

const { test } = needs(...sites.ssh, 'ansible-core', 'bubblewrap')
jest.setTimeout(120_000)

let site: SshSite
let events: PlayEvent[] = []
/** Plays of other tests use other folders. */
const folder = join(runFolder(), 'plays')
const before = process.env['TMPDIR']
beforeAll(async () => {
  site = await startSsh({ hosts: 2 })
  mkdirSync(folder)
  process.env['TMPDIR'] = folder
}, 120_000)
afterAll(async () => {
  if (before === undefined) delete process.env['TMPDIR']
  else process.env['TMPDIR'] = before
  await site?.stop()
}, 60_000)

const machineOf = (place: number) => {
  const host = site.hosts[place]!
  return {
    name: host.name,
    hostKey: host.knownHosts().split(' ').slice(1).join(' '),
    target: {
      ...{ host: host.address, port: 22, username: site.user, hostKeys: { policy: 'strict' as const } },
      secret: async () => ({ privateKey: site.key.privateKey }),
    },
  }
}
const asItIs = (text: string): string => text
const play = async (playbook: string, more: Partial<Play> = {}) => {
  events = []
  return runPlay({
    ...{ playbook, variables: {}, machines: [machineOf(0)], addressAllowed: () => true, mask: asItIs },
    ...{ onEvent: async (event: PlayEvent) => void events.push(event), signal: new AbortController().signal },
    ...more,
  })
}
const tasks = (...lines: string[]): string =>
  `- hosts: all\n  gather_facts: false\n  tasks:\n${lines.map((line) => `    - ${line}\n`).join('')}`
/** All processes of this machine, with their command lines. */
const processes = (): { pid: number; line: string }[] =>
  readdirSync('/proc').flatMap((pid) => {
    try {
      const line = () => readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ')
      return /^\d+$/.test(pid) ? [{ pid: Number(pid), line: line() }] : []
    } catch {
      return []
    }
  })
/** Whether a process was started by this one, by whatever way. */
const isOurs = (pid: number): boolean => {
  if (pid <= 1) return false
  if (pid === process.pid) return true
  try {
    const [, parent = ''] = /\) \S (\d+)/.exec(readFileSync(`/proc/${String(pid)}/stat`, 'utf8')) ?? []
    return isOurs(Number(parent))
  } catch {
    return false
  }
}
const commands = (): string[] => processes().map(({ line }) => line)
const folders = (): string[] => readdirSync(folder)

test('a play runs on each machine, with an event a task; text of variables is no template', async () => {
  const ends = await play(
    tasks(
      '{name: says, shell: "printf %s {{ word | quote }} > ~/said"}',
      '{name: breaks, command: /bin/false, ignore_errors: true}',
      '{name: left out, command: /bin/false, when: false}',
    ),
    { variables: { word: "{{ lookup('pipe', 'id') }} $(id) ' \"" }, machines: [machineOf(0), machineOf(1)] },
  )
  expect([...ends]).toEqual([
    ['th1', { state: 'ok' }],
    ['th2', { state: 'ok' }],
  ])
  for (const host of site.hosts)
    expect(readFileSync(host.see(`${host.home}/said`), 'utf8')).toBe("{{ lookup('pipe', 'id') }} $(id) ' \"")
  const of = (name: string) => events.filter(({ machine }) => machine === name)
  for (const name of ['th1', 'th2'])
    expect(of(name).map(({ event, task }) => [event, task])).toEqual([
      ...[
        ['started', 'says'],
        ['changed', 'says'],
        ['started', 'breaks'],
        ['failed', 'breaks'],
      ],
      ...[
        ['started', 'left out'],
        ['skipped', 'left out'],
      ],
    ])
  expect(of('th1').find(({ event }) => event === 'failed')).toMatchObject({ ignored: true })
  expect(folders()).toEqual([])
})

test('a secret is masked wherever the text of a task is cut, and a long text has its beginning and its end', async () => {
  const secret = 'canary-0123456789-0123456789'
  const mask = maskOf({ api_token: secret })
  for (const [before, after] of [
    [469, 3_000],
    [3_000, 1_490],
    [15_969, 40_000],
    [40_000, 15_990],
  ]) {
    const script = `printf '%0${String(before)}d%s%0${String(after)}d' 1 ${secret} 2; exit 1`
    const name = `{{ '%0490d' % 1 }}${secret}{{ '%02000d' % 1 }}`
    const ends = await play(tasks(`{name: "${name}", shell: ${JSON.stringify(script)}}`), { mask })
    expect(JSON.stringify([...ends, events])).not.toMatch(/canary|456789/)
    expect(events.at(-1)!.message!.length).toBeLessThanOrEqual(2_000)
    expect(events.at(-1)!.message).toMatch(/^non-zero return code\n0+.* … .*0+2$/s)
  }
  // Ansible warns about the hosts, with line breaks, and beyond what is kept of its warnings.
  for (const size of [300, 10_000, 40_000]) {
    const long = `canary-${'0123456789'.repeat(size / 10)}`
    const ends = await play(`[{hosts: "{{ api_token }}", tasks: []}]`, {
      ...{ mask: maskOf({ api_token: long }), variables: { api_token: long } },
    })
    expect(JSON.stringify([...ends])).not.toMatch(/canary|456789/)
  }
})

test('a failed task, no answer, another host key, and what is no playbook are told apart', async () => {
  const failed = await play(tasks('{name: breaks, shell: "echo why >&2; exit 3"}'))
  expect(failed.get('th1')).toEqual({
    state: 'failed',
    reason: expect.stringMatching(/"breaks" failed: .*\nwhy/),
  })
  const other = { ...machineOf(0), hostKey: machineOf(1).hostKey }
  const changed = await play(tasks('command: id'), { machines: [other] })
  expect(changed.get('th1')).toEqual({
    state: 'unreachable',
    reason: expect.stringMatching(/host key|Host key/i),
  })
  const denied = await play(tasks('command: id'), { addressAllowed: () => 'it is denied' })
  expect(denied.get('th1')?.state).toBe('unreachable')
  expect((await play('- hosts: nobody\n  tasks: [{command: id}]\n')).get('th1')?.state).toBe('failed')
  expect((await play('just text')).get('th1')?.reason).toMatch(/playbook must be a list/)
})

describe('a hostile playbook reaches the machine and nothing else', () => {
  const key = join(runFolder(), 'vault.key')
  let requests = 0
  const server = createServer((_, response) => {
    requests++
    response.end('the API')
  })
  beforeAll(async () => {
    writeFileSync(key, 'canary-of-the-key', { mode: 0o600 })
    process.env['SERVICE_CANARY'] = 'canary-of-the-environment'
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  })
  afterAll(() => {
    delete process.env['SERVICE_CANARY']
    server.close()
  })

  const local = (script: string): Promise<string> => {
    const trace = join(runFolder(), 'trace')
    const raw = JSON.stringify(`${script}; touch ${trace}; exit 7`)
    return play(
      tasks(`{name: here, delegate_to: localhost, vars: {ansible_connection: local}, raw: ${raw}}`),
    ).then(async (ends) => {
      expect(existsSync(trace)).toBe(false)
      // The script ran: only where is in question.
      expect(ends.get('th1')?.reason).toContain('non-zero return code')
      return JSON.stringify(events)
    })
  }

  test.each<[string, () => string]>([
    ['the key of the vault', () => `cat ${key} ${key}/../*`],
    ['folders of this machine', () => 'ls -A /root /work /var /srv /etc /tmp /home; cat /etc/shadow'],
    ['variables of the service', () => 'env; cat /proc/*/environ'],
    ['other processes', () => "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls /proc"],
    [
      'the API and any other address',
      () =>
        `for a in 127.0.0.1:${String((server.address() as AddressInfo).port)} ${site.hosts[1]!.address}:22; do ` +
        'python3 -c "import socket,sys; h,p=sys.argv[1].split(chr(58)); ' +
        'socket.create_connection((h,int(p)),3); print(chr(33)+chr(33))" $a; done',
    ],
    ['sockets of this machine', () => 'ls /run /var/run; ls -l /run/machines | grep -v machine-0'],
  ])('%s', async (_, script) => {
    const seen = await local(script())
    expect(seen).not.toMatch(/canary|orrery-site|jest|PostgreSQL|SERVICE_|!!|docker.sock|root:/)
    expect(requests).toBe(0)
  })

  test('a lookup that no rule would find runs in the sandbox as well', async () => {
    const ends = await play(
      tasks(`fail: {msg: "{% set f = lookup %}{{ f('pipe', 'cat ${key} /proc/net/dev; ls -A / /root') }}"}`),
    )
    expect(ends.get('th1')?.state).toBe('failed')
    expect(JSON.stringify(events)).not.toMatch(/canary|eth0/)
  })

  test('the agent signs for its machine only while the play lasts, and no key is in the sandbox', async () => {
    const seen = await local(
      'SSH_AUTH_SOCK=/run/machines/machine-0.agent ssh-add -L; grep -rl PRIVATE /play /run /home /tmp',
    )
    expect(seen).toContain('ssh-ed25519')
    expect(seen).not.toMatch(/PRIVATE KEY|\/play\/\S+\\n/)
  })
})

describe('limits and ends', () => {
  const endless = (marker: string) =>
    tasks(
      `{delegate_to: localhost, vars: {ansible_connection: local}, raw: "sh -c 'sleep 987${marker}; true'"}`,
    )
  const isThere = (marker: string) =>
    commands().some((line) => line.includes(`987${marker}`) && line.startsWith('s'))
  const until = async (condition: () => boolean) => {
    for (let round = 0; !condition(); round++) {
      if (round > 400) throw new Error('not within 20 s')
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
  }

  test('time and output are bounded', async () => {
    const late = await play(endless('1'), { limits: { milliseconds: 4_000 } })
    expect(late.get('th1')?.reason).toMatch(/took longer/)
    expect(isThere('1')).toBe(false)
    const much = await play(
      tasks(
        `debug: {msg: "{{ lookup('pipe', 'yes | head -c 3000000 > /proc/1/fd/1; yes | head -c 3000000') }}"}`,
      ),
      { limits: { bytes: 500_000 } },
    )
    expect(much.get('th1')?.state).not.toBe('unreachable')
  })

  test('a cancel ends every process', async () => {
    const stop = new AbortController()
    const running = play(endless('2'), { signal: stop.signal }).catch((error: unknown) => error)
    await until(() => isThere('2'))
    stop.abort(new Error('cancelled'))
    expect(await running).toMatchObject({ message: 'cancelled' })
    await until(() => !isThere('2'))
    expect(folders()).toEqual([])
  })

  test.each([
    ['the sandbox', 'bwrap '],
    ['the program in it', '/usr/bin/python3 /usr/bin/ansible-playbook '],
  ])('a play whose process is killed by others may be played again: %s', async (_, begin) => {
    const running = play(endless('4'))
    await until(() => isThere('4'))
    const found = processes().filter(({ pid, line }) => line.startsWith(begin) && isOurs(pid))
    expect(found).not.toEqual([])
    for (const { pid } of found) kill(pid)
    expect([...(await running)]).toEqual([['th1', { state: 'killed', reason: expect.any(String) }]])
    await until(() => !isThere('4'))
    expect(folders()).toEqual([])
  })

  test('the sudden death of the worker leaves no process and no file', async () => {
    const { target, hostKey } = machineOf(0)
    const program = `
      import { runPlay } from ${JSON.stringify(join(import.meta.dirname, '../../src/drivers/ansible/play.ts'))}
      const [playbook, hostKey, target, privateKey] = JSON.parse(process.argv[1])
      await runPlay({ playbook, variables: {}, signal: new AbortController().signal, addressAllowed: () => true,
        mask: (text) => text, onEvent: async () => undefined,
        machines: [{ name: 'm', hostKey, target: { ...target, secret: async () => ({ privateKey }) } }] })`
    const worker = spawn(
      process.execPath,
      [
        '--input-type=module',
        '-e',
        program,
        JSON.stringify([endless('3'), hostKey, target, site.key.privateKey]),
      ],
      { stdio: 'ignore' },
    )
    await until(() => isThere('3'))
    worker.kill('SIGKILL')
    await until(() => !isThere('3'))
    await until(() => !commands().some((line) => line.includes(folder)))
    expect(folders()).toEqual([])
  })
})
