import { playWhole } from './support/share.ts'

// An archive beyond 4 GiB.
playWhole()
await import('./zip.test.ts')
