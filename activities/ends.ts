import { Context } from '@temporalio/activity'
import type { Engine } from '../src/engine.ts'

export interface EndParts {
  engine: Pick<Engine, 'cancelWorkflow'>
}

export const endActivities = ({ engine }: EndParts) => ({
  /** Asks Temporal to cancel the workflow of this activity; a second request does no harm. */
  askForCancel: async (): Promise<void> => {
    const { workflowExecution } = Context.current().info
    if (workflowExecution !== undefined) await engine.cancelWorkflow(workflowExecution)
  },
})

export type EndActivities = ReturnType<typeof endActivities>
