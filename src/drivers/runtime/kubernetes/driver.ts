import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { KubernetesCluster } from '../../../clients/kubernetes-cluster.ts'
import { openPodShell } from '../../../clients/kubernetes-shell.ts'
import { KubernetesError } from '../../../clients/kubernetes.ts'
import { quote, quoteAll } from '../../quote.ts'
import type { SiteShell } from '../../shell.ts'
import { DriverError, type Capability, type Collected, type Intent, type PlaceDetail, type TaskState } from '../contract/driver.ts'
import { gather } from '../contract/gather.ts'
import { installScript, linkTools, openCourier, stayScript, waitScript, type Courier } from './courier.ts'
import {
  annotations,
  containerName,
  jobManifest,
  jobScript,
  jobsOf,
  keyOf,
  labels,
  podRequestOf,
  requestKey,
  toolsFolder,
  type PodRequest,
  type TaskJob,
} from './job.ts'
import { keeperName, openKeeper } from './keeper.ts'
import { isHopeless, isUnsure, indexedName, judgePod, stateOfEnd, type KubernetesJudgement } from './state.ts'
import { isOver as isPodOver, placeOf, taskPodOf, type ApiJob, type ApiPod, type TaskPod } from './pods.ts'
import { missingRights } from './rights.ts'
import { settingsOf, type KubernetesSettings } from './settings.ts'
import { asDriverError } from '../remote/site.ts'
import { outcomesOf } from '../contract/outcomes.ts'
import { openRemoteWatch } from '../remote/watch.ts'
import { openRemoteTasks, type RemoteSight } from '../remote/tasks.ts'
import type { RootedDriver } from '../contract/rooted.ts'
import type { Verdict } from '../slurm/state.ts'
import { openSlurmBooks, packOf, type ArrayElement, type BookEntry } from '../batch/books.ts'

/** What it has at all: `sharedStorage` only with a volume. */
export const kubernetesCapabilities: Readonly<Record<Capability, boolean>> = {
  batch: true,
  interactive: false,
  container: true,
  serverless: false,
  gpu: true,
  mpi: false,
  sharedStorage: true,
  dataStaging: true,
  cancellation: true,
  logStreaming: true,
  simulation: false,
}

export interface KubernetesPlace {
  cluster: Pick<KubernetesCluster, 'request' | 'list' | 'watch' | 'exec' | 'log'>
  namespace: string
  /** Id of the runtime: names the keeper, labels what is ours, stands in messages and manifests. */
  runtime: string
  /**
   * volume ({persistentVolumeClaim} | {hostPath} | {nfs}, with mountPath), or none: files are carried between the keeper and the Pods of tasks, and
   * keeperVolume (likewise, ReadWriteOnce is enough) is where the keeper has them; without it they are in the keeper's Pod and lost with it: what
   * was not over is then lost, and the outputs of what was. root (default /orrery), helperImage, image, toolsPath, nodeSelector, tolerations,
   * priorityClassName, imagePullSecrets, runtimeClassName, affinity, imagePullPolicy, podLabels, podAnnotations, runAsUser, runAsGroup, fsGroup, confined,
   * gpuResource, overcommit (default 1), pullPatienceSeconds (300), settleSeconds (10), claimSeconds (60), nodeLostSeconds (300),
   * ttlSecondsAfterFinished (86,400).
   */
  configuration: Readonly<Record<string, unknown>>
}

export interface KubernetesDriverOptions extends KubernetesPlace {
  /** Of the keeper: `openKubernetesShell`. Shared with whoever moves data; the one who opened it closes it. */
  shell: SiteShell
  taskVariable: string
  /** Between two looks at everything, default 5 s. */
  pollMilliseconds?: number
}

/** The site's shell: a Pod with the runtime's volume, made at the first script. Rejects with `DriverError` `refused` for a configuration that is wrong. */
export function openKubernetesShell({ cluster, namespace, runtime, configuration }: KubernetesPlace): SiteShell {
  let keeper: ReturnType<typeof openKeeper> | undefined
  return openPodShell({
    exec: async (command, deadlineMs) => {
      keeper ??= openKeeper({ cluster, namespace, runtime, settings: settingsOf(configuration) })
      return keeper(command, deadlineMs)
    },
  })
}

/** How long a request that can never run is refused without asking again. */
const impossibleKeptMs = 600_000
const submitPatienceMs = 120_000
/** Beyond the grace, for the cluster to end what does not end. */
const cancelPatienceMs = 120_000
/** The controller needs this long to make the Pods of a new Job: before, a missing one means nothing. */
const newSeconds = 5
/** Beyond the grace of a cancel, for the outputs to be carried away. */
const fetchGraceSeconds = 30
const eventsKeptMs = 5000
const rememberedMost = 20_000
/** Of one deletion: indexes stand in its address. */
const indexesAtOnce = 300

/** What is remembered of tasks that nobody may ever ask for again. */
const forgetOldest = (memory: Map<string, unknown>): void => {
  const [oldest] = memory.keys()
  if (memory.size > rememberedMost && oldest !== undefined) memory.delete(oldest)
}

/** The class that tells what to do about it. */
const troubleOf = (error: unknown): DriverError => {
  if (!(error instanceof KubernetesError)) return asDriverError(error)
  const { status, permanent } = error
  const passing = !permanent && (status === undefined ? error.stage !== 'host key' : status === 429 || status >= 500 || status === 409)
  return new DriverError(passing ? 'unknown' : 'refused', error.message, { cause: error })
}

/** One question under way at a time; whoever asks within the time that its answer is kept gets that. */
function kept<T>(milliseconds: number, question: () => Promise<T>): () => Promise<T> {
  let last: { answer: Promise<T>; at: number } | undefined
  return () => {
    if (last !== undefined && performance.now() - last.at < milliseconds) return last.answer
    const one = { answer: question(), at: performance.now() }
    last = one
    one.answer.catch(() => last === one && (last = undefined))
    return one.answer
  }
}

interface ApiEvent {
  involvedObject?: { name?: string; fieldPath?: string }
  reason?: string
  message?: string
  lastTimestamp?: string | null
  eventTime?: string | null
}

/** Whether a program brings its own libraries: no segment of it names an interpreter (PT_INTERP). Bytes are the first of an ELF file of 64 bits. */
export function isStatic(head: Buffer): boolean {
  if (head.length < 64 || head.toString('latin1', 0, 4) !== '\x7fELF' || head[4] !== 2 || head[5] !== 1) return false
  const [at, size, count] = [Number(head.readBigUInt64LE(32)), head.readUInt16LE(54), head.readUInt16LE(56)]
  if (at + size * count > head.length) return false
  return !Array.from({ length: count }, (_, segment) => head.readUInt32LE(at + segment * size)).includes(3)
}

/** `1.2s`, `850ms`, `1m2.5s`: as Go writes how long something took. */
const secondsIn = (text: string): number | undefined => {
  const units: Readonly<Record<string, number>> = { h: 3600, m: 60, s: 1, ms: 0.001, µs: 0.000001, us: 0.000001 }
  const parts = [...text.matchAll(/([\d.]+)(ms|µs|us|h|m|s)/g)]
  return parts.length === 0 ? undefined : parts.reduce((sum, [, number, unit = 's']) => sum + Number(number) * (units[unit] ?? 0), 0)
}

/** Seconds that the node spent on an image, by its event; 0: it was there. */
const pullSecondsOf = (message: string): number | undefined => {
  if (/already present/.test(message)) return 0
  const [, time] = /Successfully pulled image .* in ([\d.hmsµu]+)/.exec(message) ?? []
  return time === undefined ? undefined : secondsIn(time)
}

/**
 * Tasks as indexes of Kubernetes' Jobs. What they do is recorded by themselves on the runtime's volume (`remote/tasks.ts`), which Job they are in by us
 * (`batch/books.ts`), why the cluster ended something by their Pods, which one watch tells of; `state.ts` makes one state of the three.
 *
 * A name is put into one Job by an exclusive file, a Job has a name of its own, an index is tried once, and the task's own record, created
 * exclusively at its start, is the last to say no.
 */
export function openKubernetesDriver(options: KubernetesDriverOptions): RootedDriver {
  const { cluster, namespace, runtime, configuration, shell: link } = options
  let read: KubernetesSettings | undefined
  const settings = (): KubernetesSettings => (read ??= settingsOf(configuration))
  const shell: SiteShell = {
    run: (script, more) =>
      link.run(script, more).catch((error: unknown) => {
        throw troubleOf(error)
      }),
    open: (script) => link.open(script),
    close: () => link.close(),
  }
  const own = typeof configuration['root'] === 'string' ? configuration['root'] : '/orrery'
  const tasks = openRemoteTasks({ shell: link, runtime, taskVariable: options.taskVariable, elsewhere: true, root: own })
  const root = (): Promise<string> => tasks.root()
  const books = openSlurmBooks(shell, root)
  const pollMilliseconds = options.pollMilliseconds ?? 5000
  const key = keyOf(runtime)
  const ours = `${labels.runtime}=${key},${labels.part}=task`
  const [podsPath, jobsPath, eventsPath] = [
    `/api/v1/namespaces/${namespace}/pods`,
    `/apis/batch/v1/namespaces/${namespace}/jobs`,
    `/api/v1/namespaces/${namespace}/events`,
  ]
  let closed = false

  /** Since when everything says that a task is over; milliseconds of `performance.now()`. */
  const overSince = new Map<string, number>()
  /** Requests that can never run, by key: the cluster's words, and until when. */
  const impossible = new Map<string, { words: string; until: number }>()
  const requestsOf = new Map<string, string>()
  const jobTasks = new Map<string, readonly string[]>()
  const namesAt = new Map<string, string>()

  const ask = <T>(request: Promise<T>): Promise<T> =>
    request.catch((error: unknown) => {
      throw troubleOf(error)
    })
  const isStatus = (error: unknown, ...statuses: number[]): boolean =>
    error instanceof KubernetesError && error.status !== undefined && statuses.includes(error.status)

  // ---- what is to be there before anything is made

  let checked: Promise<void> | undefined
  const check = async (): Promise<void> => {
    const { volume, keeperVolume } = settings()
    const missing = await missingRights(cluster, namespace)
    if (missing.length > 0)
      throw new DriverError(
        'refused',
        `the account may not ${missing.join(', ')} in namespace ${namespace}; give it a Role with these rights`,
      )
    const { persistentVolumeClaim: claim } = ((volume ?? keeperVolume)?.source ?? {}) as { persistentVolumeClaim?: { claimName: string } }
    if (claim !== undefined)
      await cluster
        .request({ path: `/api/v1/namespaces/${namespace}/persistentvolumeclaims/${claim.claimName}` })
        .catch((error: unknown) => {
          if (isStatus(error, 404))
            throw new DriverError(
              'refused',
              `${volume === undefined ? 'keeperVolume' : 'volume'}.persistentVolumeClaim ${JSON.stringify(claim.claimName)}: namespace ${namespace} has no such claim; make it, or name another`,
            )
          if (!isStatus(error, 403)) throw error
        })
  }
  const ready = (): Promise<void> => {
    if (checked === undefined) {
      const asked = ask(check())
      checked = asked
      asked.catch(() => checked === asked && (checked = undefined))
    }
    return checked
  }

  /** Puts a static busybox where task Pods see it, once; false where the helper image has none: then an image has to have a shell of its own. */
  let tools: Promise<Tools> | undefined
  const installTools = async (): Promise<{ useTools: boolean; busybox: string }> => {
    const { toolsPath } = settings()
    const places = toolsPath === '' ? ['/bin/busybox', '/usr/bin/busybox', '/bin/busybox.static', '/usr/bin/busybox.static'] : [toolsPath]
    const folder = quote(`${await root()}/${toolsFolder}`)
    for (const place of places) {
      const at = quote(place)
      const { stdout } = await shell.run(
        `[ -x ${folder}/sh ] && { [ -s ${folder}/.from ] || ${courier === undefined}; } && { echo ready; cat ${folder}/.from; exit; }; [ -f ${at} ] && head -c 4096 ${at}; :`,
      )
      const [first, from = ''] = stdout.toString('latin1', 0, 2000).split('\n')
      if (first === 'ready') return { useTools: true, busybox: from }
      if (!isStatic(stdout)) continue
      const { code, stderr } = await shell.run(
        `t=${folder}.$$; mkdir -p "$t" && cp ${at} "$t/busybox" && echo ${at} > "$t/.from" && chmod 755 "$t" "$t/busybox" || exit
${linkTools('"$t"')}
{ mv -T "$t" ${folder} 2> /dev/null || rm -rf "$t"; }; [ -x ${folder}/sh ]`,
      )
      if (code === 0) return { useTools: true, busybox: place }
      throw new DriverError('infrastructure', `cannot put the tools of tasks on the volume: ${stderr.trim().slice(-500)}`)
    }
    if (toolsPath !== '')
      throw new DriverError(
        'refused',
        `toolsPath ${JSON.stringify(toolsPath)} is no static program of the helper image; name a static busybox there`,
      )
    return { useTools: false, busybox: '' }
  }
  interface Tools {
    useTools: boolean
    /** Where the helper image has it; '': it has none. */
    busybox: string
    /** The keeper's own: what it writes is theirs alone. */
    account: Record<string, number>
  }
  const withTools = (): Promise<Tools> => {
    if (tools === undefined) {
      const asked = Promise.all([installTools(), shell.run('id -u; id -g'), root()]).then(
        async ([{ useTools, busybox }, { stdout }, at]): Promise<Tools> => {
          const lock = `command -v flock || [ -x ${quote(`${at}/${toolsFolder}/flock`)} ]`
          if (courier !== undefined && (await shell.run(lock)).code !== 0)
            throw new DriverError(
              'refused',
              `helperImage ${JSON.stringify(settings().helperImage)} lacks flock, which it needs without a volume`,
            )
          const [runAsUser = Number.NaN, runAsGroup = Number.NaN] = stdout.toString().trim().split('\n').map(Number)
          return {
            useTools,
            busybox,
            account: Number.isInteger(runAsUser) && Number.isInteger(runAsGroup) ? { runAsUser, runAsGroup } : {},
          }
        },
      )
      tools = asked
      asked.catch(() => tools === asked && (tools = undefined))
    }
    return tools
  }

  // ---- what the cluster tells

  const pods = new Map<string, TaskPod>()
  /** Where no file system is shared. A configuration that is wrong is told at the first call. */
  const courier: Courier | undefined = configuration['volume'] === undefined ? openCourier({ cluster, namespace, shell, root }) : undefined
  /** By name of Pod, milliseconds of `performance.now()`. */
  const deletingSince = new Map<string, number>()
  const hopelessSince = new Map<string, number>()
  const pulls = new Map<string, number>()
  let standing = false
  let stopWatching: (() => void) | undefined
  let onPodEnd: (name: string) => void = () => undefined

  const since = (times: Map<string, number>, name: string, holds: boolean): void => {
    if (!holds) times.delete(name)
    else if (!times.has(name)) times.set(name, performance.now())
  }
  const note = (api: ApiPod): void => {
    const pod = taskPodOf(api)
    if (pod === undefined) return
    const at = placeOf(pod.job, pod.index)
    pods.set(at, pod)
    since(deletingSince, pod.name, pod.deleting !== undefined)
    if (isHopeless(pod) || pod.waiting === undefined) since(hopelessSince, pod.name, isHopeless(pod))
    courier?.see(pod)
    const name = namesAt.get(at)
    if (name !== undefined && isPodOver(pod)) onPodEnd(name)
  }
  const forgetPod = ({ metadata: { name } = {} }: ApiPod): void => {
    if (name === undefined) return
    for (const times of [deletingSince, hopelessSince]) times.delete(name)
  }
  const follow = (): void => {
    if (closed) return
    stopWatching ??= cluster.watch<ApiPod>(
      podsPath,
      { labelSelector: ours },
      {
        listed(items) {
          pods.clear()
          courier?.keep(new Set(items.flatMap(({ metadata: { name } = {} }) => name ?? [])))
          for (const item of items) note(item)
        },
        changed(how, api) {
          if (how !== 'DELETED') return note(api)
          const pod = taskPodOf(api)
          forgetPod(api)
          if (pod === undefined) return
          courier?.drop(pod.name)
          const at = placeOf(pod.job, pod.index)
          // What it was at last: an eviction is told by the Pod that goes.
          if (pods.get(at)?.name === pod.name) pods.delete(at)
          if (isPodOver(pod) || pod.disruption !== undefined) leave(at, pod)
          const name = namesAt.get(at)
          if (name !== undefined) onPodEnd(name)
        },
        standing: (now) => (standing = now),
      },
    )
  }
  /** The last state of Pods that are gone; the oldest are forgotten. */
  const gone = new Map<string, TaskPod>()
  const leave = (at: string, pod: TaskPod): void => {
    gone.set(at, pod.courier === undefined ? pod : { ...pod, courier: 'over' })
    forgetOldest(gone)
  }

  interface Cluster {
    pods: Map<string, TaskPod>
    jobs: Map<string, ApiJob>
    /** Why a Job makes no Pod, by its name. */
    words: Map<string, string>
    /** When it was asked, milliseconds of `performance.now()`: what was made later is not in it. */
    at: number
  }
  /** Asked where the watch knows no Pod: it may be late. */
  const askCluster = kept(Math.max(1000, pollMilliseconds * 0.9), async (): Promise<Cluster> => {
    const at = performance.now()
    const [found, jobs, events] = await Promise.all([
      cluster.list<ApiPod>(podsPath, { labelSelector: ours }),
      cluster.list<ApiJob>(jobsPath, { labelSelector: ours }),
      cluster
        .list<ApiEvent>(eventsPath, { fieldSelector: 'involvedObject.kind=Job,reason=FailedCreate' })
        .catch(() => ({ items: [] as ApiEvent[] })),
    ])
    const here = found.items.flatMap((item) => taskPodOf(item) ?? [])
    return {
      pods: new Map(here.map((pod) => [placeOf(pod.job, pod.index), pod])),
      jobs: new Map(jobs.items.map((job) => [job.metadata?.name ?? '', job])),
      words: new Map(events.items.map(({ involvedObject, message = '' }) => [involvedObject?.name ?? '', message])),
      at,
    }
  })

  // ---- what is so

  /** While the courier stays, an end has not come yet: the outputs are on their way. Nor has a start, before all is delivered. */
  const asSeen = (pod: TaskPod, sight: RemoteSight): TaskPod => {
    if (courier === undefined || pod.courier !== 'running') return pod
    const { startedAt, terminated, ...rest } = pod
    if (sight.form === 'ended' || sight.form === 'buried') return pod
    if (sight.form !== 'none') return startedAt === undefined ? rest : { ...rest, startedAt }
    const words = courier.trouble(pod.name)
    const waiting = words === undefined ? {} : { waiting: { reason: 'Delivery', message: words } }
    return { ...rest, ...(terminated === undefined ? waiting : { terminated }) }
  }
  /** Beside the words of the cluster. */
  const withCarriage = (verdict: Verdict, sight: RemoteSight, place: BookEntry['place']): Verdict => {
    if (courier === undefined || verdict.end !== 'lost' || sight.form !== 'started') return verdict
    const name = (pods.get(placeOf(place.array, place.index)) ?? gone.get(placeOf(place.array, place.index)))?.name
    const words = name === undefined ? undefined : courier.trouble(name)
    return { ...verdict, cause: `${verdict.cause}; its outputs had not been fetched${words === undefined ? '' : ` (${words})`}` }
  }

  interface Found {
    state: TaskState
    sight: RemoteSight
    entry?: BookEntry
  }
  type Open = Found & { entry: BookEntry }

  /** What the records alone tell; `open` needs the cluster. */
  async function seeRecords(names: readonly string[]): Promise<{ found: Map<string, Found>; open: Map<string, Open> }> {
    const found = new Map<string, Found>()
    const open = new Map<string, Open>()
    if (names.length === 0) return { found, open }
    const [sights, entries] = await Promise.all([tasks.look(names, { processes: false }), books.read(names)])
    const unburied = names.filter((name) => entries.get(name)?.verdict?.end === 'never' && (sights.get(name)?.form ?? 'none') === 'none')
    if (unburied.length > 0) {
      await tasks.markCancelled(unburied, 0)
      for (const [name, sight] of await tasks.look(unburied, { processes: false })) sights.set(name, sight)
    }
    for (const name of names) {
      const sight = sights.get(name) ?? { form: 'none' }
      const written = entries.get(name)
      const verdict = written?.verdict?.end === 'never' && sight.form !== 'buried' ? undefined : written?.verdict
      const place = written?.place ?? { array: name, index: 0, submittedAt: 0 }
      const cancelAsked = written?.cancelAsked ?? false
      const entry: BookEntry = { place, cancelAsked, ...(verdict === undefined ? {} : { verdict }) }
      const booked = written === undefined ? {} : { entry }
      const silent = {
        sight,
        place,
        cancelAsked,
        pod: 'silent',
        job: 'silent',
        overSeconds: 0,
        deletingSeconds: 0,
        pullSeconds: 0,
      } as const
      const { state } = judgePod(silent, settings())
      const settled =
        sight.form === 'buried' || (sight.form === 'ended' && (!isUnsure(sight) || (sight.reason === 'stopped' && cancelAsked)))
      if (verdict !== undefined) found.set(name, { state: stateOfEnd(verdict, sight, place), sight, ...booked })
      else if (settled) found.set(name, { state, sight, ...booked })
      else if (sight.form === 'none' && place.job === undefined) found.set(name, { state: { state: 'unknown' }, sight, ...booked })
      else {
        open.set(name, { state, sight, entry })
        namesAt.set(placeOf(place.array, place.index), name)
        continue
      }
      for (const memory of [overSince, requestsOf]) memory.delete(name)
      namesAt.delete(placeOf(place.array, place.index))
    }
    return { found, open }
  }

  /** The same with what the cluster says; what it alone knows is written down. */
  async function weigh(open: ReadonlyMap<string, Open>): Promise<Map<string, Found>> {
    const found = new Map<string, Found>(open)
    if (open.size === 0) return found
    follow()
    const now = Date.now() / 1000
    const missing = [...open.values()].some(
      ({ entry: { place } }) => standing && !pods.has(placeOf(place.array, place.index)) && now - place.submittedAt > newSeconds,
    )
    const asked = missing ? await askCluster().catch(() => 'silent' as const) : 'silent'
    const judgeOne = (name: string, sight: RemoteSight, { place, cancelAsked }: BookEntry): KubernetesJudgement => {
      const at = placeOf(place.array, place.index)
      const seen = pods.get(at) ?? gone.get(at)
      const pod = seen ?? (asked === 'silent' || now - place.submittedAt <= newSeconds ? 'silent' : (asked.pods.get(at) ?? 'absent'))
      const job = asked === 'silent' ? 'silent' : (asked.jobs.get(place.array) ?? 'absent')
      const words = asked === 'silent' ? undefined : asked.words.get(place.array)
      const spent = (times: Map<string, number>): number => {
        const from = seen === undefined || !standing ? undefined : times.get(seen.name)
        return from === undefined ? 0 : (performance.now() - from) / 1000
      }
      const until = seen === undefined && asked !== 'silent' ? asked.at : performance.now()
      return judgePod(
        {
          sight,
          place,
          cancelAsked,
          pod: pod === 'silent' || pod === 'absent' ? pod : asSeen(pod, sight),
          job,
          ...(words === undefined ? {} : { jobWords: words }),
          // What was seen before the cluster fell silent does not become the truth by waiting: the reason may be on its way. Nor does one answer.
          overSeconds: seen !== undefined && !standing ? 0 : Math.max(0, until - (overSince.get(name) ?? until)) / 1000,
          deletingSeconds: spent(deletingSince),
          pullSeconds: spent(hopelessSince),
        },
        settings(),
      )
    }
    const doubtful = new Map<string, Open>()
    for (const [name, { sight, entry }] of open) {
      const { state, over, verdict, record, impossible: words } = judgeOne(name, sight, entry)
      since(overSince, name, over && (standing || !pods.has(placeOf(entry.place.array, entry.place.index))))
      found.set(name, { state, sight, entry })
      if (verdict !== undefined || record !== undefined || words !== undefined) doubtful.set(name, { state, sight, entry })
    }
    for (const [name, one] of await decide(doubtful, judgeOne)) found.set(name, one)
    return found
  }

  async function see(names: readonly string[]): Promise<Map<string, Found>> {
    const { found, open } = await seeRecords(names)
    return new Map([...found, ...(await weigh(open)), ...(await bereft(unbooked(found)))])
  }
  const unbooked = (found: ReadonlyMap<string, Found>): string[] =>
    [...found].flatMap(([name, { state, entry }]) => (state.state === 'unknown' && entry === undefined ? [name] : []))

  /** Whether what the keeper has goes with its Pod. */
  const isFleeting = (): boolean => courier !== undefined && settings().keeperVolume === undefined
  const ownMarks = async ({ tasks: names }: TaskJob): Promise<{ annotations?: Record<string, string> }> =>
    courier !== undefined && isFleeting()
      ? { annotations: { [annotations.keeper]: await courier.keeperToken(), [annotations.names]: names.join(' ') } }
      : {}
  /** Told once by their Pods' end. */
  const ended = new Set<string>()
  /** Of the keeper that has the files of all Jobs there are: those to come are its too. */
  let onlyKeeper = ''
  /** Those that a Job has whose files went with an earlier keeper. Their Pods are taken away: nobody can use what they do. */
  async function bereft(names: readonly string[]): Promise<Map<string, Found>> {
    const lost = new Map<string, Found>()
    if (courier === undefined || names.length === 0 || !isFleeting()) return lost
    const token = await courier.keeperToken()
    if (token === onlyKeeper) return lost
    const { items } = await ask(cluster.list<ApiJob>(jobsPath, { labelSelector: ours }))
    if (items.every(({ metadata }) => [undefined, token].includes(metadata?.annotations?.[annotations.keeper]))) onlyKeeper = token
    const asked = new Set(names)
    const elements = new Map<string, number[]>()
    for (const { metadata: { name: job = '', annotations: marks = {} } = {} } of items) {
      if (marks[annotations.keeper] === undefined || marks[annotations.keeper] === token) continue
      for (const [index, name] of (marks[annotations.names] ?? '').split(' ').entries()) {
        if (!asked.has(name)) continue
        const externalId = indexedName({ array: job, index, submittedAt: 0 })
        const cause = 'the Pod of the keeper is gone, and the files of the task with it; keeperVolume would have kept them'
        lost.set(name, { state: { state: 'lost', externalId, startedAt: Date.now() / 1000, cause }, sight: { form: 'none' } })
        if (!ended.has(externalId)) elements.set(job, [...(elements.get(job) ?? []), index])
      }
    }
    await deletePods(elements, cancelPatienceMs / 4000)
    for (const [job, indexes] of elements) for (const index of indexes) ended.add(`${job}-${index}`)
    return lost
  }

  /** The records are asked once more, after the cluster; what it alone knows is then written down. What never started never will. */
  async function decide(
    doubtful: ReadonlyMap<string, Open>,
    judgeOne: (name: string, sight: RemoteSight, entry: BookEntry) => KubernetesJudgement,
  ): Promise<Map<string, Found>> {
    const found = new Map<string, Found>()
    if (doubtful.size === 0) return found
    const names = [...doubtful.keys()]
    const hopeless: string[] = []
    const unstarted: string[] = []
    const records: string[] = []
    for (const [name, { sight, entry }] of doubtful) {
      const { impossible: words, verdict, record } = judgeOne(name, sight, entry)
      if (record !== undefined) {
        const hundredths = Math.round((record.finishedAt - record.startedAt) * 100)
        const node = pods.get(placeOf(entry.place.array, entry.place.index))?.node ?? '-'
        records.push(`${name} ${record.startedAt} ${record.exitCode} ${hundredths} ${node}`)
      }
      if (sight.form !== 'none') continue
      const request = requestsOf.get(name)
      if (words !== undefined) hopeless.push(name)
      if (words !== undefined && request !== undefined) impossible.set(request, { words, until: performance.now() + impossibleKeptMs })
      const cause = words ?? (verdict?.end === 'never' ? verdict.cause : undefined)
      if (cause === undefined) continue
      unstarted.push(name)
      await books.settle(name, { end: 'never', cause, at: Date.now() / 1000 })
    }
    if (unstarted.length > 0) await tasks.markCancelled(unstarted, 0)
    if (records.length > 0) await writeRecords(records)
    const [again, entries] = await Promise.all([tasks.look(names, { processes: false }), books.read(names)])
    for (const [name, { entry }] of doubtful) {
      const { place } = entry
      const sight = again.get(name) ?? { form: 'none' }
      const judged = judgeOne(name, sight, entry)
      const written = sight.form === 'buried' ? entries.get(name)?.verdict : judged.verdict
      const verdict =
        written === undefined || written.end === 'never' ? written : await books.settle(name, withCarriage(written, sight, place))
      overSince.delete(name)
      if (verdict === undefined) found.set(name, { state: judged.state, sight, entry })
      else found.set(name, { state: stateOfEnd(verdict, sight, place), sight, entry: { ...entry, verdict } })
    }
    if (hopeless.length > 0) await deletePods(elementsOf(hopeless, found), 0).catch(() => undefined)
    return found
  }

  /** In the words of a supervisor: from then on the record tells, and no late start is possible. Lines `NAME START CODE HUNDREDTHS NODE`. */
  async function writeRecords(records: readonly string[]): Promise<void> {
    const { code, stderr } = await shell.run(
      `umask 077; cd ${quote(`${await root()}/tasks`)} || exit; set -C
while read -r name start code spent node; do
  { printf 'start %s.pod 0 0 - %s 0 %s\\nexit %s exited %s .\\n' "$name" "$node" "$start" "$code" "$spent" > "$name.task"; } 2> /dev/null && echo "$name" >> ../ends
done
:`,
      { input: `${records.join('\n')}\n` },
    )
    if (code !== 0) throw new DriverError('infrastructure', `cannot write the records of ended Pods: ${stderr.trim().slice(-500)}`)
  }

  type Elements = ReadonlyMap<string, readonly number[]>
  const elementsOf = (names: Iterable<string>, found: ReadonlyMap<string, Found>): Elements => {
    const elements = new Map<string, number[]>()
    for (const name of names) {
      const place = found.get(name)?.entry?.place
      if (place?.job === undefined) continue
      elements.set(place.array, [...(elements.get(place.array) ?? []), place.index])
    }
    return elements
  }
  /** An index whose Pod is deleted has failed, and is not tried again. */
  const deletePods = async (elements: Elements, graceSeconds: number): Promise<void> => {
    for (const [job, indexes] of elements)
      for (let from = 0; from < indexes.length; from += indexesAtOnce) {
        const some = indexes.slice(from, from + indexesAtOnce)
        await ask(
          cluster.request({
            verb: 'delete',
            path: podsPath,
            query: { labelSelector: `${labels.job}=${job},${labels.index} in (${some.join(',')})` },
            body: { apiVersion: 'v1', kind: 'DeleteOptions', gracePeriodSeconds: Math.ceil(graceSeconds) },
          }),
        )
      }
  }
  const deleteJobs = async (jobs: Iterable<string>): Promise<void> => {
    for (const job of jobs)
      await ask(
        cluster
          .request({
            verb: 'delete',
            path: `${jobsPath}/${job}`,
            body: { apiVersion: 'v1', kind: 'DeleteOptions', propagationPolicy: 'Background' },
          })
          .catch((error: unknown) => {
            if (!isStatus(error, 404)) throw error
          }),
      )
  }

  const isOver = (state: TaskState | undefined): boolean => state?.state === 'ended' || state?.state === 'lost'
  let weighing = false
  const lookForEnds = async (names: readonly string[]): Promise<string[]> => {
    const { found, open } = await seeRecords(names)
    if (open.size > 0 && !weighing) {
      weighing = true
      // It writes down what it finds, and that is read next time.
      void weigh(open)
        .catch(() => undefined)
        .finally(() => (weighing = false))
    }
    const lost = await bereft(unbooked(found))
    return [...found, ...lost].filter(([, { state }]) => isOver(state)).map(([name]) => name)
  }
  const seeOne = gather(see, { most: 1000 })
  const seeRecord = gather(async (names: readonly string[]) => {
    const { found } = await seeRecords(names)
    return new Map(names.map((name) => [name, { found: found.get(name) }]))
  })
  const watcher = openRemoteWatch({
    look: lookForEnds,
    follow: (ended, stands) => {
      const tell = (name: string): void => {
        seeOne(name)
          .then(({ state }) => (isOver(state) ? ended(name) : undefined))
          .catch(() => undefined)
      }
      onPodEnd = tell
      const stop = tasks.onEnds(tell, stands)
      return () => {
        onPodEnd = () => undefined
        stop()
      }
    },
    pollMilliseconds,
  })

  // ---- submit

  type Scripts = ReadonlyMap<string, ArrayElement>
  type Placed = Map<string, string | DriverError>

  const isThere = async (job: string): Promise<boolean> => {
    try {
      await cluster.request({ path: `${jobsPath}/${job}` })
      return true
    } catch (error) {
      if (isStatus(error, 404)) return false
      throw troubleOf(error)
    }
  }
  const removed = (name: string): DriverError => new DriverError('infrastructure', `${name} was removed while it was submitted`)
  /** Undefined for a name that no Job has. */
  async function idsOf(names: readonly string[]): Promise<Map<string, string | undefined>> {
    const entries = await books.read(names)
    return new Map(names.map((name) => [name, entries.has(name) ? indexedName(entries.get(name)!.place) : undefined]))
  }

  /** Makes a Job, or finds it made; answers the ids of its names, or why not. */
  async function place(job: TaskJob, scripts: Scripts): Promise<Placed> {
    const until = performance.now() + submitPatienceMs
    const elements = job.tasks.map((name) => scripts.get(name) ?? { script: name })
    const pack = `${randomBytes(6).toString('hex')}.pack`
    const { bytes } = packOf(elements)
    const at = await root()
    const { useTools, busybox, account } = await withTools()
    const script = jobScript(
      elements,
      `../arrays/${job.name}/${pack}`,
      at,
      await tasks.foregroundCommand('"$script"'),
      useTools,
      courier !== undefined,
    )
    // In the books a Job is an array that is accepted as soon as it is made: its name is its id.
    const array = { name: job.name, request: { cores: 0, gpus: 0 }, tasks: job.tasks }
    for (let wait = 100; ; wait = Math.min(wait * 2, 2000)) {
      if (closed) throw new DriverError('infrastructure', 'the kubernetes driver is closed; open another')
      const claim = await books.claim(array, script)
      if (claim.state === 'accepted') return new Map([...(await idsOf(job.tasks))].map(([name, id]) => [name, id ?? removed(name)]))
      if (claim.state === 'ours') {
        const mine = claim.indexes.flatMap((index) => job.tasks[index] ?? [])
        if (mine.length < job.tasks.length) {
          // A Job has no holes: what others hold is theirs, the rest becomes another.
          await books.release(job.name, mine)
          const results: Placed = new Map()
          for (const [name, entry] of claim.held) results.set(name, await adopt(name, entry))
          for (const part of jobsOf(new Map(mine.map((name) => [name, job.request])), { runtime, root: at }))
            for (const [name, result] of await place(part, scripts)) results.set(name, result)
          for (const name of job.tasks) if (!results.has(name)) results.set(name, name)
          return results
        }
        const sh = useTools ? `${at}/${toolsFolder}/sh` : '/bin/sh'
        const path = `${at}/arrays/${job.name}/script`
        const command = courier === undefined ? [sh, path] : [sh, '-c', waitScript(at, path, sh)]
        try {
          if (bytes.length > 0) await books.fill(job.name, pack, bytes)
          const body = jobManifest(job, {
            namespace,
            runtime,
            settings: { ...settings(), runAs: { ...account, ...settings().runAs } },
            command,
            ...(courier === undefined
              ? {}
              : { courier: { install: installScript(at, busybox), stay: stayScript(at), ...(await ownMarks(job)) } }),
          })
          await cluster.request({ verb: 'create', path: jobsPath, body })
        } catch (error) {
          if (!isStatus(error, 409) || (error as KubernetesError).reason !== 'AlreadyExists') {
            const trouble = troubleOf(error)
            // Where nothing is known the claim stays: whoever comes next asks by the Job's name.
            if (trouble.trouble === 'unknown') throw trouble
            await books.release(job.name, mine)
            if (/exceeded quota/.test(trouble.message))
              throw new DriverError('unknown', `the namespace's quota has no room: ${trouble.message}`, { cause: error })
            throw trouble
          }
        }
        await books.accepted(job.name, '1')
        jobTasks.set(job.name, job.tasks)
        forgetOldest(jobTasks)
        for (const [index, name] of job.tasks.entries()) namesAt.set(placeOf(job.name, index), name)
        return new Map(job.tasks.map((name, index) => [name, `${job.name}-${index}`]))
      }
      if (claim.ageSeconds > settings().claimSeconds) {
        if (await isThere(job.name)) await books.accepted(job.name, '1')
        else await books.release(job.name, job.tasks)
      } else if (performance.now() > until)
        throw new DriverError('unknown', `${job.name} is being submitted by another worker since ${claim.ageSeconds} s`)
      else await sleep(wait)
    }
  }

  /** A name that a Job has of which nobody knows whether it was made: its maker is waited for, as long as one may take. */
  async function adopt(name: string, held: BookEntry): Promise<string | DriverError> {
    const until = performance.now() + submitPatienceMs
    let entry: BookEntry | undefined = held
    for (let wait = 100; ; wait = Math.min(wait * 2, 2000)) {
      if (entry === undefined) return new DriverError('unknown', `${name} was given back by the worker that submitted it`)
      const { place: at } = entry
      if (at.job !== undefined) return indexedName(at)
      if (await isThere(at.array)) {
        await books.accepted(at.array, '1')
        return indexedName(at)
      }
      const late = Date.now() / 1000 - at.submittedAt > settings().claimSeconds
      if (late) await books.release(at.array, [name])
      if (late || closed || performance.now() > until)
        return new DriverError('unknown', `${name} is being submitted as part of ${at.array}`)
      await sleep(wait)
      entry = (await books.read([name])).get(name)
    }
  }

  async function submitSome(intents: readonly Intent[]): Promise<Placed> {
    const results: Placed = new Map()
    const requests = new Map<string, PodRequest>()
    await ready()
    await watcher.ready()
    follow()
    const at = await root()
    for (const intent of intents) {
      try {
        if (courier !== undefined && !intent.directory.startsWith(`${at}/`))
          throw new DriverError(
            'refused',
            `${intent.name}: directory ${JSON.stringify(intent.directory)} must lie below ${at}, as there is no volume`,
          )
        const request = podRequestOf(intent, settings())
        const hopeless = impossible.get(requestKey(request))
        if (hopeless !== undefined && hopeless.until > performance.now())
          throw new DriverError('refused', `${intent.name}: image ${JSON.stringify(request.image)} cannot be run here (${hopeless.words})`)
        requests.set(intent.name, request)
      } catch (error) {
        results.set(intent.name, troubleOf(error))
      }
    }
    // What was accepted earlier stays so.
    const refused = [...results.keys()].filter((name) => /^[a-z0-9-]{1,63}$/.test(name))
    for (const [name, { state, entry }] of await see(refused))
      if (state.state !== 'unknown') results.set(name, entry === undefined ? name : indexedName(entry.place))

    for (const [name, { state }] of await bereft([...requests.keys()])) {
      requests.delete(name)
      results.set(name, state.state === 'lost' ? state.externalId : name)
    }
    const prepared = await tasks.prepare(intents.filter(({ name }) => requests.has(name)))
    const known: string[] = []
    const able = new Map<string, PodRequest>()
    const scripts = new Map<string, ArrayElement>()
    for (const [name, outcome] of prepared) {
      const request = requests.get(name)
      if (outcome.state === 'failed') results.set(name, outcome.error)
      else if (outcome.state === 'known') known.push(name)
      else if (request !== undefined) {
        able.set(name, request)
        scripts.set(name, outcome)
      }
    }
    for (const [name, request] of able) requestsOf.set(name, requestKey(request))
    for (const [name, id] of await idsOf(known)) results.set(name, id ?? name)
    for (const job of jobsOf(able, { runtime, root: at })) {
      const placed = await place(job, scripts).catch((error: unknown) => troubleOf(error))
      for (const name of job.tasks) results.set(name, placed instanceof DriverError ? placed : (placed.get(name) ?? name))
    }
    return results
  }

  /** Submits that come together are one Job: what costs is the request. */
  const submitOne = gather(
    async (intents: readonly Intent[]) => {
      const results = await submitSome([...new Map(intents.map((intent) => [intent.name, intent])).values()])
      return new Map(intents.map((intent) => [intent, { outcome: results.get(intent.name) ?? removed(intent.name) }]))
    },
    { milliseconds: 20, most: 10_000 },
  )

  async function cancel(names: readonly string[], graceSeconds: number): Promise<void> {
    if (names.length === 0) return
    // Whose files are gone are not known by them.
    await bereft(names)
    await tasks.markCancelled(names, graceSeconds)
    const from = performance.now()
    let left = [...names]
    const jobs = new Set<string>()
    let told = false
    for (let wait = 100; ; wait = Math.min(wait * 1.5, 2000)) {
      const found = await see(left)
      if (!told) {
        // Buried names may still wait for a node: they would only start to leave at once.
        const living = left.filter((name) => found.get(name)?.sight.form === 'buried' || !isOver(found.get(name)?.state))
        const elements = elementsOf(living, found)
        if (courier === undefined) await deletePods(elements, graceSeconds)
        else {
          const waiting = new Set(living.filter((name) => found.get(name)?.sight.form === 'buried'))
          const begun = living.filter((name) => !waiting.has(name))
          const there = await Promise.all(begun.map(async (name) => ({ name, pod: await podAt(found.get(name)?.entry?.place) })))
          await courier.markCancelled(
            there.flatMap(({ name, pod }) => (pod === undefined ? [] : [{ pod: pod.name, name }])),
            graceSeconds,
          )
          await deletePods(elementsOf(waiting, found), graceSeconds)
          await deletePods(elementsOf(begun, found), graceSeconds + fetchGraceSeconds)
        }
        for (const job of elements.keys()) jobs.add(job)
        told = true
      }
      left = left.filter((name) => !isOver(found.get(name)?.state) && found.get(name)?.state.state !== 'unknown')
      if (left.length === 0) break
      const spent = (performance.now() - from) / 1000
      if (spent > graceSeconds + cancelPatienceMs / 1000)
        throw new DriverError(
          'unknown',
          `${left.slice(0, 3).join(', ')}${left.length > 3 ? ' …' : ''} did not end within ${Math.round(spent)} s`,
        )
      await sleep(wait)
    }
    await dropJobs(jobs)
  }

  /** Jobs all of whose tasks are over make no Pods any more. */
  async function dropJobs(jobs: Iterable<string>): Promise<void> {
    for (const job of jobs) {
      const all = jobTasks.get(job)
      if (all === undefined) continue
      const { found, open } = await seeRecords(all)
      if (open.size > 0 || ![...found.values()].every(({ state }) => isOver(state))) continue
      await deleteJobs([job])
      jobTasks.delete(job)
    }
  }

  /** Of one that may run; asked for where the watch has not begun. */
  async function podAt(place: BookEntry['place'] | undefined): Promise<TaskPod | undefined> {
    if (place === undefined) return undefined
    const at = placeOf(place.array, place.index)
    return pods.get(at) ?? (standing ? undefined : (await askCluster().catch(() => undefined))?.pods.get(at))
  }

  // ---- collect

  /** Where tasks ran, as their Pods wrote it down. */
  const whereOf = gather(
    async (names: readonly string[]) => {
      const { stdout } = await shell.run(
        `cd ${quote(`${await root()}/tasks`)} 2> /dev/null || exit 0
for each in ${quoteAll(names)}; do p= n=; { read -r p n < "$each.place"; } 2> /dev/null; echo "$each $p $n"; done`,
      )
      const lines = stdout
        .toString()
        .split('\n')
        .map((line) => line.split(' '))
      const places = new Map(lines.map(([name = '', pod = '', node = '']) => [name, { pod, node }]))
      return new Map(names.map((name) => [name, places.get(name) ?? { pod: '', node: '' }]))
    },
    { most: 500 },
  )
  const readPulls = kept(eventsKeptMs, async () => {
    const { items } = await cluster.list<ApiEvent>(eventsPath, { fieldSelector: 'involvedObject.kind=Pod,reason=Pulled' })
    for (const { involvedObject, message = '' } of items) {
      // The helper's image is not the task's.
      if (involvedObject?.fieldPath !== undefined && !involvedObject.fieldPath.includes(`{${containerName}}`)) continue
      const seconds = pullSecondsOf(message)
      if (involvedObject?.name !== undefined && seconds !== undefined) pulls.set(involvedObject.name, seconds)
      forgetOldest(pulls)
    }
  })

  /** The helper image with its digest, once the keeper was seen; the record does without where it cannot be asked for. */
  let helper: string | undefined
  const helperImage = async (): Promise<string | undefined> => {
    if (helper !== undefined) return helper
    const path = `/api/v1/namespaces/${namespace}/pods/${keeperName(runtime)}`
    const pod = await cluster.request<{ status?: { containerStatuses?: { imageID?: string }[] } }>({ path }).catch(() => undefined)
    const digest = /sha256:[0-9a-f]{64}/.exec(pod?.status?.containerStatuses?.[0]?.imageID ?? '')?.[0]
    if (digest !== undefined) helper = `${settings().helperImage}@${digest}`
    return helper
  }

  async function detailOf(name: string, entry: BookEntry | undefined, ran: boolean): Promise<{ node?: string; detail: PlaceDetail }> {
    const at = entry === undefined ? '' : placeOf(entry.place.array, entry.place.index)
    let seen = pods.get(at) ?? gone.get(at)
    // A short task's record is there before its node has told the cluster what it started: within a second, or some on a loaded node.
    for (let tries = 0; ran && seen?.startedAt === undefined && pods.has(at) && tries < 20; tries++) {
      await sleep(250)
      seen = pods.get(at) ?? gone.get(at)
    }
    const told = seen?.node !== undefined ? { pod: seen.name, node: seen.node } : await whereOf(name)
    if (seen !== undefined && !pulls.has(seen.name)) await readPulls().catch(() => undefined)
    const pullSeconds = seen === undefined ? undefined : pulls.get(seen.name)
    const helperWas = await helperImage()
    return {
      ...(told.node === '' ? {} : { node: told.node }),
      detail: {
        ...(told.pod === '' ? {} : { pod: told.pod }),
        ...(seen?.engine === undefined ? {} : { engine: seen.engine }),
        ...(seen?.image === undefined ? {} : { image: seen.image }),
        ...(seen?.digest === undefined ? {} : { imageDigest: seen.digest }),
        ...(pullSeconds === undefined ? {} : { pullSeconds }),
        ...(helperWas === undefined ? {} : { helperImage: helperWas }),
      },
    }
  }

  /** Answered the same for ever, though Pods are forgotten. */
  const details = new Map<string, Promise<{ node?: string; detail: PlaceDetail }>>()
  const detailOnce = (name: string, entry: BookEntry | undefined, ran: boolean): Promise<{ node?: string; detail: PlaceDetail }> => {
    const asked = details.get(name) ?? detailOf(name, entry, ran)
    details.set(name, asked)
    asked.catch(() => details.delete(name))
    forgetOldest(details)
    return asked
  }

  async function collect(name: string): Promise<Collected> {
    const found = (await seeRecord(name)).found ?? (await seeOne(name))
    const { state } = found
    if (state.state !== 'ended')
      throw new DriverError('unknown', `${name} has no recorded end; find tells whether it runs, is lost or was never started`)
    const { entry, sight } = found
    const queued = entry === undefined || sight.form === 'buried' ? undefined : Math.max(0, state.startedAt - entry.place.submittedAt)
    const queueSeconds = queued === undefined ? {} : { queueSeconds: queued }
    const where: Partial<Awaited<ReturnType<typeof detailOf>>> =
      sight.form === 'buried' ? {} : await detailOnce(name, entry, sight.form === 'ended')
    if (sight.form === 'ended' || sight.form === 'buried') {
      const { sight: _, ...rest } = await tasks.collect(name)
      // Inside a Pod the host has the Pod's name.
      const manifest = where.node === undefined ? rest.manifest : { ...rest.manifest, hostname: where.node }
      return { ...rest, manifest, ...queueSeconds, ...where, state }
    }
    const summary = { initialFiles: 0, finalFiles: 0, createdFiles: 0, modifiedFiles: 0, deletedFiles: 0, outputBytes: 0 }
    const { bytes } = await tasks.logs(name, 'stderr', { tail: 4096 })
    const hostname = where.node ?? ''
    return {
      state,
      submittedAt: entry?.place.submittedAt ?? state.startedAt,
      ...queueSeconds,
      ...where,
      wallSeconds: state.finishedAt - state.startedAt,
      cpuSeconds: null,
      peakMemoryBytes: null,
      measuredBy: 'none',
      manifest: { schemaVersion: 1, runtime, hostname, root: '', files: [], summary },
      missingOutputs: [],
      stderrTail: bytes.toString().trimEnd().split('\n').slice(-20).join('\n'),
    }
  }

  /** A Job goes with the last of its names. */
  const unbook = gather(async (names: readonly string[]) => {
    const entries = await books.read(names)
    const jobs = [...new Set([...entries.values()].map(({ place: { array } }) => array))]
    await books.remove(names)
    if (jobs.length > 0) {
      const { stdout } = await shell.run(
        `cd ${quote(await root())} 2> /dev/null || exit 0; for each in ${quoteAll(jobs)}; do [ -d "arrays/$each" ] || echo "$each"; done`,
      )
      const over = stdout
        .toString()
        .split('\n')
        .filter((line) => line !== '')
      await deleteJobs(over)
      for (const job of over) jobTasks.delete(job)
    }
    return new Map(names.map((name): [string, { place: BookEntry['place'] | undefined }] => [name, { place: entries.get(name)?.place }]))
  })

  return {
    kind: 'kubernetes',
    capabilities: { ...kubernetesCapabilities, sharedStorage: courier === undefined },
    root,
    async submit(intents) {
      if (closed) throw new DriverError('infrastructure', 'the kubernetes driver is closed; open another')
      return outcomesOf(intents, submitOne, troubleOf)
    },
    find: async (names) => new Map([...(await see(names))].map(([name, { state }]) => [name, state])),
    watch: (names, onEnd) => watcher.watch(names, onEnd),
    cancel,
    collect,
    async logs(name, stream, range) {
      const pod = courier === undefined ? undefined : await podAt((await books.read([name])).get(name)?.place)
      const there = pod === undefined ? undefined : await courier?.logs(pod, name, stream, range)
      return there ?? tasks.logs(name, stream, range)
    },
    async remove(name) {
      const { state } = await seeOne(name)
      if (state.state === 'running' || state.state === 'queued')
        throw new DriverError('refused', `${name} is ${state.state}; cancel it before removing it`)
      const { place: at } = await unbook(name)
      await tasks.remove(name)
      await courier?.forget(name)
      for (const memory of [requestsOf, overSince, details]) memory.delete(name)
      if (at !== undefined) for (const memory of [namesAt, gone]) memory.delete(placeOf(at.array, at.index))
      watcher.forget(name)
    },
    async close() {
      closed = true
      courier?.close()
      stopWatching?.()
      watcher.close()
    },
  }
}
