import { playWhole } from '../support/share.ts'

// Each script of package.json, of which the gate asks a third.
playWhole()
await import('./arguments.test.ts')
