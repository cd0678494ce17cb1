import { playWhole } from '../support/share.ts'

playWhole()
await import('./archives.test.ts')
