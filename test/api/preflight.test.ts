import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import { createServer as createHttp2Server, type Http2Server } from 'node:http2'
import { createServer as createSocketServer, type Server as SocketServer } from 'node:net'
import { join } from 'node:path'
import { openDatabase } from '../../src/db/pool.ts'
import { probeBuildkit, probeDocker, probeServer } from '../../src/domains/instance/probes.ts'
import { startInventory, type InventoryApp } from '../support/inventory-app.ts'
import { runFolder } from '../support/remover.ts'

const folder = mkdtempSync(join(runFolder(), 'preflight-'))
const socket = (name: string): string => join(folder, name)
const servers: (Server | Http2Server | SocketServer)[] = []
const listen = async (server: Server | Http2Server | SocketServer, name: string): Promise<void> => {
  servers.push(server)
  await new Promise<void>((resolve) => server.listen(socket(name), resolve))
}
/** A container engine's ping, as its API documents it. */
const engine = (headers: Record<string, string>, status = 200): Server =>
  createServer((request, response) => {
    response.writeHead(request.url === '/_ping' ? status : 404, headers)
    response.end('OK')
  })
/** A BuildKit daemon that lists workers over gRPC: a five-byte frame head, then records of field 1. */
const buildkit = (workers: number, grpcStatus = '0'): Http2Server => {
  const server = createHttp2Server()
  server.on('stream', (stream, headers) => {
    const known = headers[':path'] === '/moby.buildkit.v1.Control/ListWorkers'
    stream.respond({ ':status': 200, 'content-type': 'application/grpc' }, { waitForTrailers: true })
    stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': known ? grpcStatus : '12' }))
    const worker = Buffer.concat([Buffer.from([0x0a, 0xac, 0x02]), Buffer.alloc(300, 'w')])
    const message = Buffer.concat(Array.from({ length: workers }, () => worker))
    const head = Buffer.alloc(5)
    head.writeUInt32BE(message.length, 1)
    stream.end(Buffer.concat([head, message]))
  })
  return server
}

let app: InventoryApp
beforeAll(async () => {
  await listen(engine({ 'API-Version': '1.47', 'Builder-Version': '2' }), 'docker')
  await listen(engine({ 'API-Version': '1.24' }), 'old-docker')
  await listen(engine({}, 500), 'broken-docker')
  await listen(createSocketServer(), 'silent')
  await listen(buildkit(2), 'buildkit')
  await listen(buildkit(0), 'idle-buildkit')
  await listen(buildkit(1, '7'), 'closed-buildkit')
  app = await startInventory({ dockerSocket: socket('old-docker'), buildkitSocket: socket('buildkit') })
})
afterAll(async () => {
  await app.close()
  for (const server of servers) server.close()
  rmSync(folder, { recursive: true, force: true })
})

test('all three parts are reported', async () => {
  const { status, body } = await app.call('GET', '/preflight/')
  expect([status, body]).toEqual([
    200,
    {
      server: { available: true, message: 'the service and its database answer' },
      docker: { available: true, message: 'the container engine answers (API 1.24)' },
      buildkit: { available: true, message: 'BuildKit answers with 2 workers' },
    },
  ])
})

test('a container engine that is absent, refuses or is broken is not available; its socket is not named', async () => {
  const absent = await probeDocker(socket('absent'))
  expect(absent).toEqual({ available: false, message: expect.stringContaining('ENOENT') })
  expect(absent.message).not.toContain(folder)
  expect(await probeDocker(socket('broken-docker'))).toEqual({ available: false, message: expect.stringContaining('answered 500') })
})

test('BuildKit needs a worker, or a container engine that has it', async () => {
  expect((await probeBuildkit(socket('idle-buildkit'), socket('old-docker'))).available).toBe(false)
  expect((await probeBuildkit(socket('closed-buildkit'), socket('absent'))).message).toContain('gRPC status 7')
  expect((await probeBuildkit(socket('absent'), socket('absent'))).available).toBe(false)
  expect(await probeBuildkit(socket('absent'), socket('docker'))).toEqual({ available: true, message: 'the container engine has BuildKit' })
})

test('a part that accepts and stays silent is given up after 3 s', async () => {
  const started = performance.now()
  const probes = await Promise.all([probeDocker(socket('silent')), probeBuildkit(socket('silent'), socket('silent'))])
  const seconds = (performance.now() - started) / 1_000
  expect(probes.map(({ available }) => available)).toEqual([false, false])
  expect(probes[0].message).toContain('no answer within 3 s')
  expect(seconds).toBeGreaterThan(2.9)
  expect(seconds).toBeLessThan(10)
})

test('without a database the server is not available', async () => {
  const nowhere = openDatabase('postgres://x:y@127.0.0.1:1/z')
  expect(await probeServer(nowhere)).toEqual({ available: false, message: expect.stringContaining('ECONNREFUSED') })
  await nowhere[Symbol.asyncDispose]()
})
