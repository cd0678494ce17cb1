import { expect } from '@jest/globals'
import { startSsh, type SshSite } from '../../sites/ssh.ts'
import { sites } from '../../sites/requirements.ts'
import { consoleEnvironment } from '../support/consoles.ts'
import { kill } from '../support/kill.ts'
import { needs } from '../support/needs.ts'
import { connectionTo, makeVaultKeyFile } from '../support/reach.ts'
import { gapIn, lineOf, numbered, numbersIn, openConsoles, tenMiB } from './consoles.ts'
import { dataFolder, removeFolder, until } from './programs.ts'
import { openPrograms, type Programs } from './rounds.ts'

const { afterAll, beforeAll, test } = needs(...sites.ssh)

/** Terminals on hosts by a real sshd, in every trouble between them and their readers. */

const dataDir = dataFolder()
let ssh: SshSite
let programs: Programs
let consoles: ReturnType<typeof openConsoles>
beforeAll(async () => {
  ssh = await startSsh({ hosts: 2, diskMiB: 8 })
  programs = openPrograms(dataDir, {
    environment: {
      SERVICE_CONSOLE_ENABLED: 'true',
      SERVICE_CONSOLE_IDLE_SECONDS: '600',
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
    },
  })
  consoles = openConsoles(programs)
  await programs.startDaemon()
  await programs.post('/ssh-keys/import/', { id: 'host', privateKey: ssh.key.privateKey })
  const at = (connectionId: string, workDirectory?: string) => ({
    driver: 'ssh',
    configuration: { connectionId, ...(workDirectory === undefined ? {} : { workDirectory }) },
  })
  const [one, two] = ssh.hosts
  await one.run('mkdir -p /srv/noexec && mount -t tmpfs -o noexec,mode=1777 none /srv/noexec')
  await programs.post(
    '/environments/',
    consoleEnvironment(
      'desk',
      { there: at('one'), full: at('one', '/mnt/orrery'), plain: at('one', '/srv/noexec'), frail: at('two') },
      [connectionTo('one', one, 'host'), connectionTo('two', two!, 'host')],
    ),
  )
}, 300_000)
afterAll(async () => {
  await programs?.stop()
  await ssh?.stop()
  removeFolder(dataDir)
}, 120_000)

test.each([
  ['PostgreSQL is killed', async () => kill((await programs.pids()).postgres)],
  ['sshd’s session is ended', () => ssh.hosts[0].dropSessions()],
  ['the daemon is killed', () => consoles.restart()],
  [
    'the link is cut for four seconds',
    async () => {
      await ssh.hosts[0].cut()
      await new Promise((resolve) => setTimeout(resolve, 4_000))
      await ssh.hosts[0].heal()
    },
  ],
])(
  '%s in the middle of 10 MiB of output: no byte is missing, and the client attaches again',
  async (_, blow) => {
    await consoles.hitInTheMiddle('there', blow)
  },
  300_000,
)

test('a holder that is killed ends its session as failed; what it recorded stays, whole to its end', async () => {
  const id = await consoles.open('there')
  const { externalId } = await consoles.sessionOf(id)
  const first = await consoles.attach(id)
  first.ws.send(numbered(tenMiB))
  await until('the first output', 60, () => first.text().includes(lineOf(2_000)))
  await ssh.hosts[0].run(`pkill -KILL -f 'console-holder-.* hold [.]'`)
  expect(await consoles.ended(id)).toMatchObject({
    status: 'failed',
    failure: expect.stringMatching(/holder .* is gone/),
  })
  const numbers = numbersIn(await consoles.logOf(id))
  expect(numbers.length).toBeGreaterThanOrEqual(2_000)
  expect(gapIn(numbers)).toBe(-1)
  await until('the removal of its files', 60, async () => {
    const { code } = await ssh.hosts[0].run(`test -e '${externalId}'`, 'root', { mayFail: true })
    return code !== 0
  })
}, 300_000)

test('a full disk at the host ends the session with that reason; what was recorded stays', async () => {
  const id = await consoles.open('full')
  const desk = await consoles.attach(id)
  desk.ws.send(numbered(4 * tenMiB))
  await until('the first output', 60, () => desk.text().includes(lineOf(2_000)))
  // The disk has to hold what nobody stores.
  const { daemon } = await programs.pids()
  process.kill(daemon, 'SIGSTOP')
  try {
    await until('a full disk', 120, async () => {
      const { stdout } = await ssh.hosts[0].run('df --output=avail -k /mnt/orrery | tail -n 1')
      return Number(stdout) < 128
    })
  } finally {
    process.kill(daemon, 'SIGCONT')
  }
  expect(await consoles.ended(id)).toMatchObject({
    status: 'failed',
    failure: expect.stringMatching(/the recording cannot be written: .*no space left/),
  })
  const numbers = numbersIn(await consoles.logOf(id))
  expect(numbers.length).toBeGreaterThan(10_000)
  expect(gapIn(numbers)).toBe(-1)
}, 300_000)

test('a host that is gone: input is refused, and when the host is back the session fails with the reason', async () => {
  const host = ssh.hosts[1]!
  const id = await consoles.open('frail')
  const desk = await consoles.attach(id)
  desk.ws.send('printf "mark-%d\\n" $((6*7))\n')
  await until('its output', 30, () => desk.text().includes('mark-42'))
  await host.crash()
  // Until the loss of the connection is noticed, keys go nowhere.
  const typing = setInterval(() => desk.ws.send('x'), 200)
  const [code] = await desk.closed.finally(() => clearInterval(typing))
  expect(code).toBe(1013)
  await host.boot()
  await host.startSshd()
  expect(await consoles.ended(id)).toMatchObject({
    status: 'failed',
    failure: expect.stringMatching(/holder .* is gone/),
  })
  expect(await consoles.logOf(id)).toContain('mark-42')
}, 300_000)

test('where no holder may run there is a plain terminal, which a restart of the service ends with the reason', async () => {
  const id = await consoles.open('plain')
  expect((await consoles.sessionOf(id)).externalId).toBe('pty')
  const desk = await consoles.attach(id)
  desk.ws.send(JSON.stringify({ type: 'resize', rows: 31, columns: 117 }))
  desk.ws.send('stty size; printf "mark-%d\\n" $((6*7))\n')
  await until('its output', 30, () => /31 117[^]*mark-42/.test(desk.text()))
  desk.ws.send('stty -echo; head -1 > /dev/null; stty echo; echo ov""er\n')
  await new Promise((resolve) => setTimeout(resolve, 500))
  desk.ws.send('a-password-of-a-person\n')
  await until('its output', 30, () => desk.text().includes('over'))
  const cast = await consoles.logOf(id, '?format=asciicast')
  expect(cast).toContain('mark-42')
  expect(cast).toContain('"117x31"')
  expect(cast).not.toContain('a-password-of-a-person')
  const second = await consoles.open('plain')
  const other = await consoles.attach(second)
  other.ws.send('exit\n')
  await other.closed
  expect((await consoles.ended(second)).status).toBe('closed')
  await consoles.restart()
  expect(await consoles.ended(id)).toMatchObject({
    status: 'failed',
    failure: expect.stringContaining('the connection that held the terminal is over'),
  })
  expect(await consoles.logOf(id)).toContain('mark-42')
}, 300_000)

test('a plain terminal masks what comes in pieces, and ends at 64 MiB', async () => {
  const secret = 'a-token-that-comes-in-two-pieces'
  await programs.post('/kubernetes-tokens/', { id: 'pieces', token: secret })
  const id = await consoles.open('plain')
  const desk = await consoles.attach(id)
  const [first, second] = [secret.slice(0, 12), secret.slice(12)]
  desk.ws.send(`stty -echo; PS1=; printf '<%s' ${first}; sleep 0.05; printf '%s>\\n' ${second}\n`)
  await until('the pieces', 30, () => desk.text().includes(`<${secret}>`))
  desk.ws.send('yes 0123456789012345678901234567890123456789012345678901234567890 | head -c 80000000\n')
  expect(await consoles.ended(id)).toMatchObject({
    status: 'failed',
    failure: 'the recording has reached 64 MiB',
  })
  const log = await consoles.logOf(id)
  expect(log).toContain('<********>')
  expect(log.includes(secret)).toBe(false)
  expect(log.length).toBeGreaterThan(60 * 1024 * 1024)
  expect(log.length).toBeLessThan(66 * 1024 * 1024)
}, 300_000)
