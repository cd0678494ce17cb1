/** A check of a connection found another state than the one before. */
export interface ConnectionChange {
  connectionId: string
  status: string
  before?: string | undefined
  reason: string
  waitsForLogin: boolean
}

/** A receiver of changed connections. */
export interface ConnectionReports {
  connectionChanged(change: ConnectionChange): void
}
