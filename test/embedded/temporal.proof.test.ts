import { playWhole } from '../support/share.ts'

// Data folders of earlier versions.
playWhole()
await import('./temporal.test.ts')
