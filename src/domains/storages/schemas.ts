import { z } from 'zod'
import { withBlank } from '../../http/keys.ts'
import { wholeBytes, wholeNumber } from '../../http/paging.ts'
import { Id, MadeId, Name, Timestamp } from '../../http/schema.ts'
import { BrowseRoot, StorageProbe } from '../environments/schemas.ts'

export const PathQuery = {
  // A name may be white space alone; only an empty value is not given.
  path: withBlank(z.string())
    .transform((path) => (path === '' ? undefined : path))
    .optional()
    .describe('From the endpoint of the storage on; absolute below a root works too'),
  pathBytes: z
    .string()
    .max(8_192)
    .optional()
    .describe('Base64 of the bytes of a path that is not UTF-8; instead of path'),
}
const PathAnswer = { path: z.string(), pathBytes: z.string().optional() }
const PathBody = {
  path: withBlank(z.string()).optional().describe('blank: the endpoint of the storage'),
  pathBytes: PathQuery.pathBytes,
}
const newId = 'of the new record; the service makes one by default'
const NewId = Id.optional().describe(newId)

export const FileEntry = z.strictObject({
  storageId: z.string(),
  ...PathAnswer,
  name: z.string(),
  type: z.enum(['file', 'directory', 'symlink']),
  sizeBytes: z.number().optional(),
  modifiedAt: z.string().optional(),
  checksum: z.string().optional(),
  etag: z.string().optional(),
  mediaType: z.string().optional(),
  readable: z.boolean(),
  writable: z.boolean(),
  linkTarget: z.string().optional(),
  promotedAs: z.array(z.strictObject({ kind: z.enum(['artifact', 'data']), id: z.string() })).optional(),
})

export const Listing = z.strictObject({
  storageId: z.string(),
  ...PathAnswer,
  entries: z.array(FileEntry),
  nextCursor: z.string().optional(),
})

export const EntriesQuery = z.strictObject({
  ...PathQuery,
  cursor: z
    .string()
    .max(8_192)
    .optional()
    .describe('nextCursor of the page before; the first page by default'),
  limit: wholeNumber.optional().describe('Entries of a page, 1 to 500; any other number is 100'),
})

export const Roots = z.array(BrowseRoot)
const IndexPolicy = z.strictObject({
  enabled: z.boolean(),
  roots: z.array(z.string()).optional().describe('paths that are indexed; all roots by default'),
  maxDepth: z
    .int()
    .min(0)
    .max(1_000)
    .optional()
    .describe('levels below a root that are read, 0: none; 5 by default'),
  maxEntries: z
    .int()
    .min(1)
    .max(10_000_000)
    .optional()
    .describe('entries of one index run; 10,000 by default'),
  include: z.array(z.string()).optional().describe('globs of what is indexed; all by default'),
  exclude: z.array(z.string()).optional().describe('globs of what is left out; nothing by default'),
  timeoutSeconds: z.int().min(1).max(604_800).optional().describe('of an index run; 3600 by default'),
})
export const NewRoots = z.strictObject({
  browseRoots: z.array(BrowseRoot).max(1_000),
  indexPolicy: IndexPolicy.optional().describe('what index runs read; unchanged by default'),
})

export const Checksum = z.strictObject({
  checksum: z.string().describe('sha256: and 64 hexadecimal digits'),
})
export const PathOnly = z.strictObject(PathBody)
export const NewDownload = z.strictObject({ ...PathBody, id: NewId })

/** The progress of an open record. */
export const LiveJob = z.strictObject({
  phase: z.enum(['listing', 'sending', 'packing', 'indexing', 'hashing', 'recording']),
  entries: z.number().describe('entries that are done'),
  bytes: z.number().describe('bytes that are done'),
  totalEntries: z.number().optional().describe('absent while they are being counted'),
  totalBytes: z.number().optional(),
  bytesPerSecond: z.number().optional(),
  estimatedSeconds: z.number().optional(),
  sentBytes: z.number().optional(),
})
export type LiveJob = z.output<typeof LiveJob>

const OnConflict = z
  .enum(['fail', 'skip-equal', 'overwrite'])
  .optional()
  .describe(
    'Where the destination has a file of the name: fail, leave one with the same bytes, or replace it',
  )
export const NewCopy = z.strictObject({
  ...PathBody,
  destinationStorageId: Id,
  destinationPath: z
    .string()
    .optional()
    .describe('The new path of the entry itself; default: that of the source'),
  destinationPathBytes: z
    .string()
    .optional()
    .describe('The same in base64, for a path that is not UTF-8; in place of destinationPath'),
  onConflict: OnConflict,
  bytesPerSecond: z
    .int()
    .min(1_024)
    .max(1e12)
    .optional()
    .describe('Sends no faster than this; unlimited by default'),
  id: NewId,
})

export const NewArchive = z.strictObject({
  ...PathBody,
  onConflict: OnConflict,
  id: NewId,
})

/** How the bytes of large files go between two logins, in the words of transfers of runs. */
export const CopyWay = z.strictObject({
  strategy: z.enum(['source-push', 'destination-pull', 'gateway']),
  reason: z.string(),
})
export type CopyWay = z.output<typeof CopyWay>

export const DownloadRun = z.strictObject({
  id: z.string(),
  storageId: z.string(),
  ...PathAnswer,
  status: z.enum(['queued', 'ready', 'streaming', 'completed', 'failed', 'cancelled']),
  strategy: z.string(),
  url: z
    .string()
    .optional()
    .describe('Reads the content without a login, for 15 minutes; made anew for each answer'),
  sizeBytes: z.number().optional(),
  transferredBytes: z.number().optional(),
  sentBytes: z
    .number()
    .optional()
    .describe('Bytes that a copy has given to its destination, with those that were sent again'),
  verification: z
    .enum(['sha256', 'store'])
    .optional()
    .describe(
      'What shows that a copy has the bytes of its source: their SHA-256, or, where it has copied at least one ' +
        'of the files itself, the store',
    ),
  route: CopyWay.optional().describe(
    'How the large files of a copy between two logins go: from site to site, or through this service; and why',
  ),
  error: z.string().optional(),
  destinationStorageId: z.string().optional(),
  destinationPath: z.string().optional(),
  destinationPathBytes: z.string().optional(),
  entries: z.number().optional().describe('Files, directories and kept links of a copy or an archive'),
  skippedEntries: z
    .number()
    .optional()
    .describe('Devices, names that no path can hold, and links that are not kept, all of which are left out'),
  live: LiveJob.optional(),
  createdAt: z.string(),
  updatedAt: z.string(),
})

export const NewIndexRun = z
  .strictObject({
    id: NewId,
    checksums: z
      .boolean()
      .optional()
      .describe('Compute the SHA-256 of files where the index does not know it; they are read for that'),
  })
  .default({})
export const IndexRun = z.strictObject({
  id: z.string(),
  storageId: z.string(),
  status: z.enum(['running', 'completed', 'failed', 'cancelled']),
  checksums: z.boolean(),
  indexedEntries: z.number().describe('files, directories and links that were found'),
  indexedBytes: z.number(),
  addedEntries: z.number().optional().describe('absent until the run has completed'),
  changedEntries: z.number().optional().describe('absent until the run has completed'),
  removedEntries: z.number().optional().describe('absent until the run has completed'),
  skippedEntries: z.number().describe('What could not be read: directories, names that no path can hold'),
  truncated: z.boolean().describe('Whether the policy has cut the run off'),
  truncatedBy: z.enum(['depth', 'entries', 'time']).optional(),
  error: z.string().optional(),
  live: LiveJob.optional(),
  createdAt: z.string(),
  finishedAt: z.string().optional(),
})

export const IndexEntry = z.strictObject({
  ...PathAnswer,
  name: z.string(),
  type: z.enum(['file', 'directory', 'symlink']),
  sizeBytes: z.number().optional(),
  modifiedAt: z.string().optional(),
  mediaType: z.string().optional(),
  checksum: z.string().optional(),
})
export const IndexQuery = z.strictObject({
  ...PathQuery,
  glob: z
    .string()
    .min(1)
    .max(1_000)
    .optional()
    .describe('`*` and `?` within a name, `[a-z]`, `**` across names; without a slash, of the last name'),
  type: z.enum(['file', 'directory', 'symlink']).optional().describe('entries of this type; all by default'),
  mediaType: z.string().max(200).optional().describe('files of this media type, such as text/csv'),
  minSizeBytes: wholeBytes.optional().describe('entries of this many bytes or more'),
  maxSizeBytes: wholeBytes.optional().describe('entries of this many bytes or fewer'),
  modifiedAfter: Timestamp.optional().describe('entries modified at this time or later'),
  modifiedBefore: Timestamp.optional().describe('entries modified before this time'),
  checksum: z
    .string()
    .regex(/^(sha256:)?[0-9a-f]{64}$/, 'must be a SHA-256 like sha256:<64 hexadecimal digits>')
    .optional()
    .describe('files of this SHA-256, in hexadecimal digits'),
  cursor: z
    .string()
    .max(16_384)
    .optional()
    .describe('nextCursor of the page before; the first page by default'),
  limit: EntriesQuery.shape.limit,
})
export const IndexPage = z.strictObject({
  storageId: z.string(),
  ...PathAnswer,
  entries: z.array(IndexEntry),
  totals: z
    .strictObject({ entries: z.number().describe('files, directories and links'), bytes: z.number() })
    .describe('Of all that lies below the path, whatever the filters'),
  indexedAt: z.string().optional(),
  nextCursor: z.string().optional(),
})

export const UploadQuery = z.strictObject({
  ...PathQuery,
  overwrite: z
    .enum(['true', 'false'])
    .optional()
    .describe('true: replaces a file that exists, which is refused by default'),
})
export const Uploaded = z.strictObject({
  storageId: z.string(),
  ...PathAnswer,
  receivedBytes: z.number(),
  complete: z.boolean(),
  checksum: z.string().optional(),
  entry: FileEntry.optional(),
})

/** What differs gives it a name of its own in clients. */
export const Health = StorageProbe.extend({
  latencyMs: z.number().describe('until the storage answered'),
})

export const NewArtifact = z.strictObject({
  ...PathBody,
  id: Id.optional().describe(newId),
  name: Name.optional().describe('of the artifact; its id by default'),
  version: Name.optional().describe('of the artifact; 1 by default'),
  scope: z
    .enum(['system', 'organization', 'project', 'workflow', 'run', 'environment'])
    .optional()
    .describe('of the artifact; environment by default'),
  scopeId: Id.optional().describe('of the scope; the environment of the storage by default'),
})
export const NewData = z.strictObject({
  ...PathBody,
  id: Id.optional().describe(newId),
  workflowVersionId: MadeId.optional().describe('of the workflow that has the data'),
  runId: Id.optional().describe('of the run that made the data'),
  activityId: Id.optional().describe('of the activity that made the data'),
})
export const Promoted = z.strictObject({ id: z.string() })
