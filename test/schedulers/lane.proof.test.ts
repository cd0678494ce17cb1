import { playWhole } from '../support/share.ts'

// The growth of the time with the number of tasks.
playWhole()
await import('./lane.test.ts')
