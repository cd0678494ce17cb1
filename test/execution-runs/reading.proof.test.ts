import { playWhole } from '../support/share.ts'

// A run of more than 10,000 activities.
playWhole()
await import('./reading.test.ts')
