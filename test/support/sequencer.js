import Sequencer from '@jest/test-sequencer'
import { readFileSync } from 'node:fs'

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
export default class SlowestFirst extends Sequencer {
  sort(tests) {
    const sorted = super.sort(tests)
    if (sorted.some(({ duration }) => duration !== undefined)) return sorted
    const ranks = new Map(sorted.map(({ path }) => [path, rank(path)]))
    return sorted.toSorted((a, b) => ranks.get(a.path) - ranks.get(b.path))
  }
}
