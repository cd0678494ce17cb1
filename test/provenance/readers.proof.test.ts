import { playWhole } from '../support/share.ts'

// Readers that are slow.
playWhole()
await import('./readers.test.ts')
