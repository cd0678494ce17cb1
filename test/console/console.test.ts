import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import type { IncomingMessage } from 'node:http'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { userInfo } from 'node:os'
import { dirname, join } from 'node:path'
import { text as textOf } from 'node:stream/consumers'
import { WebSocket } from 'ws'
import { raw, sql } from '../../src/db/sql.ts'
import { until } from '../failures/programs.ts'
import { attachTo, openTerminal } from '../support/console-streams.ts'
import { sites } from '../../sites/requirements.ts'
import { startSshd, type Sshd } from '../clients/sshd.ts'
import { consoleEnvironment } from '../support/consoles.ts'
import { needs } from '../support/needs.ts'
import { makeVaultKeyFile } from '../support/reach.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, type TestService } from '../support/service.ts'
import { proved } from '../support/share.ts'

/** Commands and terminals on this machine. */

const folder = mkdtempSync(join(runFolder(), 'console-'))
let service: TestService
beforeAll(async () => {
  service = await openService({
    environment: {
      SERVICE_CONSOLE_ENABLED: 'true',
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
    },
  })
  await service.post('/environments/', consoleEnvironment('desk', { here: { driver: 'local' } }))
})
afterAll(async () => {
  for (const { id } of (await service?.get('/console-sessions/')) ?? [])
    await service.call('DELETE', `/console-sessions/${id}/`)
  await service?.[Symbol.asyncDispose]()
})

describe('a command under an Idempotency-Key', () => {
  test.each([
    ['whose request still runs', false],
    ['whose first answer was lost with its process', true],
  ])('%s runs once', async (_, died) => {
    const key = `once-${String(died)}`
    const [begun, go] = [join(folder, `${key}-begun`), join(folder, `${key}-go`)]
    const body = {
      resourceId: 'here',
      command: `echo begun >> ${begun}; until [ -e ${go} ]; do sleep 0.1; done; echo over`,
      timeoutSeconds: 3_600,
    }
    const post = () => service.call('POST', '/console-commands/', body, { 'idempotency-key': key })
    const first = post()
    await until('its start', 120, () => existsSync(begun))
    if (died) await service.db.run(sql`delete from idempotency_keys where status is null`)
    else {
      // As old as the key of a process that died.
      await service.db.run(
        sql`update idempotency_keys set created_at = now() - interval '2 minutes' where status is null`,
      )
      await until('the renewal of the key', 120, async () => {
        const [row] = await service.db.prepared<{ old: boolean }>(
          'oldest',
          `select bool_or(created_at < now() - interval '1 minute') as old from idempotency_keys
            where status is null`,
          [],
        )
        return row?.old === false
      })
      expect((await post()).status).toBe(409)
    }
    const second = died ? post() : undefined
    writeFileSync(go, '')
    const { status, body: record } = await first
    expect([status, record.stdout]).toEqual([201, 'over\n'])
    const again = await (second ?? post())
    expect([again.status, again.body.id, again.body.stdout]).toEqual([201, record.id, 'over\n'])
    expect(readFileSync(begun, 'utf8')).toBe('begun\n')
  })

  test('runs again with another body after its key is free', async () => {
    const post = (command: string) =>
      service.call(
        'POST',
        '/console-commands/',
        { resourceId: 'here', command },
        { 'idempotency-key': 'two' },
      )
    const one = await post('echo one')
    await service.db.run(sql`delete from idempotency_keys`)
    const two = await post('echo two')
    expect([one.body.stdout, two.body.stdout]).toEqual(['one\n', 'two\n'])
    // A day later the key is one of another request.
    await service.db.run(sql`delete from idempotency_keys`)
    await service.db.run(sql`update console_commands set created_at = now() - interval '25 hours'`)
    const third = await post('echo two')
    expect(third.body.id).not.toBe(two.body.id)
  })
})

test('zeros of a command count as left out, and the feed of runs shows it by itself, too', async () => {
  const zeros = { timeoutSeconds: 0, cpuCores: 0, memoryBytes: 0, workingDirectory: '', actorId: '' }
  const command = await service.post('/console-commands/', { resourceId: 'here', command: 'true', ...zeros })
  expect(command).toMatchObject({ status: 'completed', timeoutSeconds: 30 })
  expect([command.cpuCores, command.memoryBytes]).toEqual([undefined, undefined])
  const beyond = { resourceId: 'here', command: 'true', memoryBytes: 1, timeoutSeconds: -1 }
  const refused = await service.call('POST', '/console-commands/', beyond)
  expect([refused.status, refused.body.details.length]).toEqual([422, 2])
  const { items } = await service.get('/execution-runs/?kind=standalone')
  const { run } = items.find((item: { run: { id: string } }) => item.run.id === command.id)
  const none = { activities: [], dataTransfers: [], handles: [], events: [], dataObjects: [] }
  expect(await service.get(`/execution-runs/${command.id}/`)).toMatchObject({ run, ...none })
  expect((await service.call('GET', '/execution-runs/nobody/')).status).toBe(404)
})

test("a command's own texts show no value of the vault, and run with them", async () => {
  const secret = 'a-token-that-a-command-holds'
  await service.post('/kubernetes-tokens/', { id: 'held', token: secret })
  const go = join(folder, 'texts-go')
  const given = {
    resourceId: 'here',
    command: `: begun; until [ -e ${go} ]; do sleep 0.1; done; printf '%s' ${secret} "$HELD" | wc -c`,
    environment: { HELD: `is ${secret}`, [secret.replaceAll('-', '_')]: 'no value' },
    timeoutSeconds: 3_600,
  }
  const { body: accepted } = await service.call('POST', '/console-commands/', given, {
    prefer: 'respond-async',
  })
  const texts = async () => {
    const [row] = await service.db.prepared<{ body: string }>(
      'command_texts',
      'select row_to_json(c)::text as body from console_commands c where id = $1',
      [accepted.id],
    )
    return row?.body ?? ''
  }
  const answers = async () => [
    await service.get(`/console-commands/${accepted.id}/`),
    (await service.get('/console-commands/')).find(({ id }: { id: string }) => id === accepted.id),
    (await service.get('/execution-runs/?kind=standalone')).items.find(
      ({ run }: { run: { id: string } }) => run.id === accepted.id,
    ),
  ]
  const shown = JSON.stringify([accepted, await answers()])
  expect(shown.split(': begun')).toHaveLength(5)
  expect(shown).not.toContain(secret)
  writeFileSync(go, '')
  const ended = await until('its end', 120, async () => {
    const command = await service.get(`/console-commands/${accepted.id}/`)
    return command.status !== 'running' && command
  })
  expect([ended.status, ended.stdout.trim()]).toEqual(['completed', String(2 * secret.length + 3)])
  expect(ended.environment).toEqual({ HELD: 'is ********', [secret.replaceAll('-', '_')]: 'no value' })
  expect(JSON.stringify([ended, await answers()]) + (await texts())).not.toContain(secret)
})

test('a command whose output an earlier version recorded has failed by its exit code', async () => {
  await service.db.run(
    sql`insert into console_commands (id, resource_id, runtime_id, command, timeout_seconds, place, stdout, stderr,
        exit_code, cleared_at)
      select 'earlier-' || code, 'here', 'here-runtime', 'x', 60,
        '{"site": "local", "kind": "local", "configuration": {}}', '', '', code, now() from unnest(array[0, 3]) code`,
  )
  const ends = [0, 3].map((code) =>
    until('its end', 120, async () => {
      const command = await service.get(`/console-commands/earlier-${String(code)}/`)
      return command.finishedAt === undefined ? undefined : [command.status, command.failure]
    }),
  )
  expect(await Promise.all(ends)).toEqual([
    ['completed', undefined],
    ['failed', 'the command ended with exit code 3'],
  ])
})

test('a later change of the output of an ended command is found', async () => {
  const command = { resourceId: 'here', command: 'echo as it was; echo beside >&2', timeoutSeconds: 60 }
  const { id } = await service.post('/console-commands/', command)
  await until('its end', 120, async () => (await service.get(`/console-commands/${id}/`)).finishedAt)
  const record = await until('the seal of its record', 120, async () => {
    const [end] = await service.get('/audit-events/?eventType=console.command.completed&limit=1')
    const { unsealed } = await service.get('/audit-events/verify/')
    return unsealed === 0 && end?.externalId === id ? end : undefined
  })
  const first = async () => (await service.get('/audit-events/verify/')).first
  expect(await first()).toBeUndefined()
  for (const column of ['stdout', 'stderr']) {
    const change = (from: string, to: string) =>
      service.db.run(
        sql`update console_commands set ${raw(column)} = ${to} where id = ${id} and ${raw(column)} = ${from}`,
      )
    const [was, forged] = column === 'stdout' ? ['as it was\n', 'as it is\n'] : ['beside\n', 'aside\n']
    expect(await change(was, forged)).toBe(1)
    expect(await first()).toEqual({
      id: record.id,
      reason: expect.stringContaining(`what was recorded of console command ${id}`),
    })
    expect(await change(forged, was)).toBe(1)
  }
  expect(await first()).toBeUndefined()
})

const sessionEnd = (id: string) =>
  until('the end of the session', 120, async () => {
    const session = await service.get(`/console-sessions/${id}/`)
    return session.finishedAt === undefined ? undefined : session
  })

test('a terminal can be connected to as soon as its session is answered', async () => {
  const session = await service.post('/console-sessions/', { resourceId: 'here', actorId: '' })
  const desk = await attachTo(service, session.id)
  desk.ws.send('echo at""-once\n')
  await desk.shows('at-once', 120)
  // A blank actor is none: the caller is.
  expect(session.actorId).toMatch(/./)
  expect((await service.call('DELETE', `/console-sessions/${session.id}/`)).status).toBeLessThan(300)
  await sessionEnd(session.id)
})

test('a list of commands has the beginning of their output', async () => {
  const long = await service.post('/console-commands/', {
    resourceId: 'here',
    command: 'head -c 20000 /dev/zero | tr "\\0" x; echo short >&2',
  })
  expect([long.stdout.length, long.stdoutTruncated]).toEqual([20_000, undefined])
  const listed = (await service.get('/console-commands/')).find(({ id }: any) => id === long.id)
  expect([listed.stdout.length, listed.stdoutTruncated, listed.stderr, listed.stderrTruncated]).toEqual([
    ...[16_384, true, 'short\n', undefined],
  ])
})

proved('a program that reads nothing stops neither its own end nor other terminals', async () => {
  const [deaf, other] = [await openTerminal(service, 'here'), await openTerminal(service, 'here')]
  const desk = await attachTo(service, deaf)
  const group = join(folder, 'deaf-group')
  desk.ws.send(`stty raw -echo; echo $$ > ${group}; echo read""s-nothing; sleep 86400\n`)
  await desk.shows('reads-nothing', 120)
  const paste = Buffer.alloc(512 * 1024, 'x')
  for (let times = 0; times < 8; times++) desk.ws.send(paste)
  desk.ws.send(JSON.stringify({ type: 'resize', rows: 33, columns: 99 }))
  await until('the resize behind the paste', 120, async () =>
    (await service.call('GET', `/console-sessions/${deaf}/log/?format=asciicast`)).text.includes('"99x33"'),
  )
  const shell = Number(readFileSync(group, 'utf8'))
  await service.call('DELETE', `/console-sessions/${deaf}/`)
  expect((await sessionEnd(deaf)).status).toBe('closed')
  await until('the end of its shell', 120, () => !existsSync(`/proc/${String(shell)}`))
  const next = await attachTo(service, other)
  next.ws.send('echo still-$((40 + 2))\n')
  await next.shows('still-42', 120)
  await service.call('DELETE', `/console-sessions/${other}/`)
  expect((await sessionEnd(other)).status).toBe('closed')
})

test('what the record of an open terminal has is no longer at the resource', async () => {
  const id = await openTerminal(service, 'here')
  const { externalId } = await service.get(`/console-sessions/${id}/`)
  const recording = join(externalId, 'recording')
  const desk = await attachTo(service, id)
  for (const turn of [1, 2]) {
    desk.ws.send(`echo shown-$((${String(turn)} + 40))\n`)
    await desk.shows(`shown-${String(turn + 40)}`, 120)
    await until('the removal', 120, () => !readFileSync(recording).includes(`shown-${String(turn + 40)}`))
  }
  const { text } = await service.call('GET', `/console-sessions/${id}/log/`)
  expect(text).toMatch(/shown-41[^]*shown-42/)
  // Whoever asks for removed bytes is told so, and gets no zeros.
  const [program = ''] = readdirSync(dirname(externalId)).filter((name) => name.startsWith('console-holder-'))
  const early = spawn(join(dirname(externalId), program), ['attach', externalId, '0'])
  expect(await textOf(early.stdout)).toContain('the recording lacks the bytes from 0 to ')
  await service.call('DELETE', `/console-sessions/${id}/`)
  expect((await sessionEnd(id)).status).toBe('closed')
})

test('a holder that can start no shell says so and leaves no recording, so the session can begin there', async () => {
  const id = await openTerminal(service, 'here')
  const { externalId } = await service.get(`/console-sessions/${id}/`)
  const [program = ''] = readdirSync(dirname(externalId)).filter((name) => name.startsWith('console-holder-'))
  const directory = join(folder, 'no-shell')
  const holder = (...words: string[]) =>
    spawnSync(join(dirname(externalId), program), words, { encoding: 'utf8' })
  const failed = holder('start', directory, '24', '80', 'no-such-srun', '--pty')
  expect([failed.status, failed.stderr]).toEqual([
    1,
    expect.stringMatching(/^no-such-srun cannot be started: /),
  ])
  expect(existsSync(join(directory, 'recording'))).toBe(false)
  expect(holder('start', directory, '24', '80').status).toBe(0)
  expect(holder('end', directory).status).toBe(0)
  await service.call('DELETE', `/console-sessions/${id}/`)
  expect((await sessionEnd(id)).status).toBe('closed')
})

/** A resource of this name that is the host of an sshd. */
const addHost = async (name: string, sshd: Sshd, configuration: object = {}): Promise<void> => {
  await service.post('/ssh-keys/import/', { id: name, privateKey: sshd.privateKey })
  const connection = {
    ...{ id: `${name}-host`, name, type: 'ssh', endpoint: `127.0.0.1:${String(sshd.port)}` },
    ...{ username: userInfo().username, credentialRef: `vault:ssh-key/${name}` },
    configuration: { hostKeyFingerprints: [sshd.fingerprints['ed25519']] },
  }
  const place = { driver: 'ssh', configuration: { connectionId: connection.id, ...configuration } }
  await service.post('/environments/', consoleEnvironment(name, { [name]: place }, [connection]))
}
const clearingOf = (ids: readonly string[]) =>
  until('the removal of what they left', 120, async () => {
    const [row] = await service.db.prepared<{ all: boolean }>(
      'all-cleared',
      'select bool_and(cleared_at is not null) as all from console_sessions where id = any($1)',
      [ids],
    )
    return row?.all
  })

needs(...sites.sshd).test('a host that gives no pseudo terminal ends a session with what helps', async () => {
  const sshd = await startSshd(['PermitTTY no'])
  try {
    const work = join(folder, 'without-holders')
    mkdirSync(work)
    writeFileSync(join(work, 'console'), 'no folder')
    await addHost('bare', sshd, { workDirectory: work })
    const { id } = await service.post('/console-sessions/', { resourceId: 'bare' })
    expect(await sessionEnd(id)).toMatchObject({
      status: 'failed',
      failure: expect.stringMatching(
        /no pseudo terminal; let it .*PermitTTY.*the holder of terminals cannot be put/,
      ),
    })
    await clearingOf([id])
  } finally {
    await sshd.stop()
  }
})

needs(...sites.sshd).test('nine terminals and the commands of one SSH login run at once', async () => {
  const sshd = await startSshd()
  try {
    await addHost('far', sshd)
    const ids = await Promise.all(Array.from({ length: 9 }, () => openTerminal(service, 'far')))
    const desks = await Promise.all(ids.map((id) => attachTo(service, id)))
    for (const [index, { ws }] of desks.entries()) ws.send(`echo desk-$((${String(index)} + 40))\n`)
    await Promise.all(desks.map(({ shows }, index) => shows(`desk-${String(index + 40)}`, 120)))
    const command = await service.call('POST', '/console-commands/', {
      resourceId: 'far',
      command: 'echo command',
      timeoutSeconds: 3_600,
    })
    expect([command.status, command.body.stdout]).toEqual([201, 'command\n'])
    // The login itself, and two connections for the terminals.
    expect(sshd.log().split('Accepted publickey').length - 1).toBe(3)
    for (const id of ids) await service.call('DELETE', `/console-sessions/${id}/`)
    for (const id of ids) expect((await sessionEnd(id)).status).toBe('closed')
    await clearingOf(ids)
  } finally {
    await sshd.stop()
  }
})

test('an open terminal and an open command prevent that their environment is deleted', async () => {
  const id = await openTerminal(service, 'here')
  const deletion = () => service.call('DELETE', '/environments/desk/')
  expect(await deletion()).toMatchObject({ status: 422, text: expect.stringContaining(id) })
  await service.call('DELETE', `/console-sessions/${id}/`)
  await sessionEnd(id)
  const go = join(folder, 'deletion-go')
  const command = await service.call(
    'POST',
    '/console-commands/',
    { resourceId: 'here', command: `until [ -e ${go} ]; do sleep 0.1; done`, timeoutSeconds: 3_600 },
    { prefer: 'respond-async' },
  )
  expect(await deletion()).toMatchObject({ status: 422, text: expect.stringContaining(command.body.id) })
  writeFileSync(go, '')
  await until('its end', 120, async () => {
    const { status } = await service.get(`/console-commands/${command.body.id}/`)
    return status !== 'running'
  })
})

test('a terminal of a machine that is gone ends once its close was asked for', async () => {
  const [asked, long] = ['close-asked-now', 'close-asked-long-ago']
  await service.db.run(
    sql`insert into console_sessions (id, status, resource_id, runtime_id, place)
      select id, 'connected', 'here', 'here-runtime',
        '{"site": "local", "kind": "local", "configuration": {}, "host": "gone"}'
      from unnest(${[asked, long]}::text[]) id`,
  )
  const setAsked = (id: string, seconds: number) =>
    service.db.run(
      sql`update console_sessions set close_requested_at = now() + make_interval(secs => ${seconds})
        where id = ${id}`,
    )
  // Its time is far, whatever the pace of this test.
  await setAsked(asked, 3_600)
  for (const id of [asked, long])
    expect((await service.call('DELETE', `/console-sessions/${id}/`)).status).toBe(204)
  const ended = { status: 'failed', failure: 'the machine "gone" did not answer' }
  await setAsked(long, -16)
  expect(await sessionEnd(long)).toMatchObject(ended)
  // The service of that machine has some seconds for it, if there is one.
  expect((await service.get(`/console-sessions/${asked}/`)).status).toBe('connected')
  await setAsked(asked, -16)
  expect(await sessionEnd(asked)).toMatchObject(ended)
  await service.db.run(
    sql`update console_sessions set cleared_at = now() where id = any(${[asked, long]}::text[])`,
  )
})

test('a terminal that another process of this database serves is left to it, and refused with its name', async () => {
  // Its word is good for long, whatever the pace of this test.
  await service.db.run(
    sql`insert into console_sessions (id, status, resource_id, runtime_id, place, external_id, served_by, served_at)
      values ('of-another', 'connected', 'here', 'here-runtime',
        '{"site": "local", "kind": "local", "configuration": {}}', 'pty', 'another:/data', now() + interval '1 day')`,
  )
  const ws = new WebSocket(
    `${service.baseUrl.replace('http', 'ws')}/console-sessions/of-another/stream/?mode=watch`,
  )
  ws.on('error', () => undefined)
  const [, response] = (await once(ws, 'unexpected-response')) as [unknown, IncomingMessage]
  expect([response.statusCode, await textOf(response)]).toEqual([
    503,
    expect.stringContaining('another:/data'),
  ])
  await service.db.run(sql`delete from console_sessions where id = 'of-another'`)
})

test('what a command has left is removed once its site answers', async () => {
  const { body } = await service.call('POST', '/console-commands/', { resourceId: 'here', command: 'echo x' })
  const left = join(service.dataDir, 'work', 'console', `console-${body.id}`)
  expect(existsSync(left)).toBe(false)
  const again = await service.call(
    'POST',
    '/console-commands/',
    { resourceId: 'here', command: `echo $$ > ${folder}/left; exec sleep 86400`, timeoutSeconds: 3_600 },
    { prefer: 'respond-async' },
  )
  const { id } = again.body
  const pid = await until('its start', 120, () =>
    existsSync(`${folder}/left`) ? Number(readFileSync(`${folder}/left`, 'utf8')) : undefined,
  )
  // The record of a command that was given up while its site was away.
  await service.db.run(
    sql`update console_commands set status = 'cancelled', finished_at = now() - interval '3 minutes'
      where id = ${id}`,
  )
  await until('the end of its process', 120, () => !existsSync(`/proc/${String(pid)}`))
  await until('its clearing', 120, async () => {
    const [row] = await service.db.prepared<{ cleared: boolean }>(
      'cleared',
      'select cleared_at is not null as cleared from console_commands where id = $1',
      [id],
    )
    return row?.cleared
  })
})

proved('a factory reset names open terminals, and ends them where it is asked to', async () => {
  const id = await openTerminal(service, 'here')
  const desk = await attachTo(service, id)
  const shells = join(folder, 'reset-shell')
  desk.ws.send(`echo $$ > ${shells}.part; mv ${shells}.part ${shells}\n`)
  await until('its shell', 120, () => existsSync(shells))
  const refused = await service.call('POST', '/factory-reset/')
  expect(refused.status).toBe(409)
  expect(refused.body.details).toContainEqual({
    path: `console-session/${id}`,
    message: 'is connected',
  })
  await service.db.run(
    sql`insert into console_commands (id, resource_id, runtime_id, command, timeout_seconds, place, status, finished_at)
      values ('left', 'here', 'here-runtime', 'x', 60, '{"site": "local", "kind": "local", "configuration": {}}',
        'cancelled', now())`,
  )
  expect((await service.call('POST', '/factory-reset/?stop=true')).status).toBe(202)
  const [reset] = await service.get('/audit-events/?eventType=instance.reset')
  expect(reset.metadata.consoleLeft).toEqual(['console-command/left'])
  expect((await desk.closed)[0]).toBe(1000)
  expect(existsSync(`/proc/${readFileSync(shells, 'utf8').trim()}`)).toBe(false)
  expect((await service.call('GET', `/console-sessions/${id}/`)).status).toBe(404)
})
