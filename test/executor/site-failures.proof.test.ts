import { playWhole } from '../support/share.ts'

playWhole()
await import('./site-failures.test.ts')
