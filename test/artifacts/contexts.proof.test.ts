import { playWhole } from '../support/share.ts'

playWhole()
await import('./contexts.test.ts')
