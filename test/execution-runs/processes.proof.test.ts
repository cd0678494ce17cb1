import { playWhole } from '../support/share.ts'

playWhole()
await import('./processes.test.ts')
