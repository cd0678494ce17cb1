import { afterAll, afterEach, beforeAll, expect, test } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { createServer, type Server } from 'node:https'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { addressJudge } from '../../src/clients/denied-networks.ts'
import {
  openKubernetesCluster,
  type ClusterOptions,
  type KubernetesCluster,
} from '../../src/clients/kubernetes-cluster.ts'
import { openPodTerminal } from '../../src/drivers/runtime/kubernetes/terminal.ts'
import { runFolder } from '../support/run-folder.ts'

/** API servers and what stands before them, as they misbehave: real ones do not on request. */

let folder: string
let server: Server
let answer: (request: IncomingMessage, response: ServerResponse) => void
let asked: { method: string; url: string; authorization: string }[] = []
const clusters: KubernetesCluster[] = []

beforeAll(async () => {
  folder = mkdtempSync(join(runFolder(), 'kubernetes-client-'))
  const subject = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost']
  const files = ['-keyout', join(folder, 'key'), '-out', join(folder, 'certificate')]
  execFileSync(
    'openssl',
    ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', ...files, ...subject],
    { stdio: 'ignore' },
  )
  server = createServer(
    { key: readFileSync(join(folder, 'key')), cert: readFileSync(join(folder, 'certificate')) },
    (request, response) => {
      const { method = '', url = '', headers } = request
      asked.push({ method, url, authorization: headers.authorization ?? '' })
      answer(request, response)
    },
  )
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
})
afterAll(async () => {
  server.closeAllConnections()
  await new Promise((resolve) => server.close(resolve))
  rmSync(folder, { recursive: true })
})
afterEach(() => {
  for (const cluster of clusters.splice(0)) cluster.close()
  asked = []
})

const open = (more: Partial<ClusterOptions> = {}): KubernetesCluster => {
  const cluster = openKubernetesCluster({
    host: 'localhost',
    port: (server.address() as AddressInfo).port,
    certificateAuthority: readFileSync(join(folder, 'certificate'), 'utf8'),
    addressAllowed: () => true,
    token: () => Promise.resolve('good'),
    ...more,
  })
  clusters.push(cluster)
  return cluster
}
const say = (
  response: ServerResponse,
  status: number,
  body: unknown,
  headers: Record<string, string> = {},
): void => {
  response
    .writeHead(status, { 'content-type': 'application/json', ...headers })
    .end(typeof body === 'string' ? body : JSON.stringify(body))
}
const failure = (cluster: KubernetesCluster, deadlineMs = 3000): Promise<unknown> =>
  cluster.request({ path: '/api', deadlineMs }).then(
    (value) => `answered ${JSON.stringify(value)}`,
    (error: unknown) => error,
  )

test('a token that is refused is asked for once more, and another one goes on', async () => {
  answer = ({ headers }, response) =>
    headers.authorization === 'Bearer second' ? say(response, 200, { ok: true }) : say(response, 401, {})
  const tokens = ['first', 'second']
  const cluster = open({ token: () => Promise.resolve(tokens.shift() ?? 'none') })
  expect(await cluster.request({ path: '/api' })).toEqual({ ok: true })
  expect(asked.map(({ authorization }) => authorization)).toEqual(['Bearer first', 'Bearer second'])
  answer = (_, response) => say(response, 401, {})
  expect(await failure(cluster)).toMatchObject({
    status: 401,
    message: expect.stringContaining('token is refused'),
  })
})

test('what passes is tried again, what stays is told at once in the words of the server', async () => {
  const statuses = [429, 503, 500, 200]
  answer = (_, response) => say(response, statuses.shift() ?? 200, { fine: true })
  expect(await open().request({ path: '/api' })).toEqual({ fine: true })
  expect(asked).toHaveLength(4)
  asked = []
  const message = 'jobs.batch is forbidden: User "x" cannot create resource "jobs"'
  answer = (_, response) => say(response, 403, { kind: 'Status', reason: 'Forbidden', message })
  expect(await failure(open())).toMatchObject({
    status: 403,
    reason: 'Forbidden',
    message: expect.stringContaining(message),
  })
  expect(asked).toHaveLength(1)
})

test('a redirect is not followed, and gets no token', async () => {
  answer = (_, response) => say(response, 302, '', { location: 'https://elsewhere.example/' })
  expect(await failure(open())).toMatchObject({ status: 302, message: expect.stringContaining('redirect') })
  expect(asked).toHaveLength(1)
})

test('the address is judged that is connected to; nothing is sent to a denied one', async () => {
  for (const host of ['localhost', '127.0.0.1']) {
    const denied = open({ host, addressAllowed: addressJudge({ allowLoopback: false }) })
    expect(await failure(denied)).toMatchObject({
      stage: 'route',
      permanent: true,
      message: expect.stringContaining('denies'),
    })
    const exec = denied.exec({
      namespace: 'n',
      pod: 'p',
      container: 'c',
      command: ['true'],
      deadlineMs: 30_000,
    })
    await expect(exec).rejects.toMatchObject({
      stage: 'route',
      permanent: true,
      message: expect.stringContaining('denies'),
    })
  }
  expect(asked).toHaveLength(0)
})

test('a certificate of another name, or of another authority, is refused for good', async () => {
  answer = (_, response) => say(response, 200, {})
  expect(await failure(open({ host: '127.0.0.1' }))).toMatchObject({ stage: 'host key', permanent: true })
  const { certificateAuthority: _, ...without } = { certificateAuthority: '' }
  expect(
    await failure(
      openKubernetesCluster({
        ...without,
        host: 'localhost',
        port: (server.address() as AddressInfo).port,
        addressAllowed: () => true,
        token: () => Promise.resolve('x'),
      }),
    ),
  ).toMatchObject({ stage: 'host key', permanent: true })
  expect(asked).toHaveLength(0)
})

test('an answer that is not what was promised, and one without end', async () => {
  answer = (_, response) => say(response, 200, '<html>')
  expect(await failure(open())).toMatchObject({
    permanent: true,
    message: expect.stringContaining('not JSON'),
  })
  answer = (_, response) => {
    response.writeHead(200)
    const chunk = Buffer.alloc(1024 * 1024, 32)
    const write = (): void => {
      while (!response.destroyed && response.write(chunk));
    }
    response.on('drain', write)
    write()
  }
  expect(await failure(open(), 60_000)).toMatchObject({
    permanent: true,
    message: expect.stringContaining('larger than'),
  })
})

test('a watch goes on from where it broke off, and lists anew when that is forgotten', async () => {
  const pod = (name: string, resourceVersion: string) => ({ metadata: { name, resourceVersion } })
  const event = (type: string, object: unknown): string => `${JSON.stringify({ type, object })}\n`
  let turn = 0
  answer = ({ url = '' }, response) => {
    const query = new URL(url, 'https://x').searchParams
    if (query.get('watch') === null)
      return say(response, 200, {
        metadata: { resourceVersion: String(10 * ++turn) },
        items: [pod(`listed-${turn}`, '1')],
      })
    response.writeHead(200)
    const from = query.get('resourceVersion')
    // Cut in the middle of a line; then all is forgotten; then it stays.
    if (from === '10')
      return void response.end(
        event('ADDED', pod('a', '11')) + event('BOOKMARK', pod('', '12')) + '{"type":"ADD',
      )
    if (from === '12')
      return void response.end(
        event('ERROR', { kind: 'Status', code: 410, reason: 'Expired', message: 'too old' }),
      )
    response.write(event('DELETED', pod('b', '21')))
  }
  const told: string[] = []
  const stop = await new Promise<() => void>((resolve) => {
    const stopping = open().watch<{ metadata: { name: string } }>(
      '/api/v1/pods',
      {},
      {
        listed: (items) => told.push(`listed ${items.map(({ metadata }) => metadata.name).join()}`),
        changed: (how, { metadata }) => {
          told.push(`${how} ${metadata.name}`)
          if (metadata.name === 'b') resolve(stopping)
        },
        standing: (now) => told.push(now ? 'stands' : 'broken'),
      },
    )
  })
  stop()
  expect(told.filter((line) => line !== 'stands' && line !== 'broken')).toEqual([
    'listed listed-1',
    'ADDED a',
    'listed listed-2',
    'DELETED b',
  ])
  expect(told).toContain('broken')
})

test('the removal of a Pod that a finalizer keeps ends with an error that names the Pod', async () => {
  answer = ({ method }, response) =>
    say(response, 200, method === 'DELETE' ? {} : { metadata: { deletionTimestamp: '2026-01-01T00:00:00Z' } })
  const place = openPodTerminal({
    ...{ cluster: open(), namespace: 'n', runtime: 'r', configuration: {}, name: 'held' },
    account: () => Promise.resolve({}),
    removalMs: 1,
  })
  await expect(place.remove()).rejects.toMatchObject({
    name: 'LinkError',
    message: expect.stringMatching(/^Pod orrery-console-held is still there.*finalizers/),
  })
  expect(new Set(asked.map(({ method, url }) => `${method} ${url}`))).toEqual(
    new Set(['DELETE', 'GET'].map((method) => `${method} /api/v1/namespaces/n/pods/orrery-console-held`)),
  )
  await place.close()
})
