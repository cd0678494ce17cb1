import { z } from 'zod'
import { importSshKey, KeyProblem, makeSshKey, type SshKey as Pair } from '../../clients/ssh/keys.ts'
import type { Db } from '../../db/sql.ts'
import { arraySizes, pagedArray, pageOf, pageQuery } from '../../http/paging.ts'
import { Reply, route, type AuditFields, type Route } from '../../http/route.ts'
import { unacceptable, type Problem } from '../../refusal.ts'
import { projectOf, providerProblems, type Provider } from '../../vault/provider-documents.ts'
import type { Secret, SecretKind } from '../../vault/secret.ts'
import { referenceOf, type Shown, type Vault } from '../../vault/vault.ts'
import {
  CloudCredential,
  CloudCredentialCheck,
  CloudCredentialReplacement,
  CloudCredentialVerdict,
  CredentialReference,
  KubernetesToken,
  KubernetesTokenReplacement,
  NewCloudCredential,
  NewKubernetesToken,
  NewSshKey,
  SshKey,
  SshKeyImport,
  SshKeyReplacement,
} from './schemas.ts'
import { deleteCredential, listCredentials, nouns, readCredential, takenProblems } from './store.ts'

const folders: Record<SecretKind, string> = {
  'ssh-key': '/ssh-keys/',
  'kubernetes-token': '/kubernetes-tokens/',
  'cloud-credential': '/cloud-credentials/',
}

/** A secret and what may be shown of it, or everything that is wrong with the document it was to be made of. */
type Made = { secret: Secret; shown: Shown } | { problems: Problem[] }

const keyMade = ({ privateKey, publicKey, fingerprint }: Pair): Made => ({
  secret: { kind: 'ssh-key', privateKey },
  shown: { publicKey, fingerprint },
})

const keyImported = ({ privateKey, passphrase }: z.output<typeof SshKeyReplacement>): Made => {
  try {
    return keyMade(importSshKey(privateKey, passphrase === '' ? undefined : passphrase))
  } catch (error) {
    if (error instanceof KeyProblem) return { problems: [{ path: error.field, message: error.message }] }
    throw error
  }
}

const tokenMade = ({ token }: { token: string }): Made => ({ secret: { kind: 'kubernetes-token', token }, shown: {} })

const parsedDocument = (credential: string | Record<string, unknown>): Record<string, unknown> | undefined => {
  if (typeof credential !== 'string') return credential
  try {
    const document: unknown = JSON.parse(credential)
    return typeof document === 'object' && document !== null && !Array.isArray(document) ? (document as Record<string, unknown>) : undefined
  } catch {
    return undefined
  }
}

const cloudMade = ({ provider, credential }: { provider: Provider; credential: string | Record<string, unknown> }): Made => {
  const document = parsedDocument(credential)
  if (document === undefined) return { problems: [{ path: 'credential', message: `must be the JSON object that ${provider} gave` }] }
  const problems = providerProblems(provider, document)
  return problems.length > 0 ? { problems } : { secret: { kind: 'cloud-credential', provider, document }, shown: { provider } }
}

/** Routes of SSH keys, Kubernetes tokens and cloud credentials. A secret comes in and never goes out: answers hold references. */
export const credentialRoutes = ({ db, vault }: { db: Db; vault: Pick<Vault, 'put' | 'replace'> }): Route[] => {
  const audited = (kind: SecretKind, verb: 'stored' | 'replaced' | 'deleted'): AuditFields => {
    const id = ({ params, body }: { params: Record<string, string>; body: unknown }): string =>
      params['credentialId'] ?? (body as { id: string }).id
    return {
      eventType: `credential.${verb}`,
      summary: (call) => `${nouns[kind]} ${id(call)} ${verb}`,
      resourceId: (call) => referenceOf(kind, id(call)),
    }
  }

  /** Stores what was made under a new id, or refuses with everything against it. */
  const store = async (kind: SecretKind, id: string, made: Made): Promise<void> => {
    const problems = [...(await takenProblems(db, kind, id)), ...('problems' in made ? made.problems : [])]
    if (problems.length > 0 || 'problems' in made) throw unacceptable(problems)
    if (!(await vault.put(db, id, made.secret, made.shown))) throw unacceptable(await takenProblems(db, kind, id))
  }

  /** What the store has against a document that its schema has refused. */
  const alsoTaken =
    (kind: SecretKind) =>
    async ({ document }: { document: unknown }): Promise<Problem[]> => {
      const id: unknown = typeof document === 'object' && document !== null ? (document as { id?: unknown }).id : undefined
      return typeof id === 'string' ? takenProblems(db, kind, id) : []
    }

  const createdAt = (kind: SecretKind, id: string): Record<string, string> => ({ location: `${folders[kind]}${encodeURIComponent(id)}/` })

  const replace = async (kind: SecretKind, id: string, given: string | undefined, made: Made): Promise<void> => {
    const problems = [
      ...(given === undefined || given === id
        ? []
        : [{ path: 'id', message: `must be ${JSON.stringify(id)} as in the path, or be left out` }]),
      ...('problems' in made ? made.problems : []),
    ]
    // Before anything else: an unknown id is 404 whatever the document says.
    await readCredential(db, z.unknown(), kind, id)
    if (problems.length > 0 || 'problems' in made) throw unacceptable(problems)
    if ((await vault.replace(id, made.secret, made.shown)) === undefined) await readCredential(db, z.unknown(), kind, id)
  }

  /** Reading, and deleting what nothing uses: alike for all kinds. */
  const common = <T extends z.ZodType>(kind: SecretKind, item: T): Route[] => [
    route({
      method: 'GET',
      path: folders[kind],
      tag: 'credentials',
      summary: `${nouns[kind]}s by id, without their secrets`,
      query: z.strictObject(pageQuery),
      response: z.array(item),
      handle: async ({ query, target }) => {
        const page = pageOf(query, arraySizes)
        const { rows, total } = await listCredentials(db, item, kind, page)
        return pagedArray(rows, { page, total, target })
      },
    }),
    route({
      method: 'GET',
      path: `${folders[kind]}{credentialId}/`,
      tag: 'credentials',
      summary: `One ${nouns[kind]} and the connections that use it, without its secret`,
      response: item,
      handle: async ({ params }) => new Reply({ body: await readCredential(db, item, kind, params['credentialId'] ?? '') }),
    }),
    route({
      method: 'DELETE',
      path: `${folders[kind]}{credentialId}/`,
      tag: 'credentials',
      summary: `Delete a ${nouns[kind]} that no connection uses`,
      refuses: [422],
      audit: audited(kind, 'deleted'),
      handle: async ({ params }) => {
        await deleteCredential(db, kind, params['credentialId'] ?? '')
        return new Reply({ status: 204 })
      },
    }),
  ]

  return [
    ...common('ssh-key', SshKey),
    route({
      method: 'POST',
      path: '/ssh-keys/',
      tag: 'credentials',
      summary: 'Make an ed25519 key; its public half is the answer',
      body: NewSshKey,
      response: SshKey,
      status: 201,
      alsoCheck: alsoTaken('ssh-key'),
      audit: audited('ssh-key', 'stored'),
      handle: async ({ body: { id, comment = `orrery ${id}` } }) => {
        await store('ssh-key', id, keyMade(makeSshKey(comment)))
        return new Reply({ body: await readCredential(db, SshKey, 'ssh-key', id), headers: createdAt('ssh-key', id) })
      },
    }),
    route({
      method: 'POST',
      path: '/ssh-keys/import/',
      tag: 'credentials',
      summary: 'Import a private key: ed25519, ECDSA or RSA as OpenSSH, PEM or PKCS#8 text',
      body: SshKeyImport,
      response: SshKey,
      status: 201,
      alsoCheck: alsoTaken('ssh-key'),
      audit: audited('ssh-key', 'stored'),
      handle: async ({ body }) => {
        await store('ssh-key', body.id, keyImported(body))
        return new Reply({ body: await readCredential(db, SshKey, 'ssh-key', body.id), headers: createdAt('ssh-key', body.id) })
      },
    }),
    route({
      method: 'PUT',
      path: '/ssh-keys/{credentialId}/',
      tag: 'credentials',
      summary: 'Put another private key under a reference that is in use',
      body: SshKeyReplacement,
      response: SshKey,
      audit: audited('ssh-key', 'replaced'),
      handle: async ({ params, body }) => {
        await replace('ssh-key', params.credentialId, body.id, keyImported(body))
        return readCredential(db, SshKey, 'ssh-key', params.credentialId)
      },
    }),
    ...common('kubernetes-token', KubernetesToken),
    route({
      method: 'POST',
      path: '/kubernetes-tokens/',
      tag: 'credentials',
      summary: 'Store a Kubernetes token',
      body: NewKubernetesToken,
      response: CredentialReference,
      status: 201,
      alsoCheck: alsoTaken('kubernetes-token'),
      audit: audited('kubernetes-token', 'stored'),
      handle: async ({ body }) => {
        await store('kubernetes-token', body.id, tokenMade(body))
        return new Reply({
          body: { credentialRef: referenceOf('kubernetes-token', body.id) },
          headers: createdAt('kubernetes-token', body.id),
        })
      },
    }),
    route({
      method: 'PUT',
      path: '/kubernetes-tokens/{credentialId}/',
      tag: 'credentials',
      summary: 'Put another token under a reference that is in use',
      body: KubernetesTokenReplacement,
      response: KubernetesToken,
      audit: audited('kubernetes-token', 'replaced'),
      handle: async ({ params, body }) => {
        await replace('kubernetes-token', params.credentialId, body.id, tokenMade(body))
        return readCredential(db, KubernetesToken, 'kubernetes-token', params.credentialId)
      },
    }),
    ...common('cloud-credential', CloudCredential),
    route({
      method: 'POST',
      path: '/cloud-credentials/',
      tag: 'credentials',
      summary: "Store a provider's document: a service account (gcp), an access key (aws), a service principal (azure)",
      body: NewCloudCredential,
      response: CredentialReference,
      status: 201,
      alsoCheck: alsoTaken('cloud-credential'),
      audit: audited('cloud-credential', 'stored'),
      handle: async ({ body }) => {
        await store('cloud-credential', body.id, cloudMade(body))
        return new Reply({
          body: { credentialRef: referenceOf('cloud-credential', body.id) },
          headers: createdAt('cloud-credential', body.id),
        })
      },
    }),
    route({
      method: 'PUT',
      path: '/cloud-credentials/{credentialId}/',
      tag: 'credentials',
      summary: 'Put another document under a reference that is in use',
      body: CloudCredentialReplacement,
      response: CloudCredential,
      audit: audited('cloud-credential', 'replaced'),
      handle: async ({ params, body }) => {
        await replace('cloud-credential', params.credentialId, body.id, cloudMade(body))
        return readCredential(db, CloudCredential, 'cloud-credential', params.credentialId)
      },
    }),
    route({
      method: 'POST',
      path: '/cloud-credentials/validate/',
      tag: 'credentials',
      summary: "Whether a provider's document has the right form; does not ask the provider and stores nothing",
      body: CloudCredentialCheck,
      response: CloudCredentialVerdict,
      audit: { eventType: 'credential.validated', summary: () => 'cloud credential validated' },
      handle: ({ body: { provider, credential, projectId = '', region = '' } }) => {
        const made = cloudMade({ provider, credential })
        const asked = { checked: 'form', provider, region, catalogStatus: 'not_discovered' } as const
        if ('problems' in made)
          return { valid: false, reason: unacceptable(made.problems).message, details: made.problems, project: projectId, ...asked }
        const project = projectId === '' ? projectOf(provider, parsedDocument(credential) ?? {}) : projectId
        const reason = `the form of the document is right; whether ${provider} takes it is not known, because the provider was not asked`
        return { valid: null, reason, details: [], project, ...asked }
      },
    }),
  ]
}
