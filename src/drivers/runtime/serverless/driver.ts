import { randomUUID } from 'node:crypto'
import { lstatSync, mkdirSync, realpathSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { hostname } from 'node:os'
import { isAbsolute, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { FunctionCredential, FunctionResponse, InvokeFunction } from '../../../clients/functions.ts'
import {
  DriverError,
  type Capability,
  type Collected,
  type Intent,
  type PlaceDetail,
  type SubmitOutcome,
  type TaskState,
} from '../contract/driver.ts'
import { isErrno, messageOf } from '../contract/errno.ts'
import { lastLines, stderrTailBytes } from '../local/collect.ts'
import { checkIntent } from '../contract/intent.ts'
import { processOf } from '../local/processes.ts'
import { openWatcher } from '../local/watch.ts'
import { outputManifest } from '../local/manifest.ts'
import type { RootedDriver } from '../contract/rooted.ts'
import { openCalls, type Attendant, type CallFacts, type KeptAnswer } from './calls.ts'
import { serverlessConfiguration, serverlessProblems, type ServerlessConfiguration } from './configuration.ts'
import { applyOutputs, inlineBytes, readInputs } from './files.ts'
import { openGate } from '../contract/gate.ts'
import type { CallLinks, LinkPurpose } from './links.ts'
import { checkOutputs, placeRun, readAnswer, type CallRequest } from './protocol.ts'
import { amountsFrom, removeStagingRemains, stage, writeStagedFiles } from '../local/staging.ts'

export const serverlessCapabilities: Readonly<Record<Capability, boolean>> = {
  batch: true,
  interactive: false,
  container: false,
  serverless: true,
  gpu: false,
  mpi: false,
  sharedStorage: false,
  dataStaging: true,
  cancellation: true,
  logStreaming: false,
  simulation: false,
}

export interface ServerlessDriverOptions {
  /** On this machine, absolute: work directories are `work/…` below it, the records of calls `calls/…`. One for all runtimes of this kind. */
  root: string
  /** Named in manifests. */
  runtime: string
  /** Environment variable that marks a command's processes with the call's name. */
  taskVariable: string
  /** See `serverlessConfiguration`; a wrong one refuses what is submitted. */
  configuration: Readonly<Record<string, unknown>>
  invoke: InvokeFunction
  /** Asked anew after a minute, and when the platform refuses what it gave; goes into headers and nowhere else. Absent: none is sent. */
  credential?: (() => Promise<FunctionCredential>) | undefined
  /** Absent: functions cannot reach this service, so callbacks and references are refused. */
  links?: CallLinks | undefined
  /** How often calls that nobody here attends to are looked at. */
  pollMilliseconds?: number
  /** What an answer may need after the function's time limit. */
  answerGraceSeconds?: number
  /** A platform that does not take a call is asked again for this long. */
  patienceSeconds?: number
}

/** Contents of requests on their way at once; a request of 32 MiB is held as text and as bytes. */
const bytesAtOnce = 256 * 1024 * 1024
const firstPauseSeconds = 0.5
const longestPauseSeconds = 30
/** A callback may get lost: after so many polls' pauses of silence the function is asked. */
const pollsPerSilence = 60
/** Cancels under way at once; each may take its grace. */
const cancelsAtOnce = 64
/** A request of few bytes that is answered at once. */
const shortDeadlineSeconds = 60
/** Fields of a request besides its inputs' contents. */
const requestBytes = (intent: Pick<CallFacts, 'argv' | 'environment' | 'expectedOutputs'>): number =>
  Buffer.byteLength(JSON.stringify([intent.argv, intent.environment, intent.expectedOutputs])) + 2048
/** A credential is opened again after this: each opening is recorded, and calls may be many. */
const credentialSeconds = 60
/** `find` waits so long for what a function knows of a call that lost its driver. */
const adoptionSeconds = 2

const clock = (): number => Date.now() / 1000
const asDriverError = (error: unknown): DriverError =>
  error instanceof DriverError ? error : new DriverError('infrastructure', messageOf(error), { cause: error })

interface TroubledCall {
  trouble: string
  message: string
  retryAfterSeconds?: number | undefined
}
/** Of a client or of our own, by its shape: an error may come from another realm. */
const troubleOf = (error: unknown): TroubledCall => {
  const { trouble, retryAfterSeconds } = error as Partial<TroubledCall>
  return { trouble: trouble ?? 'cut', message: messageOf(error), retryAfterSeconds }
}

interface Attendance {
  /** Ends the request under way; the call goes on at its platform. */
  controller: AbortController
  /** Why it waits. */
  cause: string | undefined
  done: Promise<void>
}

/**
 * Commands as calls of a function over HTTP: the files of a task lie on this machine, travel with the request and come back with the answer.
 *
 * At-least-once is made exactly-once by the attempt's name: a call is written down before it is made, one driver of this machine attends to
 * it, and after its death another makes it again under the same name, which the function answers from its own ledger. The first
 * complete answer is kept and later ones change nothing. A function that is not idempotent is called once: without an answer within
 * its time limit the attempt is lost.
 *
 * Until it is sent a call waits in our queue; time in the platform's, on the network and in a cold start is overhead, and how long it ran the
 * function's own clock tells.
 */
export function openServerlessDriver(options: ServerlessDriverOptions): RootedDriver {
  const calls = openCalls(join(options.root, 'calls'))
  const graceSeconds = options.answerGraceSeconds ?? 10
  const patienceSeconds = options.patienceSeconds ?? 86_400
  const pollSeconds = (options.pollMilliseconds ?? 250) / 1000
  const attendant: Attendant = { process: { pid: process.pid, birth: processOf(process.pid)?.birth ?? 0 }, driver: randomUUID() }
  const attending = new Map<string, Attendance>()
  const sending = openGate(bytesAtOnce)
  const cancelling = openGate(cancelsAtOnce)
  let parsed: { configuration: ServerlessConfiguration; underWay: ReturnType<typeof openGate> } | undefined
  /** Ends what nobody waits for. */
  const closing = new AbortController()
  let called = false
  let closed = false

  const settings = (): NonNullable<typeof parsed> => {
    if (parsed !== undefined) return parsed
    const configuration = serverlessConfiguration(options.configuration)
    if (options.links === undefined && (configuration.mode === 'callback' || configuration.delivery === 'reference'))
      throw new DriverError('refused', 'functions cannot reach this service: it has no key to sign links with; give it a vault key')
    return (parsed = { configuration, underWay: openGate(configuration.concurrency) })
  }
  const externalId = (name: string): string => name

  /** Seconds from the first sending to the end of all patience. */
  const limitSeconds = ({ timeoutSeconds }: CallFacts): number => {
    const { configuration } = settings()
    const { timeLimitSeconds, mode, queueSeconds } = configuration
    const own = timeoutSeconds > 0 ? Math.min(timeoutSeconds, timeLimitSeconds) : timeLimitSeconds
    return own + graceSeconds + (mode === 'sync' ? 0 : queueSeconds)
  }

  const byReference = (inputBytes: number): boolean => {
    const { delivery, publicBaseUrl, payloadLimitBytes } = settings().configuration
    return delivery === 'reference' || (inputBytes > payloadLimitBytes && publicBaseUrl !== undefined && options.links !== undefined)
  }

  /** The whole request, as bytes. */
  const requestOf = async (name: string, facts: CallFacts): Promise<{ body: Buffer; callbackUrl: string | undefined }> => {
    const { configuration } = settings()
    const { publicBaseUrl, mode } = configuration
    const staged = calls.staged(name)
    const expires = clock() + limitSeconds(facts) + 3600
    const linkTo = async (purpose: LinkPurpose, path: string): Promise<{ url: string; query: string }> => ({
      url: `${(publicBaseUrl ?? '').replace(/\/+$/, '')}/function-calls/${name}/${path}`,
      query: (await options.links?.sign(name, purpose, expires)) ?? '',
    })
    const referred = byReference(inlineBytes(staged) + requestBytes(facts))
    const read = referred ? await linkTo('inputs', 'inputs/') : undefined
    const write = referred || (publicBaseUrl !== undefined && options.links !== undefined) ? await linkTo('outputs', 'outputs/') : undefined
    const result = mode === 'callback' ? await linkTo('result', 'result/') : undefined
    const callbackUrl = result === undefined ? undefined : `${result.url}?${result.query}`
    const urlOf =
      read === undefined
        ? undefined
        : (path: string): string => `${read.url}${path.split('/').map(encodeURIComponent).join('/')}?${read.query}`
    const inside = (value: string): boolean => value === facts.directory || value.startsWith(`${facts.directory}/`)
    const environment = Object.entries(facts.environment)
    const request: CallRequest = {
      schemaVersion: 1,
      name,
      argv: facts.argv,
      environment: Object.fromEntries(environment.filter(([, value]) => !inside(value))),
      pathEnvironment: Object.fromEntries(
        environment.filter(([, value]) => inside(value)).map(([key, value]) => [key, value.slice(facts.directory.length + 1)]),
      ),
      ...(facts.workingDirectory === undefined ? {} : { workingDirectory: facts.workingDirectory }),
      inputs: await readInputs(facts.directory, staged, urlOf),
      expectedOutputs: facts.expectedOutputs,
      outputs: configuration.outputs,
      timeoutSeconds: facts.timeoutSeconds,
      limitSeconds: configuration.timeLimitSeconds,
      memoryBytes: facts.memoryBytes,
      answerLimitBytes: configuration.answerLimitBytes,
      respond: mode === 'sync' ? 'answer' : mode,
      ...(callbackUrl === undefined ? {} : { callback: { url: callbackUrl } }),
      ...(write === undefined ? {} : { uploads: { url: `${write.url}?${write.query}` } }),
    }
    return { body: Buffer.from(JSON.stringify(request)), callbackUrl }
  }

  let opened: { credential: Promise<FunctionCredential>; at: number } | undefined
  const credentialOf = async (open: () => Promise<FunctionCredential>): Promise<FunctionCredential> => {
    if (opened === undefined || clock() > opened.at + credentialSeconds) opened = { credential: open(), at: clock() }
    const { credential } = opened
    try {
      return await credential
    } catch (error) {
      opened = undefined
      if (error instanceof DriverError) throw error
      const passes = (error as { code?: unknown }).code === 'unavailable'
      throw new DriverError(passes ? 'unknown' : 'refused', messageOf(error), { cause: error })
    }
  }

  const ask = async (
    name: string,
    body: Buffer,
    more: { deadlineSeconds: number; signal?: AbortSignal; asynchronous?: boolean; callbackUrl?: string | undefined; onSent?: () => void },
  ): Promise<FunctionResponse> => {
    const { configuration } = settings()
    const { shape, endpoint, region, certificateAuthority, answerLimitBytes } = configuration
    const target = { shape, endpoint, function: configuration.function, region, certificateAuthority }
    const request = { name, body, answerLimitBytes, fresh: !configuration.idempotent, ...more }
    const { credential } = options
    if (credential === undefined) return options.invoke(target, request)
    const given = await credentialOf(credential)
    try {
      return await options.invoke(target, { ...request, credential: given })
    } catch (error) {
      if (troubleOf(error).trouble !== 'login') throw error
      // It may have been replaced since it was opened; another call may have opened it again already.
      if ((await opened?.credential.catch(() => undefined)) === given) opened = undefined
      return options.invoke(target, { ...request, credential: await credentialOf(credential) })
    }
  }

  /** Makes an end of a kept answer. False: there is none. */
  const settle = async (name: string, facts: CallFacts): Promise<boolean> => {
    const kept = await calls.answer(name)
    if (kept === undefined) return calls.end(name) !== undefined
    const { answer, receivedAt, requestId } = kept
    const sentAt = calls.sentAt(name) ?? facts.submittedAt
    try {
      checkOutputs(answer, { expectedOutputs: facts.expectedOutputs, outputs: settings().configuration.outputs })
      await applyOutputs(calls, name, facts.directory, answer)
      calls.saveLog(name, 'out', Buffer.from(answer.stdout, 'base64'))
      calls.saveLog(name, 'err', Buffer.from(answer.stderr, 'base64'))
    } catch (error) {
      if (calls.end(name) !== undefined) return true
      if (!(error instanceof DriverError)) throw error
      fail(name, 'refused', error.message)
      return true
    }
    const placed = placeRun(answer, sentAt, receivedAt)
    const id = answer.requestId ?? requestId
    const detail: PlaceDetail = {
      ...(answer.coldStart === true ? { coldStartSeconds: placed.startedAt - sentAt } : {}),
      ...(id === undefined ? {} : { requestId: id }),
    }
    calls.keepEnd(name, {
      form: 'ended',
      ...placed,
      exitCode: answer.exitCode,
      signal: answer.signal ?? null,
      reason: answer.reason,
      cpuSeconds: answer.cpuSeconds ?? null,
      peakMemoryBytes: answer.peakMemoryBytes ?? null,
      detail,
    })
    return true
  }
  const fail = (name: string, trouble: 'refused' | 'infrastructure', message: string): void => {
    const at = clock()
    calls.keepEnd(name, { form: 'failed', at, startedAt: calls.sentAt(name) ?? at, trouble, message })
  }
  const endUnanswered = (name: string, reason: 'cancelled' | 'walltime' | 'memory'): void => {
    const finishedAt = clock()
    const startedAt = calls.sentAt(name) ?? finishedAt
    const used = { wallSeconds: finishedAt - startedAt, cpuSeconds: null, peakMemoryBytes: null, detail: {} }
    calls.keepEnd(name, { form: 'ended', startedAt, finishedAt, exitCode: null, signal: null, reason, ...used })
  }
  const keep = (name: string, answer: KeptAnswer['answer'], response: FunctionResponse): Promise<boolean> =>
    calls.keepAnswer(name, { answer, receivedAt: clock(), requestId: response.requestId })

  const cancelBody = (name: string, seconds: number): Buffer =>
    Buffer.from(JSON.stringify({ schemaVersion: 1, name, cancel: true, graceSeconds: seconds }))
  const pollBody = (name: string): Buffer => Buffer.from(JSON.stringify({ schemaVersion: 1, name, poll: true }))

  /** Attends to a call until it has an end, or this driver closes. */
  const conduct = async (name: string, facts: CallFacts, attendance: Attendance): Promise<void> => {
    const { configuration, underWay } = settings()
    const { mode, shape, idempotent, retries, queueSeconds, concurrency } = configuration
    const { signal } = attendance.controller
    /** What this driver has not sent itself may have been sent by one that died. */
    let taken = calls.sentAt(name) !== undefined
    /** Since then the platform has it: it is asked for its answer, and not called again. */
    let heldSince: number | undefined
    let failures = 0
    let pause = firstPauseSeconds
    let pollPause = mode === 'callback' ? configuration.pollSeconds * pollsPerSilence : configuration.pollSeconds

    const wait = async (seconds: number): Promise<void> => {
      for (const until = clock() + seconds; clock() < until && !signal.aborted;) {
        if (calls.hasAnswer(name) || calls.end(name) !== undefined || (calls.stopAsked(name) && calls.sentAt(name) === undefined)) return
        await sleep(Math.max(1, Math.min(pollSeconds, until - clock()) * 1000))
      }
    }

    /** Sends the whole request, and waits for the answer where that comes with the response. */
    const give = async (deadlineSeconds: number): Promise<void> => {
      const sent = await sending.enter(inlineBytes(calls.staged(name)) * 2, signal)
      try {
        const { body, callbackUrl } = await requestOf(name, facts)
        const first = !taken
        if (first) {
          calls.markSent(name, clock())
          // Who cancels writes his wish down before he looks whether it was sent: one of us sees the other.
          if (calls.stopAsked(name)) {
            calls.unmarkSent(name)
            return
          }
          taken = true
        }
        const firstEver = !called
        called = true
        const asynchronous = mode !== 'sync'
        const deadline = asynchronous ? Math.min(deadlineSeconds, shortDeadlineSeconds) : deadlineSeconds
        const response = await ask(name, body, { deadlineSeconds: deadline, signal, asynchronous, callbackUrl, onSent: sent }).catch(
          (error: unknown) => {
            const { trouble } = troubleOf(error)
            if (first && (error instanceof DriverError || ['unreachable', 'busy', 'login'].includes(trouble))) {
              calls.unmarkSent(name)
              taken = false
            }
            throw error
          },
        )
        attendance.cause = undefined
        pause = firstPauseSeconds
        const said = response.status === 202 ? 'running' : readAnswer(name, response.body)
        if (said === 'running') heldSince = clock()
        else if (said === 'unknown') throw new DriverError('refused', 'the function says that it does not know a call that it was given')
        else await keep(name, said.coldStart === undefined && firstEver ? { ...said, coldStart: true } : said, response)
      } finally {
        sent()
      }
    }

    /** What was held is gone: with its instance, if it is not still on its way there. */
    const forgotten = (since: number): void => {
      if (idempotent && clock() >= since + (shape === 'http' ? 0 : queueSeconds)) heldSince = undefined
    }
    const poll = async (since: number): Promise<void> => {
      try {
        const response = await ask(name, pollBody(name), { deadlineSeconds: shortDeadlineSeconds, signal })
        const said = response.status === 202 ? 'running' : readAnswer(name, response.body)
        if (said === 'unknown') forgotten(since)
        else if (said !== 'running') await keep(name, said, response)
      } catch (error) {
        if (troubleOf(error).trouble === 'missing') forgotten(since)
        // A function that cannot be asked may still call back.
        else if (mode !== 'callback') throw error
      }
    }

    attendance.cause = `waiting for one of ${concurrency} calls under way to end`
    const leave = await underWay.enter(1, signal)
    attendance.cause = undefined
    try {
      for (;;) {
        if (signal.aborted || calls.end(name) !== undefined || (await settle(name, facts))) return
        const now = clock()
        const sentAt = calls.sentAt(name)
        if (sentAt === undefined) {
          if (calls.stopAsked(name)) return endUnanswered(name, 'cancelled')
          if (now >= facts.submittedAt + patienceSeconds)
            return fail(
              name,
              'infrastructure',
              `the function could not be called within ${patienceSeconds} s: ${attendance.cause ?? 'nothing was heard of it'}`,
            )
        } else if (now >= sentAt + limitSeconds(facts)) {
          if (!idempotent)
            return fail(name, 'infrastructure', 'no answer came within its time limit, and it may not be called again (idempotent: false)')
          endUnanswered(name, 'walltime')
          void ask(name, cancelBody(name, 0), { deadlineSeconds: shortDeadlineSeconds, signal: closing.signal }).catch(() => undefined)
          return
        }
        const left = (sentAt ?? now) + limitSeconds(facts) - now
        try {
          if (heldSince !== undefined) {
            await wait(Math.min(pollPause, left))
            if (mode !== 'callback') pollPause = Math.min(pollPause * 2, configuration.pollSeconds * 10)
            if (!calls.hasAnswer(name) && !signal.aborted) await poll(heldSince)
          } else if (taken && !idempotent) await wait(left)
          else await give(left)
        } catch (error) {
          if (signal.aborted) return
          if (error instanceof DriverError && error.trouble === 'refused') return fail(name, 'refused', error.message)
          const { trouble, message, retryAfterSeconds } = troubleOf(error)
          if (trouble === 'timeLimit') return endUnanswered(name, 'walltime')
          if (trouble === 'memory') return endUnanswered(name, 'memory')
          if (['missing', 'refused', 'login'].includes(trouble)) return fail(name, 'refused', message)
          if (trouble === 'failed' && (++failures > retries || !idempotent))
            return fail(name, 'infrastructure', `${message}${failures > 1 ? `, ${failures} times` : ''}`)
          attendance.cause = message
          await wait(retryAfterSeconds ?? pause)
          pause = Math.min(pause * 2, longestPauseSeconds)
        }
      }
    } finally {
      leave()
    }
  }

  const attend = (name: string): Attendance | undefined => {
    const known = attending.get(name)
    if (known !== undefined) return known
    const record = calls.record(name)
    if (closed || record?.form !== 'accepted' || calls.end(name) !== undefined || !calls.claim(name, attendant)) return undefined
    const attendance: Attendance = { controller: new AbortController(), cause: undefined, done: Promise.resolve() }
    const attended = async (): Promise<void> => {
      // A disk that is full tells nothing about the call: its answer is kept at the function.
      for (let pause = firstPauseSeconds; !attendance.controller.signal.aborted; pause = Math.min(pause * 2, longestPauseSeconds)) {
        try {
          await conduct(name, record.facts, attendance)
          break
        } catch (error) {
          if (calls.record(name) === undefined) break
          attendance.cause = messageOf(error)
          await sleep(pause * 1000, undefined, { signal: attendance.controller.signal }).catch(() => undefined)
        }
      }
      attending.delete(name)
      if (calls.end(name) !== undefined) watcher.ended(name)
    }
    attending.set(name, attendance)
    attendance.done = attended()
    return attendance
  }

  const stateOf = (name: string): TaskState => {
    const record = calls.record(name)
    if (record === undefined) return { state: 'unknown' }
    if (record.form === 'buried') {
      const at = { startedAt: record.at, finishedAt: record.at }
      return { state: 'ended', externalId: 'none', ...at, exitCode: null, signal: null, reason: 'cancelled' }
    }
    const id = { externalId: externalId(name) }
    const end = calls.end(name)
    if (end?.form === 'failed') return { state: 'lost', ...id, startedAt: end.startedAt, cause: end.message }
    if (end !== undefined) {
      const { startedAt, finishedAt, exitCode, signal, reason } = end
      return { state: 'ended', ...id, startedAt, finishedAt, exitCode, signal, reason }
    }
    const sentAt = calls.sentAt(name)
    const cause = attending.get(name)?.cause
    if (sentAt !== undefined) return { state: 'running', ...id, startedAt: sentAt }
    return { state: 'queued', ...id, submittedAt: record.facts.submittedAt, ...(cause === undefined ? {} : { cause }) }
  }
  const isOver = (name: string): boolean => {
    const { state } = stateOf(name)
    return state === 'ended' || state === 'lost'
  }

  const look = async (names: string[]): Promise<string[]> =>
    names.filter((name) => {
      if (isOver(name)) return true
      attend(name)
      return false
    })
  const watcher = openWatcher(look, (name) => attending.has(name), pollSeconds * 1000)

  const makeDirectory = (path: string): void => {
    mkdirSync(path, { recursive: true, mode: 0o700 })
    const found = lstatSync(path)
    if (!found.isDirectory() || (found.mode & 0o077) !== 0)
      throw new DriverError('infrastructure', `${path} is no folder of our own: others may enter it`)
  }

  const submitOne = async (intent: Intent): Promise<SubmitOutcome> => {
    const { name, directory, argv, environment, workingDirectory, expectedOutputs, timeoutSeconds, memoryBytes } = intent
    try {
      if (closed) throw new DriverError('infrastructure', 'the serverless driver is closed; open another')
      checkIntent(intent)
      const { configuration } = settings()
      const problems = serverlessProblems({ timeoutSeconds, memoryBytes, gpus: intent.gpus ?? 0 }, configuration).filter(
        ({ severity }) => severity === 'error',
      )
      if (problems.length > 0) throw new DriverError('refused', problems.map(({ path, message }) => `${path} ${message}`).join('; '))
      if (calls.record(name) === undefined) {
        const isStarted = (): boolean => calls.record(name) !== undefined
        if (intent.stage.length > 0)
          await stage(directory, intent.stage, (files) => writeStagedFiles(calls.path(name, 'staged'), files), isStarted)
        makeDirectory(directory)
        const staged = calls.staged(name)
        const bytes = inlineBytes(staged) + requestBytes({ argv, environment, expectedOutputs })
        if (bytes > configuration.payloadLimitBytes && !byReference(bytes)) {
          await rm(directory, { recursive: true, force: true })
          throw new DriverError(
            'refused',
            `the request would have ${bytes} bytes (${staged.length} input files among them), and the platform takes ${configuration.payloadLimitBytes} (payloadLimitBytes); give publicBaseUrl, so that inputs are read by reference, or plan the activity elsewhere`,
          )
        }
        calls.accept(name, {
          directory,
          argv,
          environment: { ...environment, [options.taskVariable]: name },
          ...(workingDirectory === undefined ? {} : { workingDirectory }),
          expectedOutputs,
          timeoutSeconds,
          memoryBytes,
          submittedAt: clock(),
          sources: intent.stage.map(({ from }) => from),
        })
      }
      attend(name)
      return { name, ok: true, externalId: externalId(name) }
    } catch (error) {
      return { name, ok: false, error: asDriverError(error) }
    }
  }

  const cancelOne = async (name: string, grace: number): Promise<void> => {
    if (calls.bury(name)) return
    const record = calls.record(name)
    if (record?.form !== 'accepted') return
    calls.askToStop(name, grace)
    for (const until = clock() + grace + shortDeadlineSeconds; ;) {
      if (calls.end(name) !== undefined || (await settle(name, record.facts))) break
      if (calls.sentAt(name) === undefined) {
        endUnanswered(name, 'cancelled')
        break
      }
      let response: FunctionResponse
      try {
        response = await ask(name, cancelBody(name, grace), { deadlineSeconds: grace + shortDeadlineSeconds })
        const said = response.status === 202 ? 'running' : readAnswer(name, response.body)
        if (said === 'unknown') {
          endUnanswered(name, 'cancelled')
          break
        }
        if (said !== 'running') {
          await keep(name, said, response)
          continue
        }
      } catch (error) {
        const { trouble, message } = troubleOf(error)
        if (['unreachable', 'busy', 'cut', 'failed', 'unknown'].includes(trouble)) {
          if (clock() > until) throw new DriverError('unknown', `${name} could not be cancelled: ${message}`, { cause: error })
        } else {
          // It knows no cancelling: it may go on, and nobody listens.
          endUnanswered(name, 'cancelled')
          break
        }
      }
      if (clock() > until) throw new DriverError('unknown', `${name} is being cancelled and runs on`)
      await sleep(200)
    }
    attending.get(name)?.controller.abort()
    await attending.get(name)?.done
    watcher.ended(name)
  }

  const isDelivered = (directory: string, path: string): boolean => {
    try {
      return realpathSync(join(directory, path)).startsWith(`${realpathSync(directory)}/`)
    } catch (error) {
      if (isErrno(error, 'ENOENT', 'ENOTDIR', 'ELOOP')) return false
      throw error
    }
  }

  const collect = async (name: string): Promise<Collected> => {
    const record = calls.record(name)
    const end = calls.end(name)
    const state = stateOf(name)
    if (record?.form === 'buried') {
      const summary = { initialFiles: 0, finalFiles: 0, createdFiles: 0, modifiedFiles: 0, deletedFiles: 0, outputBytes: 0 }
      const manifest = { schemaVersion: 1 as const, runtime: options.runtime, hostname: hostname(), root: '', files: [], summary }
      const used = { wallSeconds: 0, cpuSeconds: null, peakMemoryBytes: null, measuredBy: 'none' as const }
      return { state, submittedAt: record.at, ...used, manifest, missingOutputs: [], stderrTail: '' }
    }
    if (end?.form === 'failed' && end.trouble === 'refused') throw new DriverError('refused', end.message)
    if (record === undefined || end?.form !== 'ended')
      throw new DriverError('unknown', `${name} has no recorded end; find tells whether it runs, is lost or was never submitted`)
    const { directory, expectedOutputs, submittedAt, sources } = record.facts
    const { startedAt, wallSeconds, cpuSeconds, peakMemoryBytes, detail } = end
    const manifest = await outputManifest({
      runtime: options.runtime,
      hostname: hostname(),
      root: directory,
      staged: calls.staged(name),
      startedAt: calls.sentAt(name) ?? submittedAt,
    })
    const tail = calls.readLog(name, 'err', { tail: stderrTailBytes }).bytes
    return {
      state,
      submittedAt: Math.min(submittedAt, startedAt),
      queueSeconds: Math.max(0, (calls.sentAt(name) ?? submittedAt) - submittedAt),
      wallSeconds,
      cpuSeconds,
      peakMemoryBytes,
      measuredBy: cpuSeconds === null && peakMemoryBytes === null ? 'none' : 'sampled',
      manifest,
      ...(sources === undefined ? {} : { staged: amountsFrom(sources, calls.staged(name)) }),
      missingOutputs: expectedOutputs.filter((path) => !isDelivered(directory, path)),
      stderrTail: lastLines(tail),
      detail,
    }
  }

  return {
    kind: 'serverless',
    capabilities: serverlessCapabilities,
    root: async () => {
      if (!isAbsolute(options.root)) throw new DriverError('refused', `root ${JSON.stringify(options.root)} must be an absolute path`)
      return options.root
    },
    submit: (intents) => Promise.all(intents.map(submitOne)),
    async find(names) {
      const orphans = names.filter((name) => !attending.has(name) && calls.record(name)?.form === 'accepted' && !isOver(name))
      const adopted = orphans.flatMap((name) => attend(name)?.done ?? [])
      // What became of it without a driver, only the function knows.
      if (adopted.length > 0) {
        const waiting = new AbortController()
        const late = sleep(adoptionSeconds * 1000, undefined, { signal: waiting.signal }).catch(() => undefined)
        await Promise.race([Promise.all(adopted), late])
        waiting.abort()
      }
      return new Map(names.map((name) => [name, stateOf(name)]))
    },
    watch: watcher.watch,
    async cancel(names, grace) {
      const { signal } = new AbortController()
      const all = names.map(async (name) => {
        const leave = await cancelling.enter(1, signal)
        await cancelOne(name, grace).finally(leave)
      })
      const troubles = (await Promise.allSettled(all)).flatMap((result) => (result.status === 'rejected' ? [result.reason as unknown] : []))
      if (troubles.length > 0) throw asDriverError(troubles[0])
    },
    collect,
    logs: async (name, stream, range) => calls.readLog(name, stream === 'stdout' ? 'out' : 'err', range),
    async remove(name) {
      const record = calls.record(name)
      const { state } = stateOf(name)
      if (state === 'running' || state === 'queued') throw new DriverError('refused', `${name} is ${state}; cancel it before removing it`)
      if (record?.form === 'accepted') {
        await removeStagingRemains(record.facts.directory)
        await rm(record.facts.directory, { recursive: true, force: true })
      }
      calls.forget(name)
    },
    async close() {
      closed = true
      closing.abort()
      const open = [...attending.entries()]
      for (const [, { controller }] of open) controller.abort()
      await Promise.all(open.map(([, { done }]) => done))
      for (const [name] of open) calls.release(name, attendant)
      await watcher.close()
    },
  }
}
