import { expect } from '@jest/globals'
import { once } from 'node:events'
import { WebSocket } from 'ws'
import { sql } from '../../src/db/sql.ts'
import { sites } from '../../sites/requirements.ts'
import { until } from '../failures/programs.ts'
import { deskToken, openDesk } from '../support/consoles.ts'
import { needs } from '../support/needs.ts'
import type { TestService } from '../support/service.ts'

const { afterAll, beforeAll, describe, test } = needs(...sites.ssh)

/** Terminals on this machine and over a real sshd, through real WebSockets. */

let opened: Awaited<ReturnType<typeof openDesk>>
let service: TestService
beforeAll(async () => {
  opened = await openDesk({}, { SERVICE_CONSOLE_SESSIONS: '3' })
  service = opened.service
}, 180_000)
afterAll(async () => {
  for (const { id } of (await service?.get('/console-sessions/')) ?? []) await close(id)
  await opened?.close()
})

const close = async (id: string): Promise<void> => {
  await service.call('DELETE', `/console-sessions/${id}/`)
  await until(
    'the end of a session',
    60,
    async () => !(await service.get('/console-sessions/')).some((one: { id: string }) => one.id === id),
  )
}
const urlOf = (id: string, search = ''): string =>
  `${service.baseUrl.replace('http', 'ws')}/console-sessions/${id}/stream/${search}`
const open = async (resourceId: string): Promise<string> => {
  const { id, status } = await service.post('/console-sessions/', { resourceId })
  expect(status).toBe('starting')
  await until('its terminal', 120, async () => {
    const [row] = await service.db.prepared<{ status: string; failure: string }>(
      'session',
      'select status, failure from console_sessions where id = $1',
      [id],
    )
    if (row?.status === 'failed') throw new Error(row.failure)
    return row?.status === 'connected'
  })
  return id
}
const attach = async (id: string, search = '', protocols: string[] = []) => {
  const ws = new WebSocket(urlOf(id, search), protocols)
  ws.on('error', () => undefined)
  let text = ''
  ws.on('message', (data: Buffer, isBinary: boolean) => (text += isBinary ? data.toString() : '(text)'))
  const closed = once(ws, 'close') as Promise<[number, Buffer]>
  await once(ws, 'open')
  const shows = (what: string | RegExp) =>
    until(`${String(what)} in ${JSON.stringify(text.slice(-500))}`, 45, () =>
      typeof what === 'string' ? text.includes(what) : what.test(text),
    )
  return { ws, closed, shows, text: () => text }
}
const refusedWith = async (url: string, options: object = {}): Promise<number> => {
  const ws = new WebSocket(url, options)
  ws.on('error', () => undefined)
  const [, response] = (await once(ws, 'unexpected-response')) as [unknown, { statusCode: number }]
  ws.terminate()
  return response.statusCode
}

describe.each(['here', 'there'])('a terminal %s', (resourceId) => {
  test('takes keys, shows output, is resized, keeps a record and ends', async () => {
    const id = await open(resourceId)
    const desk = await attach(id)
    desk.ws.send(JSON.stringify({ type: 'resize', rows: 31, columns: 117 }))
    desk.ws.send(Buffer.from('stty size; printf "mark-%d\\n" $((6*7))\n'))
    await desk.shows('31 117')
    await desk.shows('mark-42')

    const watching = await attach(id, '?mode=watch')
    await watching.shows('mark-42')
    expect(await refusedWith(urlOf(id))).toBe(409)
    const next = await attach(id, '?takeOver=true')
    expect((await desk.closed)[0]).toBe(4001)
    next.ws.send("printf '\\033]0;title\\007\\033[31mred\\033[0m\\n'\n")
    await next.shows('\x1b[31mred')
    await watching.shows('\x1b[31mred')
    watching.ws.send('x')
    expect((await watching.closed)[0]).toBe(1008)

    const half = Math.floor(deskToken.length / 2)
    next.ws.send(
      `stty -echo; printf '<%s' ${deskToken.slice(0, half)}; sleep 0.2; printf '%s>\\n' ${deskToken.slice(half)}; stty echo\n`,
    )
    await next.shows(`<${deskToken}>`)
    next.ws.send('stty -echo; head -1 > /dev/null; stty echo; echo over\n')
    await new Promise((resolve) => setTimeout(resolve, 500))
    next.ws.send('a-password-of-a-person\n')
    await next.shows(/over\r\n/)
    next.ws.send('exit\n')
    expect((await next.closed)[0]).toBe(1000)

    const [row] = await service.db.prepared<{ status: string }>(
      'state',
      'select status from console_sessions where id = $1',
      [id],
    )
    expect(row?.status).toBe('closed')
    const log = await service.call('GET', `/console-sessions/${id}/log/`)
    expect(log.headers.get('content-type')).toBe('text/plain; charset=utf-8')
    expect(log.headers.get('content-disposition')).toMatch(/^attachment/)
    expect(log.text).toContain('mark-42')
    expect(log.text).toContain('^[[31mred')
    expect(log.text).toContain('<********>')
    // eslint-disable-next-line no-control-regex
    expect(log.text).not.toMatch(/[\0-\x08\x0b-\x1f\x7f-\x9f]/)
    const cast = (await service.call('GET', `/console-sessions/${id}/log/?format=asciicast`)).text
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line))
    expect(cast[0]).toMatchObject({ version: 2, width: 80, height: 24 })
    expect(cast).toContainEqual([expect.any(Number), 'r', '117x31'])
    expect(JSON.stringify(cast)).toContain('\\u001b[31mred')
    expect(JSON.stringify(cast) + log.text).not.toContain(deskToken)
    expect(JSON.stringify(cast) + log.text).not.toContain('a-password-of-a-person')
    expect(await refusedWith(urlOf(id))).toBe(409)
  }, 180_000)

  test('is closed by DELETE', async () => {
    const id = await open(resourceId)
    const desk = await attach(id)
    await close(id)
    expect((await desk.closed)[0]).toBe(1000)
  }, 120_000)
})

test('the audit proves the recording of a session', async () => {
  const id = await open('here')
  const { ws, shows } = await attach(id)
  ws.send(Buffer.from('echo genuine-$((40 + 2))\r'))
  await shows('genuine-42')
  await close(id)
  const verdict = async () => {
    for (;;) {
      const found = await service.get('/audit-events/verify/')
      if (found.unsealed === 0) return found.first
    }
  }
  const [record] = await service.get(`/audit-events/?sessionId=${id}&eventType=console.session.closed`)
  expect(record.metadata).toMatchObject({ recordingDigest: expect.stringMatching(/^[0-9a-f]{64}$/) })
  expect(record.metadata.pieces).toBeGreaterThan(0)
  expect(await verdict()).toBeUndefined()
  await service.db.run(
    sql`update console_records set content = ${Buffer.from('forged')} where session_id = ${id} and sequence = 1`,
  )
  expect(await verdict()).toMatchObject({ id: record.id, reason: expect.stringContaining(id) })
  await service.db.run(sql`delete from console_sessions where id = ${id}`)
  expect(await verdict()).toBeUndefined()
}, 120_000)

test('sizes that no terminal has, foreign pages and unknown sessions are refused', async () => {
  const id = await open('here')
  for (const [rows, columns] of [
    [0, 80],
    [24, 1_000_000],
    [-1, 2.5],
  ]) {
    const desk = await attach(id)
    desk.ws.send(JSON.stringify({ type: 'resize', rows, columns }))
    expect((await desk.closed)[0]).toBe(1008)
  }
  expect(await refusedWith(urlOf(id), { headers: { origin: 'https://elsewhere.example' } })).toBe(403)
  expect(await refusedWith(urlOf(id, '?token=secret'))).toBe(400)
  expect(await refusedWith(urlOf('nothing'))).toBe(404)
  expect((await service.call('GET', '/console-sessions/nothing/log/')).status).toBe(404)
  expect((await service.call('DELETE', '/console-sessions/nothing/')).status).toBe(404)
  expect((await service.call('POST', '/console-sessions/', { resourceId: 'loose' })).status).toBe(422)
  await close(id)
}, 120_000)

test('a page opens a stream by a ticket: once, for its session and mode', async () => {
  const [id, other] = [await open('here'), await open('here')]
  const ticketOf = async (mode?: string): Promise<string[]> => {
    const { protocols, expiresAt } = await service.post(`/console-sessions/${id}/tickets/`, { mode })
    expect(Date.parse(expiresAt) - Date.now()).toBeLessThan(31_000)
    return protocols
  }
  const refused = async (protocols: string[], search = '', of = id): Promise<number> => {
    const ws = new WebSocket(urlOf(of, search), protocols)
    ws.on('error', () => undefined)
    const [, response] = (await once(ws, 'unexpected-response')) as [unknown, { statusCode: number }]
    ws.terminate()
    return response.statusCode
  }
  const writing = await ticketOf()
  const desk = await attach(id, '', writing)
  expect(desk.ws.protocol).toBe('orrery.console')
  desk.ws.send('printf "page-%d\\n" $((6*7))\n')
  await desk.shows('page-42')
  expect(await refused(writing)).toBe(401)
  expect(await refused(['orrery.console', 'orrery.ticket.guessed'])).toBe(401)
  expect(await refused(await ticketOf('watch'), '', other)).toBe(401)
  expect(await refused(await ticketOf('watch'), '?mode=write')).toBe(403)
  expect(await refused(await ticketOf('watch'), '?takeOver=true')).toBe(403)
  expect(await refused(await ticketOf())).toBe(409)
  const watching = await attach(id, '', await ticketOf('watch'))
  await watching.shows('page-42')
  watching.ws.send('x')
  expect((await watching.closed)[0]).toBe(1008)
  const late = await ticketOf('watch')
  await service.db.run(
    sql`update console_tickets set expires_at = clock_timestamp() where session_id = ${id}`,
  )
  expect(await refused(late)).toBe(401)

  const wrong = await service.call('POST', `/console-sessions/${id}/tickets/`, { mode: 'read' })
  expect(wrong.status).toBe(422)
  expect((await service.get(`/console-sessions/${id}/`)).status).toBe('connected')
  await close(id)
  expect((await service.get(`/console-sessions/${id}/`)).status).toBe('closed')
  expect((await service.call('POST', `/console-sessions/${id}/tickets/`, {})).status).toBe(409)
  expect((await service.call('POST', '/console-sessions/nothing/tickets/', {})).status).toBe(404)
  await close(other)
}, 120_000)

test('of two that want to write at the same moment one does', async () => {
  const id = await open('here')
  const sockets = [1, 2, 3].map(() => new WebSocket(urlOf(id)))
  const ends = await Promise.all(
    sockets.map(
      (ws) =>
        new Promise<number | string>((resolve) => {
          ws.on('error', () => undefined)
          ws.on('unexpected-response', (_, response: { statusCode: number }) => resolve(response.statusCode))
          ws.on('close', (code) => resolve(code))
          ws.on('open', () => setTimeout(() => resolve('writes'), 2_000))
        }),
    ),
  )
  expect(ends.filter((end) => end === 'writes')).toHaveLength(1)
  expect(ends.filter((end) => end === 409 || end === 4002)).toHaveLength(2)
  for (const ws of sockets) ws.terminate()
  await close(id)
}, 120_000)

test('no more terminals than allowed are open at once', async () => {
  const ids = [await open('here'), await open('here'), await open('here')]
  expect((await service.call('POST', '/console-sessions/', { resourceId: 'here' })).status).toBe(409)
  for (const id of ids) await close(id)
}, 120_000)
