import { expect } from '@jest/globals'
import { createPrivateKey, generateKeyPairSync, randomBytes } from 'node:crypto'
import { existsSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { Client, Connection } from '@temporalio/client'
import { historyToJSON } from '@temporalio/common/lib/proto-utils.js'
import { CredentialVariables } from '../../src/config.ts'
import { ensureKeyFile, openVaultKeys } from '../../src/vault/keys.ts'
import { payloadCodec } from '../../src/vault/payload-codec.ts'
import { openVault } from '../../src/vault/vault.ts'
import { dataFolder, readyOf, removeFolder, startProgram, until, type Program } from '../failures/programs.ts'
import { run } from '../../sites/ground.ts'
import { startLoopbackSsh, type LoopbackSite } from '../../sites/loopback.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'
import { runFolder } from '../support/run-folder.ts'
import { attachTo, openTerminal } from '../support/console-streams.ts'
import { makeNamespace, temporalAddress } from '../support/service.ts'
import { watchProcesses } from '../support/traces-of.ts'
import { makeWorld } from '../support/worlds.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterAll, beforeAll, test } = needs(...sites.sshd)

/**
 * 32 secrets go through every credential route of a daemon that runs by itself, in good and bad
 * requests; they are then used for logins, runs and discovery on real hosts, and searched in
 * everything that the daemon wrote, said, started or left.
 */
const canaries: string[] = []
const canary = (): string => {
  const text = `canary${randomBytes(12).toString('hex')}`
  canaries.push(text)
  return text
}

let folder: string
let database: TestDatabase
let site: LoopbackSite
let daemon: Program
let url: string
let adminUrl: string
const namespace = `canaries-${randomBytes(6).toString('hex')}`
let log = ''
/** All that was answered. */
let answered = ''
/** Command lines and environments of the daemon, the hosts, and what they start. */
let processes: ReturnType<typeof watchProcesses>

beforeAll(async () => {
  folder = dataFolder()
  await ensureKeyFile(join(folder, 'vault.key'))
  ;[database, site] = await Promise.all([
    cloneDatabase(),
    startLoopbackSsh({ hosts: 2 }),
    makeNamespace(namespace),
  ])
  daemon = await startProgram('main', {
    SERVICE_LISTEN_ADDRESS: '127.0.0.1:0',
    SERVICE_DATA_DIR: folder,
    SERVICE_DATABASE_URL: database.url,
    SERVICE_TEMPORAL_ADDRESS: temporalAddress(),
    SERVICE_TEMPORAL_NAMESPACE: namespace,
    SERVICE_VAULT_KEY_FILE: join(folder, 'vault.key'),
    SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
    SERVICE_MONITOR_INTERVAL_SECONDS: '2',
    SERVICE_DISCOVERY_WAIT_SECONDS: '90',
    SERVICE_CONSOLE_ENABLED: 'true',
    SERVICE_LOG_LEVEL: 'trace',
  })
  for (const stream of [daemon.child.stdout, daemon.child.stderr])
    stream?.on('data', (chunk: Buffer) => (log += chunk.toString()))
  ;({ baseUrl: url, adminUrl } = await readyOf(daemon, folder))
  processes = watchProcesses([folder, site.folder], 500)
})
afterAll(async () => {
  processes?.stop()
  daemon?.child.kill('SIGTERM')
  await daemon?.ended
  await site?.stop()
  await database?.drop()
  if (folder !== undefined) removeFolder(folder)
})

const send = async (
  method: string,
  path: string,
  body?: string,
  headers: Record<string, string> = {},
): Promise<{ status: number; body: any }> => {
  const answer = await fetch(url + path, {
    method,
    ...(body === undefined ? {} : { body, headers: { 'content-type': 'application/json', ...headers } }),
  })
  const text = await answer.text()
  answered += `${JSON.stringify([...answer.headers])}\n${text}\n`
  return {
    status: answer.status,
    body: /json/.test(answer.headers.get('content-type') ?? '') && text !== '' ? JSON.parse(text) : text,
  }
}
const post = (path: string, document: unknown, headers?: Record<string, string>) =>
  send('POST', path, JSON.stringify(document), headers)
const ok = async (method: string, path: string, document?: unknown): Promise<any> => {
  const { status, body } = await send(
    method,
    path,
    document === undefined ? undefined : JSON.stringify(document),
  )
  if (status >= 300)
    throw new Error(`${method} ${path} answered ${String(status)}: ${JSON.stringify(body).slice(0, 1_000)}`)
  return body
}

/**
 * A private key whose comment is a canary would show it, as comments are public: the canary is the
 * key's own number.
 */
const keyText = (type: 'ed25519' | 'ec' | 'rsa', passphrase?: string): string => {
  const { privateKey } =
    type === 'rsa'
      ? generateKeyPairSync('rsa', { modulusLength: 2_048 })
      : type === 'ec'
        ? generateKeyPairSync('ec', { namedCurve: 'prime256v1' })
        : generateKeyPairSync('ed25519')
  const text = privateKey
    .export({
      type: 'pkcs8',
      format: 'pem',
      ...(passphrase === undefined ? {} : { cipher: 'aes-256-cbc', passphrase }),
    })
    .toString()
  keepNumberOf(text, passphrase)
  return text
}
const keepNumberOf = (text: string, passphrase?: string): void => {
  const { d = '' } = createPrivateKey({
    key: text,
    ...(passphrase === undefined ? {} : { passphrase }),
  }).export({ format: 'jwk' })
  canaries.push(Buffer.from(d, 'base64url').subarray(0, 32).toString('latin1'))
}

/**
 * A secret as it may lie about: itself, in hexadecimal, in base64 at each of the three offsets, in
 * JSON.
 */
const shapesOf = (secret: string): string[] => {
  const bytes = Buffer.from(secret, 'latin1')
  const base64 = [0, 1, 2].map((shift) => {
    const text = Buffer.concat([Buffer.alloc(shift), bytes]).toString('base64')
    // Less the letters that depend on what stands before and behind.
    return text.slice(shift === 0 ? 0 : 4, -4)
  })
  return [
    secret,
    bytes.toString('hex'),
    ...base64,
    ...base64.map((text) => text.replaceAll('+', '-').replaceAll('/', '_')),
  ]
}
const hits = (where: string, text: string): string[] => {
  const flat = text.replaceAll(/\\n|\n/g, '')
  return canaries.flatMap((secret, i) =>
    shapesOf(secret).some((shape) => text.includes(shape) || flat.includes(shape))
      ? [`${where}: canary ${String(i)}`]
      : [],
  )
}

const filesBelow = (root: string): string =>
  readdirSync(root, { recursive: true })
    .map((name) => join(root, String(name)))
    .filter((file) => statSync(file, { throwIfNoEntry: false })?.isFile() === true)
    .map((file) => readFileSync(file, 'latin1'))
    .join('\n')

/** Every column of every table as text. */
const databaseText = async (): Promise<string> => {
  const client = await database.db.client()
  try {
    const { rows: tables } = await client.query<{ name: string }>(
      `select format('%I.%I', schemaname, tablename) as name from pg_tables where schemaname not in ` +
        `('pg_catalog', 'information_schema')`,
    )
    const texts: string[] = []
    for (const { name } of tables) {
      const { rows } = await client.query<{ text: string }>(`select t::text as text from ${name} t`)
      texts.push(...rows.map(({ text }) => `${name} ${text}`))
    }
    return texts.join('\n')
  } finally {
    client.release()
  }
}

/** The texts of a workflow on Temporal's page beside its history, decoded. */
const pageTextOf = async (client: Client, workflowId: string, runId: string): Promise<string> => {
  const handle = client.workflow.getHandle(workflowId, runId)
  const described = await handle.describe()
  const { typedSearchAttributes, memo } = described
  const texts = [
    typedSearchAttributes.getAll(),
    memo,
    await described.staticSummary(),
    await described.staticDetails(),
    await handle.query('__temporal_workflow_metadata'),
  ]
  return `${JSON.stringify(texts)}\n`
}

/**
 * Payloads of all histories of the namespace, as they lie there and decoded; and all else of the
 * histories.
 */
const historyTexts = async (): Promise<{
  plain: string
  decoded: string
  page: string
  encrypted: number
}> => {
  const connection = await Connection.connect({ address: temporalAddress() })
  const codec = payloadCodec(await openVaultKeys(join(folder, 'vault.key')))
  try {
    const client = new Client({ connection, namespace, dataConverter: { payloadCodecs: [codec] } })
    let plain = ''
    let decoded = ''
    let page = ''
    let encrypted = 0
    const walk = async (value: any): Promise<void> => {
      if (typeof value !== 'object' || value === null) return
      if (typeof value.data === 'string' && value.metadata !== undefined) {
        const metadata = Object.fromEntries(
          Object.entries(value.metadata).map(([name, text]) => [name, Buffer.from(String(text), 'base64')]),
        )
        const [opened] = await codec.decode([{ metadata, data: Buffer.from(value.data, 'base64') }])
        plain += `${Buffer.from(value.data, 'base64').toString('latin1')}\n`
        decoded += `${Buffer.from(opened?.data ?? []).toString('latin1')}\n`
        if (metadata['encoding']?.toString() === 'binary/encrypted') encrypted++
      }
      for (const item of Object.values(value)) await walk(item)
    }
    for await (const { workflowId, runId } of client.workflow.list()) {
      const json = JSON.parse(
        historyToJSON(await client.workflow.getHandle(workflowId, runId).fetchHistory()),
      )
      plain += `${workflowId} ${JSON.stringify(json)}\n`
      await walk(json)
      page += await pageTextOf(client, workflowId, runId)
    }
    return { plain, decoded, page, encrypted }
  } finally {
    await connection.close()
  }
}

/**
 * Signs requests to buckets with the stored keys: to a store that refuses all but one file, and to
 * one that is away.
 */
const useStorages = async (references: readonly string[]): Promise<void> => {
  const signatures: string[] = []
  const store = createServer((request, response) => {
    signatures.push(request.headers.authorization ?? '')
    request.resume()
    response.writeHead(request.method === 'HEAD' ? 200 : 403, { etag: '"e"' }).end()
  })
  await new Promise<void>((resolve) => store.listen(0, '127.0.0.1', resolve))
  const { port } = store.address() as AddressInfo
  const storage = (id: string, type: string, provider: string, at: number) => ({
    ...{ id, name: id, type, endpoint: type === 'gcs' ? 'gs://bucket' : 's3://bucket' },
    credentialReference: references.find((each) => each.endsWith(`/${provider}`)),
    configuration: {
      ...{ endpointUrl: `http://127.0.0.1:${at}`, region: 'us-east-1', pathStyle: true, signed: true },
      browseRoots: [{ path: '/' }],
    },
  })
  await ok('POST', '/environments/', {
    environment: { id: 'buckets', name: 'buckets' },
    version: { id: 'buckets-v1', version: 1, status: 'published' },
    storages: [
      ...[storage('s3-away', 's3', 'aws', 1), storage('gcs-away', 'gcs', 'gcp', 1)],
      ...[storage('s3', 's3', 'aws', port), storage('gcs', 'gcs', 'gcp', port)],
    ],
  })
  try {
    for (const [id, status] of [
      ['s3-away', 503],
      ['gcs-away', 503],
      ['s3', 422],
      ['gcs', 422],
    ] as const) {
      const copy = { path: 'file', destinationStorageId: id, destinationPath: 'other' }
      expect([id, (await send('GET', `/storages/${id}/entries/`)).status]).toEqual([id, status])
      expect([id, (await post(`/storages/${id}/health/`, {})).status]).toEqual([id, 200])
      expect((await post(`/storages/${id}/copies/`, copy)).status).toBeGreaterThanOrEqual(202)
    }
    // A URL is the answer to its own request, and shows the name of the key.
    const answer = await fetch(`${url}/storages/s3/downloads/`, {
      ...{ method: 'POST', body: JSON.stringify({ path: 'file' }) },
      headers: { 'content-type': 'application/json', 'idempotency-key': 'url' },
    })
    expect([answer.status, await answer.text()]).toEqual([201, expect.stringMatching(/X-Amz-Signature=/)])
    await ok('GET', '/storages/s3/downloads/')
    for (const scheme of ['AWS4-HMAC-SHA256 Credential=canary', 'Bearer '])
      expect(signatures.filter((each) => each.startsWith(scheme)).length).toBeGreaterThan(0)
  } finally {
    store.closeAllConnections()
    store.close()
  }
}

/**
 * Shows a secret and its own environment on a terminal; reads its record while it is open and when it
 * has ended.
 */
const useConsole = async (resourceId: string, secret: string): Promise<void> => {
  const calls = {
    get: (path: string) => ok('GET', path),
    post: (path: string, body?: unknown) => ok('POST', path, body),
  }
  const id = await openTerminal(calls, resourceId)
  const desk = await attachTo({ baseUrl: url }, id)
  desk.ws.send('unset HISTFILE; cat /proc/$$/environ /proc/$PPID/environ /proc/$PPID/cmdline\n')
  desk.ws.send(`echo 'is ${secret}'\n`)
  await desk.shows(`is ${secret}\r\n`)
  const read = async (): Promise<string[]> => {
    const texts: string[] = []
    for (const search of ['', '?format=asciicast'])
      texts.push((await send('GET', `/console-sessions/${id}/log/${search}`)).body)
    return texts
  }
  await read()
  desk.ws.send('exit\n')
  const left = await until('the end of the terminal', 120, async () => {
    const { finishedAt, externalId } = await ok('GET', `/console-sessions/${id}/`)
    return finishedAt === undefined ? undefined : (externalId as string)
  })
  for (const text of await read()) expect(text).toContain('is ********')
  // Its files are no longer at the host.
  await until('the removal of its files', 120, () => !existsSync(left))
}

test('32 secrets are stored, refused, used and replaced, and are afterwards nowhere but in the vault', async () => {
  const token = (id: string) => ({ id, token: canary() })
  const aws = () => ({ accessKeyId: canary(), secretAccessKey: canary() })
  const azure = () => ({
    tenantId: 'lab.example.org',
    clientId: '6f1f5f0e-9d3c-4f5e-8a27-0c3f0e3c9a11',
    clientSecret: canary(),
  })
  const gcp = () => ({
    type: 'service_account',
    project_id: 'lab',
    client_email: 'orrery@lab.example.org',
    private_key: keyText('rsa'),
    private_key_id: canary(),
  })

  // Good documents, by every route that takes one.
  const references: string[] = []
  const passphrase = canary()
  const loginKey = keyText('ed25519')
  for (const [path, document] of [
    ['/ssh-keys/', { id: 'made' }],
    ['/ssh-keys/import/', { id: 'login', privateKey: loginKey }],
    ['/ssh-keys/import/', { id: 'encrypted', privateKey: keyText('ec', passphrase), passphrase }],
    ['/ssh-keys/import/', { id: 'rsa', privateKey: keyText('rsa') }],
    ['/kubernetes-tokens/', token('first')],
    ['/kubernetes-tokens/', token('second')],
    ['/cloud-credentials/', { id: 'gcp', provider: 'gcp', credential: gcp() }],
    ['/cloud-credentials/', { id: 'aws', provider: 'aws', credential: JSON.stringify(aws()) }],
    ['/cloud-credentials/', { id: 'azure', provider: 'azure', credential: azure() }],
  ] as const)
    references.push((await ok('POST', path, document)).credentialRef)
  await ok('POST', '/cloud-credentials/validate/', { provider: 'azure', credential: azure() })
  await ok('PUT', '/ssh-keys/rsa/', { privateKey: keyText('ed25519') })
  await ok('PUT', '/kubernetes-tokens/second/', { token: canary() })
  await ok('PUT', '/cloud-credentials/azure/', { provider: 'azure', credential: azure() })
  const keyed = { 'idempotency-key': 'once' }
  const again = token('third')
  for (let turn = 0; turn < 2; turn++)
    expect((await post('/kubernetes-tokens/', again, keyed)).status).toBe(201)
  expect((await post('/kubernetes-tokens/', token('third'), keyed)).status).toBe(422)

  // Bad ones: the secret in the wrong form, beside another error, in a document that cannot be
  // read.
  const wrong = canary()
  const bad: [status: number, method: string, path: string, body: string, type?: string][] = [
    [422, 'POST', '/kubernetes-tokens/', JSON.stringify(token('first'))],
    [422, 'POST', '/kubernetes-tokens/', JSON.stringify({ id: 'No!', token: canary() })],
    [422, 'POST', '/kubernetes-tokens/', JSON.stringify({ id: 'spaces', token: `two ${canary()}` })],
    [400, 'POST', '/kubernetes-tokens/', JSON.stringify({ id: 'list', token: [canary()] })],
    [400, 'POST', '/kubernetes-tokens/', JSON.stringify({ id: 'more', token: canary(), colour: wrong })],
    [400, 'POST', '/kubernetes-tokens/', `{"id": "cut", "token": "${canary()}`],
    [400, 'POST', '/kubernetes-tokens/', `{"id": "bare", "token": ${wrong}}`],
    [400, 'POST', '/kubernetes-tokens/', wrong],
    [400, 'POST', '/kubernetes-tokens/', `id: yaml\ntoken: "${canary()}`, 'application/yaml'],
    [400, 'POST', '/kubernetes-tokens/', `id: yaml\ntoken: ${wrong}: ${wrong}`, 'application/yaml'],
    [415, 'POST', '/kubernetes-tokens/', wrong, 'text/plain'],
    [404, 'PUT', '/kubernetes-tokens/nobody/', JSON.stringify({ token: canary() })],
    [422, 'PUT', '/kubernetes-tokens/first/', JSON.stringify({ id: 'other', token: wrong })],
    [422, 'POST', '/ssh-keys/', JSON.stringify({ id: wrong.repeat(4) })],
    [
      422,
      'POST',
      '/ssh-keys/import/',
      JSON.stringify({ id: 'broken', privateKey: keyText('rsa').replaceAll('A', 'B') }),
    ],
    [
      422,
      'POST',
      '/ssh-keys/import/',
      JSON.stringify({ id: 'wrong', privateKey: keyText('ec', canary()), passphrase: wrong }),
    ],
    [422, 'POST', '/ssh-keys/import/', JSON.stringify({ id: 'text', privateKey: wrong })],
    [422, 'POST', '/cloud-credentials/', JSON.stringify({ id: 'odd', provider: wrong, credential: {} })],
    [422, 'POST', '/cloud-credentials/', JSON.stringify({ id: 'odd', provider: 'gcp', credential: aws() })],
    [
      422,
      'POST',
      '/cloud-credentials/',
      JSON.stringify({ id: 'odd', provider: 'aws', credential: `{"secretAccessKey":"${canary()}` }),
    ],
    [
      422,
      'POST',
      '/cloud-credentials/validate/',
      JSON.stringify({
        provider: 'azure',
        credential: { ...azure(), tenantId: `a ${wrong}`, clientId: wrong },
      }),
    ],
    [
      422,
      'POST',
      '/cloud-credentials/validate/',
      JSON.stringify({ provider: 'gcp', credential: { ...gcp(), private_key: wrong } }),
    ],
    [
      503,
      'POST',
      '/cloud-credentials/validate/',
      JSON.stringify({ provider: 'aws', credential: aws(), region: 'nowhere-1' }),
    ],
    [
      503,
      'POST',
      '/cloud-credentials/validate/',
      JSON.stringify({ provider: 'gcp', credential: gcp(), endpoint: 'http://nobody.invalid' }),
    ],
  ]
  for (const [status, method, path, body, type] of bad)
    expect([
      method,
      path,
      (await send(method, path, body, { 'content-type': type ?? 'application/json' })).status,
    ]).toEqual([method, path, status])
  expect(canaries.length).toBeGreaterThanOrEqual(32)

  // Used: logins, health, discovery, a monitor, and a run over two hosts with data between them.
  for (const id of ['login', 'made']) {
    const { publicKey } = await ok('GET', `/ssh-keys/${id}/`)
    for (const host of site.hosts) host.authorize(publicKey)
  }
  await useStorages(references)
  const world = await makeWorld({ post: (path: string, body: unknown) => ok('POST', path, body) } as never, {
    name: 'canaries',
    cores: [1, 1],
    tasks: [
      {
        name: 'a',
        run: 'env > env.txt; cat /proc/$$/environ /proc/$PPID/cmdline > proc.txt',
        outputs: ['env.txt', 'proc.txt'],
        lane: [0, 0],
      },
      { name: 'b', run: 'cat env.txt proc.txt', after: ['a'], lane: [1, 0] },
    ],
    places: ['login', 'made'].map((id) => ({ driver: 'ssh', configuration: { connectionId: `to-${id}` } })),
    connections: site.hosts.slice(0, 2).map((host, i) => ({
      id: `to-${['login', 'made'][i] ?? ''}`,
      name: `to ${host.name}`,
      type: 'ssh',
      endpoint: `${host.address}:${String(host.port)}`,
      username: host.user,
      credentialRef: `vault:ssh-key/${['login', 'made'][i] ?? ''}`,
      configuration: { hostKeyFingerprints: [host.fingerprint()], forwardAgent: true },
    })),
  })
  for (const id of ['to-login', 'to-made']) {
    expect((await ok('POST', `/environment-connections/${id}/health/`)).status).toBe('online')
    await send('POST', `/environment-connections/${id}/discover/`)
  }
  await useConsole(world.resourceIds[0]!, again.token)
  await ok('POST', '/execution-runs/', { id: 'used', schedulePlanId: world.planId, mode: 'real' })
  const detail = await until('the run', 120, async () => {
    const found = await ok('GET', '/execution-runs/used/')
    return ['completed', 'failed', 'cancelled'].includes(found.run.status) ? found : undefined
  })
  expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
  // Failures too: a task that fails beside the secrets that its site was reached with, and a site
  // that refuses its login.
  const failing = await makeWorld(
    { post: (path: string, body: unknown) => ok('POST', path, body) } as never,
    {
      name: 'failing',
      tasks: [{ name: 'only', run: 'env >&2; cat /proc/$PPID/environ >&2; exit 3' }],
      places: [{ driver: 'ssh', configuration: { connectionId: 'to-login' } }],
    },
  )
  await ok('POST', '/execution-runs/', { id: 'failed', schedulePlanId: failing.planId, mode: 'real' })
  await until('the failed run', 120, async () =>
    (await ok('GET', '/execution-runs/failed/')).run.status === 'failed' ? true : undefined,
  )
  await ok('PUT', '/ssh-keys/login/', { privateKey: keyText('ed25519') })
  await send('POST', '/environment-connections/to-login/health/')
  for (const path of [
    ...['used', 'failed'].flatMap((id) =>
      ['summary/', 'events/'].map((part) => `/execution-runs/${id}/${part}`),
    ),
    '/execution-runs/failed/activities/failing-only/',
    '/execution-runs/failed/activities/failing-only/logs/?stream=stderr',
    '/events/',
    '/ssh-keys/',
    '/kubernetes-tokens/',
    '/cloud-credentials/',
    '/audit-events/?limit=1000',
    '/execution-runs/used/activities/',
  ])
    await ok('GET', path)
  expect((await ok('GET', '/audit-events/?eventType=credential.used')).length).toBeGreaterThan(0)

  // The search would find them: they are in the vault, and what is public is found everywhere.
  const vault = openVault({
    db: database.db,
    keys: await openVaultKeys(join(folder, 'vault.key')),
    outside: { variables: new CredentialVariables([]), folders: [] },
    audit: async () => undefined,
  })
  const opened = JSON.stringify(
    await Promise.all(
      references.map((reference) => vault.open(reference, { actor: 'test', purpose: 'look' })),
    ),
  )
  expect(hits('vault', opened).length).toBeGreaterThanOrEqual(8)

  const [text, histories] = [await databaseText(), await historyTexts()]
  const { fingerprint } = await ok('GET', '/ssh-keys/login/')
  expect(text).toContain(fingerprint)
  expect(answered).toContain(fingerprint)
  expect(histories.plain).toContain('execution-run/used/1')
  expect(histories.encrypted).toBeGreaterThan(3)
  expect(histories.decoded).toContain('used')
  expect(histories.page).toContain('"RunState"')
  expect(histories.page).toContain('canaries-plan')
  expect(log).toContain('"program"')
  const seen = processes.stop()
  for (const own of ['src/main.ts', 'sshd_config']) expect(seen).toContain(own)

  // What the daemon and the logins left: in the homes of the hosts, and in the common folders of this
  // machine. Folders of the run hold what other tests write.
  const left = await run(
    'sh',
    [
      '-c',
      'cd "$1"; shift; find /tmp /var/tmp /dev/shm \\( -path "$1" -o -name "orrery-*" \\) -prune -o ' +
        '-type f -user "$(id -u)" -newer id_ed25519 -size -1024k -exec cat {} + 2>/dev/null; ' +
        'shift; find "$@" -type f -exec cat {} +',
      ...['sh', site.folder, runFolder(), ...site.hosts.map((host) => host.folder)],
    ],
    { mayFail: true },
  )
  expect(left.stdout).toContain('AKOFLOW')
  const metrics = await (await fetch(`${adminUrl}/metrics`)).text()
  rmSync(join(folder, 'vault.key'))
  expect([
    ...hits('database', text),
    ...hits('answers', answered),
    ...hits('log', log),
    ...hits('histories', histories.plain),
    ...hits('decoded histories', histories.decoded),
    ...hits('search attributes, summaries and details', histories.page),
    ...hits('processes', seen),
    ...hits('metrics', metrics),
    ...hits('data folder', filesBelow(folder)),
    ...hits('files of the hosts', left.stdout),
  ]).toEqual([])
}, 300_000)
