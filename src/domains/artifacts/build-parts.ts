import type { AddressJudge, Http } from '../../clients/http.ts'
import type { Db } from '../../db/sql.ts'
import type { ArtifactStore } from '../../drivers/build/store.ts'
import type { SecretOpener } from '../../vault/secret.ts'

export interface BuildWorkParts {
  db: Db
  artifactStore: ArtifactStore
  buildContextLimitBytes: number
  /** Builds of this process at once. */
  buildConcurrency: number
  /** Socket of the engine that runs the builds. */
  buildEngine: string
  addressAllowed: AddressJudge
  vault: SecretOpener
  http: Pick<Http, 'request'>
  sbomProgram: () => Promise<{ path: string } | { lack: string }>
}
