import type { DriverKind, SiteRequest, WaysOut } from '../contract/kind.ts'
import { kubernetesCapabilities } from './adapter.ts'
import { openKubernetesDriver, openKubernetesShell } from './driver.ts'
import { kubernetesProblems } from './settings.ts'
import { openPodTerminal } from './terminal.ts'

const placeOf = ({ runtime, connectionId = '', configuration }: SiteRequest, { clusterOf }: WaysOut) => {
  const { namespace: named } = configuration
  const namespace = typeof named === 'string' && named !== '' ? named : 'default'
  return { cluster: clusterOf(connectionId), namespace, runtime, configuration }
}

/** A namespace of a Kubernetes cluster. */
export const kubernetes: DriverKind = {
  capabilities: kubernetesCapabilities,
  schedulesItself: true,
  sharesFiles: false,
  connection: { type: 'kubernetes', optional: false },
  hasPartitions: false,
  inNamespace: true,
  containers: 'always',
  holdsDefaultMemory: true,
  siteOf: ({ runtimeId }) => `kubernetes/${runtimeId}`,
  problems: (configuration) =>
    kubernetesProblems(configuration).map((message) => ({ path: 'configuration', message })),
  open(site, ways) {
    const place = placeOf(site, ways)
    const shell = openKubernetesShell(place)
    const driver = openKubernetesDriver({ ...place, shell, taskVariable: site.taskVariable })
    return {
      driver,
      shell,
      async close() {
        await driver.close()
        await shell.close()
      },
    }
  },
  terminalPlace(site, ways, name) {
    const place = placeOf(site, ways)
    const account = async () => {
      const shell = openKubernetesShell(place)
      try {
        const { stdout } = await shell.run('id -u; id -g')
        const [runAsUser = 0, runAsGroup = 0] = stdout.toString().trim().split('\n').map(Number)
        return { runAsUser, runAsGroup }
      } finally {
        await shell.close()
      }
    }
    return openPodTerminal({ ...place, name, account })
  },
}
