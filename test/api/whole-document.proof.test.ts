import { playWhole } from '../support/share.ts'

// Every value that the document offers is sent.
playWhole()
await import('./whole-document.test.ts')
