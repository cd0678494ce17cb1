import type { Db } from '../../db/sql.ts'
import { accessOf, type StorageAccess } from '../../drivers/storage/access.ts'
import { unacceptableAt } from '../../refusal.ts'
import { onlyConnection } from '../environments/only-connection.ts'
import { maskedEndpoint } from '../environments/secrets.ts'
import type { StorageFacts } from '../environments/storages.ts'
import { connectionsOfVersions } from '../environments/store.ts'

/** A text in the configuration of a storage, where it is not empty. */
export const settingOf = (
  { configuration }: Pick<StorageFacts, 'configuration'>,
  name: string,
): string | undefined => {
  const value = configuration?.[name]
  return typeof value === 'string' && value !== '' ? value : undefined
}

/** The connection that a storage names itself. */
export const namedIn = (facts: StorageFacts): string | undefined => settingOf(facts, 'connectionId')

/** Whether this is one of the ways to reach a storage of its type. */
export const isReachedBy = ({ type }: StorageFacts, access: StorageAccess): boolean =>
  (accessOf[type] as readonly StorageAccess[]).includes(access)

const bindingOf = ({ bindings }: StorageFacts, type: string) =>
  bindings.find((binding) => binding.connectionType === type)

/**
 * The folder from which the paths of a storage count: its endpoint, or the path that it has at the
 * host of the runtime whose connection leads to it.
 */
export const baseOf = (facts: StorageFacts): string => {
  if (!isReachedBy(facts, 'shell') || namedIn(facts) !== undefined) return facts.endpoint
  return bindingOf(facts, 'ssh')?.hostPath || facts.endpoint
}

/** The endpoint of a storage in the text of an error: its beginning, with its password masked. */
export const shownEndpoint = (endpoint: string): string =>
  JSON.stringify(maskedEndpoint(endpoint, 'storage').slice(0, 200))

/** The folders that an absolute path of a storage may begin with: its base, else its endpoint. */
export const startsOf = (facts: StorageFacts): string[] => [baseOf(facts), facts.endpoint]

/**
 * The connection that a storage names, else that of the first runtime of the type that it is bound
 * to; undefined without both.
 */
export const givenConnection = (facts: StorageFacts, type: string): string | undefined =>
  namedIn(facts) ?? bindingOf(facts, type)?.connectionId ?? undefined

/**
 * As `givenConnection`, or else the only connection of the type in the storage's environment.
 * @throws Refusal 422 where there is none, or more than one
 */
export const storageConnection = async (db: Db, facts: StorageFacts, type: string): Promise<string> => {
  const given = givenConnection(facts, type)
  if (given !== undefined) return given
  const only = onlyConnection(await connectionsOfVersions(db, [facts.environmentVersionId]), type)
  if (only.id !== undefined) return only.id
  throw unacceptableAt(
    'storage.configuration.connectionId',
    `names no connection, and the storage's environment ${only.problem}`,
  )
}
