import { playWhole } from '../support/share.ts'

playWhole()
await import('./copies.test.ts')
