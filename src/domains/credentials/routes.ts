import { z } from 'zod'
import { importSshKey, KeyProblem, makeSshKey, type SshKeyPair as Pair } from '../../clients/ssh/keys.ts'
import type { Db } from '../../db/sql.ts'
import { listRoute } from '../../http/list-route.ts'
import { Reply, route, type AuditFields, type Route } from '../../http/route.ts'
import { pathIdProblems, Refusal, unacceptable, type Problem } from '../../refusal.ts'
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
  NewRegistryCredential,
  RegistryCredential,
  RegistryCredentialReplacement,
  NewKubernetesToken,
  NewSshKey,
  SshKey,
  SshKeyImport,
  SshKeyReplacement,
} from './schemas.ts'
import {
  deleteCredential,
  holdReplaceable,
  listCredentials,
  nouns,
  readCredential,
  takenProblems,
} from './store.ts'
import { isFields } from '../../json-object.ts'

/** Credentials of users; the service's own key and what targets hide have no route. */
type UserKind = Exclude<SecretKind, 'signing-key' | 'machine-variables'>

const folderOf = <Kind extends UserKind>(kind: Kind) => `/${kind}s/` as const
/** As operations name a credential of the kind. */
const names: Record<UserKind, string> = {
  'ssh-key': 'SshKey',
  'kubernetes-token': 'KubernetesToken',
  'cloud-credential': 'CloudCredential',
  'registry-credential': 'RegistryCredential',
}

/** A secret and its public members, or all problems of the document that it comes from. */
type Made = { secret: Secret; shown: Shown } | { problems: Problem[] }

const keyMade = ({ privateKey, publicKey, fingerprint }: Pair): Made => ({
  secret: { kind: 'ssh-key', privateKey },
  shown: { publicKey, fingerprint },
})

const keyImported = ({ privateKey, passphrase }: z.output<typeof SshKeyReplacement>): Made => {
  try {
    return keyMade(importSshKey(privateKey, passphrase))
  } catch (error) {
    if (error instanceof KeyProblem) return { problems: [{ path: error.field, message: error.message }] }
    throw error
  }
}

const tokenMade = ({ token }: { token: string }): Made => ({
  secret: { kind: 'kubernetes-token', token },
  shown: {},
})

const parsedDocument = (
  credential: string | Record<string, unknown>,
): Record<string, unknown> | undefined => {
  if (typeof credential !== 'string') return credential
  try {
    const document: unknown = JSON.parse(credential)
    return isFields(document) ? document : undefined
  } catch {
    return undefined
  }
}

const cloudMade = ({
  provider,
  credential,
}: {
  provider: Provider
  credential: string | Record<string, unknown>
}): Made => {
  const document = parsedDocument(credential)
  if (document === undefined)
    return { problems: [{ path: 'credential', message: `must be the JSON object that ${provider} gave` }] }
  const problems = providerProblems(provider, document)
  return problems.length > 0
    ? { problems }
    : { secret: { kind: 'cloud-credential', provider, document }, shown: { provider } }
}

const registryMade = ({
  registry,
  username,
  password,
}: Omit<z.output<typeof NewRegistryCredential>, 'id'>): Made => ({
  secret: { kind: 'registry-credential', registry, username, password },
  shown: { registry, username },
})

interface CredentialParts {
  db: Db
  vault: Pick<Vault, 'put' | 'replace'>
  /**
   * Asks a provider who the holder of a document is; undefined where this version cannot ask it.
   * Absent: no provider is asked. @throws Refusal 422 for the provider's no, 503 without an answer
   */
  identifyCloud?: (
    place: { provider: string; region: string; endpoint: string; projectId: string },
    document: Readonly<Record<string, unknown>>,
  ) => Promise<string | undefined>
}

const audited = (kind: UserKind, verb: 'stored' | 'replaced' | 'deleted'): AuditFields => {
  const id = ({ params, body }: { params: Record<string, string>; body: unknown }): string =>
    params['credentialId'] ?? (body as { id: string }).id
  return {
    eventType: `credential.${verb}`,
    summary: (call) => `${nouns[kind]} ${id(call)} ${verb}`,
    resourceId: (call) => referenceOf(kind, id(call)),
  }
}

/** Stores a new secret under a new id, or refuses with all problems. */
const store = async (
  { db, vault }: CredentialParts,
  kind: UserKind,
  id: string,
  made: Made,
): Promise<void> => {
  const problems = [...(await takenProblems(db, kind, id)), ...('problems' in made ? made.problems : [])]
  if (problems.length > 0 || 'problems' in made) throw unacceptable(problems)
  if (!(await vault.put(db, id, made.secret, made.shown)))
    throw unacceptable(await takenProblems(db, kind, id))
}

/** Problems of the store with a document that its schema has refused already. */
const alsoTaken =
  (db: Db, kind: UserKind) =>
  async ({ document }: { document: unknown }): Promise<Problem[]> => {
    const id: unknown =
      typeof document === 'object' && document !== null ? (document as { id?: unknown }).id : undefined
    return typeof id === 'string' ? takenProblems(db, kind, id) : []
  }

/** Replaces a stored secret. `given`: the id in the document. */
const replace = async (
  { db, vault }: CredentialParts,
  kind: UserKind,
  id: string,
  given: string | undefined,
  made: Made,
): Promise<void> => {
  const problems = [...pathIdProblems('id', given, id), ...('problems' in made ? made.problems : [])]
  // This comes first: an unknown id is 404 for any document.
  await readCredential(db, z.unknown(), kind, id)
  if (problems.length > 0 || 'problems' in made) throw unacceptable(problems)
  const { secret, shown } = made
  await db.transaction(async (tx) => {
    await holdReplaceable(tx, kind, id)
    await vault.replace(tx, id, secret, shown)
  })
}

/** Routes to read credentials and to delete unused ones, alike for all kinds. */
const commonRoutes = <T extends z.ZodType>(db: Db, kind: UserKind, item: T): Route[] => [
  listRoute(`list${names[kind]}s`, `GET ${folderOf(kind)}`, {
    summary: `${nouns[kind]}s by id, without their secrets`,
    item,
    read: (page) => listCredentials(db, item, kind, page),
  }),
  route(`get${names[kind]}`, `GET ${folderOf(kind)}{credentialId}/`, {
    summary: `One ${nouns[kind]} and the connections that use it, without its secret`,
    response: item,
    handle: async ({ params }) =>
      new Reply({ body: await readCredential(db, item, kind, params.credentialId) }),
  }),
  route(`delete${names[kind]}`, `DELETE ${folderOf(kind)}{credentialId}/`, {
    summary: `Delete a ${nouns[kind]} that no connection uses`,
    refuses: [422],
    audit: audited(kind, 'deleted'),
    handle: ({ params }) => deleteCredential(db, kind, params.credentialId),
  }),
]

/**
 * Stores a secret from a document. The answer holds its reference; that of a key, made here or
 * imported, its public half.
 */
const storeRoute = <Body extends { id: string }>(
  parts: CredentialParts,
  given: {
    kind: UserKind
    /** Of a key that exists already. */
    isImport?: boolean
    summary: string
    body: z.ZodType<Body>
    made: (body: Body) => Made
  },
): Route => {
  const { kind, isImport = false, summary, body: schema, made } = given
  const [verb, folder] = isImport ? (['import', 'import/'] as const) : (['create', ''] as const)
  return route(`${verb}${names[kind]}`, `POST ${folderOf(kind)}${folder}`, {
    summary,
    body: schema,
    response: kind === 'ssh-key' ? SshKey : CredentialReference,
    status: 201,
    alsoCheck: alsoTaken(parts.db, kind),
    audit: audited(kind, 'stored'),
    handle: async ({ body }) => {
      await store(parts, kind, body.id, made(body))
      return new Reply({
        body:
          kind === 'ssh-key'
            ? await readCredential(parts.db, SshKey, kind, body.id)
            : { credentialRef: referenceOf(kind, body.id) },
        location: `${folderOf(kind)}${encodeURIComponent(body.id)}/`,
      })
    },
  })
}

/** Stores another secret under an existing reference. */
const replaceRoute = <Body extends { id?: string | undefined }, S extends z.ZodType>(
  parts: CredentialParts,
  given: { kind: UserKind; what: string; body: z.ZodType<Body>; item: S; made: (body: Body) => Made },
): Route =>
  route(`update${names[given.kind]}`, `PUT ${folderOf(given.kind)}{credentialId}/`, {
    summary: `Put another ${given.what} under a reference that is in use`,
    body: given.body,
    response: given.item,
    ...(given.kind === 'ssh-key' ? { refuses: [409] } : {}),
    audit: audited(given.kind, 'replaced'),
    handle: async ({ params, body }) => {
      const id = params.credentialId
      await replace(parts, given.kind, id, body.id, given.made(body))
      return new Reply({ body: await readCredential(parts.db, given.item, given.kind, id) })
    },
  })

/** The error of a credential that is refused (422), with the members of a verdict; others unchanged. */
const refusedVerdict = (
  error: unknown,
  facts: Pick<CloudCredentialVerdict, 'checked' | 'project' | 'provider' | 'region' | 'catalogStatus'>,
): unknown =>
  error instanceof Refusal && error.code === 'unacceptable'
    ? new Refusal(error.code, error.message, {
        details: error.details,
        extra: { ...error.extra, valid: false, ...facts },
      })
    : error

const validateRoute = ({ identifyCloud }: CredentialParts): Route =>
  route('validateCloudCredential', 'POST /cloud-credentials/validate/', {
    summary:
      "Whether a provider takes a credential: its form, then the provider's own answer; 422 with " +
      '`valid: false` for a wrong form and for its no, 503 for no answer; stores nothing',
    body: CloudCredentialCheck,
    response: CloudCredentialVerdict,
    refuses: [503],
    audit: { eventType: 'credential.validated', summary: 'cloud credential validated' },
    handle: async ({ body: { provider, credential, projectId = '', region = '', endpoint = '' } }) => {
      const made = cloudMade({ provider, credential })
      const asked = { provider, region, catalogStatus: 'not_discovered' } as const
      if ('problems' in made)
        throw refusedVerdict(unacceptable(made.problems), { checked: 'form', project: projectId, ...asked })
      const document = parsedDocument(credential) ?? {}
      const project = projectId || projectOf(provider, document)
      const identity = await identifyCloud?.(
        { provider, region, endpoint, projectId: project },
        document,
      ).catch((error: unknown) => {
        throw refusedVerdict(error, { checked: 'provider', project, ...asked })
      })
      const facts = { details: [], project, ...asked }
      if (identity !== undefined)
        return {
          ...{ valid: true, checked: 'provider' as const, ...facts },
          reason: `${provider} knows the credential as ${identity}`,
        }
      const reason =
        `the form of the document is right; whether ${provider} takes it is not known, because the ` +
        'provider was not asked'
      return { valid: null, checked: 'form' as const, reason, ...facts }
    },
  })

/**
 * Routes of SSH keys, Kubernetes tokens, cloud credentials and logins of registries. A secret
 * enters and never leaves: answers hold references.
 */
export const credentialRoutes = (parts: CredentialParts): Route[] => [
  ...commonRoutes(parts.db, 'ssh-key', SshKey),
  storeRoute(parts, {
    kind: 'ssh-key',
    summary: 'Make an ed25519 key; its public half is the answer',
    body: NewSshKey,
    made: ({ id, comment = `orrery ${id}` }) => keyMade(makeSshKey(comment)),
  }),
  storeRoute(parts, {
    kind: 'ssh-key',
    isImport: true,
    summary: 'Import a private key: ed25519, ECDSA or RSA as OpenSSH, PEM or PKCS#8 text',
    body: SshKeyImport,
    made: keyImported,
  }),
  replaceRoute(parts, {
    kind: 'ssh-key',
    what: 'private key',
    body: SshKeyReplacement,
    item: SshKey,
    made: keyImported,
  }),
  ...commonRoutes(parts.db, 'kubernetes-token', KubernetesToken),
  storeRoute(parts, {
    kind: 'kubernetes-token',
    summary: 'Store a Kubernetes token',
    body: NewKubernetesToken,
    made: tokenMade,
  }),
  replaceRoute(parts, {
    kind: 'kubernetes-token',
    what: 'token',
    body: KubernetesTokenReplacement,
    item: KubernetesToken,
    made: tokenMade,
  }),
  ...commonRoutes(parts.db, 'cloud-credential', CloudCredential),
  storeRoute(parts, {
    kind: 'cloud-credential',
    summary:
      "Store a provider's document: a service account (gcp), an access key (aws), a service principal (azure)",
    body: NewCloudCredential,
    made: cloudMade,
  }),
  replaceRoute(parts, {
    kind: 'cloud-credential',
    what: 'document',
    body: CloudCredentialReplacement,
    item: CloudCredential,
    made: cloudMade,
  }),
  validateRoute(parts),
  ...commonRoutes(parts.db, 'registry-credential', RegistryCredential),
  storeRoute(parts, {
    kind: 'registry-credential',
    summary: 'Store a login of an image registry, for pulls from that registry alone',
    body: NewRegistryCredential,
    made: registryMade,
  }),
  replaceRoute(parts, {
    kind: 'registry-credential',
    what: 'login',
    body: RegistryCredentialReplacement,
    item: RegistryCredential,
    made: registryMade,
  }),
]
