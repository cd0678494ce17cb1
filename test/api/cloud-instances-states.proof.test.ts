import { playWhole } from '../support/share.ts'

// Further states of a machine, of which the gate plays the main ones.
playWhole()
await import('./cloud-instances.test.ts')
