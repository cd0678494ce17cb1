import { playWhole } from '../support/share.ts'

playWhole()
await import('./console.test.ts')
