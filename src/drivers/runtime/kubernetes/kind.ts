import type { DriverKind } from '../contract/kind.ts'
import { kubernetesCapabilities } from './adapter.ts'
import { openKubernetesDriver, openKubernetesShell } from './driver.ts'
import { kubernetesProblems } from './settings.ts'

/** A namespace of a Kubernetes cluster. */
export const kubernetes: DriverKind = {
  capabilities: kubernetesCapabilities,
  schedulesItself: true,
  filesHere: false,
  sharesFiles: false,
  connection: { type: 'kubernetes', optional: false },
  hasPartitions: false,
  inNamespace: true,
  containers: 'always',
  holdsDefaultMemory: true,
  siteOf: ({ runtimeId }) => `kubernetes/${runtimeId}`,
  problems: (configuration) => kubernetesProblems(configuration).map((message) => ({ path: 'configuration', message })),
  open({ runtime, taskVariable, connectionId = '', configuration }, { clusterOf }) {
    const { namespace: named } = configuration
    const namespace = typeof named === 'string' && named !== '' ? named : 'default'
    const place = { cluster: clusterOf(connectionId), namespace, runtime, configuration }
    const shell = openKubernetesShell(place)
    const driver = openKubernetesDriver({ ...place, shell, taskVariable })
    return {
      driver,
      shell,
      async close() {
        await driver.close()
        await shell.close()
      },
    }
  },
}
