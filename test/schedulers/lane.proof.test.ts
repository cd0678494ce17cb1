import { playWhole } from '../support/share.ts'

// 100 pools of lanes, of which the gate plays a share.
playWhole()
await import('./lane.test.ts')
