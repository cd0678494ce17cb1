import { playWhole } from '../support/share.ts'

playWhole()
await import('./statements.test.ts')
