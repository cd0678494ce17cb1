import { openGcs, type GcsCredential } from '../../clients/gcs.ts'
import type { Http } from '../../clients/http.ts'
import { openS3, type S3Bucket, type S3Credential } from '../../clients/s3.ts'
import type { StorageDriver } from '../../drivers/storage/contract.ts'
import { openStorage } from '../../drivers/storage/registry.ts'
import { unacceptable, type Refusal } from '../../refusal.ts'
import type { SecretFinder, SecretOpener } from '../../vault/secret.ts'
import type { StorageFacts } from '../environments/storages.ts'
import { bucketAddress, isSigned, type BucketAddress } from './endpoint.ts'
import type { Reached } from './reached.ts'

interface BucketParts {
  http: Http
  secrets: SecretOpener & SecretFinder
  partBytes: () => Promise<number>
  keep: (key: string, open: () => StorageDriver) => StorageDriver
  isKept: (key: string) => boolean
}

/** The kind of credential that `credentialReference` has to name, as text. */
const needed = { s3: 'an AWS access key', gcs: "a Google service account's key" } as const
const provider = { s3: 'aws', gcs: 'gcp' } as const

const wrongCredential = (message: string): Refusal =>
  unacceptable([{ path: 'storage.credentialReference', message }])

const awsKey = (document: Readonly<Record<string, unknown>>): S3Credential | undefined => {
  const { accessKeyId, secretAccessKey, sessionToken } = document
  if (typeof accessKeyId !== 'string' || typeof secretAccessKey !== 'string') return undefined
  return { accessKeyId, secretAccessKey, ...(typeof sessionToken === 'string' ? { sessionToken } : {}) }
}
const googleKey = (document: Readonly<Record<string, unknown>>): GcsCredential | undefined => {
  const { client_email: clientEmail, private_key: privateKey, private_key_id: privateKeyId } = document
  if (typeof clientEmail !== 'string' || typeof privateKey !== 'string') return undefined
  return { clientEmail, privateKey, ...(typeof privateKeyId === 'string' ? { privateKeyId } : {}) }
}

/**
 * The document of the cloud credential that a storage refers to. @throws Refusal 422 for another
 * kind
 */
const documentOf = async (
  secrets: SecretOpener,
  { id, environmentId, credentialReference }: StorageFacts,
  way: 's3' | 'gcs',
): Promise<Readonly<Record<string, unknown>>> => {
  const secret = await secrets.open(credentialReference, {
    actor: 'service',
    purpose: `reach storage ${id}`,
    environmentId,
  })
  if (secret.kind === 'cloud-credential' && secret.provider === provider[way]) return secret.document
  throw wrongCredential(
    `${JSON.stringify(credentialReference)} is not ${needed[way]}; refer to a cloud credential of ` +
      `provider ${provider[way]}`,
  )
}

const openBucket = async (
  { http, secrets }: Pick<BucketParts, 'http' | 'secrets'>,
  facts: StorageFacts,
  place: BucketAddress,
  way: 's3' | 'gcs',
): Promise<S3Bucket> => {
  const document = isSigned(facts) ? await documentOf(secrets, facts, way) : undefined
  const [aws, google] = [
    way === 's3' && document ? awsKey(document) : undefined,
    way === 'gcs' && document ? googleKey(document) : undefined,
  ]
  if (document !== undefined && aws === undefined && google === undefined)
    throw wrongCredential(`${JSON.stringify(facts.credentialReference)} does not hold ${needed[way]}`)
  return way === 's3'
    ? openS3({ http, place, credential: aws })
    : openGcs({ http, place, credential: google })
}

/** The connection to a bucket. @throws Refusal 422 for wrong members of the storage's record */
export const bucketReach = async (
  { http, secrets, partBytes, keep, isKept }: BucketParts,
  facts: StorageFacts,
): Promise<Reached> => {
  const way = facts.type === 'gcs' ? 'gcs' : 's3'
  const place = bucketAddress(facts)
  const signed = isSigned(facts)
  if (signed && facts.credentialReference === '')
    throw wrongCredential(`is empty, and configuration.signed is true; refer to ${needed[way]}`)
  const version = signed ? (await secrets.look(facts.credentialReference)).version : ''
  const key = JSON.stringify([way, place, signed, facts.credentialReference, version])
  const bucket = isKept(key) ? undefined : await openBucket({ http, secrets }, facts, place, way)
  const driver = keep(key, () => {
    if (bucket === undefined) throw new Error('the driver was closed while it was looked for')
    return openStorage({ way, bucket, prefix: place.prefix, signed, partBytes })
  })
  return { driver, place: { at: JSON.stringify([place.endpoint, place.bucket]), base: place.prefix } }
}
