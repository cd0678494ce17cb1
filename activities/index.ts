import { ApplicationFailure } from '@temporalio/activity'
import { Refusal } from '../src/refusal.ts'
import { buildRunActivities, type BuildActivityParts } from './build-run.ts'
import { cloudOperationActivities, type CloudOperationParts } from './cloud-operation.ts'
import { consoleActivities, type ConsoleParts } from './console.ts'
import { endActivities, type EndParts } from './ends.ts'
import { environmentConnectionActivities, type EnvironmentConnectionParts } from './environment-connection.ts'
import { executionRunActivities, type ExecutionRunParts } from './execution-run.ts'
import { operationActivities, type OperationParts } from './operation.ts'
import { planningSessionActivities, type PlanningSessionParts } from './planning-session.ts'
import { storageDownloadActivities } from './storage-download.ts'
import { storageIndexActivities } from './storage-index.ts'
import type { StorageWorkParts } from './storage-faults.ts'

/**
 * A refusal is final: a retry would be refused again. The workflow's policy retries everything
 * else.
 */
const finalRefusals = <T extends Record<string, (...args: never[]) => Promise<unknown>>>(activities: T): T =>
  Object.fromEntries(
    Object.entries(activities).map(([name, activity]) => [
      name,
      async (...args: never[]) => {
        try {
          return await activity(...args)
        } catch (error) {
          if (error instanceof Refusal && error.code !== 'unavailable')
            throw ApplicationFailure.nonRetryable(error.message, error.code)
          throw error
        }
      },
    ]),
  ) as T

/** Activities by name; each takes the arguments that its workflow passes. */
export type Activities = Record<string, (...args: never[]) => Promise<unknown>>

type NamesOf<Set> = Set extends unknown ? keyof Set : never
/** The names that two of these have. */
type Twice<Sets extends readonly unknown[]> = Sets extends readonly [infer First, ...infer Others]
  ? (keyof First & NamesOf<Others[number]>) | Twice<Others>
  : never

/** All sets as one; a name that two sets share does not compile. */
const together = <const Sets extends readonly Activities[]>(
  sets: Sets &
    ([Twice<Sets>] extends [never] ? unknown : `two activities have the name ${Twice<Sets> & string}`),
): Activities => finalRefusals(Object.assign({}, ...sets) as Activities)

/** Every activity of every workflow, made from the parts it uses. */
export const createActivities = (
  parts: BuildActivityParts &
    CloudOperationParts &
    ConsoleParts &
    EndParts &
    EnvironmentConnectionParts &
    ExecutionRunParts &
    OperationParts &
    PlanningSessionParts &
    StorageWorkParts,
): Activities =>
  together([
    buildRunActivities(parts),
    cloudOperationActivities(parts),
    consoleActivities(parts),
    endActivities(parts),
    environmentConnectionActivities(parts),
    executionRunActivities(parts),
    operationActivities(parts),
    planningSessionActivities(parts),
    storageDownloadActivities(parts),
    storageIndexActivities(parts),
  ])
