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
const rankOf = ({ moduleId }) =>
  startsKubernetes.test(readFileSync(moduleId, 'utf8')) ? kubernetesRank : starting.findIndex(isIn(moduleId))
/** What is killed there has to be missed before anything goes on: together they leave the processors idle. */
const waiting = starting.indexOf('faults/')

/**
 * The slowest file first, so that the last minutes are no wait for one. Where no earlier run has told the durations, by folder: beside each
 * file that waits one that works and one whose programs do; what computes comes evenly among those that start few processes. It leaves the
 * worker with a gigabyte: evenly among all files it takes 5 % more of the processors.
 */
export default class SlowestFirst extends BaseSequencer {
  async sort(files) {
    const sorted = await super.sort(files)
    if (sorted.some((file) => this.ctx.cache.getTestSpecificationResult(file) !== undefined)) return sorted
    const inFolders = (file, folders) => folders.some(isIn(file.moduleId))
    const starts = sorted.filter((file) => inFolders(file, starting))
    const ranks = new Map(starts.map((file) => [file, rankOf(file)]))
    const ranked = (from, to) =>
      starts.filter((file) => ranks.get(file) >= from && ranks.get(file) < to).toSorted((a, b) => ranks.get(a) - ranks.get(b))
    const waits = starts.filter((file) => ranks.get(file) === waiting)
    const works = [...ranked(-1, 0), ...ranked(waiting + 0.5, late)]
    const elsewhere = busyElsewhere.flatMap((folder) => sorted.filter((file) => inFolders(file, [folder])))
    const first = waits.flatMap((one, index) => [...works.slice(index, index + 1), one, ...elsewhere.slice(index, index + 1)])
    const others = [...ranked(late, starting.length), ...elsewhere.slice(waits.length)]
    const computes = sorted.filter((file) => !inFolders(file, [...starting, ...busyElsewhere]))
    const rest = computes.toSorted((a, b) => inFolders(b, longest) - inFolders(a, longest))
    // A fifth is for the end: what is short fills the workers evenly.
    const share = (0.8 * rest.length) / Math.max(1, others.length)
    const among = others.flatMap((one, index) => [one, ...rest.slice(Math.floor(index * share), Math.floor((index + 1) * share))])
    const end = rest.slice(Math.floor(others.length * share))
    return [...first, ...works.slice(waits.length), ...among, ...end]
  }
}
