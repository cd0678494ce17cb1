import { playWhole } from '../support/share.ts'

// Sixty arrays, of which the gate makes ten.
playWhole()
await import('./batch-submissions.test.ts')
