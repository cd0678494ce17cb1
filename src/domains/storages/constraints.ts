import type { ConstraintTexts } from '../../db/errors.ts'

const storageGone = {
  path: 'storageId',
  message: 'the storage was removed meanwhile; read its environment again',
}
const idTaken = { path: 'id', message: 'is taken; choose another id' }
const recordGone = { path: 'id', message: 'was removed meanwhile' }
const indexedTwice = { path: 'path', message: 'is being indexed twice' }

export const storageConstraints: ConstraintTexts = {
  storage_downloads_pkey: idTaken,
  storage_downloads_storage: storageGone,
  storage_downloads_conflict: { path: 'onConflict', message: 'is no rule for conflicts' },
  storage_downloads_status: { path: 'status', message: 'is no status of a download' },
  storage_download_entries_pkey: { path: 'id', message: 'is being listed twice' },
  storage_download_entries_download: recordGone,
  storage_download_entries_type: { path: 'path', message: 'is neither a file nor a directory' },
  storage_download_entries_state: { path: 'status', message: 'is no state of an entry' },
  storage_index_runs_pkey: idTaken,
  storage_index_runs_storage: storageGone,
  storage_index_runs_status: { path: 'status', message: 'is no status of an index run' },
  storage_index_runs_truncated: { path: 'truncatedBy', message: 'is no part of a policy' },
  storage_index_entries_pkey: indexedTwice,
  storage_index_entries_storage: storageGone,
  storage_index_folders_pkey: indexedTwice,
  storage_index_folders_run: recordGone,
  storage_index_pages_pkey: indexedTwice,
  storage_index_pages_run: recordGone,
  storage_index_changes_pkey: indexedTwice,
  storage_index_changes_run: recordGone,
}
