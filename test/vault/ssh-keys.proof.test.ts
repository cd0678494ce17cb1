import { playWhole } from '../support/share.ts'

// Each kind of key in each form, of which the gate reads half.
playWhole()
await import('./ssh-keys.test.ts')
