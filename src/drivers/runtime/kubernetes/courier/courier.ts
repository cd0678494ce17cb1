import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { KubernetesCluster } from '../../../../clients/kubernetes-cluster.ts'
import { quote } from '../../../quote.ts'
import type { SiteShell } from '../../../shell.ts'
import type { LogSlice } from '../../contract/driver.ts'
import { messageOf } from '../../contract/errno.ts'
import { openGate } from '../../../../pacing/gate.ts'
import { parseSlice, sliceScript, type SliceRange } from '../../remote/slice.ts'
import type { TaskPod } from '../pods.ts'
import { openErrands } from './errands.ts'
import { openCommands } from './flow.ts'
import { atKeeper, tokenScript } from './scripts.ts'

/**
 * Tasks whose Pods share no file system with the keeper: what they need is carried there before they start, what they leave is carried back
 * before their end counts. Each Pod has a folder of its own where the keeper has the site's root, and beside the task's container one of the
 * helper image, the *courier*, in which our commands run.
 *
 * In the Pod, below the root:
 * - `.alive`: a FIFO that the task's container holds open; its end is the end of that container, however it came. `.over`: it has come.
 * - `.go`: all has been delivered; the task's container waits for it. Made once, by rename under a lock.
 * - `.fetched`: all has been carried back; the courier waits for it, at most an hour beyond the end.
 *
 * At the keeper: `tasks/NAME.task` is created exclusively before `.go` is made (`start … 0 0 -`), so that a name that is buried never starts, and
 * what may have started is never buried; the Pod's own record takes its place when everything is back. `tasks/NAME.delivered` and
 * `tasks/NAME.fetched` spare others the way. `fetch/NAME.TOKEN`: what is coming; put in its place under a lock, the record last.
 *
 * All of it may be done by several workers at once, and broken off anywhere.
 */
export interface Courier {
  /** A Pod as the watch tells it: what it needs is begun. */
  see(pod: TaskPod): void
  /** It is gone. */
  drop(pod: string): void
  /** Pods that are not among these are gone. */
  keep(pods: ReadonlySet<string>): void
  /** What hindered the last try for a Pod, in words. */
  trouble(pod: string): string | undefined
  /** Tells tasks in their Pods that they are to be cancelled when they are stopped. What cannot be told is left. */
  markCancelled(pods: readonly { pod: string; name: string }[], graceSeconds: number): Promise<void>
  /** From the Pod, while it has what the keeper has not. Undefined where only the keeper can tell. */
  logs(pod: TaskPod, name: string, stream: 'stdout' | 'stderr', range: SliceRange): Promise<LogSlice | undefined>
  /** What is left of broken ways. */
  forget(name: string): Promise<void>
  /** Names the files of the keeper: others, where its folder was lost with its Pod. */
  keeperToken(): Promise<string>
  close(): void
}

export interface CourierOptions {
  cluster: Pick<KubernetesCluster, 'exec'>
  namespace: string
  /** Of the keeper. */
  shell: SiteShell
  root: () => Promise<string>
}

const roundsAtOnce = 8
const [firstWaitMs, longestWaitMs] = [250, 15_000]
/** A Pod that leaves is asked for the end of its task again after this. */
const againMs = 500

/** What a Pod needs now; undefined: nothing, or nothing that can be given yet. */
const wanted = (pod: TaskPod): 'deliver' | 'fetch' | undefined => {
  if (pod.courier !== 'running') return undefined
  if (pod.terminated !== undefined || pod.deleting !== undefined) return 'fetch'
  return pod.startedAt === undefined ? undefined : 'deliver'
}

export function openCourier({ cluster, namespace, shell, root }: CourierOptions): Courier {
  const commands = openCommands({ cluster, namespace, shell })
  const errands = openErrands(commands, root)
  const closing = new AbortController()
  const pods = new Map<string, TaskPod>()
  const troubles = new Map<string, string>()
  const finished = { deliver: new Set<string>(), fetch: new Set<string>() }
  const busy = new Set<string>()
  /** One thing after the other for each Pod, some Pods at once. */
  const rounds = openGate(roundsAtOnce)
  const round = <T>(work: () => Promise<T>): Promise<T> => rounds.inTurn(work, closing.signal)
  const open = (pod: TaskPod | undefined): 'deliver' | 'fetch' | undefined => {
    const what = pod === undefined ? undefined : wanted(pod)
    return pod === undefined || what === undefined || finished[what].has(pod.name) ? undefined : what
  }

  /** One try; `over`: there is nothing to do. */
  const attempt = async (name: string): Promise<'over' | 'next' | 'later' | 'failed'> => {
    const pod = pods.get(name)
    const what = open(pod)
    if (pod === undefined || what === undefined || closing.signal.aborted) return 'over'
    try {
      const done = await errands[what](pod)
      if (done) finished[what].add(name)
      troubles.delete(name)
      return done ? 'next' : 'later'
    } catch (error) {
      troubles.set(name, messageOf(error))
      return 'failed'
    }
  }
  const attend = async (name: string): Promise<void> => {
    for (let wait = firstWaitMs; !closing.signal.aborted;) {
      const again = await round(() => attempt(name))
      if (again === 'over') return
      if (again === 'next') {
        wait = firstWaitMs
        continue
      }
      wait = again === 'later' ? againMs : Math.min(wait * 2, longestWaitMs)
      await sleep(wait * (0.5 + Math.random() / 2), undefined, { signal: closing.signal }).catch(() => undefined)
    }
  }
  const drop = (name: string): void => {
    for (const memory of [pods, troubles, finished.deliver, finished.fetch]) memory.delete(name)
  }
  const see = (pod: TaskPod): void => {
    pods.set(pod.name, pod)
    if (busy.has(pod.name) || closing.signal.aborted || open(pod) === undefined) return
    busy.add(pod.name)
    void attend(pod.name)
      .catch(() => undefined)
      .finally(() => {
        busy.delete(pod.name)
        const now = pods.get(pod.name)
        if (now !== undefined) see(now)
      })
  }

  return {
    see,
    drop,
    keep(names) {
      for (const name of pods.keys()) if (!names.has(name)) drop(name)
    },
    trouble: (pod) => troubles.get(pod),
    async markCancelled(some, graceSeconds) {
      const at = await root()
      const grace = Math.max(0, Math.ceil(graceSeconds * 100))
      const scripts = some.map(({ pod, name }) => ({ pod, script: `cd ${quote(`${at}/tasks`)} && echo ${grace} > ${name}.cancel` }))
      await Promise.allSettled(scripts.map(({ pod, script }) => round(() => commands.runInPod(pod, script))))
    },
    async logs(pod, name, stream, range) {
      if (pod.courier !== 'running' || finished.fetch.has(pod.name)) return undefined
      const script = `cd ${quote(`${await root()}/tasks`)} || exit\n${sliceScript(`${name}.${stream === 'stdout' ? 'out' : 'err'}`, range)}`
      const answer = await commands.runInPod(pod.name, script).catch(() => undefined)
      return answer?.code === 0 ? parseSlice(answer.stdout) : undefined
    },
    async forget(name) {
      await commands.doAtKeeper(`cannot forget ${name}`, atKeeper(await root(), `rm -rf fetch/${quote(name)}.*`))
    },
    async keeperToken() {
      const script = atKeeper(await root(), tokenScript(randomBytes(8).toString('hex')))
      return (await commands.doAtKeeper('cannot name the files of the keeper', script)).trim()
    },
    close: () => closing.abort(),
  }
}
