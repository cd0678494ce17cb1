import { playWhole } from '../support/share.ts'

playWhole()
await import('./mosaic.test.ts')
