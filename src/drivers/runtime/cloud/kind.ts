import type { DriverKind } from '../contract/kind.ts'
import { openMachine } from '../remote/kind.ts'
import { sshCapabilities } from '../remote/ssh.ts'
import { LinkError, type SiteShell } from '../../../shell/site-shell.ts'

const noMachine = (runtime: string) => () =>
  Promise.reject(new LinkError('name', `${runtime} has no machine of this run now`))

/** The shell of a place whose run has no machine: it answers nothing. */
const absent = (runtime: string): SiteShell => ({
  run: noMachine(runtime),
  open: noMachine(runtime),
  close: () => Promise.resolve(),
})

/**
 * Processes of a machine that a cloud provider made for a run, over the session of its instance.
 */
export const cloud: DriverKind = {
  capabilities: { ...sshCapabilities, container: true },
  schedulesItself: false,
  sharesFiles: false,
  onMachines: true,
  hasPartitions: false,
  inNamespace: false,
  containers: 'configured',
  holdsDefaultMemory: true,
  // The resource of a capacity target has the target's id.
  siteOf: ({ resourceId }) => `cloud/${resourceId}`,
  open: (site, { machineShell }) =>
    openMachine(site, site.machine === undefined ? absent(site.runtime) : machineShell(site.machine)),
}
