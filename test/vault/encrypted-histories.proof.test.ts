import { playWhole } from '../support/share.ts'

playWhole()
await import('./encrypted-histories.test.ts')
