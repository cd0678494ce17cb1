import { playWhole } from '../support/share.ts'

// 15 workflows on any scope, and 40 races of a cancel, of which the gate plays a share.
playWhole()
await import('./planning-session.test.ts')
