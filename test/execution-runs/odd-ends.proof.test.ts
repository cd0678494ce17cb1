import { playWhole } from '../support/share.ts'

playWhole()
await import('./odd-ends.test.ts')
