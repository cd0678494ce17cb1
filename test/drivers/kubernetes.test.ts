import { afterAll } from '@jest/globals'
import { chmodSync, copyFileSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { openKubernetesCluster } from '../../src/clients/kubernetes-cluster.ts'
import { openKubernetesDriver, openKubernetesShell } from '../../src/drivers/runtime/kubernetes.ts'
import { startKubernetes } from '../sites/kubernetes.ts'
import { runtimeDriverConformance } from './conformance.ts'
import { toolImage } from './kubernetes-image.ts'

/** One cluster for all tests of this file; the suite needs it before it declares its tests. */
const site = await startKubernetes()
const helperImage = await toolImage(site)
const { hostname: host, port } = new URL(site.server)
const server = { host, port: Number(port), certificateAuthority: site.certificateAuthority, token: await site.token() }
const cluster = openKubernetesCluster({ ...server, token: () => Promise.resolve(server.token), addressAllowed: () => true })
afterAll(async () => {
  cluster.close()
  await site.stop()
}, 120_000)
const node = join(site.volume.folder, 'node')
copyFileSync(process.execPath, node)

const hasProcesses = (folder: string): boolean =>
  readdirSync('/proc').some((entry) => {
    try {
      return /^\d+$/.test(entry) && readFileSync(`/proc/${entry}/environ`, 'latin1').includes(`HOME=${folder}/`)
    } catch {
      return false
    }
  })

runtimeDriverConformance(
  'kubernetes, on a volume that all nodes see',
  () => {
    const scratch = mkdtempSync(join(site.volume.folder, 'conformance-'))
    chmodSync(scratch, 0o755)
    const options = {
      namespace: site.namespace,
      runtime: 'kubernetes',
      taskVariable: 'ORRERY_TASK',
      pollMilliseconds: 500,
      configuration: {
        volume: { persistentVolumeClaim: site.volume.claim, mountPath: site.volume.folder },
        root: join(scratch, 'root'),
        helperImage,
        settleSeconds: 3,
        // Two real cores, and Pods that mostly wait.
        overcommit: 20,
      },
    }
    const shells: ReturnType<typeof openKubernetesShell>[] = []
    return {
      scratch,
      node,
      endsUnmarked: false,
      // Inside a Pod ids are others: a task is known by its home, which lies in the scratch folder of its test.
      lives: () => hasProcesses(scratch),
      open: () => {
        const shell = openKubernetesShell({ ...options, cluster })
        shells.push(shell)
        return openKubernetesDriver({ ...options, cluster, shell })
      },
      submitter: [process.execPath, join(import.meta.dirname, 'kubernetes-submitter.ts'), JSON.stringify({ ...options, server })],
      close: async () => {
        for (const shell of shells) await shell.close()
        rmSync(scratch, { recursive: true, force: true })
      },
    }
  },
  { seconds: 120_000 },
)
