import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { once } from 'node:events'
import { WebSocket } from 'ws'
import { consoleRoutes, type ConsoleRouteParts } from '../../src/domains/console/routes.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'

/** The console of a service that does not have it turned on. */

const apiToken = 'correct-horse-battery-staple'
let service: OpenedRoutes
beforeAll(async () => {
  service = await openRoutes(
    (db) => consoleRoutes({ db, consoleEnabled: false } as unknown as ConsoleRouteParts),
    { config: { apiToken, allowedHosts: ['desk.example'] } },
  )
})
afterAll(() => service.close())

type Headers = Record<string, string>
const withToken = { authorization: `Bearer ${apiToken}` }
const pathOf = (path: string): string => path.replaceAll(/\{\w+\}/g, 'x')

/** Status, text and `Retry-After` of the answer to a handshake that is refused. */
const refused = async (path: string, headers: Headers) => {
  const ws = new WebSocket(`${service.baseUrl.replace('http', 'ws')}${path}`, { headers })
  ws.on('error', () => undefined)
  const [, response] = (await once(ws, 'unexpected-response')) as [
    unknown,
    AsyncIterable<Buffer> & { statusCode?: number; headers: Record<string, string> },
  ]
  const text: Buffer[] = []
  for await (const part of response) text.push(part)
  return [response.statusCode, Buffer.concat(text).toString(), response.headers['retry-after']] as const
}

const answered = async (method: string, path: string, headers: Headers) => {
  const answer = await fetch(`${service.baseUrl}${path}`, {
    method,
    headers: { ...headers, 'content-type': 'application/json' },
    ...(method === 'POST' ? { body: '{}' } : {}),
  })
  return [answer.status, await answer.text(), answer.headers.get('retry-after') ?? undefined] as const
}

test('each of its routes is 503 with the remedy, behind the token and the Origin', async () => {
  const routes = service.routes.map(({ method, path, socket }) => ({
    name: `${method} ${path}`,
    ask: (headers: Headers) =>
      socket === undefined ? answered(method, pathOf(path), headers) : refused(pathOf(path), headers),
  }))
  expect(routes.length).toBeGreaterThan(9)
  for (const { name, ask } of routes) {
    expect([name, await ask(withToken)]).toEqual([
      name,
      [503, expect.stringContaining('SERVICE_CONSOLE_ENABLED=true'), undefined],
    ])
    expect([name, (await ask({}))[0]]).toEqual([name, 401])
    expect([name, (await ask({ ...withToken, origin: 'https://elsewhere.example' }))[0]]).toEqual([name, 403])
  }
})

test('a handshake is judged by Host, Origin, token, path, and then by what is turned on', async () => {
  const wrong = {
    host: { host: 'elsewhere.example' },
    origin: { origin: 'https://elsewhere.example' },
    token: { authorization: 'Bearer another-one' },
  }
  const [there, nowhere] = ['/console-sessions/x/stream/', '/console-sessions/x/streams/']
  for (const [path, headers, status, text] of [
    [nowhere, { ...wrong.host, ...wrong.origin, ...wrong.token }, 403, 'Host'],
    [nowhere, { ...wrong.origin, ...wrong.token }, 403, 'origin is not allowed'],
    [nowhere, wrong.token, 401, 'authentication required'],
    [nowhere, withToken, 404, 'Not Found'],
    [there, withToken, 503, 'SERVICE_CONSOLE_ENABLED'],
  ] as const)
    expect([path, headers, (await refused(path, headers)).slice(0, 2)]).toEqual([
      path,
      headers,
      [status, expect.stringContaining(text)],
    ])
})
