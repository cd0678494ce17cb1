import { playWhole } from '../support/share.ts'

playWhole()
await import('./staging-driver.test.ts')
