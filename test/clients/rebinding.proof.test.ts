import { expect } from '@jest/globals'
import { randomBytes } from 'node:crypto'
import { createSocket, type Socket } from 'node:dgram'
import { mkdirSync, writeFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { ensureKeyFile } from '../../src/vault/keys.ts'
import { dataFolder, readyOf, removeFolder, startProgram, until, type Program } from '../failures/programs.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'
import { needs } from '../support/needs.ts'
import { makeNamespace, temporalAddress } from '../support/service.ts'
import { makeWorld } from '../support/worlds.ts'

const { afterAll, beforeAll, test } = needs('root')

/**
 * A daemon in a system of its own, whose DNS server gives one name an allowed address, then a
 * denied one, in turn. At both addresses somebody listens at the same port.
 */
const nameServer = `127.53.${process.pid % 250}.53`
const allowedAddress = '127.76.0.2'
const deniedAddress = '127.77.0.2'
const name = 'slurm.rebinding.test'
const token = `token-${randomBytes(12).toString('hex')}`
const namespace = `rebinding-${randomBytes(6).toString('hex')}`

let dns: Socket
/** Addresses that were given for the name, in order. */
const given: string[] = []
const servers: Server[] = []
const requests: Record<string, IncomingMessage['headers'][]> = { [allowedAddress]: [], [deniedAddress]: [] }
const connections: Record<string, number> = { [allowedAddress]: 0, [deniedAddress]: 0 }
let folder: string
let database: TestDatabase
let daemon: Program
let url: string
let port: number

/**
 * One question with one name, as every resolver asks (RFC 1035, section 4); an address is answered
 * to A, nothing to AAAA.
 */
const answerTo = (query: Buffer): Buffer => {
  let at = 12
  const labels: string[] = []
  for (let length = query[at] ?? 0; length > 0; length = query[at] ?? 0) {
    labels.push(query.toString('latin1', at + 1, at + 1 + length))
    at += 1 + length
  }
  const isAddress = query.readUInt16BE(at + 1) === 1
  const known = labels.join('.').toLowerCase() === name
  const address = given.length % 2 === 0 ? allowedAddress : deniedAddress
  if (known && isAddress) given.push(address)
  const head = Buffer.alloc(12)
  head.writeUInt16BE(query.readUInt16BE(0), 0)
  head.writeUInt16BE(known ? 0x8580 : 0x8583, 2)
  head.writeUInt16BE(1, 4)
  head.writeUInt16BE(known && isAddress ? 1 : 0, 6)
  const record = Buffer.from([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, ...address.split('.').map(Number)])
  return Buffer.concat([head, query.subarray(12, at + 5), ...(known && isAddress ? [record] : [])])
}

const serve = async (address: string, at: number): Promise<number> => {
  const server = createServer((request, response) => {
    requests[address]?.push(request.headers)
    response.setHeader('content-type', 'application/json')
    response.end(
      JSON.stringify(request.url === '/openapi/v3' ? { paths: { '/slurm/v0.0.40/job/submit': {} } } : {}),
    )
  })
  server.on('connection', () => connections[address]!++)
  servers.push(server)
  await new Promise<void>((resolve, reject) => server.once('error', reject).listen(at, address, resolve))
  return (server.address() as AddressInfo).port
}

const post = async (path: string, document: unknown): Promise<unknown> => {
  const answer = await fetch(url + path, {
    method: 'POST',
    body: JSON.stringify(document),
    headers: { 'content-type': 'application/json' },
  })
  const text = await answer.text()
  if (!answer.ok) throw new Error(`POST ${path} answered ${answer.status}: ${text.slice(0, 1_000)}`)
  return text === '' ? undefined : JSON.parse(text)
}

beforeAll(async () => {
  dns = createSocket('udp4', (query, { address, port }) => dns.send(answerTo(query), port, address))
  await new Promise<void>((resolve, reject) => dns.once('error', reject).bind(53, nameServer, resolve))
  port = await serve(allowedAddress, 0)
  await serve(deniedAddress, port)
  folder = dataFolder()
  await ensureKeyFile(join(folder, 'vault.key'))
  ;[database] = await Promise.all([cloneDatabase(), makeNamespace(namespace)])
  const resolver = join(folder, 'resolv.conf')
  const order = join(folder, 'nsswitch.conf')
  writeFileSync(resolver, `nameserver ${nameServer}\noptions timeout:5 attempts:2\n`)
  writeFileSync(order, 'hosts: files dns\n')
  mkdirSync(join(folder, 'slurm'))
  const mounts =
    `mount --bind '${resolver}' /etc/resolv.conf && mount --bind '${order}' /etc/nsswitch.conf && ` +
    'exec "$@"'
  daemon = await startProgram(
    'main',
    {
      SERVICE_LISTEN_ADDRESS: '127.0.0.1:0',
      SERVICE_DATA_DIR: folder,
      SERVICE_DATABASE_URL: database.url,
      SERVICE_TEMPORAL_ADDRESS: temporalAddress(),
      SERVICE_TEMPORAL_NAMESPACE: namespace,
      SERVICE_VAULT_KEY_FILE: join(folder, 'vault.key'),
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
      SERVICE_DENIED_NETWORKS: '127.77.0.0/16',
    },
    undefined,
    ['unshare', '--mount', 'sh', '-c', mounts, 'sh'],
  )
  ;({ baseUrl: url } = await readyOf(daemon, folder))
}, 300_000)
afterAll(async () => {
  daemon?.child.kill('SIGTERM')
  await daemon?.ended
  dns?.close()
  for (const server of servers) {
    server.closeAllConnections()
    server.close()
  }
  await database?.drop()
  if (folder !== undefined) removeFolder(folder)
}, 120_000)

test('slurmrestd gets the token at the address that was judged, however often its name changes', async () => {
  await post('/kubernetes-tokens/', { id: 'slurm', token })
  const slurmrestd = {
    url: `http://${name}:${port}`,
    user: 'ada',
    credentialRef: 'vault:kubernetes-token/slurm',
  }
  const configuration = { workDirectory: join(folder, 'slurm'), slurmrestd, partition: 'main' }
  const world = await makeWorld({ post } as never, {
    name: 'rebinding',
    cores: [1],
    tasks: [{ name: 'a', run: 'true', lane: [0, 0] }],
    places: [{ driver: 'slurm', configuration }],
    types: ['hpc_partition'],
  })
  await post('/execution-runs/', { id: 'rebinding', schedulePlanId: world.planId, mode: 'real' })
  await until(
    'the denied address was given several times',
    120,
    () => given.filter((address) => address === deniedAddress).length >= 3,
  )
  expect([connections[deniedAddress], requests[deniedAddress]]).toEqual([0, []])
  expect(requests[allowedAddress]?.map((headers) => headers['x-slurm-user-token'])).toContain(token)
  expect(daemon.output()).not.toContain(token)
}, 180_000)
