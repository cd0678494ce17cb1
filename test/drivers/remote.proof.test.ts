import { playWhole } from '../support/share.ts'

playWhole()
await import('./remote.test.ts')
