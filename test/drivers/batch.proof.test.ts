import { playWhole } from '../support/share.ts'

// Forty programs of each kind, of which the gate plays five.
playWhole()
await import('./batch.test.ts')
