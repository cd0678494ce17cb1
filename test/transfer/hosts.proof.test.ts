import { expect } from '@jest/globals'
import { setTimeout as delay } from 'node:timers/promises'
import { openSshSessions } from '../../src/clients/ssh/sessions.ts'
import type { SiteShell } from '../../src/shell/site-shell.ts'
import {
  transfer,
  type TransferSide,
  type Reach,
  type TransferRequest,
} from '../../src/drivers/transfer/transfer.ts'
import { startSsh, type SshHost, type SshSite } from '../../sites/ssh.ts'
import { overLink, type LinkFailures } from './links.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterAll, beforeAll, describe, test } = needs(...sites.ssh)

/** Between two hosts with their own disks, each with its own sshd. */
let site: SshSite
const sessions = openSshSessions()
beforeAll(async () => {
  site = await startSsh({ hosts: 2 })
}, 120_000)
afterAll(async () => {
  await sessions.close()
  await site.stop()
}, 120_000)

const hosts = (): [SshHost, SshHost] => site.hosts as unknown as [SshHost, SshHost]

const shellOf = (host: SshHost, forwardAgent = false): SiteShell =>
  sessions.shell({
    host: host.address,
    port: host.port,
    username: host.user,
    credential: 'key',
    secret: async () => ({ privateKey: site.key.privateKey }),
    hostKeys: { policy: 'strict', knownHosts: host.knownHosts() },
    forwardAgent,
  })

const endOf = (host: SshHost, shell = shellOf(host)): TransferSide => ({ site: host.name, shell, mounts: [] })

/** The way from one host into another, with the agent of our own session. */
const wayInto = (host: SshHost, from: SshHost, knownHosts = host.knownHosts()): Reach => ({
  site: host.name,
  host: host.address,
  port: host.port,
  username: host.user,
  knownHosts,
  shell: shellOf(from, true),
})

const sum = async (host: SshHost, folder: string): Promise<string> => {
  const { stdout } = await shellOf(host).run(
    `cd ${folder} && find . -type f -print0 | sort -z | xargs -0 sha256sum -z | sha256sum; find . ` +
      `-printf '%y %m %P %l\\n' | tail -n +2 | sort`,
  )
  return stdout.toString()
}

const make = async (host: SshHost, name: string, mebibytes: number): Promise<string> => {
  const folder = `${host.home}/${name}`
  const script = `mkdir -p ${folder}/d && cd ${folder} &&
    head -c ${String(mebibytes * 1024 * 1024)} /dev/urandom > large &&
    chmod 640 large
for n in 1 2 3 "it's" '$(touch x)' '-rf'; do head -c 3000 /dev/urandom > "d/$n"; done; ln -s d/1 link; chmod 755 d`
  expect((await shellOf(host).run(script)).code).toBe(0)
  return folder
}

const request = (folder: string, from: TransferSide, to: TransferSide): TransferRequest => ({
  from,
  to,
  source: { directory: folder },
  directory: `${folder}-in/came`,
  label: 'maker',
})

describe('from host to host', () => {
  test('through us', async () => {
    const [one, other] = hosts()
    const folder = await make(one, 'gateway', 20)
    const outcome = await transfer(request(folder, endOf(one), endOf(other)))
    expect(outcome).toMatchObject({ strategy: 'gateway', files: 8 })
    expect(await sum(other, `${folder}-in/came`)).toBe(await sum(one, folder))
  }, 300_000)

  test('straight, by the side that may reach the other, with an agent that is only lent', async () => {
    const [one, other] = hosts()
    const folder = await make(one, 'push', 33)
    const pushed = await transfer(
      request(folder, { ...endOf(one), reach: [wayInto(other, one)] }, endOf(other)),
    )
    expect(pushed).toMatchObject({ strategy: 'source-push' })
    expect(await sum(other, `${folder}-in/came`)).toBe(await sum(one, folder))
    const pulled = await transfer({
      ...request(folder, endOf(one), { ...endOf(other), reach: [wayInto(one, other)] }),
      directory: `${folder}-in/pulled`,
    })
    expect(pulled.strategy).toBe('destination-pull')
    expect(await sum(other, `${folder}-in/pulled`)).toBe(await sum(one, folder))
    for (const host of [one, other]) {
      const left = await shellOf(host).run(
        'ls -A /tmp ~/.ssh; ps -u "$(id -u)" -o args= | grep -c "[s]sh -o"',
      )
      expect(left.stdout.toString()).not.toMatch(/tmp\.|^id_/m)
      expect(left.stdout.toString().trim()).toMatch(/(^|\n)0$/)
    }
  }, 300_000)

  test('a direct way that does not exist, or leads to a host with another key: through us, and the reason tells', async () => {
    const [one, other] = hosts()
    const folder = await make(one, 'noway', 33)
    const wrongKey = wayInto(other, one, one.knownHosts().replace(one.address, other.address))
    const outcome = await transfer(request(folder, { ...endOf(one), reach: [wrongKey] }, endOf(other)))
    expect(outcome.strategy).toBe('gateway')
    expect(outcome.reason).toMatch(/not source-push: .*Host key verification failed/s)
    expect(await sum(other, `${folder}-in/came`)).toBe(await sum(one, folder))
  }, 300_000)

  test('sessions that are dropped in the middle: goes on over new ones', async () => {
    const [one, other] = hosts()
    const folder = await make(one, 'dropped', 60)
    const failures: LinkFailures = { calls: 0, bytes: 0 }
    const running = transfer(request(folder, endOf(one, overLink(shellOf(one), failures)), endOf(other)))
    running.catch(() => undefined)
    while (failures.bytes < 20 * 1024 * 1024) await delay(5)
    await other.dropSessions()
    await expect(running).rejects.toMatchObject({ trouble: 'unknown' })
    const outcome = await transfer(request(folder, endOf(one), endOf(other)))
    expect(outcome.resumed).toBe(true)
    expect(outcome.networkBytes).toBeLessThan(outcome.bytes)
    expect(await sum(other, `${folder}-in/came`)).toBe(await sum(one, folder))
  }, 300_000)
})
