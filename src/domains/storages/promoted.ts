import type { Db } from '../../db/sql.ts'
import { markGone, type LostPlace } from '../artifacts/store.ts'
import type { Storages } from './open.ts'

/** Promoted data. Its tables belong to a domain below this one, which supplies these functions. */
export interface PromotedData {
  /**
   * Records data at a place with its digest, once for the same bytes and the same of the optional
   * members.
   * @throws Refusal 422 for references to missing records and a taken id
   */
  record(
    db: Db,
    data: {
      id?: string | undefined
      workflowVersionId?: string | undefined
      runId?: string | undefined
      activityId?: string | undefined
      name: string
      digest: string
      sizeBytes: number
      /** Of a file; a directory has none. */
      mediaType?: string | undefined
      storageId: string
      uri: string
    },
  ): Promise<{ id: string; isNew: boolean }>
  /** Ids of the data at a place. */
  at(db: Db, uri: string): Promise<string[]>
  /** Places of data at a place and below it. */
  places(db: Db, place: LostPlace): Promise<string[]>
  /** Records that the data at a place is gone. */
  gone(db: Db, place: LostPlace): Promise<void>
}

/** What the routes of storages and of their entries use. */
export interface StorageRouteParts {
  db: Db
  storages: Storages
  promoted: PromotedData
}

/** Ends the records of what was promoted at a place that no longer holds it. */
export const recordLoss = async (
  { db, promoted }: Omit<StorageRouteParts, 'storages'>,
  place: LostPlace,
): Promise<void> => {
  await markGone(db, place)
  await promoted.gone(db, place)
}
