import { inContainers } from '../container/shell-site.ts'
import type { DriverKind } from '../contract/kind.ts'
import { outputPatienceIn } from './context.ts'
import { openSshDriver, sshCapabilities } from './ssh.ts'

const text = (value: unknown): value is string => typeof value === 'string' && value !== ''

/** Processes of a host that is reached through a shell. */
export const ssh: DriverKind = {
  capabilities: { ...sshCapabilities, container: true },
  schedulesItself: false,
  filesHere: false,
  sharesFiles: true,
  connection: { type: 'ssh', optional: false },
  hasPartitions: false,
  inNamespace: false,
  containers: 'configured',
  holdsDefaultMemory: true,
  siteOf: ({ connectionId = '' }) => `ssh/${connectionId}`,
  open({ runtime, taskVariable, connectionId, configuration }, { shellOf }) {
    const { workDirectory } = configuration
    const shell = shellOf(connectionId)
    const driver = openSshDriver({
      runtime,
      taskVariable,
      shell,
      ...outputPatienceIn(configuration),
      ...(text(workDirectory) ? { root: workDirectory } : {}),
    })
    return inContainers(driver, { shell, taskVariable, endsDescendants: false })
  },
}
