import { playWhole } from './support/share.ts'

// Both kinds of workflows over HTTP, of which the gate takes one.
playWhole()
await import('./workloads.test.ts')
