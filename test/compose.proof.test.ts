import { playWhole } from './support/share.ts'

// Temporal's namespace is made on a real server.
playWhole()
await import('./compose.test.ts')
