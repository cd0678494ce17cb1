import { playWhole } from '../support/share.ts'

// 190 files of known hosts, of which the gate plays a share.
playWhole()
await import('./known-hosts.test.ts')
