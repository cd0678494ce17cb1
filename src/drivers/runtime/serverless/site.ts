import { randomUUID } from 'node:crypto'
import { join } from 'node:path'
import type { FunctionCredential, InvokeFunction } from '../../../clients/functions.ts'
import { DriverError } from '../contract/driver.ts'
import { messageOf } from '../contract/errno.ts'
import { openGate, type Gate } from '../../../pacing/gate.ts'
import { processOf } from '../local/processes.ts'
import { openCalls, type CallOwner, type CallFacts, type CallRecords } from './calls.ts'
import { serverlessConfiguration, type ServerlessConfiguration } from './configuration.ts'
import type { CallLinks } from './links.ts'

export interface ServerlessDriverOptions {
  /**
   * On this machine, absolute: work directories are `work/…` below it, the records of calls
   * `calls/…`. All runtimes of this kind share it.
   */
  root: string
  /** Used in manifests. */
  runtime: string
  /** Environment variable that marks a command's processes with the call's name. */
  taskVariable: string
  /** See `serverlessConfiguration`; a wrong one makes every submit fail with `refused`. */
  configuration: Readonly<Record<string, unknown>>
  invoke: InvokeFunction
  /**
   * Called again after a minute, and when the platform refuses the result, which goes into headers
   * only. Absent: none is sent.
   */
  credential?: (() => Promise<FunctionCredential>) | undefined
  /** Absent: functions cannot reach this service, so callbacks and references are refused. */
  links?: CallLinks | undefined
  /** Pause between two looks at calls of other drivers. */
  pollMilliseconds?: number
  /** Time that an answer may need after the function's time limit. */
  answerGraceSeconds?: number
  /** A call is sent again for this long to a platform that does not take it. */
  patienceSeconds?: number
}

/**
 * Contents of requests on their way at once; a request of 32 MiB is in memory as text and as bytes.
 */
const bytesAtOnce = 256 * 1024 * 1024
/** Deadline of a small request with an immediate answer. */
export const shortDeadlineSeconds = 60

export const clock = (): number => Date.now() / 1000

export interface TroubledCall {
  trouble: string
  message: string
  retryAfterSeconds?: number | undefined
}

/**
 * The trouble of an error of a client or of our own, by its shape: an error may come from another
 * realm.
 */
export const troubleOf = (error: unknown): TroubledCall => {
  const { trouble, retryAfterSeconds } = error as Partial<TroubledCall>
  return { trouble: trouble ?? 'cut', message: messageOf(error), retryAfterSeconds }
}

/** A runtime of functions, for all files of this folder. */
export interface FunctionSite {
  options: ServerlessDriverOptions
  calls: CallRecords
  /** This driver, in the records of calls. */
  owner: CallOwner
  graceSeconds: number
  patienceSeconds: number
  pollSeconds: number
  /** Bounds the bytes of requests on their way. */
  sending: Gate
  /** @throws DriverError `refused` for a wrong configuration. */
  settings: () => { configuration: ServerlessConfiguration; underWay: Gate }
  /** Aborted when the driver closes: ends work without a waiting caller. */
  closing: AbortController
  /** Whether this process has made any call: the first one may find the function cold. */
  first: { made: boolean }
}

export function openFunctionSite(options: ServerlessDriverOptions): FunctionSite {
  let parsed: ReturnType<FunctionSite['settings']> | undefined
  const settings = (): ReturnType<FunctionSite['settings']> => {
    if (parsed !== undefined) return parsed
    const configuration = serverlessConfiguration(options.configuration)
    if (
      options.links === undefined &&
      (configuration.mode === 'callback' || configuration.delivery === 'reference')
    )
      throw new DriverError(
        'refused',
        'functions cannot reach this service: it has no key to sign links with; give it a vault key',
      )
    return (parsed = { configuration, underWay: openGate(configuration.concurrency) })
  }
  return {
    options,
    calls: openCalls(join(options.root, 'calls')),
    owner: {
      process: { pid: process.pid, birth: processOf(process.pid)?.birth ?? 0 },
      driver: randomUUID(),
    },
    graceSeconds: options.answerGraceSeconds ?? 10,
    patienceSeconds: options.patienceSeconds ?? 86_400,
    pollSeconds: (options.pollMilliseconds ?? 250) / 1000,
    sending: openGate(bytesAtOnce),
    settings,
    closing: new AbortController(),
    first: { made: false },
  }
}

/** Seconds from the first sending to the end of all patience. */
export const limitSeconds = (
  { settings, graceSeconds }: FunctionSite,
  { timeoutSeconds }: CallFacts,
): number => {
  const { timeLimitSeconds, mode, queueSeconds } = settings().configuration
  const own = timeoutSeconds > 0 ? Math.min(timeoutSeconds, timeLimitSeconds) : timeLimitSeconds
  return own + graceSeconds + (mode === 'sync' ? 0 : queueSeconds)
}
