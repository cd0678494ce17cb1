import type { DriverKind } from '../contract/kind.ts'
import { noneCapabilities } from './driver.ts'

/** `launch: none`: for rehearsals and measurements of the engine itself. */
export const rehearsal: DriverKind = {
  capabilities: noneCapabilities,
  schedulesItself: false,
  sharesFiles: true,
  hasPartitions: false,
  inNamespace: false,
  containers: 'never',
  holdsDefaultMemory: true,
  siteOf: () => 'rehearsal',
}
