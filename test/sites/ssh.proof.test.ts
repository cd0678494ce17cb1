import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect } from '@jest/globals'
import { run } from '../../sites/ground.ts'
import { startLoopbackSsh } from '../../sites/loopback.ts'
import { startSsh } from '../../sites/ssh.ts'
import type { SshHost, SshSite } from '../../sites/ssh.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterAll, beforeAll, test } = needs(...sites.ssh)

let site: SshSite
let one: SshHost
let two: SshHost

beforeAll(async () => {
  site = await startSsh({ hosts: 2, trust: true, clockOffsetSeconds: { th2: 3600 } })
  one = site.hosts[0]
  two = site.hosts[1]!
}, 120_000)
afterAll(() => site?.stop())

/** A script over a real login. */
const login = (host: SshHost, script: string, connectTimeout = 30) =>
  run(
    'ssh',
    [...site.sshOptions, '-o', `ConnectTimeout=${connectTimeout}`, `${site.user}@${host.address}`, script],
    { mayFail: true },
  )

const said = async (host: SshHost, script: string): Promise<string> => {
  const { code, stdout, stderr } = await login(host, script)
  if (code !== 0) throw new Error(`${script}: ${code} ${stderr}`)
  return stdout.trim()
}

test('each host has its own name, processes, boot and files', async () => {
  expect(await said(one, 'hostname')).toBe('th1')
  expect(await said(two, 'hostname')).toBe('th2')
  await said(one, 'echo mine > note; echo tmp > /tmp/note; echo kept > /srv/note')
  expect(await said(two, 'ls note /tmp/note /srv/note 2>&1 | grep -c "No such file"')).toBe('3')
  expect(await said(one, 'cat /proc/sys/kernel/random/boot_id')).not.toBe(
    await said(two, 'cat /proc/sys/kernel/random/boot_id'),
  )
  await said(one, 'sleep 1000 >/dev/null 2>&1 </dev/null & exit 0')
  expect(await said(one, 'pgrep -cx sleep')).toBe('1')
  expect((await login(two, 'pgrep -x sleep')).code).toBe(1)
  expect(readFileSync(one.see(join(one.home, 'note')), 'utf8')).toBe('mine\n')
})

test('the account is nobody on this machine and cannot write beside its own', async () => {
  expect(await said(one, 'id -un')).toBe(site.user)
  expect(readFileSync('/etc/passwd', 'utf8')).not.toContain(`\n${site.user}:`)
  expect((await login(one, 'touch /usr/x /etc/x /root/x')).code).not.toBe(0)
})

test('an account that is made on this machine takes none from the hosts', async () => {
  // A new file takes the place of the old one.
  const name = `orrery-${String(process.pid)}`
  await run('useradd', ['--no-create-home', name])
  try {
    expect(await said(one, 'id -un')).toBe(site.user)
  } finally {
    await run('userdel', [name])
  }
  expect(await said(one, 'id -un')).toBe(site.user)
})

test('hosts reach each other where they trust each other', async () => {
  await said(one, 'echo moved > parcel && scp -q parcel th2:')
  expect(await said(two, 'cat parcel')).toBe('moved')
})

test('a clock may be wrong by an hour', async () => {
  const [here, there] = [Number(await said(one, 'date +%s')), Number(await said(two, 'date +%s'))]
  expect(Math.abs(there - here - 3600)).toBeLessThan(60)
})

test('the small disk is full after 64 MiB', async () => {
  const { code, stderr } = await login(one, 'head -c 80000000 /dev/zero > /mnt/large')
  expect([code === 0, stderr]).toEqual([false, expect.stringContaining('No space left')])
  await said(one, 'rm /mnt/large')
})

test('a cut link answers nothing, and answers again when it is healed', async () => {
  await one.cut()
  expect((await login(one, 'true', 1)).stderr).toMatch(/timed out|No route to host/)
  expect(await said(two, 'hostname')).toBe('th2')
  await one.heal()
  expect(await said(one, 'hostname')).toBe('th1')
})

test('a host behind another one is reached through it only', async () => {
  await two.hide()
  expect((await login(two, 'true', 1)).stderr).toContain('timed out')
  expect(await said(one, 'ssh th2 hostname')).toBe('th2')
  await two.heal()
})

test('sshd stopped refuses, a running session and what it detached live on', async () => {
  const session = login(one, 'echo begun > begun; while [ ! -e go ]; do sleep 0.05; done; echo over')
  while (!existsSync(one.see(join(one.home, 'begun'))))
    await new Promise((resolve) => setTimeout(resolve, 20))
  await one.stopSshd()
  expect((await login(one, 'true')).stderr).toContain('refused')
  writeFileSync(one.see(join(one.home, 'go')), '')
  expect((await session).stdout).toBe('over\n')
  await one.startSshd()
})

test('dropped sessions end, detached processes do not', async () => {
  await said(one, '(setsid sleep 2000 >/dev/null 2>&1 </dev/null &)')
  const session = login(one, 'echo > dropping; sleep 3000')
  while (!existsSync(one.see(join(one.home, 'dropping'))))
    await new Promise((resolve) => setTimeout(resolve, 20))
  await one.dropSessions()
  expect((await session).code).toBe(255)
  expect(await said(one, 'pgrep -cfx "sleep 2000"')).toBe('1')
})

test('after a crash there is another boot id, no old process, and the same disk', async () => {
  const before = await said(one, 'cat /proc/sys/kernel/random/boot_id; echo stays > disk')
  await one.crash()
  await one.boot()
  await one.startSshd()
  expect(await said(one, 'cat disk')).toBe('stays')
  expect((await login(one, 'pgrep -x sleep')).code).toBe(1)
  expect(await said(one, 'cat /proc/sys/kernel/random/boot_id')).not.toBe(before)
})

test('a changed host key is another one for ssh too', async () => {
  const before = two.fingerprint()
  await two.changeHostKey()
  expect(two.fingerprint()).not.toBe(before)
  expect((await login(two, 'true')).stderr).toContain('Host key verification failed')
})

test('one storage for all hosts, where that is asked for', async () => {
  await using shared = await startSsh({ hosts: 2, shared: true })
  await shared.hosts[0].run('echo here > /srv/note', 'account')
  expect((await shared.hosts[1]!.run('cat /srv/note', 'account')).stdout).toBe('here\n')
})

test('sshd on ports of loopback, where no hosts can be had', async () => {
  await using loopback = await startLoopbackSsh({ hosts: 2 })
  for (const host of loopback.hosts) {
    const args = [
      ...loopback.sshOptions,
      '-p',
      String(host.port),
      `${host.user}@${host.address}`,
      'echo $SSH_CONNECTION $HOME',
    ]
    expect((await run('ssh', args)).stdout).toContain(` ${host.port} ${host.folder}\n`)
  }
  await loopback.hosts[0]!.stopSshd()
  const args = [
    ...loopback.sshOptions,
    '-p',
    String(loopback.hosts[0]!.port),
    `${loopback.hosts[0]!.user}@127.0.0.1`,
    'true',
  ]
  expect((await run('ssh', args, { mayFail: true })).stderr).toContain('refused')
})
