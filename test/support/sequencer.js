import { readFileSync } from 'node:fs'
import { BaseSequencer } from 'vitest/node'

/** Folders by what their files start, the slowest first: kill rounds, clusters, hosts; and a file that takes a minute of a processor. */
const slow = [
  ...['faults/', 'drivers/', 'image/', 'execution-runs/', 'sites/', 'workflows/', 'clients/', 'api/whole-schemathesis', 'shared/'],
  ...['examples/', 'transfer/'],
]
/** On an empty machine Kubernetes is still being built: who waits for it keeps a worker from what could run. */
const startsKubernetes = /sites\/kubernetes\.ts|\.\/kubernetes\.ts|\.\/evictions\.ts|\.\/reach-rounds\.ts/
const rank = (path) => {
  if (startsKubernetes.test(readFileSync(path, 'utf8'))) return slow.indexOf('execution-runs/') + 0.5
  const index = slow.findIndex((folder) => path.includes(`/test/${folder}`))
  return index === -1 ? slow.length : index
}

/** The slowest file first, so that the last minutes are no wait for one; where no earlier run has told the durations, by folder. */
export default class SlowestFirst extends BaseSequencer {
  async sort(files) {
    const sorted = await super.sort(files)
    if (sorted.some((file) => this.ctx.cache.getTestSpecificationResult(file) !== undefined)) return sorted
    const ranks = new Map(sorted.map(({ moduleId }) => [moduleId, rank(moduleId)]))
    return sorted.toSorted((a, b) => ranks.get(a.moduleId) - ranks.get(b.moduleId))
  }
}
