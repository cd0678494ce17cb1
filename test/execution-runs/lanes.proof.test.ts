import { playWhole } from '../support/share.ts'

playWhole()
await import('./lanes.test.ts')
