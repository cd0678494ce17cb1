/**
 * A program of its own for the tests: opens the cluster that the first argument describes, submits the intents of the second, prints
 * the outcomes as one line of JSON and then only waits, to be killed.
 */
import { openKubernetesCluster } from '../../src/clients/kubernetes-cluster.ts'
import type { Intent } from '../../src/drivers/runtime/driver.ts'
import { openKubernetesDriver, openKubernetesShell, type KubernetesDriverOptions } from '../../src/drivers/runtime/kubernetes.ts'

interface Site extends Omit<KubernetesDriverOptions, 'cluster' | 'shell'> {
  server: { host: string; port: number; certificateAuthority: string; token: string }
}

const [site = '', intents = ''] = process.argv.slice(2)
const { server, ...options } = JSON.parse(site) as Site
const cluster = openKubernetesCluster({ ...server, token: () => Promise.resolve(server.token), addressAllowed: () => true })
const place = { ...options, cluster }
const driver = openKubernetesDriver({ ...place, shell: openKubernetesShell(place) })
const outcomes = await driver.submit(JSON.parse(intents) as Intent[])
process.stdout.write(`${JSON.stringify(outcomes)}\n`)
setInterval(() => {}, 60_000)
