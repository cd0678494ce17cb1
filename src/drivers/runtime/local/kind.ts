import type { DriverKind } from '../contract/kind.ts'
import { localCapabilities } from './driver.ts'

/** Processes of this machine. */
export const local: DriverKind = {
  capabilities: { ...localCapabilities, container: true },
  schedulesItself: false,
  sharesFiles: true,
  hasPartitions: false,
  inNamespace: false,
  containers: 'configured',
  holdsDefaultMemory: false,
  siteOf: ({ host }) => `local@${host}`,
}
