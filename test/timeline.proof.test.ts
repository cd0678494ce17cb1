import { playWhole } from './support/share.ts'

// A page of 10,000 bars.
playWhole()
await import('./timeline.test.ts')
