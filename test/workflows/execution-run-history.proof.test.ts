import { playWhole } from '../support/share.ts'

playWhole()
await import('./execution-run-history.test.ts')
