import { playWhole } from '../support/share.ts'

// 24 programs of each kind that no one expects, of which the gate plays a share.
playWhole()
await import('./serverless.test.ts')
