import { playWhole } from '../support/share.ts'

playWhole()
await import('./workflow-definitions.test.ts')
