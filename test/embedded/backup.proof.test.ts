import { playWhole } from '../support/share.ts'

// What a backup and a restore refuse.
playWhole()
await import('./backup.test.ts')
