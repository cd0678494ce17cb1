import { existsSync, readFileSync } from 'node:fs'
import { BaseSequencer } from 'vitest/node'
import { kubernetesFolder } from '../sites/kubernetes-build.ts'

/** Folders by what their files start and wait for, the slowest first: kill rounds, clusters, hosts. */
const starting = ['faults/', 'drivers/', 'image/', 'workflows/', 'clients/', 'execution-runs/', 'transfer/', 'sites/', 'support/']
/** Their programs keep a processor busy, not the worker. */
const busyElsewhere = ['examples/', 'vault/ssh-keys', 'programs/', 'embedded/']
/** Of the others, which keep the worker busy all the time, those that take tens of seconds. */
const longest = ['shared/', 'api/whole-']
const startsKubernetes = /sites\/kubernetes\.ts|\.\/kubernetes\.ts|\.\/evictions\.ts|\.\/reach-rounds\.ts/
const late = starting.indexOf('workflows/')
/** On an empty machine Kubernetes is still being built: who waits for it keeps a worker from what could run. */
const kubernetesRank = existsSync(kubernetesFolder()) ? -1 : late - 0.5
const isIn = (path) => (folder) => path.includes(`/test/${folder}`)
/** What is killed there has to be missed before anything goes on: together they leave the processors idle. */
const waiting = starting.indexOf('faults/')

/** At the beginning servers and checks have the processors; at the end what is short fills the workers evenly. */
const undisturbed = 4
const amongOthers = 0.6

/**
 * The slowest file first, so that the last minutes are no wait for one. Where no earlier run has told the durations, by folder: beside each
 * file that waits one that works and one whose programs do, and among all of them, evenly, those that compute.
 */
export default class SlowestFirst extends BaseSequencer {
  async sort(files) {
    const sorted = await super.sort(files)
    if (sorted.some((file) => this.ctx.cache.getTestSpecificationResult(file) !== undefined)) return sorted
    const rankOf = ({ moduleId }) =>
      startsKubernetes.test(readFileSync(moduleId, 'utf8')) ? kubernetesRank : starting.findIndex(isIn(moduleId))
    const inFolders = (file, folders) => folders.some(isIn(file.moduleId))
    const ranked = sorted.filter((file) => inFolders(file, starting)).toSorted((a, b) => rankOf(a) - rankOf(b))
    const waits = ranked.filter((file) => rankOf(file) === waiting)
    const works = ranked.filter((file) => rankOf(file) !== waiting)
    const elsewhere = busyElsewhere.flatMap((folder) => sorted.filter((file) => inFolders(file, [folder])))
    const triples = waits.flatMap((one, index) => [...works.slice(index, index + 1), one, ...elsewhere.slice(index, index + 1)])
    const starts = [...triples, ...works.slice(waits.length), ...elsewhere.slice(waits.length)]
    const computes = sorted.filter((file) => !inFolders(file, [...starting, ...busyElsewhere]))
    const isLong = (file) => inFolders(file, longest)
    const rest = [...computes.filter(isLong), ...computes.filter((file) => !isLong(file))]
    const share = (amongOthers * rest.length) / Math.max(1, starts.length - undisturbed)
    const before = (index) => Math.floor(Math.max(0, index - undisturbed) * share)
    return [
      ...starts.flatMap((one, index) => [...rest.slice(before(index), before(index + 1)), one]),
      ...rest.slice(before(starts.length)),
    ]
  }
}
