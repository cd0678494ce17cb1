import { existsSync, readFileSync } from 'node:fs'
import { BaseSequencer } from 'vitest/node'
import { kubernetesFolder } from '../sites/kubernetes-build.ts'

/** Folders by what their files start, the slowest first: kill rounds, clusters, hosts; and a file that takes a minute of a processor. */
const slow = [
  ...['faults/', 'drivers/', 'image/', 'execution-runs/', 'sites/', 'workflows/', 'clients/', 'api/whole-schemathesis', 'shared/'],
  ...['examples/', 'transfer/'],
]
const startsKubernetes = /sites\/kubernetes\.ts|\.\/kubernetes\.ts|\.\/evictions\.ts|\.\/reach-rounds\.ts/
/** On an empty machine Kubernetes is still being built: who waits for it keeps a worker from what could run. */
const kubernetesRank = existsSync(kubernetesFolder()) ? -1 : slow.indexOf('execution-runs/') + 0.5
const rank = (path) => {
  if (startsKubernetes.test(readFileSync(path, 'utf8'))) return kubernetesRank
  const index = slow.findIndex((folder) => path.includes(`/test/${folder}`))
  return index === -1 ? slow.length : index
}
/** What is killed there has to be missed before anything goes on: together they leave the processors idle. */
const waiting = slow.indexOf('faults/')

/**
 * The slowest file first, so that the last minutes are no wait for one; where no earlier run has told the durations, by folder, with a file
 * that works beside each that waits.
 */
export default class SlowestFirst extends BaseSequencer {
  async sort(files) {
    const sorted = await super.sort(files)
    if (sorted.some((file) => this.ctx.cache.getTestSpecificationResult(file) !== undefined)) return sorted
    const ranks = new Map(sorted.map(({ moduleId }) => [moduleId, rank(moduleId)]))
    const rankOf = ({ moduleId }) => ranks.get(moduleId)
    const waits = sorted.filter((file) => rankOf(file) === waiting)
    const works = sorted.filter((file) => rankOf(file) !== waiting).toSorted((a, b) => rankOf(a) - rankOf(b))
    const pairs = waits.flatMap((file, index) => [...works.slice(index, index + 1), file])
    return [...pairs, ...works.slice(waits.length)]
  }
}
