import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { generateKeyPairSync } from 'node:crypto'
import { mkdirSync, mkdtempSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { z } from 'zod'
import { sql, type Db } from '../../src/db/sql.ts'
import { recordAudit } from '../../src/domains/audit-events/store.ts'
import { credentialRoutes } from '../../src/domains/credentials/routes.ts'
import { deleteCredential } from '../../src/domains/credentials/store.ts'
import { ConnectionDocument } from '../../src/domains/environment-connections/schemas.ts'
import { saveConnection } from '../../src/domains/environment-connections/store.ts'
import { EnvironmentDefinition } from '../../src/domains/environments/schemas.ts'
import { createEnvironment } from '../../src/domains/environments/store.ts'
import { CredentialVariables } from '../../src/config.ts'
import { ensureKeyFile, makeKey, openVaultKeys, replaceKeys, type VaultKeys } from '../../src/vault/keys.ts'
import { awsKeyOf, googleKeyOf } from '../../src/vault/provider-documents.ts'
import { openVault, type Vault } from '../../src/vault/vault.ts'
import { inventoryRoutes } from '../support/inventory-routes.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'
import { runFolder } from '../support/run-folder.ts'

let folder: string
let keys: VaultKeys
let app: OpenedRoutes
let vault: Vault
beforeAll(async () => {
  folder = mkdtempSync(join(runFolder(), 'orrery-credentials-'))
  await ensureKeyFile(join(folder, 'vault.key'))
  keys = await openVaultKeys(join(folder, 'vault.key'))
  mkdirSync(join(folder, 'allowed'))
  app = await openRoutes((db, atClose) => {
    vault = openVault({
      db,
      keys,
      outside: {
        variables: new CredentialVariables([['LAB_TOKEN', 'token-of-the-lab']]),
        folders: [join(folder, 'allowed')],
      },
      audit: (event) => recordAudit(db, event),
    })
    return [...inventoryRoutes()(db, atClose), ...credentialRoutes({ db, vault })]
  })
})
afterAll(async () => {
  await app.close()
  rmSync(folder, { recursive: true, force: true })
})

const use = { actor: 'run r1', purpose: 'log in' }
const pem = (type: 'rsa' | 'ed25519' = 'ed25519'): string =>
  (type === 'rsa'
    ? generateKeyPairSync('rsa', { modulusLength: 2048 })
    : generateKeyPairSync('ed25519')
  ).privateKey
    .export({ type: 'pkcs8', format: 'pem' })
    .toString()
const gcp = () => ({
  type: 'service_account',
  project_id: 'lab-1',
  client_email: 'orrery@lab-1.iam.gserviceaccount.com',
  private_key: pem('rsa'),
  token_uri: 'https://oauth2.googleapis.com/token',
})
const aws = {
  accessKeyId: 'AKIAIOSFODNN7EXAMPLE',
  secretAccessKey: 'wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY',
}
const azure = {
  tenant: 'lab.onmicrosoft.com',
  appId: '6f1f5f0e-9d3c-4f5e-8a27-0c3f0e3c9a11',
  password: 'p~Q8secretsecretsecret',
}

const pathsOf = (answer: { status: number; body: { details?: { path: string }[] } }): unknown => [
  answer.status,
  answer.body.details?.map(({ path }) => path).sort(),
]
const bind = async (id: string, credentialRef: string): Promise<void> => {
  const answer = await app.call('POST', '/environments/', {
    environment: { id, name: id },
    version: { id: `${id}-v`, version: 1 },
    connections: [
      { id: `${id}-c`, name: 'login', type: 'ssh', endpoint: 'lab:22', username: 'ada', credentialRef },
    ],
  })
  expect([answer.status, answer.body.error]).toEqual([201, undefined])
}

describe('SSH keys', () => {
  test('a key is made, listed by id and read, and its private half opens for a named use only', async () => {
    const made = await app.call('POST', '/ssh-keys/', { id: 'Lab_1', comment: 'ada at the lab' })
    expect(made.status).toBe(201)
    expect(made.headers.get('location')).toBe('/api/ssh-keys/Lab_1/')
    expect(made.body).toMatchObject({
      id: 'Lab_1',
      publicKey: expect.stringMatching(/^ssh-ed25519 \S+ ada at the lab$/),
      fingerprint: expect.stringMatching(/^SHA256:[A-Za-z0-9+/]{43}$/),
      credentialRef: expect.stringMatching(/^vault:/),
      version: 1,
      usedBy: [],
    })
    await app.call('POST', '/ssh-keys/', { id: 'A' })
    const listed = await app.call('GET', '/ssh-keys/')
    expect(listed.body.map(({ id }: { id: string }) => id)).toEqual(['A', 'Lab_1'])
    expect(listed.body[1]).toEqual((await app.call('GET', '/ssh-keys/Lab_1/')).body)
    expect(listed.text).not.toMatch(/PRIVATE/)

    const secret = await vault.open(made.body.credentialRef, { ...use, connectionId: 'c7' })
    expect(secret).toMatchObject({
      kind: 'ssh-key',
      privateKey: expect.stringMatching(/^-----BEGIN OPENSSH PRIVATE KEY-----/),
    })
    const events = [
      ...(await app.call('GET', `/audit-events/?credentialRef=${made.body.credentialRef}`)).body,
      ...(await app.call('GET', `/audit-events/?resourceId=${made.body.credentialRef}`)).body,
    ]
    expect(
      events.map(({ eventType, actorId, connectionId, summary }: Record<string, string>) => [
        eventType,
        actorId,
        connectionId,
        summary,
      ]),
    ).toEqual([
      ['credential.used', 'run r1', 'c7', `credential ${made.body.credentialRef} opened: log in`],
      ['credential.stored', expect.any(String), undefined, 'SSH key Lab_1 stored'],
    ])
    const { lastUsedAt, createdAt } = (await app.call('GET', '/ssh-keys/Lab_1/')).body
    expect(lastUsedAt).toMatch(/:00Z$/)
    // The minute of the use, which came after the creation and is over.
    const minuteOf = (time: number): number => Math.floor(time / 60_000)
    expect(minuteOf(Date.parse(lastUsedAt))).toBeGreaterThanOrEqual(minuteOf(Date.parse(createdAt)))
    expect(Date.parse(lastUsedAt)).toBeLessThanOrEqual(Date.now())
  })

  test('an imported key keeps its fingerprint; a passphrase that is missing or wrong is named', async () => {
    const key = generateKeyPairSync('ec', { namedCurve: 'prime256v1' }).privateKey
    const privateKey = key
      .export({ type: 'pkcs8', format: 'pem', cipher: 'aes-256-cbc', passphrase: 'horse' })
      .toString()
    expect(pathsOf(await app.call('POST', '/ssh-keys/import/', { id: 'enc', privateKey }))).toEqual([
      422,
      ['passphrase'],
    ])
    expect(
      pathsOf(await app.call('POST', '/ssh-keys/import/', { id: 'enc', privateKey, passphrase: 'mule' })),
    ).toEqual([422, ['passphrase']])
    const taken = await app.call('POST', '/ssh-keys/import/', { id: 'enc', privateKey, passphrase: 'horse' })
    const plain = await app.call('POST', '/ssh-keys/import/', {
      id: 'plain',
      privateKey: key.export({ type: 'sec1', format: 'pem' }).toString(),
      passphrase: '',
    })
    expect([taken.status, plain.status]).toEqual([201, 201])
    expect(taken.body.fingerprint).toBe(plain.body.fingerprint)
    expect(taken.body.publicKey).toMatch(/^ecdsa-sha2-nistp256 /)
    // Its owner may print the form from which it was imported.
    const texts = await vault.values(8)
    for (const line of key
      .export({ type: 'pkcs8', format: 'pem' })
      .toString()
      .trim()
      .split('\n')
      .slice(1, -1))
      expect(texts.filter((text) => line.includes(text))).not.toEqual([])
  })

  test('everything wrong with a document is said in one answer, and nothing is stored', async () => {
    await app.call('POST', '/ssh-keys/', { id: 'twice' })
    const before = await app.counts()
    expect(pathsOf(await app.call('POST', '/ssh-keys/', { id: 'twice' }))).toEqual([422, ['id']])
    expect(pathsOf(await app.call('POST', '/ssh-keys/', { id: 'twice', comment: 'two\nlines' }))).toEqual([
      422,
      ['comment', 'id'],
    ])
    expect(
      pathsOf(await app.call('POST', '/ssh-keys/import/', { id: 'twice', privateKey: 'no key' })),
    ).toEqual([422, ['id', 'privateKey']])
    expect(pathsOf(await app.call('POST', '/ssh-keys/import/', { id: '-x', privateKey: ' ' }))).toEqual([
      422,
      ['id', 'privateKey'],
    ])
    for (const id of ['', 'a b', 'ä', '_x', 'x'.repeat(65), '../x'])
      expect((await app.call('POST', '/ssh-keys/', { id })).status).toBe(422)
    expect((await app.call('POST', '/ssh-keys/', { id: 7 })).status).toBe(400)
    expect((await app.call('POST', '/ssh-keys/', { id: 'k', type: 'rsa' })).status).toBe(400)
    expect(await app.counts()).toEqual(before)
    const racing = await Promise.all(
      Array.from({ length: 8 }, () => app.call('POST', '/ssh-keys/', { id: 'race' })),
    )
    expect(racing.map(({ status }) => status).sort()).toEqual([201, 422, 422, 422, 422, 422, 422, 422])
  })

  test('another key comes under the same reference, as its next version', async () => {
    const { body: first } = await app.call('POST', '/ssh-keys/', { id: 'renewed' })
    const before = await vault.look(first.credentialRef)
    const { status, body } = await app.call('PUT', '/ssh-keys/renewed/', { privateKey: pem() })
    expect(status).toBe(200)
    expect(body).toMatchObject({ credentialRef: first.credentialRef, version: 2 })
    expect(body.fingerprint).not.toBe(first.fingerprint)
    expect(await vault.open(first.credentialRef, use)).toMatchObject({ kind: 'ssh-key' })
    expect((await vault.look(first.credentialRef)).version).not.toBe(before.version)
    expect(pathsOf(await app.call('PUT', '/ssh-keys/renewed/', { id: 'other', privateKey: 'none' }))).toEqual(
      [422, ['id', 'privateKey']],
    )
    expect((await app.call('PUT', '/ssh-keys/nobody/', { privateKey: pem() })).status).toBe(404)
  })
})

describe('tokens and cloud credentials', () => {
  test('a token is stored without what surrounds it, and only its reference is told', async () => {
    const answer = await app.call('POST', '/kubernetes-tokens/', { id: 'k8s', token: 'eyJhbGciOi.J9\n' })
    expect([answer.status, Object.keys(answer.body)]).toEqual([201, ['credentialRef']])
    expect(await vault.open(answer.body.credentialRef, use)).toEqual({
      kind: 'kubernetes-token',
      token: 'eyJhbGciOi.J9',
    })
    expect(await vault.look(answer.body.credentialRef)).toEqual({ kind: 'kubernetes-token', version: '1' })
    expect((await app.call('PUT', '/kubernetes-tokens/k8s/', { token: 'other' })).body.version).toBe(2)
    expect(pathsOf(await app.call('POST', '/kubernetes-tokens/', { id: 'k8s', token: 'two words' }))).toEqual(
      [422, ['id', 'token']],
    )
    for (const id of ['K8s', 'a_b', '-a', 'x'.repeat(64)])
      expect(pathsOf(await app.call('POST', '/kubernetes-tokens/', { id, token: 't' }))).toEqual([
        422,
        ['id'],
      ])
  })

  test("each provider's document is stored as given, as an object or as its text", async () => {
    const documents = { gcp: gcp(), aws, azure }
    for (const [provider, credential] of Object.entries(documents)) {
      const answer = await app.call('POST', '/cloud-credentials/', { id: provider, provider, credential })
      expect([answer.status, answer.body.error]).toEqual([201, undefined])
      expect(await vault.open(answer.body.credentialRef, use)).toEqual({
        kind: 'cloud-credential',
        provider,
        document: credential,
      })
      const text = JSON.stringify(credential)
      expect(
        (
          await app.call('POST', '/cloud-credentials/', {
            id: `${provider}-text`,
            provider,
            credential: text,
          })
        ).status,
      ).toBe(201)
    }
    const listed = (await app.call('GET', '/cloud-credentials/')).body
    expect(listed.map(({ id, provider }: Record<string, string>) => [id, provider])).toEqual([
      ['aws', 'aws'],
      ['aws-text', 'aws'],
      ['azure', 'azure'],
      ['azure-text', 'azure'],
      ['gcp', 'gcp'],
      ['gcp-text', 'gcp'],
    ])
  })

  test('a key is found in its document, by each spelling that is accepted', () => {
    const key = { accessKeyId: 'A', secretAccessKey: 's' }
    const withToken = { AccessKeyId: 'A', SecretAccessKey: 's', SessionToken: 't' }
    expect(awsKeyOf(withToken)).toEqual({ ...key, sessionToken: 't' })
    expect(awsKeyOf({ aws_access_key_id: 'A', aws_secret_access_key: 's', sessionToken: 5 })).toEqual(key)
    expect(awsKeyOf({ accessKeyId: 'A' })).toBeUndefined()
    expect(googleKeyOf(gcp())).toMatchObject({ clientEmail: gcp().client_email })
    expect(googleKeyOf({ client_email: 'a@b' })).toBeUndefined()
  })

  test.each([
    ['gcp', aws, ['client_email', 'private_key', 'project_id', 'type']],
    [
      'gcp',
      { ...gcp(), private_key: 'none', client_email: 'x', token_uri: 'http://evil' },
      ['client_email', 'private_key', 'token_uri'],
    ],
    ['gcp', { ...gcp(), type: 'authorized_user' }, ['type']],
    ['aws', azure, ['accessKeyId', 'secretAccessKey']],
    ['aws', { ...aws, secretAccessKey: ' ' }, ['secretAccessKey']],
    ['azure', { ...azure, appId: 'me', password: 5 }, ['appId', 'password']],
    ['azure', {}, ['clientId', 'clientSecret', 'tenantId']],
  ] as const)(
    'a document that is none of %s is refused with what is missing, and its validation with the same findings',
    async (provider, credential, missing) => {
      const paths = missing.map((name) => `credential.${name}`).sort()
      expect(
        pathsOf(await app.call('POST', '/cloud-credentials/', { id: 'wrong', provider, credential })),
      ).toEqual([422, paths])
      const { status, body } = await app.call('POST', '/cloud-credentials/validate/', {
        provider,
        credential,
        projectId: 'p',
        region: 'r',
      })
      expect([status, body]).toEqual([
        422,
        {
          ...{ valid: false, checked: 'form', code: 'unacceptable' },
          ...{ error: expect.stringContaining(body.details[0].path), details: expect.any(Array) },
          ...{ provider, project: 'p', region: 'r', catalogStatus: 'not_discovered' },
        },
      ])
      expect(body.details.map((detail: { path: string }) => detail.path).sort()).toEqual(paths)
    },
  )

  test('a good document is not called valid as long as no provider was asked, and nothing of it is stored', async () => {
    const before = await app.counts()
    const answer = await app.call('POST', '/cloud-credentials/validate/', {
      provider: 'gcp',
      credential: gcp(),
      projectId: 'other',
      region: 'europe-west1',
    })
    expect([answer.status, answer.body]).toEqual([
      200,
      {
        ...{
          valid: null,
          checked: 'form',
          reason: expect.stringMatching(/form .* is right.*gcp.* was not asked/),
          details: [],
        },
        ...{ provider: 'gcp', project: 'other', region: 'europe-west1', catalogStatus: 'not_discovered' },
      },
    ])
    expect(
      (
        await app.call('POST', '/cloud-credentials/validate/', {
          provider: 'gcp',
          credential: JSON.stringify(gcp()),
        })
      ).body.project,
    ).toBe('lab-1')
    expect(await app.counts()).toEqual(before)
    for (const [credential, path] of [
      ['{', 'credential'],
      ['[]', 'credential'],
    ])
      expect(
        await app.call('POST', '/cloud-credentials/validate/', { provider: 'aws', credential }),
      ).toMatchObject({
        status: 422,
        body: { valid: false, checked: 'form', project: '', region: '', details: [{ path }] },
      })
    expect(
      pathsOf(await app.call('POST', '/cloud-credentials/validate/', { provider: 'ibm', credential: {} })),
    ).toEqual([422, ['provider']])
  })
})

test.each([
  ['/ssh-keys/', 'ssh', {}],
  ['/kubernetes-tokens/', 'kube', { token: 't' }],
  ['/cloud-credentials/', 'cloud', { provider: 'aws', credential: aws }],
  ['/registry-credentials/', 'login', { registry: 'r.example', username: 'u', password: 'p' }],
])('a credential of %s is deleted only when no connection refers to it', async (path, id, rest) => {
  const { credentialRef } = (await app.call('POST', path, { id, ...rest })).body
  await bind(`e-${id}`, credentialRef)
  expect((await app.call('GET', `${path}${id}/`)).body.usedBy).toEqual([
    { connectionId: `e-${id}-c`, environmentId: `e-${id}`, name: 'login' },
  ])
  const refused = await app.call('DELETE', `${path}${id}/`)
  expect([refused.status, refused.body.error]).toEqual([422, expect.stringContaining(`e-${id}-c`)])
  expect((await app.call('DELETE', `/environments/e-${id}/`)).status).toBe(204)
  expect((await app.call('DELETE', `${path}${id}/`)).status).toBe(204)
  expect((await app.call('DELETE', `${path}${id}/`)).status).toBe(404)
  expect((await app.call('GET', `${path}${id}/`)).status).toBe(404)
  await expect(vault.open(credentialRef, use)).rejects.toMatchObject({
    code: 'unacceptable',
    message: expect.stringContaining(credentialRef),
  })
})

test.each([
  ['serverless', (credentialRef: string) => ({ endpoint: 'https://f.example/', credentialRef })],
  [
    'slurm',
    (credentialRef: string) => ({ slurmrestd: { url: 'https://s.example/', user: 'ada', credentialRef } }),
  ],
])(
  'a token that a %s runtime names is used by it, and stays until the runtime is gone',
  async (driver, of) => {
    const id = `token-${driver}`
    const { credentialRef } = (await app.call('POST', '/kubernetes-tokens/', { id, token: 't' })).body
    const inventory = (configuration: object, ofBinding?: object) => ({
      environment: { id, name: id },
      version: { id: `${id}-v`, version: 1 },
      runtimes: [{ id: `${id}-r`, name: 'site', driver, mode: 'execution', configuration }],
      ...(ofBinding === undefined
        ? {}
        : {
            resources: [
              { id: `${id}-m`, name: 'm', providerId: 'm', cpuCores: 1, cpuCapacity: 1, schedulable: true },
            ],
            resourceRuntimeBindings: [
              { resourceId: `${id}-m`, runtimeId: `${id}-r`, enabled: true, configuration: ofBinding },
            ],
          }),
    })
    const made = await app.call('POST', '/environments/', inventory(of(credentialRef)))
    expect([made.status, made.body.error]).toEqual([201, undefined])
    expect((await app.call('GET', `/kubernetes-tokens/${id}/`)).body.usedBy).toEqual([
      { runtimeId: `${id}-r`, environmentId: id, name: 'site' },
    ])
    const refused = await app.call('DELETE', `/kubernetes-tokens/${id}/`)
    expect([refused.status, refused.body.error]).toEqual([
      422,
      `the Kubernetes token is used by the runtime "${id}-r"; give the runtime another credential first`,
    ])
    const bound = inventory(of('vault:none/x'), of(credentialRef))
    expect((await app.call('PUT', `/environments/${id}/`, bound)).status).toBe(200)
    expect((await app.call('DELETE', `/kubernetes-tokens/${id}/`)).body.error).toBe(refused.body.error)
    expect((await app.call('PUT', `/environments/${id}/`, inventory(of('vault:none/x')))).status).toBe(200)
    expect((await app.call('DELETE', `/kubernetes-tokens/${id}/`)).status).toBe(204)
  },
)

describe('a credential that a record is just being given', () => {
  /** Until a statement waits for a lock of another transaction, or the call is over. */
  const stuck = async (call: Promise<unknown>): Promise<void> => {
    let over = false
    const ended = () => (over = true)
    call.then(ended, ended)
    for (let waiting = false; !over && !waiting;) {
      const answer = await app.db.one(
        z.object({ waiting: z.boolean() }),
        sql`select exists (select from pg_stat_activity where datname = current_database()
          and wait_event_type = 'Lock') as waiting`,
      )
      waiting = answer.waiting
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
  }
  const login = (id: string, environmentId: string, credentialRef: string) =>
    ConnectionDocument.parse({
      id,
      environmentId,
      name: 'login',
      type: 'ssh',
      endpoint: 'lab:22',
      username: 'ada',
      credentialRef,
    })
  const inventory = (id: string, connections: unknown[] = [], runtimes: unknown[] = []) =>
    EnvironmentDefinition.parse({
      environment: { id, name: id },
      version: { id: `${id}-v`, version: 1 },
      connections,
      runtimes,
    })
  const calling = (id: string, credentialRef: string) => ({
    ...{ id, name: 'site', driver: 'serverless', mode: 'execution' },
    configuration: { endpoint: 'https://f.example/', credentialRef },
  })

  test.each([
    [
      'by itself',
      'saved',
      async (tx: Db, reference: string) => {
        await createEnvironment(tx, inventory('saved'))
        await saveConnection(tx, login('saved-c', 'saved', reference))
      },
    ],
    [
      'with its environment',
      'listed',
      (tx: Db, reference: string) =>
        createEnvironment(tx, inventory('listed', [login('listed-c', 'listed', reference)])),
    ],
    [
      'as that of a runtime',
      'called',
      (tx: Db, reference: string) =>
        createEnvironment(tx, inventory('called', [], [calling('called-r', reference)])),
    ],
  ])('%s, is not deleted meanwhile', async (_, id, give) => {
    const { credentialRef } = (await app.call('POST', '/ssh-keys/', { id })).body
    let deleting: ReturnType<typeof app.call> | undefined
    await app.db.transaction(async (tx) => {
      await give(tx, credentialRef)
      deleting = app.call('DELETE', `/ssh-keys/${id}/`)
      await stuck(deleting)
    })
    expect(await deleting).toMatchObject({
      status: 422,
      body: { error: expect.stringMatching(/is used by (?:connection|the runtime)/) },
    })
  })

  test('and was deleted first, is kept as the client wrote it', async () => {
    const { credentialRef } = (await app.call('POST', '/ssh-keys/', { id: 'gone' })).body
    await createEnvironment(app.db, inventory('late'))
    let saving: Promise<unknown> | undefined
    await app.db.transaction(async (tx) => {
      await deleteCredential(tx, 'ssh-key', 'gone')
      saving = saveConnection(app.db, login('late-c', 'late', credentialRef))
      await stuck(saving)
    })
    expect(await saving).toMatchObject({ id: 'late-c', credentialRef })
    const [kept] = (await app.call('GET', '/environments/late/')).body.connections
    expect(kept).toMatchObject({ id: 'late-c', credentialRef })
  })
})

describe('the vault', () => {
  test('detects a record that was changed or put in the place of another', async () => {
    const refs: string[] = []
    for (const id of ['one', 'two'])
      refs.push(
        (await app.call('POST', '/kubernetes-tokens/', { id, token: `token-of-${id}` })).body.credentialRef,
      )
    const [one = '', two = ''] = refs
    const broken = { code: 'unacceptable', message: expect.stringMatching(/changed outside of the service/) }
    const client = await app.db.client()
    const swap = (columns: string) =>
      client.query(
        `update credentials c set ${columns} from credentials o where c.kind = 'kubernetes-token' ` +
          `and o.kind = c.kind and c.id in ('one', 'two') and o.id in ('one', 'two') and o.id <> c.id`,
      )
    try {
      for (const columns of [
        'content = o.content',
        'data_key = o.data_key',
        'content = o.content, data_key = o.data_key',
      ]) {
        await swap(columns)
        await expect(vault.open(one, use)).rejects.toMatchObject(broken)
        await expect(vault.open(two, use)).rejects.toMatchObject(broken)
        await swap(columns)
        expect(await vault.open(one, use)).toEqual({ kind: 'kubernetes-token', token: 'token-of-one' })
      }
      for (const [from, to] of [
        ['one', 'three'],
        ['two', 'one'],
      ])
        await client.query(`update credentials set id = $2 where kind = 'kubernetes-token' and id = $1`, [
          from,
          to,
        ])
      await expect(vault.open(one, use)).rejects.toMatchObject(broken)
      const failed = (
        await app.call('GET', `/audit-events/?credentialRef=${encodeURIComponent(one)}&outcome=failed`)
      ).body
      expect(failed[0]).toMatchObject({
        eventType: 'credential.used',
        metadata: { credentialRef: one, purpose: 'log in' },
      })
      expect(failed[0].resourceId).toBeUndefined()
      await client.query(
        `delete from credentials where kind = 'kubernetes-token' and id in ('one', 'two', 'three')`,
      )
    } finally {
      client.release()
    }
  })

  test('is rotated while it is used: everything opens before, during and after, and the old key is then not needed', async () => {
    const { credentialRef } = (
      await app.call('POST', '/kubernetes-tokens/', { id: 'rotated', token: 'stays-the-same' })
    ).body
    const old = await keys.primary()
    // A second program on the same file, which is not told of the rotation.
    const runningKeys = await openVaultKeys(keys.file)
    const running = openVault({
      db: app.db,
      keys: runningKeys,
      outside: { variables: new CredentialVariables([]), folders: [] },
      audit: async () => undefined,
    })
    let opened = 0
    let over = false
    const using = (async () => {
      while (!over) {
        expect(await running.open(credentialRef, use)).toMatchObject({ token: 'stays-the-same' })
        opened++
      }
    })()
    const next = makeKey()
    await replaceKeys(keys.file, [next, old])
    const usage = await vault.usage()
    expect(await vault.rewrap()).toEqual({ wrapped: usage.get(old.id), broken: [], keyless: [] })
    expect(await vault.rewrap()).toEqual({ wrapped: 0, broken: [], keyless: [] })
    for (const enough = opened + 5; opened < enough;) await new Promise((resolve) => setTimeout(resolve, 5))
    over = true
    await using
    expect([...(await vault.usage()).keys()]).toEqual([next.id])
    expect((await app.call('POST', '/kubernetes-tokens/', { id: 'later', token: 'x' })).status).toBe(201)
    expect([...(await vault.usage()).keys()]).toEqual([next.id])
    const alone = openVault({
      db: app.db,
      keys: { ...keys, find: async (id) => (id === next.id ? next : undefined) },
      outside: { variables: new CredentialVariables([]), folders: [] },
      audit: async () => undefined,
    })
    expect(await alone.open(credentialRef, use)).toMatchObject({ token: 'stays-the-same' })
  })

  test('opens nothing with a database alone, and says what is missing', async () => {
    const { credentialRef } = (await app.call('POST', '/kubernetes-tokens/', { id: 'shut', token: 'x' })).body
    const outside = { variables: new CredentialVariables([]), folders: [] }
    const without = openVault({ db: app.db, keys: undefined, outside, audit: async () => undefined })
    await expect(without.open(credentialRef, use)).rejects.toMatchObject({
      code: 'unavailable',
      message: expect.stringContaining('SERVICE_VAULT_KEY_FILE'),
    })
    await expect(
      without.put(app.db, 'x', { kind: 'kubernetes-token', token: 'x' }, {}),
    ).rejects.toMatchObject({ code: 'unavailable' })
    await ensureKeyFile(join(folder, 'foreign.key'))
    const foreign = openVault({
      db: app.db,
      keys: await openVaultKeys(join(folder, 'foreign.key')),
      outside,
      audit: async () => undefined,
    })
    await expect(foreign.open(credentialRef, use)).rejects.toMatchObject({
      code: 'unavailable',
      message: expect.stringMatching(/key file of this program does not hold/),
    })
  })
})

describe('references of earlier clients', () => {
  const write = (name: string, content: string): string => {
    const file = join(folder, 'allowed', name)
    writeFileSync(file, content)
    return file
  }

  test('read the variables and folders that the configuration allows', async () => {
    expect(await vault.open('env:LAB_TOKEN', use)).toEqual({
      kind: 'kubernetes-token',
      token: 'token-of-the-lab',
    })
    expect(await vault.open(`file:${write('key', pem())}`, use)).toMatchObject({
      kind: 'ssh-key',
      privateKey: expect.stringMatching(/OPENSSH/),
    })
    const file = write('aws.json', JSON.stringify(aws))
    expect(await vault.open(`cloud-file:${file}`, use)).toEqual({
      kind: 'cloud-credential',
      provider: 'aws',
      document: aws,
    })
    const before = await vault.look(`cloud-file:${file}`)
    renameSync(write('newer.json', JSON.stringify(aws)), file)
    const after = await vault.look(`cloud-file:${file}`)
    expect([before.kind, after.kind]).toEqual(['cloud-credential', 'cloud-credential'])
    expect(after.version).not.toBe(before.version)
  })

  test('are refused for anything else, without a word of what is there', async () => {
    writeFileSync(join(folder, 'outside'), 'outer-secret')
    symlinkSync(join(folder, 'outside'), join(folder, 'allowed', 'link'))
    const encrypted = generateKeyPairSync('ed25519').privateKey.export({
      type: 'pkcs8',
      format: 'pem',
      cipher: 'aes-256-cbc',
      passphrase: 'p',
    })
    for (const [reference, says] of [
      ['env:HOME', /SERVICE_CREDENTIAL_ENVIRONMENT/],
      [`file:${join(folder, 'outside')}`, /SERVICE_CREDENTIAL_FOLDERS/],
      [`file:${join(folder, 'nothing-here')}`, /SERVICE_CREDENTIAL_FOLDERS/],
      [`file:${join(folder, 'allowed', '..', 'outside')}`, /SERVICE_CREDENTIAL_FOLDERS/],
      [`file:${join(folder, 'allowed', 'link')}`, /SERVICE_CREDENTIAL_FOLDERS/],
      [`file:${join(folder, 'allowed')}`, /SERVICE_CREDENTIAL_FOLDERS/],
      [`file:${join(folder, 'allowed', 'absent')}`, /ENOENT/],
      ['file:allowed/key', /absolute path/],
      [`file:${write('encrypted', encrypted.toString())}`, /passphrase/],
      [`file:${write('empty', ' \n')}`, /is empty/],
      [`file:${write('broken.json', '{"outer-secret')}`, /not valid JSON/],
      ['vault:ssh-key/nobody', /does not exist/],
      ['vault:passwords/x', /no reference to a credential/],
      ['', /no reference/],
    ] as const) {
      const error = await vault.open(reference, use).then(
        () => undefined,
        (failure: unknown) => failure as Error,
      )
      expect([reference, error]).toEqual([
        reference,
        expect.objectContaining({ code: 'unacceptable', message: expect.stringMatching(says) }),
      ])
      expect(error?.message).not.toContain('outer-secret')
    }
  })

  test('that are secrets themselves are shown back nowhere', async () => {
    const secret = 'AKIA-a-secret-in-the-wrong-place'
    await expect(vault.open(secret, use)).rejects.toThrow(/hidden/)
    const events = (await app.call('GET', '/audit-events/?eventType=credential.used&limit=1000')).text
    expect(events).toContain('hidden')
    expect(events).not.toContain(secret)
  })
})
