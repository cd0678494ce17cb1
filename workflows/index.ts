export { executionRun } from './execution-run.ts'
export { planningSession } from './planning-session.ts'
