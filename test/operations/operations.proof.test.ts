import { playWhole } from '../support/share.ts'

playWhole()
await import('./operations.test.ts')
