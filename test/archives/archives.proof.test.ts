import { playWhole } from '../support/share.ts'

// 200 changes at random of an archive, of which the gate makes a share.
playWhole()
await import('./archives.test.ts')
