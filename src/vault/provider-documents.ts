import { createPrivateKey } from 'node:crypto'
import type { AwsKey } from '../clients/aws-key.ts'
import type { Problem } from '../refusal.ts'

export const providers = ['gcp', 'aws', 'azure'] as const
export type Provider = (typeof providers)[number]

/**
 * Spellings of a member: messages name the first; the others are those of the providers' own tools.
 */
interface Member {
  names: readonly [string, ...string[]]
  optional?: true
  fault?: (value: string) => string | undefined
}

const word = (value: string): string | undefined => (/^\S+$/.test(value) ? undefined : 'must not hold spaces')
const uuid = (value: string): string | undefined =>
  /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(value) ? undefined : 'is not a UUID'
const rsaKey = (value: string): string | undefined => {
  try {
    return createPrivateKey(value).asymmetricKeyType === 'rsa' ? undefined : 'is not an RSA key'
  } catch {
    return 'is not a private key that can be read; take the document as the provider gave it'
  }
}
const secureUrl = (value: string): string | undefined =>
  URL.canParse(value) && new URL(value).protocol === 'https:' ? undefined : 'is not an https URL'

/**
 * The required members of each provider's document; gcp: a service account's key file, aws: an
 * access key, azure: a service principal.
 */
const members: Record<Provider, readonly Member[]> = {
  gcp: [
    {
      names: ['type'],
      fault: (value) =>
        value === 'service_account' ? undefined : 'must be service_account; make a key of a service account',
    },
    { names: ['project_id'] },
    {
      names: ['client_email'],
      fault: (value) => (/^[^@\s]+@[^@\s]+$/.test(value) ? undefined : 'is not an e-mail address'),
    },
    { names: ['private_key'], fault: rsaKey },
    { names: ['token_uri'], optional: true, fault: secureUrl },
  ],
  aws: [
    { names: ['accessKeyId', 'AccessKeyId', 'aws_access_key_id'], fault: word },
    { names: ['secretAccessKey', 'SecretAccessKey', 'aws_secret_access_key'], fault: word },
  ],
  azure: [
    { names: ['tenantId', 'tenant', 'tenant_id'], fault: word },
    { names: ['clientId', 'appId', 'client_id'], fault: uuid },
    { names: ['clientSecret', 'password', 'client_secret'] },
  ],
}

const given = (
  document: Readonly<Record<string, unknown>>,
  names: readonly string[],
): { name: string; value: unknown } | undefined => {
  const name = names.find((candidate) => document[candidate] !== undefined)
  return name === undefined ? undefined : { name, value: document[name] }
}

/**
 * All missing members of a provider's document, by path; no message contains a value of it. It
 * contacts no network.
 */
export const providerProblems = (
  provider: Provider,
  document: Readonly<Record<string, unknown>>,
): Problem[] =>
  members[provider].flatMap(({ names, optional, fault }) => {
    const found = given(document, names)
    if (found === undefined)
      return optional === true
        ? []
        : [{ path: `credential.${names[0]}`, message: `is required in a document of ${provider}` }]
    const path = `credential.${found.name}`
    if (typeof found.value !== 'string' || found.value.trim() === '')
      return [{ path, message: 'must be a text that is not blank' }]
    const message = fault?.(found.value)
    return message === undefined ? [] : [{ path, message }]
  })

const textIn = (
  document: Readonly<Record<string, unknown>>,
  ...names: readonly string[]
): string | undefined => {
  const value = given(document, names)?.value
  return typeof value === 'string' ? value : undefined
}

/** The access key in a document of AWS; undefined where it holds none. */
export const awsKeyOf = (document: Readonly<Record<string, unknown>>): AwsKey | undefined => {
  const accessKeyId = textIn(document, 'accessKeyId', 'AccessKeyId', 'aws_access_key_id')
  const secretAccessKey = textIn(document, 'secretAccessKey', 'SecretAccessKey', 'aws_secret_access_key')
  const sessionToken = textIn(document, 'sessionToken', 'SessionToken', 'aws_session_token')
  if (accessKeyId === undefined || secretAccessKey === undefined) return undefined
  return { accessKeyId, secretAccessKey, ...(sessionToken === undefined ? {} : { sessionToken }) }
}

/** The key of a service account in a document of Google; undefined where it holds none. */
export const googleKeyOf = (
  document: Readonly<Record<string, unknown>>,
): { clientEmail: string; privateKey: string; privateKeyId: string | undefined } | undefined => {
  const [clientEmail, privateKey] = [textIn(document, 'client_email'), textIn(document, 'private_key')]
  if (clientEmail === undefined || privateKey === undefined) return undefined
  return { clientEmail, privateKey, privateKeyId: textIn(document, 'private_key_id') }
}

/** The project, account or subscription that a document names, or nothing. */
export const projectOf = (provider: Provider, document: Readonly<Record<string, unknown>>): string => {
  const names = {
    gcp: ['project_id'],
    aws: ['accountId', 'account_id'],
    azure: ['subscriptionId', 'subscription_id'],
  }[provider]
  return textIn(document, ...names) ?? ''
}

/** The provider of this document, by its members; undefined when none matches. */
export const providerOf = (document: Readonly<Record<string, unknown>>): Provider | undefined =>
  providers.find((provider) =>
    members[provider].every(
      ({ names, optional }) => optional === true || given(document, names) !== undefined,
    ),
  )
