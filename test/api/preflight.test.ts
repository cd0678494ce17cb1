import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import { createServer as createSocketServer, type Server as SocketServer, type Socket } from 'node:net'
import { join } from 'node:path'
import { Server as GrpcServer, ServerCredentials, status } from '@grpc/grpc-js'
import { loadSync, type ServiceDefinition } from '@grpc/proto-loader'
import { openDatabase } from '../../src/db/pool.ts'
import { probeBuildkit, probeEngine, probeServer } from '../../src/domains/instance/probes.ts'
import { inventoryRoutes } from '../support/inventory-routes.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'
import { runFolder } from '../support/run-folder.ts'
import { proved } from '../support/share.ts'

const folder = mkdtempSync(join(runFolder(), 'preflight-'))
const socket = (name: string): string => join(folder, name)
const servers: (Server | SocketServer)[] = []
const daemons: GrpcServer[] = []
const accepted = new Set<Socket>()
const listen = async (server: Server | SocketServer, name: string): Promise<void> => {
  servers.push(server)
  server.on('connection', (client: Socket) => accepted.add(client))
  await new Promise<void>((resolve) => server.listen(socket(name), resolve))
}
/** A container engine's ping, as its API documents it. */
const engine = (headers: Record<string, string>, status = 200): Server =>
  createServer((request, response) => {
    response.writeHead(request.url === '/_ping' ? status : 404, headers)
    response.end('OK')
  })
/** A daemon of BuildKit's control API, by its own definition. */
const buildkit = async (
  name: string,
  record: { ID: string; version?: { version: string } }[],
  refusal?: status,
): Promise<void> => {
  const server = new GrpcServer()
  const file = new URL('../../src/clients/buildkit.proto', import.meta.url).pathname
  server.addService(loadSync(file)['moby.buildkit.v1.Control'] as ServiceDefinition, {
    ListWorkers: (_call: unknown, answer: (error: object | null, value?: object) => void) =>
      refusal === undefined ? answer(null, { record }) : answer({ code: refusal, details: 'no' }),
  })
  await new Promise<void>((resolve, reject) =>
    server.bindAsync(`unix:${socket(name)}`, ServerCredentials.createInsecure(), (error) =>
      error === null ? resolve() : reject(error),
    ),
  )
  daemons.push(server)
}
const engines = (docker: string, podman = 'absent') => ({ docker: socket(docker), podman: socket(podman) })

let app: OpenedRoutes
beforeAll(async () => {
  await listen(engine({ 'API-Version': '1.47', 'Builder-Version': '2' }), 'docker')
  await listen(engine({ 'API-Version': '1.24' }), 'old-docker')
  await listen(engine({}, 500), 'broken-docker')
  await listen(createSocketServer(), 'silent')
  await listen(
    createSocketServer((client) => client.destroy()),
    'resetting',
  )
  await listen(
    createSocketServer((client) => client.end('SSH-2.0-OpenSSH_9.2\r\n')),
    'another',
  )
  // It begins to answer and never ends.
  await listen(
    createSocketServer((client) =>
      client.write('HTTP/1.1 500 Internal Server Error\r\nContent-Length: 100\r\n\r\n{'),
    ),
    'unending',
  )
  await buildkit('buildkit', [{ ID: 'one', version: { version: 'v0.34.2' } }, { ID: 'two' }])
  await buildkit('idle-buildkit', [])
  await buildkit('closed-buildkit', [{ ID: 'one' }], status.PERMISSION_DENIED)
  writeFileSync(socket('file'), '')
  app = await openRoutes(
    inventoryRoutes({ engineSockets: engines('old-docker'), buildkitSocket: socket('buildkit') }),
  )
})
afterAll(async () => {
  await app.close()
  for (const server of servers) server.close()
  for (const client of accepted) client.destroy()
  for (const daemon of daemons) daemon.forceShutdown()
  rmSync(folder, { recursive: true, force: true })
})

/** Words for anybody: no code of a program, no path, no number of a protocol. */
const readable = ({ available, message }: { available: boolean; message: string }): string => {
  expect(available).toBe(false)
  expect(message).not.toMatch(/[A-Z]{4}|_|\/|\d{2}/)
  expect(message).not.toContain(folder)
  return message
}

test('all parts are reported, and what holds tasks to their memory', async () => {
  const { status: answered, body } = await app.call('GET', '/preflight/')
  expect([answered, body]).toEqual([
    200,
    {
      server: { available: true, message: 'the service and its database answer' },
      docker: { available: true, message: 'the container engine answers (API 1.24)' },
      buildkit: { available: true, message: 'BuildKit v0.34.2 answers with 2 workers' },
      limits: {
        available: true,
        message: expect.stringMatching(/memory/),
        memory: expect.stringMatching(/^(cgroup|rlimit)$/),
      },
    },
  ])
})

test.each([
  ['absent', 'it is not installed, or not started'],
  ['file', 'it is not started'],
  ['broken-docker', 'it answers with an error'],
  ['resetting', 'it ended the connection without an answer'],
  ['another', 'what answers is no container engine'],
  ['silent', 'no answer within 3 s'],
  ['unending', 'no answer within 3 s'],
])(
  'a container engine that is %s is not available, in plain words and within the deadline',
  async (name, words) => {
    expect(readable(await probeEngine(engines(name)))).toContain(`: ${words}; `)
  },
)

test('where Docker is away or silent, Podman counts', async () => {
  const answers = { available: true, message: 'the container engine answers (API 1.24)' }
  expect(await probeEngine(engines('absent', 'old-docker'))).toEqual(answers)
  expect(await probeEngine(engines('silent', 'old-docker'))).toEqual(answers)
})

test('BuildKit needs a worker, or a container engine that builds with it', async () => {
  const probe = (name: string, docker = 'absent') => probeBuildkit(socket(name), engines(docker))
  expect(readable(await probe('idle-buildkit', 'old-docker'))).toContain('it has no worker')
  expect(readable(await probe('closed-buildkit'))).toContain('it refuses this account')
  for (const name of ['absent', 'file', 'resetting', 'another'])
    expect(readable(await probe(name))).toContain('it is not started')
  expect(await probe('absent', 'docker')).toEqual({
    available: true,
    message: 'the container engine builds with BuildKit',
  })
  expect(await probe('idle-buildkit', 'docker')).toEqual({
    available: true,
    message: 'the container engine builds with BuildKit',
  })
})

proved('a part that accepts and stays silent is given up after 3 s', async () => {
  const started = performance.now()
  const probes = await Promise.all([
    probeEngine(engines('silent', 'silent')),
    probeBuildkit(socket('silent'), engines('silent', 'silent')),
  ])
  const seconds = (performance.now() - started) / 1_000
  for (const probe of probes) expect(readable(probe)).toContain('no answer within 3 s')
  expect(seconds).toBeGreaterThan(2.9)
})

test('without a database the server is not available', async () => {
  const nowhere = openDatabase('postgres://x:y@127.0.0.1:1/z')
  expect(readable(await probeServer(nowhere))).toContain('it is not started')
  await nowhere[Symbol.asyncDispose]()
})
