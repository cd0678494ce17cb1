import { playWhole } from '../support/share.ts'

// 60 scripts in each shell, of which the gate plays a share.
playWhole()
await import('./ssh-sessions.test.ts')
