import { z } from 'zod'
import { JsonObject, Timestamp } from '../../http/schema.ts'
import { longestKey } from '../../clients/ssh/keys.ts'
import { providers, type Provider } from '../../vault/provider-documents.ts'

// All refinements are our own: their messages never repeat the value, which may be a secret in the
// wrong place.

const matching = (pattern: RegExp, message: string) =>
  z
    .string()
    .refine((text) => pattern.test(text), message)
    .meta({ pattern: pattern.source })

export const SshKeyId = matching(
  /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/,
  'must be 1 to 64 letters, digits, _ and -, the first a letter or digit',
)
/** Ids of tokens and cloud credentials. */
const LowerId = matching(
  /^[a-z0-9][a-z0-9-]{0,62}$/,
  'must be 1 to 63 small letters, digits and -, the first a letter or digit',
)

const secretText = (most: number) =>
  z
    .string()
    .refine((text) => text.trim() !== '', 'must not be blank')
    .refine((text) => text.length <= most, `must be at most ${most} characters`)
    .meta({ writeOnly: true })

const Token = secretText(65_536)
  .refine(
    (text) => /^[\x21-\x7e]*$/.test(text.trim()),
    'must be visible ASCII characters without spaces, as it travels in a header',
  )
  .transform((text) => text.trim())

const ProviderName = z
  .string()
  .refine(
    (text): text is Provider => (providers as readonly string[]).includes(text),
    `must be one of ${providers.join(', ')}`,
  )
  .meta({ enum: [...providers] })

/** The provider's own JSON, as an object or as its text. */
const ProviderDocument = z.union([JsonObject, secretText(1_048_576)]).meta({ writeOnly: true })

/** A replacement may repeat its id. */
const theSameId = 'the id in the path'

const OneLine = z
  .string()
  .refine(
    (text) => text.length <= 255 && !/[\p{Cc}\p{Cs}]/u.test(text),
    'must be one line of at most 255 characters',
  )

export const NewSshKey = z.strictObject({
  id: SshKeyId,
  comment: OneLine.optional().describe('of the public key; none by default'),
})

const importedKey = {
  privateKey: secretText(longestKey),
  passphrase: z
    .string()
    .max(1_024)
    .meta({ writeOnly: true })
    .optional()
    .describe('of an encrypted key; it is stored without'),
}
export const SshKeyImport = z.strictObject({ id: SshKeyId, ...importedKey })
/** The id may be repeated from the path. */
export const SshKeyReplacement = z.strictObject({
  id: SshKeyId.optional().describe(theSameId),
  ...importedKey,
})

export const NewKubernetesToken = z.strictObject({ id: LowerId, token: Token })
export const KubernetesTokenReplacement = z.strictObject({
  id: LowerId.optional().describe(theSameId),
  token: Token,
})

export const NewCloudCredential = z.strictObject({
  id: LowerId,
  provider: ProviderName,
  credential: ProviderDocument,
})
export const CloudCredentialReplacement = NewCloudCredential.extend({
  id: LowerId.optional().describe(theSameId),
})

export const CloudCredentialCheck = z.strictObject({
  provider: ProviderName,
  credential: ProviderDocument,
  projectId: OneLine.optional().describe('that of the credential by default'),
  region: OneLine.optional().describe('that of the credential by default'),
  endpoint: z
    .url({ protocol: /^https?$/, error: 'must be an http or https URL' })
    .optional()
    .describe("replaces the provider's own address"),
})

export const CloudCredentialVerdict = z.strictObject({
  valid: z
    .boolean()
    .nullable()
    .describe(
      'true: the provider takes the credential; null: the form is right, and this version cannot ask the ' +
        'provider. A refused one is 422 with false',
    ),
  checked: z
    .enum(['form', 'provider'])
    .describe('what was looked at: the form alone, or the provider was asked'),
  reason: z.string(),
  details: z
    .array(z.strictObject({ path: z.string(), message: z.string() }))
    .describe('Every finding; empty, as a wrong form is 422'),
  provider: z.string(),
  project: z.string(),
  region: z.string(),
  catalogStatus: z.literal('not_discovered'),
})

export type CloudCredentialVerdict = z.output<typeof CloudCredentialVerdict>

export const CredentialReference = z.strictObject({ credentialRef: z.string() })

const inEnvironment = { environmentId: z.string(), name: z.string() }
/** The public members of every credential. */
const Facts = z.strictObject({
  id: z.string(),
  credentialRef: z.string(),
  /** The number of secrets stored under the reference so far. */
  version: z.int(),
  createdAt: Timestamp,
  changedAt: Timestamp,
  /** Precise to the minute. */
  lastUsedAt: Timestamp.optional(),
  usedBy: z
    .array(
      z.union([
        z.strictObject({ connectionId: z.string(), ...inEnvironment }),
        z.strictObject({ instanceId: z.string(), ...inEnvironment }),
        z.strictObject({ storageId: z.string(), ...inEnvironment }),
        z.strictObject({ runtimeId: z.string(), ...inEnvironment }),
        z.strictObject({ buildId: z.string() }),
      ]),
    )
    .describe('what refers to it, the first hundred by id'),
})

const registryForm = /^[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::\d{1,5})?$/
const Login = secretText(255).refine(
  (text) => !/[\p{Cc}\p{Cs}:]/u.test(text),
  'must be one line without a colon',
)
const registryShape = {
  registry: matching(registryForm, 'must be the host of a registry, with its port where it has one'),
  username: Login,
  password: secretText(65_536).refine((text) => !/[\p{Cc}\p{Cs}]/u.test(text), 'must be one line'),
}
export const NewRegistryCredential = z.strictObject({ id: LowerId, ...registryShape })
export const RegistryCredentialReplacement = z.strictObject({
  id: LowerId.optional().describe(theSameId),
  ...registryShape,
})

export const SshKey = Facts.extend({ publicKey: z.string(), fingerprint: z.string() })
export const KubernetesToken = Facts
export const CloudCredential = Facts.extend({ provider: z.string() })
export const RegistryCredential = Facts.extend({
  registry: z.string(),
  username: z.string(),
})
