import type { ConstraintTexts } from '../../db/errors.ts'

/** The meaning of violated constraints of this domain's tables for the caller. */
export const storageConstraints: ConstraintTexts = {
  storage_downloads_pkey: { path: 'id', message: 'is taken; choose another id' },
  storage_downloads_storage: {
    path: 'storageId',
    message: 'the storage was removed meanwhile; read its environment again',
  },
  storage_downloads_conflict: { path: 'onConflict', message: 'is no rule for conflicts' },
  storage_download_entries_pkey: { path: 'id', message: 'is being listed twice' },
  storage_download_entries_download: { path: 'id', message: 'was removed meanwhile' },
  storage_download_entries_type: { path: 'path', message: 'is neither a file nor a directory' },
  storage_download_entries_state: { path: 'status', message: 'is no state of an entry' },
  storage_index_runs_pkey: { path: 'id', message: 'is taken; choose another id' },
  storage_index_runs_storage: {
    path: 'storageId',
    message: 'the storage was removed meanwhile; read its environment again',
  },
  storage_index_runs_status: { path: 'status', message: 'is no status of an index run' },
  storage_index_runs_truncated: { path: 'truncatedBy', message: 'is no part of a policy' },
  storage_index_entries_pkey: { path: 'path', message: 'is being indexed twice' },
  storage_index_entries_storage: {
    path: 'storageId',
    message: 'the storage was removed meanwhile; read its environment again',
  },
  storage_index_folders_pkey: { path: 'path', message: 'is being indexed twice' },
  storage_index_folders_run: { path: 'id', message: 'was removed meanwhile' },
  storage_index_pages_pkey: { path: 'path', message: 'is being indexed twice' },
  storage_index_pages_run: { path: 'id', message: 'was removed meanwhile' },
  storage_index_changes_pkey: { path: 'path', message: 'is being indexed twice' },
  storage_index_changes_run: { path: 'id', message: 'was removed meanwhile' },
  storage_downloads_status: { path: 'status', message: 'is no status of a download' },
}
