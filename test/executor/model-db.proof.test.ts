import { playWhole } from '../support/share.ts'

// 500 random steps, of which the gate plays a share.
playWhole()
await import('./model-db.test.ts')
