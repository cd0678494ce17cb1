import { existsSync, readFileSync } from 'node:fs'
import { BaseSequencer } from 'vitest/node'
import { kubernetesFolder } from '../sites/kubernetes-build.ts'

/** Folders whose files start programs and wait for them, by what they start, the slowest first: kill rounds, clusters, hosts. */
const starting = [
  ...['faults/', 'drivers/', 'image/', 'execution-runs/', 'sites/', 'workflows/', 'clients/', 'examples/', 'transfer/', 'programs/'],
  ...['embedded/', 'support/'],
]
/** Of the others, which keep a processor busy all the time, those that take tens of seconds. */
const longest = ['shared/', 'api/whole-']
const startsKubernetes = /sites\/kubernetes\.ts|\.\/kubernetes\.ts|\.\/evictions\.ts|\.\/reach-rounds\.ts/
/** On an empty machine Kubernetes is still being built: who waits for it keeps a worker from what could run. */
const kubernetesRank = existsSync(kubernetesFolder()) ? -1 : starting.indexOf('execution-runs/') + 0.5
const isIn = (path) => (folder) => path.includes(`/test/${folder}`)
/** Undefined where nothing is started that would be waited for. */
const rankOf = ({ moduleId }) => {
  if (startsKubernetes.test(readFileSync(moduleId, 'utf8'))) return kubernetesRank
  const index = starting.findIndex(isIn(moduleId))
  return index === -1 ? undefined : index
}
/** What is killed there has to be missed before anything goes on: together they leave the processors idle. */
const waiting = starting.indexOf('faults/')
/** At the beginning servers and checks have the processors; at the end what is short fills the workers evenly. */
const undisturbed = 4
const amongOthers = 0.8

/**
 * The slowest file first, so that the last minutes are no wait for one; where no earlier run has told the durations, by folder, with a file
 * that works beside each that waits, and among both, evenly, those that compute.
 */
export default class SlowestFirst extends BaseSequencer {
  async sort(files) {
    const sorted = await super.sort(files)
    if (sorted.some((file) => this.ctx.cache.getTestSpecificationResult(file) !== undefined)) return sorted
    const ranked = sorted.map((file) => ({ file, rank: rankOf(file) }))
    const waits = ranked.filter(({ rank }) => rank === waiting)
    const works = ranked.filter(({ rank }) => rank !== undefined && rank !== waiting).toSorted((a, b) => a.rank - b.rank)
    const starts = [...waits.flatMap((one, index) => [...works.slice(index, index + 1), one]), ...works.slice(waits.length)]
    const isLong = ({ file }) => longest.some(isIn(file.moduleId))
    const computes = ranked.filter(({ rank }) => rank === undefined)
    const rest = [...computes.filter(isLong), ...computes.filter((one) => !isLong(one))]
    const share = (amongOthers * rest.length) / Math.max(1, starts.length - undisturbed)
    const before = (index) => Math.floor(Math.max(0, index - undisturbed) * share)
    return [
      ...starts.flatMap((one, index) => [...rest.slice(before(index), before(index + 1)), one]),
      ...rest.slice(before(starts.length)),
    ].map(({ file }) => file)
  }
}
