import { playWhole } from '../support/share.ts'

// An engine that hangs, with a patience of 1 s.
playWhole()
await import('./programs.test.ts')
