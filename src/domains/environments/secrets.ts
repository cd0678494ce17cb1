import type { Problem } from '../../refusal.ts'
import { isFields, type Fields } from '../../json-object.ts'
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

/** References of credentials are no secrets: they name the place of one. */
const reference = /^(?:vault|env|file|cloud-file):/

type Path = readonly (string | number)[]

/**
 * The value with the result of `replace` in place of every secret. Secrets are texts and numbers at
 * or below a key that names a secret.
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
  if (!below || value === '' || (typeof value !== 'string' && typeof value !== 'number')) return value
  return typeof value === 'string' && reference.test(value) ? value : replace(value, path)
}

/** A configuration with its secrets masked. */
export const masked = <T>(configuration: T): T => mapSecrets(configuration, () => mask) as T

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

/** The route that stores a secret: by the connection's type where there is one, else by the key. */
const routeFor = (type: unknown, path: Path): string => {
  const key = path.join('.').toLowerCase()
  if (type === 'ssh' || (typeof type !== 'string' && /private|ssh|passphrase/.test(key)))
    return 'POST /ssh-keys/import/'
  if (type === 'kubernetes' || (type !== 'cloud' && /token|kubeconfig/.test(key)))
    return 'POST /kubernetes-tokens/'
  return 'POST /cloud-credentials/'
}

/** A configuration of a document and the record it belongs to. */
interface Configured {
  /** Names the record in every document and in the store. */
  owner: string
  path: string
  /** Of a connection. */
  type?: unknown
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
    { owner: `storage ${String(item['id'])}`, path, holder: item },
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

/**
 * Problems of the configuration in a connection's document: secrets, and masks without a stored
 * secret. `stored` is the stored configuration.
 */
export const connectionSecretProblems = (document: unknown, stored?: unknown): Problem[] =>
  isFields(document)
    ? problemsIn(document['configuration'], { prefix: 'configuration', type: document['type'] }, stored)
    : []

const storedByOwner = (stored: unknown): Map<string, unknown> =>
  new Map(configuredOf(stored).map(({ owner, holder }) => [owner, holder['configuration']]))

/**
 * Problems of the configurations in an environment's document: secrets, and masks without a stored
 * secret. `stored` is the stored document.
 */
export const environmentSecretProblems = (document: unknown, stored?: unknown): Problem[] => {
  const known = storedByOwner(stored)
  return configuredOf(document).flatMap(({ owner, path, type, holder }) =>
    problemsIn(holder['configuration'], { prefix: `${path}.configuration`, type }, known.get(owner)),
  )
}

/** Whether a configuration of the document holds a mask, so that the stored document is needed. */
export const holdsMask = (document: unknown): boolean => {
  let found = false
  for (const { holder } of configuredOf(document))
    mapSecrets(holder['configuration'], (value) => (found ||= value === mask))
  return found
}

/** Replaces masks in the document by the stored secrets. */
export const unmaskEnvironment = (document: object, stored: unknown): void => {
  const known = storedByOwner(stored)
  for (const { owner, holder } of configuredOf(document))
    if (holder['configuration'] !== undefined)
      holder['configuration'] = unmasked(holder['configuration'], known.get(owner))
}

/** An environment's document, as JSON text, with its secrets masked. */
export const maskedText = (text: string): string => {
  if (!secretKey.test(withoutEscapes(text))) return text
  const document: unknown = JSON.parse(text)
  for (const { holder } of configuredOf(document))
    if (holder['configuration'] !== undefined) holder['configuration'] = masked(holder['configuration'])
  return JSON.stringify(document)
}
