import { playWhole } from '../support/share.ts'

// All sample workflows, of which the gate leaves out the large ones.
playWhole()
await import('./sample-runs.test.ts')
