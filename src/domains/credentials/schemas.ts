import { z } from 'zod'
import { JsonObject, Timestamp } from '../../http/schema.ts'
import { longestKey } from '../../clients/ssh/keys.ts'
import { providers, type Provider } from '../../vault/provider-documents.ts'

// Refinements of our own everywhere: their messages never show the value back, which may be a secret in the wrong place.

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
const LowerId = matching(/^[a-z0-9][a-z0-9-]{0,62}$/, 'must be 1 to 63 small letters, digits and -, the first a letter or digit')

const secretText = (most: number) =>
  z
    .string()
    .refine((text) => text.trim() !== '', 'must not be blank')
    .refine((text) => text.length <= most, `must be at most ${most} characters`)
    .meta({ writeOnly: true })

const Token = secretText(65_536)
  .refine((text) => /^[\x21-\x7e]*$/.test(text.trim()), 'must be visible ASCII characters without spaces, as it travels in a header')
  .transform((text) => text.trim())

const ProviderName = z
  .string()
  .refine((text): text is Provider => (providers as readonly string[]).includes(text), `must be one of ${providers.join(', ')}`)
  .meta({ enum: [...providers] })

/** The provider's own JSON, as an object or as its text. */
const ProviderDocument = z.union([JsonObject, secretText(1_048_576)]).meta({ writeOnly: true })

const Comment = z
  .string()
  .refine((text) => text.length <= 255 && !/[\p{Cc}\p{Cs}]/u.test(text), 'must be one line of at most 255 characters')

export const NewSshKey = z.strictObject({ id: SshKeyId, comment: Comment.optional() })

const importedKey = { privateKey: secretText(longestKey), passphrase: z.string().max(1_024).meta({ writeOnly: true }).optional() }
export const SshKeyImport = z.strictObject({ id: SshKeyId, ...importedKey })
/** The id may be repeated from the path. */
export const SshKeyReplacement = z.strictObject({ id: SshKeyId.optional(), ...importedKey })

export const NewKubernetesToken = z.strictObject({ id: LowerId, token: Token })
export const KubernetesTokenReplacement = z.strictObject({ id: LowerId.optional(), token: Token })

export const NewCloudCredential = z.strictObject({ id: LowerId, provider: ProviderName, credential: ProviderDocument })
export const CloudCredentialReplacement = NewCloudCredential.extend({ id: LowerId.optional() })

const Label = z.string().refine((text) => text.length <= 255 && !/[\p{Cc}\p{Cs}]/u.test(text), 'must be one line of at most 255 characters')
export const CloudCredentialCheck = z.strictObject({
  provider: ProviderName,
  credential: ProviderDocument,
  projectId: Label.optional(),
  region: Label.optional(),
})

export const CloudCredentialVerdict = z.strictObject({
  valid: z.boolean().nullable().describe('null: the form is right and the provider was not asked; false: the form is wrong'),
  checked: z.literal('form').describe('What was looked at: the form of the document, not whether the provider takes it'),
  reason: z.string(),
  details: z.array(z.strictObject({ path: z.string(), message: z.string() })).describe('Every finding, where the form is wrong'),
  provider: z.string(),
  project: z.string(),
  region: z.string(),
  catalogStatus: z.literal('not_discovered'),
})

export const CredentialReference = z.strictObject({ credentialRef: z.string() })

/** What may be read of every credential. */
const Facts = z.strictObject({
  id: z.string(),
  credentialRef: z.string(),
  /** Counts the secrets that were kept under the reference. */
  version: z.int(),
  createdAt: Timestamp,
  changedAt: Timestamp,
  /** To the minute. */
  lastUsedAt: Timestamp.optional(),
  /** Connections that refer to it, the first hundred by id. */
  usedBy: z.array(z.strictObject({ connectionId: z.string(), environmentId: z.string(), name: z.string() })),
})

export const SshKey = Facts.extend({ publicKey: z.string(), fingerprint: z.string() })
export const KubernetesToken = Facts
export const CloudCredential = Facts.extend({ provider: z.string() })
