/**
 * A program of its own for the tests: opens the cluster that the first argument describes, submits
 * the intents of the second, prints the outcomes as one line of JSON and then only waits, to be
 * killed. Where files are carried it carries them meanwhile; with a third argument, `there` or
 * `back`, it comes to a stop in the middle of that, and says so in a line.
 */
import { openKubernetesCluster, type KubernetesCluster } from '../../src/clients/kubernetes-cluster.ts'
import type { Intent } from '../../src/drivers/runtime/contract/driver.ts'
import {
  openKubernetesDriver,
  openKubernetesShell,
  type KubernetesDriverOptions,
} from '../../src/drivers/runtime/kubernetes/driver.ts'
import { errandOf, metered } from './kubernetes-site.ts'

interface Site extends Omit<KubernetesDriverOptions, 'cluster' | 'shell'> {
  server: { host: string; port: number; certificateAuthority: string; token: string }
}

const [site = '', intents = '', stopped] = process.argv.slice(2)
const { server, ...options } = JSON.parse(site) as Site
const real = openKubernetesCluster({
  ...server,
  token: () => Promise.resolve(server.token),
  addressAllowed: () => true,
})

const exec: KubernetesCluster['exec'] = async (request) => {
  const channel = await real.exec(request)
  const errand = errandOf(request)
  if (errand !== stopped || (errand !== 'there' && errand !== 'back')) return channel
  return metered(channel, errand, async (bytes) => {
    if (bytes < 1024 ** 2) return
    process.stdout.write(`stopped on the way ${errand}\n`)
    await new Promise(() => undefined)
  })
}
const place = { ...options, cluster: { ...real, exec } }
const driver = openKubernetesDriver({ ...place, shell: openKubernetesShell(place) })
const outcomes = await driver.submit(JSON.parse(intents) as Intent[])
process.stdout.write(`${JSON.stringify(outcomes)}\n`)
setInterval(() => {}, 60_000)
