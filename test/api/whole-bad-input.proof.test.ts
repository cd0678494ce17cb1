import { playWhole } from '../support/share.ts'

// Every value in every place, of which the gate tries a share.
playWhole()
await import('./whole-bad-input.test.ts')
