/**
 * Ways to a storage of each type, in the order in which they are tried; none: this version has no
 * driver for it.
 */
export const waysOf = {
  local: ['filesystem'],
  nfs: ['shell', 'sftp', 'filesystem'],
  lustre: ['shell', 'sftp', 'filesystem'],
  'ssh-filesystem': ['shell', 'sftp'],
  s3: ['s3'],
  's3-compatible': ['s3'],
  gcs: ['gcs'],
  pvc: ['pod'],
} as const satisfies Record<string, readonly Way[]>

/** How the bytes of a storage are reached. */
export type Way = 'filesystem' | 'shell' | 'sftp' | 's3' | 'gcs' | 'pod'

/** Ways to buckets: objects under keys, and URLs that can be signed. */
export const isBucketWay = (way: Way): way is 's3' | 'gcs' => way === 's3' || way === 'gcs'
