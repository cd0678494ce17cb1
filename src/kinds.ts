import type * as workflows from '../workflows/index.ts'
import { buildRunKind } from './domains/artifacts/build-kind.ts'
import { cloudKind } from './domains/cloud/operation.ts'
import { commandKind } from './domains/console/operation.ts'
import { discoveryKind } from './domains/environment-connections/discoveries.ts'
import { dispatchedMonitors } from './domains/environment-connections/monitors.ts'
import { runKind } from './domains/execution-runs/operation.ts'
import { sessionKind } from './domains/planning-sessions/operation.ts'
import { indexKind } from './domains/storages/index-kind.ts'
import { downloadKind } from './domains/storages/job-kind.ts'
import { dispatchedOperation, type Dispatched } from './operations/dispatcher.ts'
import type { OperationKind } from './operations/kind.ts'

/** A kind whose workflow this version lacks does not compile. */
type WorkflowType = keyof typeof workflows

/** Every kind of durable operation, in the order in which accepted ones are started. */
export const durableKinds: readonly OperationKind<WorkflowType>[] = [
  sessionKind,
  runKind,
  discoveryKind,
  commandKind,
  downloadKind,
  indexKind,
  cloudKind,
  buildRunKind,
]

/**
 * The kinds that the dispatcher handles. Monitors come last: they are many, and no request waits
 * for them.
 */
export const dispatchedKinds: readonly Dispatched<WorkflowType>[] = [
  ...durableKinds.map(dispatchedOperation),
  dispatchedMonitors,
]
