import type { S3Bucket } from '../../clients/s3.ts'
import type { SiteFiles } from '../../shell/site-files.ts'
import type { SiteShell } from '../../shell/site-shell.ts'
import type { StorageDriver } from './contract.ts'
import { openFilesystem } from './filesystem/driver.ts'
import type { StoragePath } from './paths.ts'
import { openPodStorage, type ClaimAccess } from './pod.ts'
import { openS3Storage } from './s3.ts'
import { openSftpStorage } from './sftp/driver.ts'
import { openShellStorage } from './shell/driver.ts'
import type { Way } from './ways.ts'

/** A way to a storage, and its place there. */
export type StorageReach =
  | { way: 'filesystem'; base: string; below: StoragePath }
  | { way: 'shell'; shell: SiteShell; base: string }
  | { way: 'sftp'; files: SiteFiles; base: string }
  | { way: 'pod'; pod: ClaimAccess }
  | { way: 's3'; bucket: S3Bucket; prefix: StoragePath; signed: boolean; partBytes: () => Promise<number> }
  | { way: 'gcs'; bucket: S3Bucket; prefix: StoragePath; signed: boolean; partBytes: () => Promise<number> }

const drivers: { [W in Way]: (reach: Extract<StorageReach, { way: W }>) => StorageDriver } = {
  filesystem: openFilesystem,
  shell: openShellStorage,
  sftp: openSftpStorage,
  pod: ({ pod }) => openPodStorage(pod),
  s3: ({ bucket, ...options }) => openS3Storage(bucket, options),
  gcs: ({ bucket, ...options }) => openS3Storage(bucket, options),
}

/** The driver of a storage; it contacts nothing yet. The caller closes it. */
export const openStorage = (reach: StorageReach): StorageDriver =>
  (drivers[reach.way] as (reach: StorageReach) => StorageDriver)(reach)
