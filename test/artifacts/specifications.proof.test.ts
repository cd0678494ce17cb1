import { playWhole } from '../support/share.ts'

// With a context of 100,000 files and one, which the gate leaves out.
playWhole()
await import('./specifications.test.ts')
