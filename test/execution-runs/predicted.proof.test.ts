import { playWhole } from '../support/share.ts'

// 20 workflows on any network, of which the gate plays a share.
playWhole()
await import('./predicted.test.ts')
