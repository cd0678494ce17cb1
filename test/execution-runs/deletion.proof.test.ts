import { playWhole } from '../support/share.ts'

playWhole()
await import('./deletion.test.ts')
