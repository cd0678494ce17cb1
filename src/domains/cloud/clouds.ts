import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import { openComputeEngine } from '../../clients/compute-engine.ts'
import { openEc2 } from '../../clients/ec2.ts'
import type { Http } from '../../clients/http.ts'
import { sql, type Db } from '../../db/sql.ts'
import { awsDriver } from '../../drivers/cloud/aws.ts'
import { withBackoff } from '../../drivers/cloud/backoff.ts'
import { CloudError, type CloudDriver, type Machine } from '../../drivers/cloud/contract.ts'
import { gcpDriver } from '../../drivers/cloud/gcp.ts'
import { notBuilt } from '../../not-built.ts'
import { Refusal, unacceptableAt } from '../../refusal.ts'
import { awsKeyOf, googleKeyOf, projectOf } from '../../vault/provider-documents.ts'
import { kept } from '../../pacing/kept.ts'
import type { SecretOpener } from '../../vault/secret.ts'

const ConnectionRow = z.object({
  id: z.string(),
  environmentId: z.string(),
  endpoint: z.string(),
  credentialRef: z.string(),
  provider: z.string(),
  region: z.string().nullish(),
  projectId: z.string().nullish(),
})
/** A connection of type cloud. */
export type CloudConnection = z.output<typeof ConnectionRow>

const connections = sql`select c.id, c.environment_id, c.endpoint, c.credential_ref,
  c.configuration ->> 'provider' as provider, nullif(c.configuration ->> 'region', '') as region,
  nullif(c.configuration ->> 'projectId', '') as project_id
  from connections c where c.type = 'cloud' and c.configuration ->> 'provider' is not null`

/** The providers that this version supports. */
export const builtProviders: ReadonlySet<string> = new Set(['aws', 'gcp'])

/** EC2 can stop no spot machine that is asked for once, as this service asks. */
export const canStop = ({
  provider,
  provisioningMode,
}: {
  provider: string
  provisioningMode: string
}): boolean => provider !== 'aws' || provisioningMode !== 'spot'

/**
 * The one connection of an environment to a provider.
 * @throws Refusal 422 where there is none, or where there are several and none is named
 */
export const connectionOf = async (
  db: Db,
  environmentId: string,
  { provider, connectionId }: { provider?: string | undefined; connectionId?: string | undefined },
): Promise<CloudConnection> => {
  const found = await db.many(
    ConnectionRow,
    sql`${connections} and c.environment_id = ${environmentId}
      and (${provider ?? null}::text is null or c.configuration ->> 'provider' = ${provider ?? null})
      and (${connectionId ?? null}::text is null or c.id = ${connectionId ?? null}) order by c.id limit 3`,
  )
  const [only] = found
  if (only !== undefined && found.length === 1) return only
  const what = `cloud connection${provider === undefined ? '' : ` of ${provider}`}`
  const message =
    only !== undefined
      ? `the environment has more than one ${what}; name one in configuration.connectionId`
      : connectionId === undefined
        ? `the environment has no ${what}; save one first`
        : `${JSON.stringify(connectionId)} is no ${what} of the environment`
  throw unacceptableAt('', message)
}

/** The cloud connections of an environment. */
export const connectionsOf = (db: Db, environmentId: string): Promise<CloudConnection[]> =>
  db.many(ConnectionRow, sql`${connections} and c.environment_id = ${environmentId} order by c.id limit 100`)

/** The provider's document of a connection's credential. @throws Refusal 422 */
const documentOf = async (
  secrets: SecretOpener,
  { id, environmentId, credentialRef, provider }: CloudConnection,
): Promise<Readonly<Record<string, unknown>>> => {
  if (credentialRef === '')
    throw unacceptableAt('', `the connection ${JSON.stringify(id)} has no credentialRef; store a credential`)
  const purpose = 'ask a cloud provider'
  const secret = await secrets.open(credentialRef, {
    actor: 'service',
    purpose,
    environmentId,
    connectionId: id,
  })
  if (secret.kind !== 'cloud-credential' || secret.provider !== provider)
    throw unacceptableAt('', `${JSON.stringify(credentialRef)} is no credential of ${provider}; refer to one`)
  return secret.document
}

/** Where a machine is. */
export interface MachinePlace {
  connectionId: string
  provider: string
  region: string
  /** Google's, if its target named one; else that of the connection. */
  projectId?: string | null | undefined
  /** The account that it was asked for in; absent before that, and for a machine of an earlier version. */
  account?: string | null | undefined
}

/** Where a driver works, and as whom. */
interface CloudAddress {
  provider: string
  region: string
  endpoint: string
  /** Google's; blank: the one of the credential. */
  projectId: string
}

/** @throws Refusal 503 for a provider that is not built */
const driverOf = (
  http: Http,
  place: CloudAddress,
  document: Readonly<Record<string, unknown>>,
): CloudDriver => {
  const { provider, region } = place
  const endpoint = place.endpoint === '' ? {} : { endpoint: place.endpoint }
  if (provider === 'aws') {
    const key = awsKeyOf(document) ?? { accessKeyId: '', secretAccessKey: '' }
    return awsDriver(openEc2({ http, key, place: { region, ...endpoint } }))
  }
  if (provider === 'gcp') {
    const key = googleKeyOf(document) ?? { clientEmail: '', privateKey: '' }
    const project = place.projectId || projectOf('gcp', document)
    return gcpDriver(openComputeEngine({ http, key, place: { region, project, ...endpoint } }))
  }
  throw notBuilt(`machines of ${provider}`, 'use a connection of aws or gcp')
}

const gatherMs = 500
/** Between the answer about the machines that wait and the next question. */
const restMs = 1_000
const mostRestMs = 15_000

/**
 * Combines the look-ups of all waiting machines into one request at a time: who asks while one is
 * under way, or right after it, is in the next one. Throttling slows all of them.
 */
const together = (driver: CloudDriver) => {
  let rest = restMs
  let before: Promise<unknown> = Promise.resolve()
  let round: { ids: Set<string>; answer: Promise<Machine[]> } | undefined
  const begin = (): { ids: Set<string>; answer: Promise<Machine[]> } => {
    const ids = new Set<string>()
    const ask = async (rested: Promise<unknown>): Promise<Machine[]> => {
      await Promise.all([rested, sleep(gatherMs)])
      round = undefined
      try {
        const found = await driver.look([...ids])
        rest = restMs
        return found
      } catch (error) {
        if (error instanceof CloudError && error.passes) rest = Math.min(rest * 2, mostRestMs)
        throw error
      }
    }
    const answer = ask(before)
    before = answer.catch(() => undefined).then(() => sleep(rest, undefined, { ref: false }))
    return { ids, answer }
  }
  return async (id: string): Promise<Machine | undefined> => {
    round ??= begin()
    round.ids.add(id)
    return (await round.answer).find((machine) => machine.id === id)
  }
}

/** A provider over one connection and region. */
export interface Cloud {
  driver: CloudDriver
  /** The state of a machine, requested together with those of all other waiting machines. */
  look: (id: string) => Promise<Machine | undefined>
  /** The account, as `CloudDriver` names it; the provider is asked once. @throws CloudError */
  account: () => Promise<string>
}

/** The refusal of a connection that leads to another place than that of a machine. */
const elsewhere = (id: string, now: string, then: string): Refusal =>
  unacceptableAt(
    '',
    `the cloud connection ${JSON.stringify(id)} leads to ${now}, and the machine is in ${then}; give the ` +
      `connection the endpoint and a credential of ${then} until the machine is destroyed`,
  )

export interface CloudParts {
  db: Db
  http: Http
  secrets: SecretOpener
}

/** Drivers by connection, region and secret, made when they are needed. */
export const openClouds = ({ db, http, secrets }: CloudParts) => {
  const open = new Map<string, Cloud>()
  return {
    /**
     * @throws Refusal 422 for the connection or its credential, 503 for a provider that is not
     *   built
     */
    async of(connection: CloudConnection, region: string): Promise<Cloud> {
      const { provider, endpoint } = connection
      if (!builtProviders.has(provider))
        throw notBuilt(`machines of ${provider}`, 'use a connection of aws or gcp')
      const document = await documentOf(secrets, connection)
      // Only Google has projects: the same account of another provider is opened once.
      const projectId = provider === 'gcp' ? (connection.projectId ?? projectOf('gcp', document)) : ''
      const place = { provider, region, endpoint, projectId }
      const name = JSON.stringify([connection.id, place, document])
      const known = open.get(name)
      if (known !== undefined) return known
      const driver = withBackoff(driverOf(http, place, document))
      const account = kept(Number.POSITIVE_INFINITY, () => driver.account())
      const cloud = { driver, look: together(driver), account }
      open.set(name, cloud)
      return cloud
    },
    /**
     * The provider of a machine, over its connection as it is now. Another account does not show the
     * machine, which would count as its end.
     * @throws as `of`; Refusal 422 where the connection is gone or leads to another account;
     *   CloudError where the account cannot be asked for
     */
    async at({ connectionId: id, provider, region, projectId, account }: MachinePlace): Promise<Cloud> {
      const found = await db.maybe(ConnectionRow, sql`${connections} and c.id = ${id}`)
      if (found === undefined)
        throw unacceptableAt('', `the cloud connection ${JSON.stringify(id)} is gone; save it again`)
      if (found.provider !== provider) throw elsewhere(id, found.provider, provider)
      // An account of Google is a project.
      const cloud = await this.of({ ...found, projectId: account ?? projectId ?? found.projectId }, region)
      if (account == null) return cloud
      const now = await cloud.account()
      if (now !== account) throw elsewhere(id, `the account ${now} of ${provider}`, account)
      return cloud
    },
    /**
     * The identity that the provider reports for a connection's credential, saved or not; undefined
     * where the connection names no region, or its provider is not built.
     */
    async identity(document: {
      id: string
      environmentId: string
      endpoint: string
      credentialRef: string
      configuration?: Record<string, unknown> | undefined
    }): Promise<string | undefined> {
      const { provider, region, projectId = '' } = document.configuration ?? {}
      if (typeof provider !== 'string' || !builtProviders.has(provider)) return undefined
      if (typeof region !== 'string' || region === '') return undefined
      const { id, environmentId, endpoint, credentialRef } = document
      const secret = await documentOf(secrets, { id, environmentId, endpoint, credentialRef, provider })
      return driverOf(http, { provider, region, endpoint, projectId: String(projectId) }, secret).identity()
    },
    /**
     * The identity that a provider reports for a document that is not stored; undefined where the
     * provider is not built. @throws Refusal 422 for the provider's no, 503 without an answer
     */
    async identify(
      given: { provider: string; region: string; endpoint: string; projectId: string },
      document: Readonly<Record<string, unknown>>,
    ): Promise<string | undefined> {
      if (!builtProviders.has(given.provider)) return undefined
      // An access key is one of every region.
      const region = given.provider === 'aws' && given.region === '' ? 'us-east-1' : given.region
      try {
        return await driverOf(http, { ...given, region }, document).identity()
      } catch (error) {
        throw refusalOfCloud(error, 'credential')
      }
    },
  }
}
export type Clouds = ReturnType<typeof openClouds>

/** The refusal for an error of the provider. A temporary error is 503. */
export const refusalOfCloud = (error: unknown, path = ''): unknown => {
  if (!(error instanceof CloudError)) return error
  if (error.passes) return new Refusal('unavailable', error.message, { retryAfterSeconds: 10, cause: error })
  return unacceptableAt(path, error.message)
}
