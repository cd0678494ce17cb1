import type { Problem } from '../../refusal.ts'
import { isFields, type Fields } from '../../json-object.ts'
import {
  endpointWith,
  mayHoldPassword,
  passwordOf,
  urlPasswordOf,
  urlPasswords,
  type Addressed,
} from './address-passwords.ts'
import { asWritten, normalisedKey, withoutEscapes } from './secret-keys.ts'

/**
 * The replacement for a stored secret in an answer. In a request it stands for the stored secret.
 */
export const mask = '********'

/** Names of keys that hold secrets, matched at the end of a normalised key. */
const names =
  'token|passwo?r?d|passphrase|secret|(?:secret|secretaccess|private|access|account|api|client|ssh)key|' +
  'clientkeydata|authorization|kubeconfig|credentials?'
const secretName = new RegExp(`(?:${names})$`)
/**
 * Finds every JSON text of PostgreSQL without escapes that may hold a secret's key, case ignored, for
 * JavaScript and PostgreSQL alike.
 */
export const mayHoldSecret = `(?:${asWritten(names)})":`
/**
 * The same from the end of each key, by its last letter first, as few keys end like a name of secrets:
 * 20 ms for 4 MB.
 */
const secretKey = new RegExp(`":(?<=[adeglnsty][^a-z0-9"]*":)(?<=${mayHoldSecret})`, 'i')
/** Finds every such text that may have a password in an endpoint. */
const addressed = /"endpoint":\s*"[^"@]*@/
const url = new RegExp(mayHoldPassword, 'i')

const isSuspicious = (text: string): boolean => {
  const plain = withoutEscapes(text)
  return secretKey.test(plain) || addressed.test(plain) || url.test(plain)
}

/** References of credentials are no secrets: they name the place of one. */
const reference = /^(?:vault|env|file|cloud-file):/

type Path = readonly (string | number)[]

/**
 * The value with the result of `replace` in place of every secret. Secrets are texts and numbers at
 * or below a key that names a secret, URLs with a password, and the mask of a secret at any key.
 */
const mapSecrets = (
  value: unknown,
  replace: (secret: string | number, path: Path) => unknown,
  path: Path = [],
  below = false,
): unknown => {
  if (Array.isArray(value))
    return value.map((item: unknown, at) => mapSecrets(item, replace, [...path, at], below))
  if (isFields(value))
    return Object.fromEntries(
      Object.entries(value).map(([key, item]) => {
        const named = below || secretName.test(normalisedKey(key))
        return [key, mapSecrets(item, replace, [...path, key], named)]
      }),
    )
  if (typeof value === 'number') return below ? replace(value, path) : value
  if (typeof value !== 'string' || value === '' || reference.test(value)) return value
  return below || value === mask || urlPasswordOf(value) !== undefined ? replace(value, path) : value
}

/** A text from outside with the passwords of its URLs masked. */
export const maskedUrls = (text: string): string => text.replace(urlPasswords, mask)

/** A configuration with its secrets masked. */
export const masked = <T>(configuration: T): T => mapSecrets(configuration, () => mask) as T

/** An endpoint with its password masked. */
export const maskedEndpoint = <T>(endpoint: T, of: Addressed): T | string => endpointWith(endpoint, of, mask)

/** The endpoint of a request, with the stored password in place of its mask. */
const unmaskedEndpoint = <T>(endpoint: T, stored: unknown, of: Addressed): T | string =>
  typeof stored === 'string' && endpoint === maskedEndpoint(stored, of) ? stored : endpoint

/** A record with the secrets of its `configuration` masked. */
export const withMasked = <T extends { configuration?: unknown }>(record: T): T =>
  record.configuration === undefined ? record : { ...record, configuration: masked(record.configuration) }

/** Dotted paths of the secrets in a configuration. */
export const secretPaths = (configuration: unknown): string[] => {
  const paths: string[] = []
  mapSecrets(configuration, (_, path) => void paths.push(path.join('.')))
  return paths
}

/** The secrets of a configuration by their paths. */
export const secretsIn = (configuration: unknown): ReadonlyMap<string, unknown> => {
  const secrets = new Map<string, unknown>()
  mapSecrets(configuration, (secret, path) => secrets.set(JSON.stringify(path), secret))
  return secrets
}

/** A configuration of a request, with the stored secrets in place of their masks. */
export const unmasked = <T>(configuration: T, stored: unknown): T =>
  unmaskedBy(configuration, secretsIn(stored))

/** A configuration with secrets, by their paths as in `secretsIn`, in place of their masks. */
export const unmaskedBy = <T>(configuration: T, known: ReadonlyMap<string, unknown>): T =>
  mapSecrets(configuration, (value, path) =>
    value === mask ? (known.get(JSON.stringify(path)) ?? value) : value,
  ) as T

/** A connection with the secrets in its configuration and its endpoint masked. */
export const maskedConnection = <T extends { configuration?: unknown; endpoint: string }>(
  connection: T,
): T => ({
  ...withMasked(connection),
  endpoint: maskedEndpoint(connection.endpoint, 'connection'),
})

/** A connection of a request, with the secrets of the stored one in place of their masks. */
export const unmaskedConnection = <T extends { configuration?: unknown; endpoint: string }>(
  connection: T,
  stored: { configuration?: unknown; endpoint: string } | undefined,
): T => ({
  ...connection,
  endpoint: unmaskedEndpoint(connection.endpoint, stored?.endpoint, 'connection'),
  ...(connection.configuration === undefined
    ? {}
    : { configuration: unmasked(connection.configuration, stored?.configuration) }),
})

/** The route that stores a secret: by the connection's type where there is one, else by the key. */
const routeFor = (type: unknown, path: Path): string => {
  const key = path.join('.').toLowerCase()
  if (type === 'ssh' || (typeof type !== 'string' && /private|ssh|passphrase/.test(key)))
    return 'POST /ssh-keys/import/'
  if (type === 'kubernetes' || (type !== 'cloud' && /token|kubeconfig/.test(key)))
    return 'POST /kubernetes-tokens/'
  return 'POST /cloud-credentials/'
}

/** A record of a document that may have a configuration, and an endpoint. */
interface Configured {
  /** Names the record in every document and in the store. */
  owner: string
  path: string
  /** Of a connection. */
  type?: unknown
  /** The kind of its endpoint. */
  addressed?: Addressed
  holder: Fields
}

const itemsOf = (holder: unknown, key: string): { item: Fields; path: string }[] => {
  const list = isFields(holder) ? holder[key] : undefined
  return Array.isArray(list)
    ? list.flatMap((item: unknown, at) => (isFields(item) ? [{ item, path: `${key}.${at}` }] : []))
    : []
}

/** Every record of an environment's document that may have a configuration; takes any value. */
const configuredOf = (document: unknown): Configured[] => [
  ...itemsOf(document, 'runtimes').map(({ item, path }) => ({
    owner: `runtime ${String(item['id'])}`,
    path,
    holder: item,
  })),
  ...itemsOf(document, 'resourceRuntimeBindings').map(({ item, path }) => ({
    owner: `binding ${JSON.stringify([item['resourceId'], item['runtimeId']])}`,
    path,
    holder: item,
  })),
  ...itemsOf(document, 'storages').flatMap(({ item, path }) => [
    { owner: `storage ${String(item['id'])}`, path, addressed: 'storage' as const, holder: item },
    ...itemsOf(item, 'runtimeBindings').map((binding) => ({
      owner: `storage binding ${JSON.stringify([item['id'], binding.item['runtimeId']])}`,
      path: `${path}.${binding.path}`,
      holder: binding.item,
    })),
  ]),
  ...itemsOf(document, 'connections').map(({ item, path }) => ({
    owner: `connection ${String(item['id'])}`,
    path,
    type: item['type'],
    addressed: 'connection' as const,
    holder: item,
  })),
]

const problemsIn = (
  configuration: unknown,
  at: { prefix: string; type?: unknown },
  stored: unknown,
): Problem[] => {
  const problems: Problem[] = []
  const known = secretsIn(stored)
  mapSecrets(configuration, (value, path) => {
    const name = [at.prefix, ...path].join('.')
    if (value !== mask)
      problems.push({
        path: name,
        message:
          `a secret has no place in a document; store it by ${routeFor(at.type, path)} and give the ` +
          'credentialRef of the answer',
      })
    else if (!known.has(JSON.stringify(path)))
      problems.push({
        path: name,
        message: 'is the mask of a secret, and none is stored here; leave the key out',
      })
  })
  return problems
}

/** The problem of a new password in the endpoint of a record; `stored` is the stored record. */
const endpointProblems = (
  { endpoint }: Fields,
  at: { path: string; addressed: Addressed | undefined },
  stored: Fields | undefined,
): Problem[] =>
  at.addressed === undefined ||
  passwordOf(endpoint, at.addressed) === undefined ||
  endpoint === stored?.['endpoint'] ||
  endpoint === maskedEndpoint(stored?.['endpoint'], at.addressed)
    ? []
    : [
        {
          path: at.path,
          message:
            'holds a password, which has no place in a document; store it as a credential and refer to it',
        },
      ]

/**
 * Problems of the configuration and the endpoint in a connection's document: secrets, and masks
 * without a stored secret. `stored` is the stored connection.
 */
export const connectionSecretProblems = (document: unknown, stored: Fields = {}): Problem[] =>
  isFields(document)
    ? [
        ...problemsIn(
          document['configuration'],
          { prefix: 'configuration', type: document['type'] },
          stored['configuration'],
        ),
        ...endpointProblems(document, { path: 'endpoint', addressed: 'connection' }, stored),
      ]
    : []

const storedByOwner = (stored: unknown): Map<string, Fields> =>
  new Map(configuredOf(stored).map(({ owner, holder }) => [owner, holder]))

/**
 * Problems of the configurations and endpoints in an environment's document: secrets, and masks
 * without a stored secret. `stored` is the stored document.
 */
export const environmentSecretProblems = (document: unknown, stored?: unknown): Problem[] => {
  const known = storedByOwner(stored)
  return configuredOf(document).flatMap(({ owner, path, type, addressed, holder }) => [
    ...problemsIn(
      holder['configuration'],
      { prefix: `${path}.configuration`, type },
      known.get(owner)?.['configuration'],
    ),
    ...endpointProblems(holder, { path: `${path}.endpoint`, addressed }, known.get(owner)),
  ])
}

/**
 * Whether the document holds a mask in a configuration, or a password or its mask in an endpoint, so
 * that the stored document is needed.
 */
export const needsStored = (document: unknown): boolean => {
  let found = false
  for (const { addressed, holder } of configuredOf(document)) {
    mapSecrets(holder['configuration'], (value) => (found ||= value === mask))
    found ||= addressed !== undefined && passwordOf(holder['endpoint'], addressed) !== undefined
  }
  return found
}

/** Replaces masks in the document by the stored secrets. */
export const unmaskEnvironment = (document: object, stored: unknown): void => {
  const known = storedByOwner(stored)
  for (const { owner, addressed, holder } of configuredOf(document)) {
    const before = known.get(owner)
    if (holder['configuration'] !== undefined)
      holder['configuration'] = unmasked(holder['configuration'], before?.['configuration'])
    if (addressed !== undefined)
      holder['endpoint'] = unmaskedEndpoint(holder['endpoint'], before?.['endpoint'], addressed)
  }
}

const maskedIn = (text: string, documentOf: (value: unknown) => unknown): string => {
  if (!isSuspicious(text)) return text
  const value: unknown = JSON.parse(text)
  for (const { addressed, holder } of configuredOf(documentOf(value))) {
    if (holder['configuration'] !== undefined) holder['configuration'] = masked(holder['configuration'])
    if (addressed !== undefined) holder['endpoint'] = maskedEndpoint(holder['endpoint'], addressed)
  }
  return JSON.stringify(value)
}

/** An environment's document, as JSON text, with its secrets masked. */
export const maskedText = (text: string): string => maskedIn(text, (document) => document)

/** A storage of an environment, as JSON text, with its secrets masked. */
export const maskedStorage = (text: string): string => maskedIn(text, (storage) => ({ storages: [storage] }))
