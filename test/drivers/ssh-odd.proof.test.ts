import { playWhole } from '../support/share.ts'

// Forty programs of each kind, of which the gate plays twelve.
playWhole()
await import('./ssh-odd.test.ts')
