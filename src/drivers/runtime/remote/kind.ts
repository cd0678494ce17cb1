import { memberText } from '../../../json-object.ts'
import type { SiteShell } from '../../../shell/site-shell.ts'
import { inContainers } from '../container/shell-site.ts'
import type { DriverKind, OpenedDriver, SiteRequest } from '../contract/kind.ts'
import { outputPatienceIn } from './context.ts'
import { openSshDriver, sshCapabilities } from './ssh.ts'

/** The driver of a machine behind a shell. */
export const openMachine = (
  { runtime, taskVariable, configuration }: SiteRequest,
  shell: SiteShell,
): OpenedDriver => {
  const driver = openSshDriver({
    ...{ runtime, taskVariable, shell, root: memberText(configuration['workDirectory']) },
    ...outputPatienceIn(configuration),
  })
  return inContainers(driver, { shell, taskVariable, endsDescendants: false })
}

/** Processes of a host that is reached through a shell. */
export const ssh: DriverKind = {
  capabilities: { ...sshCapabilities, container: true },
  schedulesItself: false,
  sharesFiles: true,
  connection: { type: 'ssh', optional: false },
  hasPartitions: false,
  inNamespace: false,
  containers: 'configured',
  holdsDefaultMemory: true,
  siteOf: ({ connectionId = '' }) => `ssh/${connectionId}`,
  open: (site, { shellOf }) => openMachine(site, shellOf(site.connectionId)),
}
