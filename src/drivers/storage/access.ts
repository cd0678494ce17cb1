/** How the bytes of a storage are reached; a bucket holds objects under keys, and its URLs can be signed. */
export type StorageAccess = 'filesystem' | 'shell' | 'sftp' | 'bucket' | 'pod'

/** How a storage of each type is reached, in the order in which it is tried. */
export const accessOf = {
  local: ['filesystem'],
  nfs: ['shell', 'sftp', 'filesystem'],
  lustre: ['shell', 'sftp', 'filesystem'],
  'ssh-filesystem': ['shell', 'sftp'],
  s3: ['bucket'],
  's3-compatible': ['bucket'],
  gcs: ['bucket'],
  pvc: ['pod'],
} as const satisfies Record<string, readonly StorageAccess[]>
