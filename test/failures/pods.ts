import { mkdtempSync } from 'node:fs'
import { join } from 'node:path'
import { toolImage } from '../drivers/kubernetes-image.ts'
import { clusterOf, openRuntime, over, submit, type OpenedRuntime } from '../drivers/kubernetes-site.ts'
import { startKubernetes } from '../../sites/kubernetes.ts'
import type { Failures } from '../../bench/tally.ts'

const fakeNodes = 200
const perRound = [1000, 500, 250, 125, 125]
/**
 * Of a batch, whatever its size, to the answer that it is taken; the first asks what the account
 * may do.
 */
const requestsPerBatch = 15
/** Of what follows until all is told: looks at everything while Pods are waited for. */
const requestsBesides = 60

/** Nodes that only say that they run Pods, and what such a Pod says that it did. */
const played = {
  nodeSelector: { type: 'kwok' },
  tolerations: [{ key: 'kwok.x-k8s.io/node', operator: 'Exists' }],
  podAnnotations: { 'sim/time': '2s', 'sim/exit': '4' },
}

/**
 * Pods on the nodes of kwok in batches of these sizes, all in flight at once; the keeper is on a
 * real node.
 *
 * @returns in words, tasks that were not told to have ended as their Pods did, and batches that
 *   took requests for each of their Pods
 */
export async function playPods(
  { driver, shell, intent, cluster }: OpenedRuntime,
  batches: readonly number[],
): Promise<string[]> {
  const violations: string[] = []
  const tasks = batches.map((size) => Array.from({ length: size }, () => intent(['true'], { site: played })))
  const all = tasks.flat()
  // The keeper is made at its first use.
  await shell.run('true')
  const before = cluster.requests()
  for (const batch of tasks) {
    const from = cluster.requests()
    await submit(driver, ...batch)
    const requests = cluster.requests() - from
    if (requests > requestsPerBatch) violations.push(`a batch of ${batch.length} took ${requests} requests`)
  }
  // Not before: what looks at those that are there already would be counted with the batches that
  // follow, the more the slower the machine.
  await over(driver, ...all)
  const states = await driver.find(all.map(({ name }) => name))
  for (const { name } of all) {
    const state = states.get(name)
    if (state?.state !== 'ended' || state.exitCode !== 4 || state.reason !== 'exited')
      violations.push(`${name} is ${JSON.stringify(state)}`)
  }
  const requests = cluster.requests() - before
  if (requests > requestsPerBatch * batches.length + requestsBesides)
    violations.push(`${all.length} Pods took ${requests} requests`)
  return violations
}

/** A round: 2,000 Pods in five batches on 200 nodes beside the real one. Each case is a Pod. */
export async function openPods(): Promise<Failures> {
  const site = await startKubernetes({ fakeNodes })
  try {
    const [helperImage, token] = [await toolImage(site), await site.token()]
    return {
      what: `Pods at once on ${fakeNodes} nodes: each recorded as it ended, requests by batches`,
      async play() {
        const opened = openRuntime(
          clusterOf(site, () => Promise.resolve(token)),
          {
            namespace: site.namespace,
            runtime: 'pods',
            configuration: {
              volume: { persistentVolumeClaim: site.volume.claim, mountPath: site.volume.folder },
              root: mkdtempSync(join(site.volume.folder, 'root-')),
              ...{ helperImage, settleSeconds: 1 },
            },
          },
        )
        try {
          return {
            counted: perRound.reduce((sum, size) => sum + size, 0),
            violations: await playPods(opened, perRound),
          }
        } finally {
          await opened.close()
          await site.call(
            'DELETE',
            `/apis/batch/v1/namespaces/${site.namespace}/jobs?propagationPolicy=Background`,
          )
        }
      },
      close: () => site.stop(),
    }
  } catch (error) {
    await site.stop()
    throw error
  }
}
