import { ApplicationFailure } from '@temporalio/activity'
import { Refusal } from '../src/refusal.ts'
import { endActivities, type EndParts } from './ends.ts'
import { environmentConnectionActivities, type EnvironmentConnectionParts } from './environment-connection.ts'
import { executionRunActivities, type ExecutionRunParts } from './execution-run.ts'
import { planningSessionActivities, type PlanningSessionParts } from './planning-session.ts'

/** A refusal is final: trying again would be refused again. Everything else is retried by the workflow's policy. */
const finalRefusals = <T extends Record<string, (...args: never[]) => Promise<unknown>>>(activities: T): T =>
  Object.fromEntries(
    Object.entries(activities).map(([name, activity]) => [
      name,
      async (...args: never[]) => {
        try {
          return await activity(...args)
        } catch (error) {
          if (error instanceof Refusal && error.code !== 'unavailable') throw ApplicationFailure.nonRetryable(error.message, error.code)
          throw error
        }
      },
    ]),
  ) as T

/** Every activity of every workflow, made from the parts it uses. */
export const createActivities = (parts: EndParts & EnvironmentConnectionParts & ExecutionRunParts & PlanningSessionParts) => ({
  ...finalRefusals(endActivities(parts)),
  ...finalRefusals(environmentConnectionActivities(parts)),
  ...finalRefusals(executionRunActivities(parts)),
  ...finalRefusals(planningSessionActivities(parts)),
})
