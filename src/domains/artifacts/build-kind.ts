import { z } from 'zod'
import { sql } from '../../db/sql.ts'
import type { OperationKind } from '../../operations/kind.ts'

/** Runs of builds as operations. */
export const buildRunKind: OperationKind<'buildRun'> = {
  name: 'build-run',
  workflow: 'buildRun',
  idInLog: 'buildRunId',
  noun: 'build run',
  table: 'build_runs',
  columns: { failure_reason: 'error' },
  states: { accepted: 'queued', running: 'running' },
  events: 'artifact.build-run',
  cancelEnds: 'accepted',
  pageSummary: async (db, id) => {
    const buildId = await db.value(z.string(), sql`select artifact_build_id from build_runs where id = ${id}`)
    return buildId === undefined
      ? undefined
      : { line: `a run of the build ${buildId}`, path: `/build-runs/${encodeURIComponent(id)}/` }
  },
  audit: (id, change) => ({ eventType: `artifact.build-run.${change}`, externalId: id }),
}
