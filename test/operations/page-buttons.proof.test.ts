import { playWhole } from '../support/share.ts'

playWhole()
await import('./page-buttons.test.ts')
