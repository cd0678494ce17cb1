import { playWhole } from '../support/share.ts'

playWhole()
await import('./summary.test.ts')
