import { playWhole } from '../support/share.ts'

// Documents and lists of megabytes.
playWhole()
await import('./environments.test.ts')
