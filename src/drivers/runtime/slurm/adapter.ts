import { append, smallest } from '../../../lists.ts'
import { openBackoff } from '../../../pacing/backoff.ts'
import { fresh } from '../../../pacing/fresh.ts'
import { kept } from '../../../pacing/kept.ts'
import { orAfter } from '../../../pacing/within.ts'
import { arrayScript } from '../batch/array-script.ts'
import type {
  BatchElement,
  BatchEvidence,
  BatchJudgement,
  QueuedElement,
  BatchScheduler,
} from '../batch/scheduler.ts'
import type { BatchSite } from '../batch/site.ts'
import { capabilitiesOf, DriverError } from '../contract/driver.ts'
import { gather } from '../contract/gather.ts'
import { chunks } from '../remote/answers.ts'
import type { SlurmJob } from './jobs.ts'
import { jobRequest, leaveOutHint, type SlurmRequest } from './request.ts'
import type { SlurmScheduler } from './scheduler.ts'
import { isJobOver, isJobWaiting, jobOf, judgeJob, type QueuePatience } from './state.ts'

export const slurmCapabilities = capabilitiesOf(
  'batch',
  'interactive',
  'gpu',
  'sharedStorage',
  'dataStaging',
  'cancellation',
  'logStreaming',
)

export interface SlurmAdapterOptions {
  site: BatchSite
  /** By commands or by REST. */
  scheduler: SlurmScheduler
  configuration: Readonly<Record<string, unknown>>
  /** Whether Slurm itself may run a task again after it took the task away. */
  requeue: boolean
  patience: QueuePatience
  claimSeconds: number
  pollMilliseconds: number
}

/**
 * Slurm's answers: the queue with the jobs that had to be asked for by their ids, and accounting
 * about jobs that are in neither.
 */
interface SlurmListing {
  jobs: SlurmJob[] | 'silent'
  /** Whether the controller was asked, by their ids, for jobs that its list does not have. */
  askedById: boolean
  history: SlurmJob[] | 'silent' | 'none'
}

/** Ids in one question about single jobs. */
const idsAtOnce = 100
/** How long the end of a failed task waits for Slurm's word on its memory. */
const answerMs = 5000
/** Limits change rarely; reading them costs three commands. */
const limitsKeptMs = 300_000
/** A signal that came before the supervisor could handle it is repeated. */
const politeAgainSeconds = 3
/** Time beyond the grace, for a supervisor that was signalled late. */
const forcedAfterGraceSeconds = 5

const byJob = (elements: readonly BatchElement[]): Map<string, number[]> =>
  new Map(
    [...Map.groupBy(elements, ({ job }) => job)].map(([job, some]) => [job, some.map(({ index }) => index)]),
  )

/**
 * The elements, in each of these jobs that has their array's name. A controller that lost its state
 * assigns ids again, so a recorded id alone may be another array's.
 */
const elementsIn = (jobs: readonly SlurmJob[], elements: readonly BatchElement[]): BatchElement[] => {
  const named = Map.groupBy(jobs, ({ name }) => name)
  return elements.flatMap((element) =>
    (named.get(element.array) ?? []).flatMap(({ job, indexes }) =>
      (indexes?.includes(element.index) ?? job === element.job) ? [{ ...element, job }] : [],
    ),
  )
}

/** Slurm's answer about one element. */
const textOfState = (
  { jobs, askedById, history }: SlurmListing,
  place: QueuedElement,
): Pick<Parameters<typeof judgeJob>[0], 'queue' | 'history'> => ({
  queue: jobOf(jobs, place) ?? (jobs !== 'silent' && askedById ? 'absent' : 'silent'),
  history: typeof history === 'string' ? history : (jobOf(history, place) ?? 'absent'),
})

/**
 * A judgement in the terms of the shared driver: a task that has no record and is over never
 * starts.
 */
const judgeSlurm = (
  { name: _, overSince, ...known }: BatchEvidence,
  listing: SlurmListing | undefined,
  patience: QueuePatience,
): BatchJudgement => {
  const overSeconds = overSince === undefined ? 0 : (performance.now() - overSince) / 1000
  const silent: SlurmListing = { jobs: 'silent', askedById: false, history: 'silent' }
  const states = textOfState(listing ?? silent, known.place)
  const judgement = judgeJob({ ...known, overSeconds, ...states }, patience)
  const { verdict } = judgement
  return verdict === undefined || known.sight.form !== 'none'
    ? judgement
    : { ...judgement, verdict: { ...verdict, end: 'never' } }
}

/** Whether Slurm ended tasks for want of memory; it says so once their jobs are over. */
const openMemoryWords = ({
  queue,
  historyOf,
  settleSeconds,
}: {
  queue: () => Promise<SlurmJob[]>
  historyOf: (places: readonly QueuedElement[]) => Promise<SlurmListing['history']>
  settleSeconds: number
}): ((place: QueuedElement) => Promise<{ outOfMemory?: true }>) =>
  gather(
    async (places: readonly QueuedElement[]) => {
      const none = new Map<QueuedElement, { outOfMemory?: true }>(places.map((place) => [place, {}]))
      const until = performance.now() + settleSeconds * 1000
      for (const backoff = openBackoff({ firstMs: 200, longestMs: 2000 }); ;) {
        // A silent scheduler does not delay a task with a recorded end.
        const jobs = await orAfter(queue(), answerMs, undefined).catch(() => undefined)
        if (jobs === undefined) return none
        const known = places.map((place) => jobOf(jobs, place))
        const late = performance.now() > until
        if (late || known.every((job) => job === undefined || isJobOver(job))) {
          const history = known.includes(undefined) ? await historyOf(places) : 'none'
          return new Map(
            places.map((place, i) => {
              const told = known[i] ?? jobOf(history, place)
              return [place, told?.state === 'OUT_OF_MEMORY' ? { outOfMemory: true as const } : {}]
            }),
          )
        }
        await backoff.pause()
      }
    },
    { milliseconds: 50 },
  )

/** Cancels elements in the jobs of their arrays' names, by the queue. */
const openCancel =
  (
    scheduler: Pick<SlurmScheduler, 'cancel'>,
    askQueue: () => Promise<SlurmJob[]>,
    askById: (ids: Iterable<string>) => Promise<SlurmJob[]>,
  ): BatchScheduler<SlurmRequest, SlurmListing>['cancel'] =>
  async (elements, how) => {
    const end = how === 'forced' ? 'whole' : how
    /** What waits is in the queue's list; of another job only a question by its id may tell. */
    const queue = async (): Promise<SlurmJob[]> => {
      const listed = await askQueue()
      if (how === 'waiting') return listed
      const known = new Set(listed.map(({ job }) => job))
      const lacking = new Set(elements.flatMap(({ job }) => (known.has(job) ? [] : [job])))
      return [...listed, ...(await askById(lacking))]
    }
    const jobs = await queue().catch(async (error: unknown) => {
      if (how === 'waiting') throw error
      // A busy controller may end jobs although it does not list them.
      for (const [array, some] of Map.groupBy(elements, (element) => element.array))
        await scheduler.cancel(byJob(some), end, array)
      // A polite one is repeated while the task goes on, and a forced one follows.
      if (how === 'polite') return []
      throw error
    })
    const live = (isWaiting: boolean): Map<string, number[]> => {
      const those = jobs.filter((job) => !isJobOver(job) && isJobWaiting(job) === isWaiting)
      return byJob(elementsIn(those, elements))
    }
    // While the task runs in one of the jobs of its array's name, it may wait in another.
    await scheduler.cancel(live(true), end === 'polite' ? 'waiting' : end)
    if (how !== 'waiting') await scheduler.cancel(live(false), end)
  }

/** Slurm's job arrays: an element of an array is a task, its supervisor the array's script. */
export function slurmAdapter(options: SlurmAdapterOptions): BatchScheduler<SlurmRequest, SlurmListing> {
  const { site, scheduler, configuration, requeue, patience, pollMilliseconds } = options
  const limits = kept(limitsKeptMs, () => scheduler.limits())
  const askQueue = fresh(() => scheduler.queue())
  const recentQueue = kept(pollMilliseconds * 0.9, askQueue)
  const historyOf = async (places: readonly QueuedElement[]): Promise<SlurmListing['history']> => {
    try {
      const { accounting } = await limits()
      if (!accounting) return 'none'
      const jobs = [...new Set(places.flatMap(({ job }) => job ?? []))]
      if (jobs.length === 0) return []
      const oldest = smallest(places.map(({ submittedAt }) => submittedAt))
      return await scheduler.history(jobs, Date.now() / 1000 - oldest)
    } catch {
      return 'silent'
    }
  }
  /** @throws DriverError `unknown`: the controller is silent. */
  const askById = async (ids: Iterable<string>): Promise<SlurmJob[]> => {
    const answers: SlurmJob[] = []
    for (const some of chunks([...ids], idsAtOnce)) append(answers, await scheduler.jobs(some))
    return answers
  }
  /**
   * Where nothing at the nodes measures memory, the samples of accounting; it may not have them
   * yet.
   */
  const peakOf = gather(
    async (places: readonly QueuedElement[]) => {
      const history = await historyOf(places)
      return new Map(
        places.map((place): [QueuedElement, { peakMemoryBytes?: number }] => {
          const peakMemoryBytes = jobOf(history, place)?.peakMemoryBytes
          return [place, peakMemoryBytes === undefined ? {} : { peakMemoryBytes }]
        }),
      )
    },
    { milliseconds: 50 },
  )

  const wordOn = openMemoryWords({
    queue: () => askQueue(),
    historyOf,
    settleSeconds: patience.settleSeconds,
  })

  const recentWordOn = openMemoryWords({
    queue: () => recentQueue(),
    historyOf: () => Promise.resolve('none'),
    settleSeconds: 0,
  })
  /**
   * A success costs no query of its own: its supervisor has counted the kills itself, or the cluster
   * makes none inside of a job that goes on, and then the last list counts.
   */
  const memoryWord = async (
    { exitCode, countsKills }: { exitCode: number | null; countsKills?: true },
    place: QueuedElement,
  ): Promise<{ outOfMemory?: true }> => {
    if (exitCode !== 0) return wordOn(place)
    if (countsKills === true) return {}
    const known = await orAfter(limits(), answerMs, undefined).catch(() => undefined)
    return known?.killsInJobs === true ? wordOn(place) : recentWordOn(place)
  }

  return {
    kind: 'slurm',
    capabilities: slurmCapabilities,
    claimSeconds: () => options.claimSeconds,
    async terms() {
      const current = await limits()
      return {
        requestOf: (intent) => jobRequest(intent, configuration, current),
        arraySize: current.arraySize,
        limitSecondsOf: ({ walltimeMinutes }) =>
          walltimeMinutes === undefined ? undefined : walltimeMinutes * 60,
      }
    },
    hopeless: (_, states) => `the scheduler would keep it waiting for ever (${states})`,
    script: async ({ name }, elements, pack) =>
      arrayScript(elements, {
        pack,
        array: name,
        folder: `${await site.root()}/tasks`,
        command: await site.tasks.foregroundCommand('"$script"'),
        index: '$SLURM_ARRAY_TASK_ID',
        ...(requeue ? { rerun: { job: '$SLURM_ARRAY_JOB_ID', restarts: '$SLURM_RESTART_COUNT' } } : {}),
      }),
    leavesOut: true,
    submit: (array, indexes) =>
      scheduler.submit(array, indexes).catch((error: unknown) => {
        if (!(error instanceof DriverError) || error.trouble !== 'refused') throw error
        const { message } = error
        const hint = leaveOutHint(array.request, message)
        throw new DriverError('refused', `${message}${hint}`, { cause: error })
      }),
    async find(array) {
      const same = (await askQueue()).filter(({ name }) => name === array)
      return (same.find((job) => !isJobOver(job)) ?? same[0])?.job
    },
    async list(places) {
      const listed = await recentQueue().catch(() => 'silent' as const)
      if (listed === 'silent') return { jobs: listed, askedById: false, history: 'none' }
      const lackingIn = (jobs: readonly SlurmJob[]): QueuedElement[] =>
        places.flatMap(({ place }) => (jobOf(jobs, place) === undefined ? [place] : []))
      const asked = await askById(new Set(lackingIn(listed).flatMap(({ job }) => job ?? []))).catch(
        () => undefined,
      )
      const jobs = [...(asked ?? []), ...listed]
      const missing = lackingIn(jobs)
      const history = missing.length === 0 ? 'none' : await historyOf(missing)
      return { jobs, askedById: asked !== undefined, history }
    },
    judge: (evidence, listing) => judgeSlurm(evidence, listing, patience),
    answersPromptly: false,
    cancelsOver: true,
    cancel: openCancel(scheduler, askQueue, askById),
    cancelSteps: { politeAgain: politeAgainSeconds, forcedAfterGrace: forcedAfterGraceSeconds },
    async about({ place, sight, measured }) {
      if (sight.form === 'started') return { node: sight.node }
      if (sight.form !== 'ended' || place === undefined) return {}
      const word = sight.reason === 'exited' ? await memoryWord(sight, place) : {}
      return { ...(measured ? {} : await peakOf(place)), ...word }
    },
  }
}
