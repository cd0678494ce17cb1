export { connectionDiscovery, connectionMonitor } from './environment-connection.ts'
export { executionRun } from './execution-run.ts'
export { planningSession } from './planning-session.ts'
