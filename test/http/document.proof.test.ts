import { playWhole } from '../support/share.ts'

// Documents as large as they may be.
playWhole()
await import('./document.test.ts')
