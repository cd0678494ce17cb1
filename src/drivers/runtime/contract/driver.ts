import { outsideText } from '../../../outside-text.ts'
import type { MemoryLimit } from './cgroups.ts'
import { messageOf } from './errno.ts'

/**
 * The contract of a runtime driver: how a task is started, watched, stopped and collected at one
 * kind of site.
 *
 * A driver gets paths, an argv and an open client, never a record, a database or a credential. Its
 * promises:
 *
 * - `submit(intents)` is idempotent by `intent.name`: submitting the same name twice, also from two
 *   processes, also after a crash at any point, starts the work at most once. It resolves when the
 *   site has accepted the work (or reports which names it refused).
 * - `find(names)` never throws for an unknown name; it answers what the site knows, from what the
 *   work itself left behind (start file, exit file, process identity), so it is right when no
 *   process watched.
 * - `watch(names, onEnd)` calls back once per name when its work has ended; one mechanism for all
 *   names, no call per task.
 * - `cancel(names)` is idempotent; cancelling finished work is a no-op, and a name that was not
 *   started never will be: it is `ended` for the reason `cancelled` from then on. Of started work
 *   it ends the whole process group and every descendant that carries the task's marker, first
 *   politely, after `graceSeconds` by force, and resolves when none is alive.
 * - `collect(name)` may be called any number of times after the end; it answers the same until
 *   `remove`. It rejects with class `refused` where no trial can give the task what it needs (an
 *   image that does not exist), or where its results can never be accepted. Files that a shared file
 *   system shows late are waited for; `onWait` gets the reason, and a cancel ends the wait.
 * - `logs` reads by byte range (`tail`: the last so many bytes) from the work's output, while it
 *   runs and afterwards.
 * - `remove` deletes all state of the name. The caller must not submit the name again. It refuses
 *   running work.
 * - Errors are `DriverError`s with a class; anything else thrown is `unknown`.
 * - A site that cannot be reached, or does not answer, rejects with class `unknown`: nothing is
 *   known, the caller asks again, for hours. Silence is never an end: neither `find` nor `watch`
 *   make an end of it. `watch` goes on by itself when the site is back. A `submit` whose answer was
 *   lost is submitted again under the same names.
 * - Status of everything at one site costs one call per interval, whatever the number of names.
 *
 * Differences between sites are `capabilities`, never a type test.
 */
export interface RuntimeDriver {
  readonly kind: string
  readonly capabilities: Readonly<Record<Capability, boolean>>
  submit(intents: readonly Intent[]): Promise<SubmitOutcome[]>
  find(names: readonly string[]): Promise<Map<string, TaskState>>
  /** Starts watching; the returned function stops it (the work goes on). */
  watch(names: readonly string[], onEnd: (name: string) => void): () => void
  cancel(names: readonly string[], graceSeconds: number): Promise<void>
  collect(name: string, onWait?: (reason: string) => void): Promise<Collected>
  logs(name: string, stream: 'stdout' | 'stderr', range: LogRange): Promise<LogSlice>
  /** Removes work directory and home; unknown is a no-op. */
  remove(name: string): Promise<void>
  /**
   * Whether background work beside calls and watches would break off at a close now; absent: never.
   */
  isBusy?(): boolean
  close(): Promise<void>
}

export const capabilityNames = [
  'batch',
  'interactive',
  'container',
  'serverless',
  'gpu',
  'mpi',
  'sharedStorage',
  'dataStaging',
  'cancellation',
  'logStreaming',
  'simulation',
] as const
export type Capability = (typeof capabilityNames)[number]

/** All flags: true for the given ones. */
export const capabilitiesOf = (...there: Capability[]): Readonly<Record<Capability, boolean>> =>
  Object.fromEntries(capabilityNames.map((name) => [name, there.includes(name)])) as Record<
    Capability,
    boolean
  >

/** A task to start. All decisions are in it; the driver chooses nothing. */
export interface Intent {
  /** Deterministic, `[a-z0-9-]`, at most 63 characters, unique per run, activity and attempt. */
  name: string
  /**
   * Work directory, absolute; the driver makes it with mode 0700. A finished one stays as it is.
   */
  directory: string
  argv: readonly string[]
  /** The whole environment of the task, in an image over that of the image; nothing else is inherited. */
  environment: Readonly<Record<string, string>>
  /**
   * Variables whose values are paths below the work directory; made absolute by `withRoots` before
   * a driver sees them.
   */
  pathVariables?: Readonly<Record<string, string>>
  /** Relative to the work directory. */
  workingDirectory?: string
  /**
   * Files that must exist before the start, from the work directories of predecessors or a seed
   * folder.
   */
  stage: readonly Stage[]
  expectedOutputs: readonly string[]
  cores: number
  memoryBytes: number
  /**
   * The mechanism for its memory limit; absent: the best that the site has. Refused where the site
   * lacks it.
   */
  memoryLimit?: MemoryLimit
  /**
   * The program limits its children to `cores` and `memoryBytes` by itself; the site enforces no
   * limit.
   */
  ownLimits?: boolean
  /** 0 is none. The site enforces it, also while no driver is alive. */
  timeoutSeconds: number
  /** Default 0. */
  gpus?: number
  /**
   * The duration that the plan expects, overheads included; batch schedulers get a time limit from
   * it where the activity has none.
   */
  expectedSeconds?: number
  /**
   * Grows by one with each attempt that the site ended at its own time limit: the next attempt asks
   * for twice as much.
   */
  walltimeExtensions?: number
  /**
   * The site's own settings for the task, merged from runtime, binding and activity: partition,
   * account, qos, reservation, constraint …
   */
  site?: Readonly<Record<string, unknown>>
  /** The task's container, where the site runs it in one; absent: the site's own system. */
  container?: ContainerRequest
}

/**
 * The image of a task. Processors, memory and GPUs of the intent are the container's limits; its
 * user is the site's account; only work directory and home are bound.
 */
export interface ContainerRequest {
  /**
   * `docker`, `podman`, `apptainer`, or `auto`: an engine that the host has. Absent where the site
   * has one engine of its own.
   */
  engine?: string
  /** The engine's own address, `unix:///path` of its socket; absent: the default of its command. */
  host?: string
  /**
   * What the container can read besides the work directory: absolute paths of the host, with `:ro`
   * for read-only.
   */
  mounts?: readonly string[]
  /**
   * The image in the form of the site's engine: `name[:tag][@sha256:…]`; also the absolute path of
   * a file at the site: a SIF file, for Apptainer, with `@` and its digest; `archive:` and the path
   * of an image's archive, for Docker and Podman, with `@` and the image's id.
   */
  image: string
  /** The image must be at the site already: it is not pulled, nor made from one that is. */
  inPlace?: boolean
  /** Whether it may reach a network. */
  network: boolean
  /**
   * Whether tasks with the same `scope`, image and limits may run in one container that is kept
   * between them. They can read each other's work directories.
   */
  reuse: boolean
  /** `[a-z0-9]`, at most 40 characters: the run. */
  scope: string
  /**
   * The executable of the run that is brought to the site before the task, and then is the image;
   * `label` names it in reasons.
   */
  brought?: { id: string; label: string }
}

/**
 * All files below `from` (or only `paths`) appear at the same relative path in the work directory;
 * a copy, never a hard link.
 */
export interface Stage {
  /**
   * Site that holds it; absent: the task's own. `src/drivers/transfer` brings files of other sites
   * before the driver receives the intent.
   */
  at?: string
  from: string
  /** The producer of the files, for messages. */
  label: string
  /** The position of the activity that made the files; absent for others. */
  producer?: number
  paths?: readonly string[]
  /**
   * Paths that the producer promises or the consumer asks for; absent: all are. Where two stages
   * leave different files at a path that neither names, the later one's is brought.
   */
  named?: readonly string[]
  /** Absolute: where the files were made, if that is not `from`. */
  madeAt?: string
  /** What has been left behind on the way to `from`. */
  left?: readonly Left[]
}

/** A path of a stage that is not brought; `why` is a clause. */
export interface Left {
  path: string
  why: string
}

export type SubmitOutcome =
  /** Accepted now or earlier; `externalId` is the site's own name for it (pid, job id). */
  { name: string; ok: true; externalId: string } | { name: string; ok: false; error: DriverError }

export type TaskState =
  | { state: 'unknown' } // never started: safe to submit
  /**
   * Accepted by the site's own queue, not started yet. `cause`: the scheduler's reason for the wait
   * (`Resources`, `Priority` …).
   */
  | { state: 'queued'; externalId: string; submittedAt: number; cause?: string }
  /** `cause`: why its site cannot say that it still runs, and for what it waits. */
  | { state: 'running'; externalId: string; startedAt: number; cause?: string }
  | {
      state: 'ended'
      externalId: string
      startedAt: number
      finishedAt: number
      exitCode: number | null
      signal: string | null
      reason: EndReason
    }
  /**
   * Was accepted, is not alive, left no exit file: killed with its machine, or removed by the
   * scheduler. Never submitted again under this name. The site says so about this task: an end in
   * its own words, or the node that ran it knows nothing of it. An answer that does not mention the
   * task is no such word. `cause`: the site's own reason (`NODE_FAIL`, `PREEMPTED`, `BOOT_FAIL` …).
   * `suspect`: what watched it was ended while its machine went on, maybe by the task itself; it is
   * repeated once at most.
   */
  | { state: 'lost'; externalId: string; startedAt: number; cause?: string; suspect?: boolean }

/**
 * `timeout`: the activity's own limit. `walltime`: the site's limit, shorter than the activity's
 * own: the site's trouble. `cancelled`: this service asked for it; a cancel by others (an
 * operator's `scancel`) is `lost` with the site's reason.
 */
export type EndReason = 'exited' | 'timeout' | 'cancelled' | 'memory' | 'walltime'

export interface Collected {
  state: TaskState
  /**
   * Seconds since epoch, by this machine's clock; a wrong clock of the site is corrected.
   * `submittedAt` ≤ `startedAt` ≤ `finishedAt`.
   */
  submittedAt: number
  /** Time in the site's own queue. */
  queueSeconds?: number
  /** The node of the site, if the site has several. */
  node?: string
  /** Resources that the user's program used; null where the site cannot measure them. */
  wallSeconds: number
  cpuSeconds: number | null
  peakMemoryBytes: number | null
  /**
   * `time`: /usr/bin/time; `rusage`: the kernel's accounting of the task and its descendants
   * (wait4).
   */
  measuredBy: 'time' | 'rusage' | 'cgroup' | 'sampled' | 'none'
  manifest: OutputManifest
  /**
   * The amounts copied into the work directory, for each entry of the intent's `stage` in its
   * order; absent where the site does not know.
   */
  staged?: readonly StagedAmount[]
  missingOutputs: string[]
  /** Expected outputs that are links to elsewhere, which `missingOutputs` has too. */
  strayOutputs?: readonly Left[]
  stderrTail: string
  detail?: PlaceDetail
}

/**
 * Files and links, and the bytes in them. A file in two entries of a `stage` counts for the first.
 */
export interface StagedAmount {
  bytes: number
  files: number
}

/** Further facts of the site about the place where a task ran; shown unchanged with the attempt. */
export interface PlaceDetail {
  /** `docker`, `podman`, `apptainer`, `containerd` … */
  engine?: string
  image?: string
  /** `sha256:…` of the image in use. */
  imageDigest?: string
  /** Image of the site's own helper, with its digest: `debian:12-slim@sha256:…`. */
  helperImage?: string
  /** Size of the image, where it was brought to the host for this task. */
  imageBytes?: number
  /** Time to bring the image to the host for this task; 0: it was there. */
  pullSeconds?: number
  /** The container had run other tasks of the run before. */
  containerReused?: boolean
  pod?: string
  /**
   * From the call to the start of the task's own program, where the platform first had to create a
   * container.
   */
  coldStartSeconds?: number
  /**
   * How its memory limit (and, over a shell, its processors) was enforced: a cgroup of its own,
   * RLIMIT_DATA of each process, or nothing.
   */
  limits?: MemoryLimit
  /** The platform's own id of the call. */
  requestId?: string
  /** The host that keeps copies of its files and logs, where its own machine may be gone. */
  keptOn?: string
  /** The copy of its work directory there. */
  keptAt?: string
  /** Why the files could not be copied; the logs were. */
  keptWithoutFiles?: string
}

/** Shape of domain-reference 12.3. */
export interface OutputManifest {
  schemaVersion: 1
  runtime: string
  hostname: string
  root: string
  files: {
    /** A byte that is no UTF-8 stands as `src/outside-path.ts` says. */
    path: string
    /** In records: the bytes in base64, where the path is no text. */
    pathBytes?: string
    change: 'created' | 'modified' | 'deleted'
    sizeBytes: number
    checksum?: string
    modifiedUnixNano: string
  }[]
  summary: {
    initialFiles: number
    finalFiles: number
    createdFiles: number
    modifiedFiles: number
    deletedFiles: number
    outputBytes: number
  }
  /** What could not be read, and what became of it. */
  warnings?: string[]
}

/** Bytes of a log from an offset on, or its last ones. */
export type LogRange = { offset: number; limit: number } | { tail: number }

export interface LogSlice {
  bytes: Buffer
  offset: number
  totalBytes: number
}

/**
 * `user`: the task's own fault (exit ≠ 0, output missing, staged files conflict); spends the
 * activity's attempts. `infrastructure`: the site's fault; has its own patience. `refused`:
 * permanent, with the site's message. `unknown`: ask again.
 */
export type TroubleClass = 'user' | 'infrastructure' | 'refused' | 'unknown'

export class DriverError extends Error {
  readonly trouble: TroubleClass
  constructor(trouble: TroubleClass, message: string, options?: ErrorOptions) {
    // It quotes sites, and goes into records.
    super(outsideText(message), options)
    this.name = 'DriverError'
    this.trouble = trouble
  }
}

/** An error that a driver threw, as a `DriverError`. */
export const driverErrorOf = (error: unknown): DriverError =>
  error instanceof DriverError ? error : new DriverError('unknown', messageOf(error), { cause: error })
