import { playWhole } from '../support/share.ts'

// With 140,000 outputs of one attempt, of which the gate records 20,000.
playWhole()
await import('./journal.test.ts')
