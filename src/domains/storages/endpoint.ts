import { z } from 'zod'
import type { S3Address } from '../../clients/s3.ts'
import { parseNames, nameOf, parseRoot, type StoragePath } from '../../drivers/storage/paths.ts'
import { unacceptableAt } from '../../refusal.ts'
import type { BrowseRoot } from '../environments/schemas.ts'
import type { StorageFacts } from '../environments/storages.ts'
import type { Root } from '../../drivers/storage/jail.ts'
import { settingOf, shownEndpoint, startsOf } from './connection.ts'

/** The location of a bucket. */
export interface BucketAddress extends S3Address {
  prefix: StoragePath
}

/** The login in the address of a service, behind its scheme. */
const loginOfUrl = /^(https?:\/\/)[^/?#]*@/i

/** The decoded path of a URL; '' where the text is none. */
const pathOfUrl = (text: string): string => {
  try {
    return decodeURIComponent(new URL(text).pathname)
  } catch {
    return ''
  }
}

/**
 * The bucket of a storage: `s3://bucket/prefix` or `gs://bucket/prefix`, a URL whose path begins
 * with the bucket, or the name of a bucket; the service is `configuration.endpointUrl`, else that
 * of AWS in `configuration.region`, or of Google.
 * @throws Refusal `unacceptable` for an endpoint that names none
 */
export const bucketAddress = (
  facts: Pick<StorageFacts, 'type' | 'endpoint' | 'configuration'>,
): BucketAddress => {
  const { type, endpoint } = facts
  const region = settingOf(facts, 'region') ?? 'us-east-1'
  const given = settingOf(facts, 'endpointUrl')
  const pathStyle = facts.configuration?.['pathStyle']
  const isUrl = /^https?:\/\//i.test(endpoint)
  const inner = isUrl ? pathOfUrl(endpoint) : endpoint.replace(type === 'gcs' ? /^gs:\/\//i : /^s3:\/\//i, '')
  const [bucket, ...prefix] = parseNames(nameOf(inner))
  if (bucket === undefined || !/^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$/.test(bucket))
    throw unacceptableAt(
      'storage.endpoint',
      `${shownEndpoint(endpoint)} names no bucket; give s3://bucket/prefix, a URL ` +
        'with the bucket in its path, or the bucket beside configuration.endpointUrl',
    )
  const usual = type === 'gcs' ? 'https://storage.googleapis.com' : `https://s3.${region}.amazonaws.com`
  // Requests are signed: a login in the address would only come into links.
  const service = isUrl ? new URL(endpoint).origin : (given?.replace(loginOfUrl, '$1') ?? usual)
  if (!URL.canParse(service) || !/^https?:$/.test(new URL(service).protocol))
    throw unacceptableAt(
      'storage.configuration.endpointUrl',
      `${shownEndpoint(service)} is no URL of http or https`,
    )
  const usualStyle = isUrl || given !== undefined
  return {
    ...{ endpoint: service, bucket, prefix, region },
    pathStyle: typeof pathStyle === 'boolean' ? pathStyle : usualStyle,
  }
}

const ApprovedRoot = z.object({
  path: z.string(),
  label: z.string().optional().catch(undefined),
  readOnly: z.boolean().optional().catch(undefined),
})

/** The approved roots in the configuration, as far as they have the right shape. */
export const browseRootsOf = ({ configuration }: Pick<StorageFacts, 'configuration'>): BrowseRoot[] => {
  const roots = configuration?.['browseRoots']
  return Array.isArray(roots) ? roots.flatMap((root) => ApprovedRoot.safeParse(root).data ?? []) : []
}

/** The roots below the endpoint. @throws StorageError for a path that no entry can have */
export const rootsOf = (storage: StorageFacts): Root[] =>
  browseRootsOf(storage).map(({ path, readOnly }) => ({
    path: parseRoot(path, ...startsOf(storage)),
    readOnly: readOnly === true,
  }))

/** Whether requests to the bucket of a storage are signed. */
export const isSigned = ({ configuration }: Pick<StorageFacts, 'configuration'>): boolean =>
  configuration?.['signed'] === true
