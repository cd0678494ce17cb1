import { kubernetesStartMs } from '../../sites/kubernetes-build.ts'
import { startKubernetes, type KubernetesSite } from '../../sites/kubernetes.ts'
import { sites } from '../../sites/requirements.ts'
import { startSlurm, type SlurmSite } from '../../sites/slurm.ts'
import { consoleEnvironment } from '../support/consoles.ts'
import { needs } from '../support/needs.ts'
import { connectionTo, inCluster, makeVaultKeyFile } from '../support/reach.ts'
import { openConsoles } from './consoles.ts'
import { dataFolder, removeFolder } from './programs.ts'
import { openPrograms } from './rounds.ts'

/** Terminals on the nodes of clusters go on without the daemon. */

const openDaemon = async () => {
  const dataDir = dataFolder()
  const programs = openPrograms(dataDir, {
    environment: {
      SERVICE_CONSOLE_ENABLED: 'true',
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
    },
  })
  const close = async (): Promise<void> => {
    await programs.stop()
    removeFolder(dataDir)
  }
  await programs.startDaemon()
  return { programs, close, ...openConsoles(programs) }
}
let daemon: Awaited<ReturnType<typeof openDaemon>>

const onSlurm = needs(...sites.slurm)
onSlurm.describe('a node of a Slurm cluster', () => {
  let slurm: SlurmSite
  onSlurm.beforeAll(async () => {
    slurm = await startSlurm({ nodes: 1 })
    daemon = await openDaemon()
    await daemon.programs.post('/ssh-keys/import/', { id: 'lab', privateKey: slurm.key.privateKey })
    const configuration = { connectionId: 'lab-login', partition: 'main' }
    await daemon.programs.post(
      '/environments/',
      consoleEnvironment('lab', { node: { driver: 'slurm', configuration, type: 'hpc_machine' } }, [
        connectionTo('lab-login', slurm.login, 'lab'),
      ]),
    )
  }, 300_000)
  onSlurm.afterAll(async () => {
    await daemon?.close()
    await slurm?.stop()
  }, 120_000)

  onSlurm.test(
    'the daemon is killed in the middle of 10 MiB of output: no byte is missing, and the client attaches again',
    async () => {
      await daemon.hitInTheMiddle('node', daemon.restart)
      // The job has ended with its terminal.
      await slurm.idle()
    },
    300_000,
  )
})

const onKubernetes = needs(...sites.kubernetes)
onKubernetes.describe('a Pod', () => {
  let cluster: KubernetesSite
  onKubernetes.beforeAll(async () => {
    cluster = await startKubernetes()
    daemon = await openDaemon()
    await daemon.programs.post('/kubernetes-tokens/', { id: 'cluster', token: await cluster.token() })
    const { driver, configuration } = inCluster('pods-cluster', cluster, { image: cluster.images.busybox })
    await daemon.programs.post(
      '/environments/',
      consoleEnvironment('pods', { pod: { driver, configuration } }, [
        {
          ...{ id: 'pods-cluster', name: 'pods-cluster', type: 'kubernetes', endpoint: cluster.server },
          credentialRef: 'vault:kubernetes-token/cluster',
          configuration: {
            certificateAuthority: cluster.certificateAuthority,
            namespace: cluster.namespace,
          },
        },
      ]),
    )
  }, kubernetesStartMs)
  onKubernetes.afterAll(async () => {
    await daemon?.close()
    await cluster?.stop()
  }, 120_000)

  onKubernetes.test(
    'the daemon is killed in the middle of 10 MiB of output: no byte is missing, and the client attaches again',
    async () => {
      await daemon.hitInTheMiddle('pod', daemon.restart)
    },
    300_000,
  )
})
