import type {
  BatchElement,
  BatchEvidence,
  BatchJudgement,
  BatchScheduler,
  QueuedElement,
} from '../batch/scheduler.ts'
import { NoRoom } from '../batch/scheduler.ts'
import type { BatchSite } from '../batch/site.ts'
import { capabilitiesOf, DriverError } from '../contract/driver.ts'
import type { RemoteSight } from '../remote/record.ts'
import type { Courier } from './courier/courier.ts'
import { installScript, stayScript, waitScript } from './courier/scripts.ts'
import { openDetails } from './detail.ts'
import {
  jobManifest,
  jobScript,
  mostTasks,
  podRequestOf,
  toolsFolder,
  type PodRequest,
  type TaskJob,
} from './job.ts'
import { createJob, deleteJobs, deletePods, jobNamed } from './jobs.ts'
import { openKeeperLoss } from './keeper-loss.ts'
import type { Namespace } from './namespace.ts'
import { openPodWatch, type ClusterAnswer, type PodWatch } from './pod-watch.ts'
import { podKey, type ApiJob, type TaskPod } from './pods.ts'
import { eachOf } from '../../../pacing/each-of.ts'
import { kept } from '../../../pacing/kept.ts'
import { checkNamespace } from './readiness.ts'
import type { KubernetesSettings } from './settings.ts'
import { indexedName, isUnsure, judgePod } from './state.ts'
import { siteTools, type SiteTools } from './tools.ts'
import { kubernetesTrouble } from './trouble.ts'

/** All its capabilities: `sharedStorage` only with a volume. */
export const kubernetesCapabilities = capabilitiesOf(
  'batch',
  'interactive',
  'container',
  'gpu',
  'sharedStorage',
  'dataStaging',
  'cancellation',
  'logStreaming',
)

/**
 * The controller needs this long to make the Pods of a new Job: before that, a missing Pod means
 * nothing.
 */
const newSeconds = 5
/** Jobs that are asked for by name at once. */
const jobsAtOnce = 8
/** Time beyond the grace of a cancel, for the transfer of the outputs. */
const fetchGraceSeconds = 30

/** Why no Pod can take an image, in the cluster's words. */
const hopelessText = ({ image, inPlace }: PodRequest, words: string): string =>
  `image ${JSON.stringify(image)} cannot be run here (${words})` +
  (inPlace === true
    ? '; use-in-place pulls nothing: load it on the nodes, or give delivery.strategy destination-pull or auto'
    : '')

interface KubernetesListing {
  asked: ClusterAnswer | 'silent'
  /** Jobs that the answer does not list, asked for by name. */
  byName: ReadonlyMap<string, ApiJob | 'absent' | 'silent'>
  /** When the request was made, seconds since epoch. */
  at: number
}

export interface KubernetesAdapterOptions {
  site: BatchSite
  at: Namespace
  /** Read and checked at the first use. @throws DriverError `refused` */
  settings: () => KubernetesSettings
  /** Present where no file system is shared. */
  courier: Courier | undefined
  pollMilliseconds: number
}

/**
 * While the courier stays, the end does not count yet: the outputs are on their way. Before all
 * files are delivered, and the keeper has written the record, the start does not count either.
 */
const withCourier = (courier: Courier | undefined, pod: TaskPod, sight: RemoteSight): TaskPod => {
  if (courier === undefined || pod.courier !== 'running') return pod
  const { startedAt, terminated, ...rest } = pod
  if (sight.form === 'ended' || sight.form === 'buried') return pod
  if (sight.form === 'started') return startedAt === undefined ? rest : { ...rest, startedAt }
  const words = courier.trouble(pod.name)
  const waiting = words === undefined ? {} : { waiting: { reason: 'Delivery', message: words } }
  return { ...rest, ...(terminated === undefined ? waiting : { terminated }) }
}

/** The state from the watch, an answer of the server and the record together. */
function judgeKubernetes(
  { sight, place, cancelAsked, overSince }: BatchEvidence,
  listing: KubernetesListing | undefined,
  {
    watch,
    courier,
    settings,
  }: { watch: PodWatch; courier: Courier | undefined; settings: KubernetesSettings },
): BatchJudgement {
  const silent = {
    sight,
    place,
    carried: courier !== undefined,
    cancelAsked,
    pod: 'silent',
    job: 'silent',
    overSeconds: 0,
    deletingSeconds: 0,
    pullSeconds: 0,
  } as const
  if (listing === undefined) return judgePod(silent, settings)
  const { asked, byName, at } = listing
  const seen = watch.seen(place)
  const isNew = at - place.submittedAt <= newSeconds
  const pod =
    seen ??
    (asked === 'silent' || isNew ? 'silent' : (asked.pods.get(podKey(place.array, place.index)) ?? 'absent'))
  const words = asked === 'silent' ? undefined : asked.words.get(place.array)
  const spent = seen === undefined ? { deleting: 0, pulling: 0 } : watch.spent(seen)
  const until = seen === undefined && asked !== 'silent' ? asked.at : performance.now()
  // An old observation does not become true while the cluster is silent: the reason may be on its
  // way. One answer does not make it true either.
  const over = seen !== undefined && !watch.standing() ? 0 : Math.max(0, until - (overSince ?? until)) / 1000
  const judgement = judgePod(
    {
      ...silent,
      pod: pod === 'silent' || pod === 'absent' ? pod : withCourier(courier, pod, sight),
      job:
        asked === 'silent' ? 'silent' : (asked.jobs.get(place.array) ?? byName.get(place.array) ?? 'silent'),
      ...(words === undefined ? {} : { jobWords: words }),
      overSeconds: over,
      deletingSeconds: spent.deleting,
      pullSeconds: spent.pulling,
    },
    settings,
  )
  const { verdict } = judgement
  const trouble = seen === undefined ? undefined : courier?.trouble(seen.name)
  const unfetched = courier !== undefined && verdict?.end === 'lost' && sight.form === 'started'
  return {
    ...judgement,
    over: judgement.over && (watch.standing() || watch.here(place) === undefined),
    ...(verdict === undefined || !unfetched
      ? {}
      : {
          verdict: {
            ...verdict,
            cause: `${verdict.cause}; its outputs had not been fetched${trouble === undefined ? '' : ` (${trouble})`}`,
          },
        }),
  }
}

/** The server's answer about tasks whose Pods the watch does not know; new Pods may be on their way. */
async function listingOf(
  at: Namespace,
  watch: PodWatch,
  places: readonly QueuedElement[],
): Promise<KubernetesListing> {
  const now = Date.now() / 1000
  const missing = places.filter(
    (place) => watch.standing() && watch.here(place) === undefined && now - place.submittedAt > newSeconds,
  )
  const silent = { asked: 'silent', byName: new Map(), at: now } as const
  const asked = missing.length === 0 ? undefined : await watch.ask().catch(() => undefined)
  if (asked === undefined) return silent
  const unlisted = [...new Set(missing.map(({ array }) => array))].filter((job) => !asked.jobs.has(job))
  const byName = await eachOf(unlisted, jobsAtOnce, async (job) => {
    const found = await jobNamed(at, job).catch(() => 'silent' as const)
    return [job, found ?? 'absent'] as const
  })
  return { asked, byName: new Map(byName), at: now }
}

/** Indexed Jobs: an index is a task, tried once; its Pod shows why it ended. */
export function kubernetesAdapter(
  options: KubernetesAdapterOptions,
): BatchScheduler<PodRequest, KubernetesListing> {
  const { site, at, settings, courier, pollMilliseconds } = options
  const { root, runtime } = site
  const watch = openPodWatch(at, courier, pollMilliseconds)
  const details = openDetails(site, at, watch, () => settings().helperImage)
  /** Whether the keeper's files are lost with its Pod. */
  const loss = courier === undefined ? undefined : openKeeperLoss(at, courier)
  const fleeting = (): typeof loss => (settings().keeperVolume === undefined ? loss : undefined)
  const ready = kept(Infinity, () => checkNamespace(at, settings()))
  const tools = kept(Infinity, () => siteTools(site, settings(), courier !== undefined))

  /** The Pod of a task that may run; queried where the watch has not begun. */
  const podAt = async (place: { array: string; index: number }): Promise<TaskPod | undefined> => {
    const { array, index } = place
    const here = watch.here({ array, index, submittedAt: 0 })
    if (here !== undefined || watch.standing()) return here
    return (await watch.ask().catch(() => undefined))?.pods.get(podKey(array, index))
  }
  const manifestOf = async (job: TaskJob, { lent, busybox, account }: SiteTools): Promise<object> => {
    const folder = await root()
    const sh = lent ? `${folder}/${toolsFolder}/sh` : '/bin/sh'
    const path = `${folder}/arrays/${job.name}/script`
    const marks = await fleeting()?.marksOf(job)
    const sides = {
      courier: {
        install: installScript(folder, busybox),
        stay: stayScript(folder),
        ...(marks === undefined ? {} : { annotations: marks }),
      },
    }
    return jobManifest(job, {
      namespace: at.namespace,
      runtime,
      settings: { ...settings(), runAs: { ...account, ...settings().runAs } },
      command: courier === undefined ? [sh, path] : [sh, '-c', waitScript(folder, path, sh)],
      ...(courier === undefined ? {} : sides),
    })
  }
  /** Marks tasks in their Pods as cancelled, then ends the Pods, with time for their outputs. */
  const cancelCarried = async (
    elements: readonly BatchElement[],
    carrier: Courier,
    graceSeconds: number,
  ): Promise<void> => {
    const there = await Promise.all(
      elements.map(async (element) => ({ name: element.name, pod: await podAt(element) })),
    )
    await carrier.markCancelled(
      there.flatMap(({ name, pod }) => (pod === undefined ? [] : [{ pod: pod.name, name }])),
      graceSeconds,
    )
    await deletePods(at, elements, graceSeconds + fetchGraceSeconds)
  }

  return {
    kind: 'kubernetes',
    capabilities: { ...kubernetesCapabilities, sharedStorage: courier === undefined },
    claimSeconds: () => settings().claimSeconds,
    async terms() {
      await ready()
      watch.follow()
      const folder = await root()
      return {
        requestOf(intent) {
          if (courier !== undefined && !intent.directory.startsWith(`${folder}/`))
            throw new DriverError(
              'refused',
              `${intent.name}: directory ${JSON.stringify(intent.directory)} must lie below ` +
                `${folder}, as there is no volume`,
            )
          return podRequestOf(intent, settings())
        },
        arraySize: mostTasks,
        nameWords: [runtime, folder],
      }
    },
    hopeless: hopelessText,
    script: async (_, elements, pack) =>
      jobScript(elements, {
        pack,
        root: await root(),
        supervisor: await site.tasks.foregroundCommand('"$script"'),
        tools: (await tools()).lent,
        prepares: courier !== undefined,
      }),
    // A Job has no gaps in its indexes.
    leavesOut: false,
    async submit(job) {
      try {
        await createJob(at, await manifestOf(job, await tools()))
      } catch (error) {
        const trouble = kubernetesTrouble(error)
        if (trouble.trouble !== 'unknown' && /exceeded quota/.test(trouble.message))
          throw new NoRoom(`the namespace's quota has no room: ${trouble.message}`, {
            cause: error,
            smaller: false,
          })
        throw trouble
      }
      // In the submissions a Job is an array, accepted at its creation: its name is its id.
      await site.submissions.accepted(job.name, '1')
      for (const [index, name] of job.tasks.entries())
        watch.expect({ array: job.name, index, submittedAt: 0 }, name)
      return '1'
    },
    find: async (job) => ((await jobNamed(at, job)) === undefined ? undefined : '1'),
    async list(places) {
      watch.follow()
      for (const { name, place } of places) watch.expect(place, name)
      const elements = places.map(({ place }) => place)
      return listingOf(at, watch, elements)
    },
    judge: (evidence, listing) =>
      judgeKubernetes(evidence, listing, { watch, courier, settings: settings() }),
    explains: (sight, cancelAsked) => !isUnsure(sight) || (sight.reason === 'stopped' && cancelAsked),
    answersPromptly: true,
    async cancel(elements, how, graceSeconds) {
      if (how === 'waiting' || courier === undefined) await deletePods(at, elements, graceSeconds)
      else await cancelCarried(elements, courier, graceSeconds)
    },
    cancelSteps: {},
    externalIdOf: indexedName,
    drop: (jobs) => deleteJobs(at, jobs),
    strays: async (names) => (await fleeting()?.strays(names)) ?? new Map(),
    onEnds: (ended) => watch.onEnds(ended),
    settled: (place) => watch.settled(place),
    about: ({ name, place, sight }) => details.of(name, place, sight.form === 'ended'),
    async logs(name, place, stream, range) {
      const pod = courier === undefined || place === undefined ? undefined : await podAt(place)
      return pod === undefined ? undefined : courier?.logs(pod, name, stream, range)
    },
    async forget(name, place) {
      await courier?.forget(name)
      details.forget(name)
      if (place !== undefined) watch.forget(place)
    },
    close() {
      courier?.close()
      watch.close()
    },
  }
}
