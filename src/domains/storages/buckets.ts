import { openGcs } from '../../clients/gcs.ts'
import type { Http } from '../../clients/http.ts'
import { openS3, type S3Bucket } from '../../clients/s3.ts'
import { openS3Storage } from '../../drivers/storage/s3.ts'
import { type Refusal, unacceptableAt } from '../../refusal.ts'
import { awsKeyOf, googleKeyOf } from '../../vault/provider-documents.ts'
import type { SecretFinder, SecretOpener } from '../../vault/secret.ts'
import type { StorageFacts } from '../environments/storages.ts'
import { bucketAddress, isSigned, type BucketAddress } from './endpoint.ts'
import type { KeptDrivers } from './kept-drivers.ts'
import type { Reached } from './reached.ts'

export interface BucketParts {
  http: Http
  secrets: SecretOpener & SecretFinder
  /** Bytes of one part of an upload to a bucket, as the instance has them. */
  partBytes: () => Promise<number>
}

/** The kind of credential that `credentialReference` has to name. */
const needed = {
  aws: 'an AWS access key',
  gcp: "a Google service account's key",
} as const

const wrongCredential = (message: string): Refusal => unacceptableAt('storage.credentialReference', message)

/** The key in the cloud credential that a storage refers to. @throws Refusal 422 for another kind */
const keyOf = async <Key>(
  secrets: SecretOpener,
  { id, environmentId, credentialReference }: StorageFacts,
  provider: 'aws' | 'gcp',
  read: (document: Readonly<Record<string, unknown>>) => Key | undefined,
): Promise<Key> => {
  const purpose = { actor: 'service', purpose: `reach storage ${id}`, environmentId }
  const secret = await secrets.open(credentialReference, purpose)
  const reference = JSON.stringify(credentialReference)
  if (secret.kind !== 'cloud-credential' || secret.provider !== provider)
    throw wrongCredential(
      `${reference} is not ${needed[provider]}; refer to a cloud credential of provider ${provider}`,
    )
  const key = read(secret.document)
  if (key === undefined) throw wrongCredential(`${reference} does not hold ${needed[provider]}`)
  return key
}

const openBucket = async (
  { http, secrets, partBytes }: BucketParts,
  facts: StorageFacts,
  place: BucketAddress,
): Promise<S3Bucket> => {
  const signed = isSigned(facts)
  return facts.type === 'gcs'
    ? openGcs({
        http,
        place,
        partBytes,
        credential: signed ? await keyOf(secrets, facts, 'gcp', googleKeyOf) : undefined,
      })
    : openS3({ http, place, credential: signed ? await keyOf(secrets, facts, 'aws', awsKeyOf) : undefined })
}

/** The connection to a bucket. @throws Refusal 422 for wrong members of the storage's record */
export const bucketReach = async (
  parts: BucketParts,
  { find, keep }: KeptDrivers,
  facts: StorageFacts,
): Promise<Reached> => {
  const place = bucketAddress(facts)
  const { prefix } = place
  const signed = isSigned(facts)
  if (signed && facts.credentialReference === '')
    throw wrongCredential(
      `is empty, and configuration.signed is true; refer to ${needed[facts.type === 'gcs' ? 'gcp' : 'aws']}`,
    )
  const version = signed ? (await parts.secrets.look(facts.credentialReference)).version : ''
  const key = JSON.stringify([facts.type === 'gcs', place, signed, facts.credentialReference, version])
  const { partBytes } = parts
  const open = async () => {
    const bucket = await openBucket(parts, facts, place)
    return find(key) ?? keep(key, openS3Storage(bucket, { prefix, signed, partBytes }))
  }
  const driver = find(key) ?? (await open())
  return { driver, place: { at: JSON.stringify([place.endpoint, place.bucket]), base: prefix } }
}
