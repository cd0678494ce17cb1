import { playWhole } from '../support/share.ts'

playWhole()
await import('./preflight.test.ts')
