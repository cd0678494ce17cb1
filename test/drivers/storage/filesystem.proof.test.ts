import { playWhole } from '../../support/share.ts'

playWhole()
await import('./filesystem.test.ts')
