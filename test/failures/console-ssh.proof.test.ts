import { expect } from '@jest/globals'
import { once } from 'node:events'
import { WebSocket } from 'ws'
import { startSsh, type SshSite } from '../../sites/ssh.ts'
import { sites } from '../../sites/requirements.ts'
import { consoleEnvironment } from '../support/consoles.ts'
import { kill } from '../support/kill.ts'
import { needs } from '../support/needs.ts'
import { connectionTo, makeVaultKeyFile } from '../support/reach.ts'
import { dataFolder, removeFolder, until } from './programs.ts'
import { openPrograms, type Programs } from './rounds.ts'

const { afterAll, beforeAll, test } = needs(...sites.ssh)

/** Terminals on hosts by a real sshd, in every trouble between them and their readers. */

const dataDir = dataFolder()
let ssh: SshSite
let programs: Programs
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

const sessionOf = (id: string) => programs.get(`/console-sessions/${id}/`)
const open = async (resourceId: string): Promise<string> => {
  const { id } = await programs.post('/console-sessions/', { resourceId })
  await until('the terminal', 120, async () => {
    const { status, failure } = await sessionOf(id)
    if (status === 'failed') throw new Error(failure)
    return status === 'connected'
  })
  return id
}
const attach = async (id: string) =>
  until('a connection to the terminal', 90, async () => {
    const ws = new WebSocket(`${programs.baseUrl().replace('http', 'ws')}/console-sessions/${id}/stream/`)
    ws.on('error', () => undefined)
    let text = ''
    ws.on('message', (data: Buffer) => (text += data.toString()))
    const closed = once(ws, 'close')
    const opened = await Promise.race([once(ws, 'open').then(() => true), closed.then(() => false)]).catch(
      () => false,
    )
    return opened ? { ws, closed, text: () => text } : undefined
  })
const logOf = async (id: string): Promise<string> =>
  (await fetch(`${programs.baseUrl()}/console-sessions/${id}/log/`)).text()
const ended = (id: string, seconds = 120) =>
  until('the end of the session', seconds, async () => {
    const session = await sessionOf(id).catch(() => undefined)
    return session?.finishedAt === undefined ? undefined : session
  })

const lines = 163_840
/** Numbered lines of 64 bytes with their end. */
const numbered = (count: number): string =>
  `stty -echo; PS1=; awk 'BEGIN { for (i = 1; i <= ${String(count)}; i++) { printf "<%060d>\\n", i; ` +
  'if (i % 1000 == 0) { fflush(); system("sleep 0.02") } } print "all" "-done" }\'\n'
/** 10 MiB over three seconds. */
const tenMiB = numbered(lines)
/** The numbers of the lines that a log holds. */
const numbersIn = (log: string): number[] =>
  [...log.matchAll(/<(\d{60})>\n/g)].map(([, digits]) => Number(digits))
const gapIn = (numbers: readonly number[]): number => numbers.findIndex((number, i) => number !== i + 1)

/** Sends 10 MiB through a terminal, hits in the middle, and reads the rest with another connection. */
const hitInTheMiddle = async (blow: () => Promise<unknown>): Promise<void> => {
  const id = await open('there')
  const first = await attach(id)
  first.ws.send(tenMiB)
  await until('the first output', 60, () => first.text().includes(`<${'2000'.padStart(60, '0')}>`))
  expect(first.text()).not.toContain('all-done')
  await blow()
  first.ws.terminate()
  const again = await attach(id)
  await until('the last output', 120, () => again.text().includes('all-done'))
  again.ws.send('echo again-$((1+1)); exit\n')
  await again.closed
  expect(await ended(id)).toMatchObject({ status: 'closed' })
  const log = await logOf(id)
  const numbers = numbersIn(log)
  expect([numbers.length, gapIn(numbers)]).toEqual([lines, -1])
  expect(log).toContain('again-2')
}

test.each([
  ['PostgreSQL is killed', async () => kill((await programs.pids()).postgres)],
  ['sshd’s session is ended', () => ssh.hosts[0].dropSessions()],
  [
    'the daemon is killed',
    async () => {
      await programs.killDaemon()
      await programs.startDaemon()
    },
  ],
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
    await hitInTheMiddle(blow)
  },
  300_000,
)

test('a holder that is killed ends its session as failed; what it recorded stays, whole to its end', async () => {
  const id = await open('there')
  const { externalId } = await sessionOf(id)
  const first = await attach(id)
  first.ws.send(tenMiB)
  await until('the first output', 60, () => first.text().includes(`<${'2000'.padStart(60, '0')}>`))
  await ssh.hosts[0].run(`pkill -KILL -f 'console-holder-.* hold [.]'`)
  expect(await ended(id)).toMatchObject({
    status: 'failed',
    failure: expect.stringMatching(/holder .* is gone/),
  })
  const numbers = numbersIn(await logOf(id))
  expect(numbers.length).toBeGreaterThanOrEqual(2_000)
  expect(gapIn(numbers)).toBe(-1)
  await until('the removal of its files', 60, async () => {
    const { code } = await ssh.hosts[0].run(`test -e '${externalId}'`, 'root', { mayFail: true })
    return code !== 0
  })
}, 300_000)

test('a full disk at the host ends the session with that reason; what was recorded stays', async () => {
  const id = await open('full')
  const desk = await attach(id)
  desk.ws.send(numbered(4 * lines))
  await until('the first output', 60, () => desk.text().includes(`<${'2000'.padStart(60, '0')}>`))
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
  expect(await ended(id)).toMatchObject({
    status: 'failed',
    failure: expect.stringMatching(/the recording cannot be written: .*no space left/),
  })
  const numbers = numbersIn(await logOf(id))
  expect(numbers.length).toBeGreaterThan(10_000)
  expect(gapIn(numbers)).toBe(-1)
}, 300_000)

test('a host that is gone: input is refused, and when the host is back the session fails with the reason', async () => {
  const host = ssh.hosts[1]!
  const id = await open('frail')
  const desk = await attach(id)
  desk.ws.send('printf "mark-%d\\n" $((6*7))\n')
  await until('its output', 30, () => desk.text().includes('mark-42'))
  await host.crash()
  // Until the loss of the connection is noticed, keys go nowhere.
  const typing = setInterval(() => desk.ws.send('x'), 200)
  const [code] = await desk.closed.finally(() => clearInterval(typing))
  expect(code).toBe(1013)
  await host.boot()
  await host.startSshd()
  expect(await ended(id, 200)).toMatchObject({
    status: 'failed',
    failure: expect.stringMatching(/holder .* is gone/),
  })
  expect(await logOf(id)).toContain('mark-42')
}, 300_000)

test('where no holder may run there is a plain terminal, which a restart of the service ends with the reason', async () => {
  const id = await open('plain')
  expect((await sessionOf(id)).externalId).toBe('pty')
  const desk = await attach(id)
  desk.ws.send(JSON.stringify({ type: 'resize', rows: 31, columns: 117 }))
  desk.ws.send('stty size; printf "mark-%d\\n" $((6*7))\n')
  await until('its output', 30, () => /31 117[^]*mark-42/.test(desk.text()))
  desk.ws.send('stty -echo; head -1 > /dev/null; stty echo; echo ov""er\n')
  await new Promise((resolve) => setTimeout(resolve, 500))
  desk.ws.send('a-password-of-a-person\n')
  await until('its output', 30, () => desk.text().includes('over'))
  const cast = await (
    await fetch(`${programs.baseUrl()}/console-sessions/${id}/log/?format=asciicast`)
  ).text()
  expect(cast).toContain('mark-42')
  expect(cast).toContain('"117x31"')
  expect(cast).not.toContain('a-password-of-a-person')
  const second = await open('plain')
  const other = await attach(second)
  other.ws.send('exit\n')
  await other.closed
  expect((await ended(second)).status).toBe('closed')
  await programs.killDaemon()
  await programs.startDaemon()
  expect(await ended(id)).toMatchObject({
    status: 'failed',
    failure: expect.stringContaining('the connection that held the terminal is over'),
  })
  expect(await logOf(id)).toContain('mark-42')
}, 300_000)
