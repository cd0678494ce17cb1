import { setTimeout as sleep } from 'node:timers/promises'
import type { FunctionResponse } from '../../../clients/functions.ts'
import { DriverError } from '../contract/driver.ts'
import { cancelBody, pollBody, type Ask } from './asking.ts'
import type { CallFacts } from './calls.ts'
import type { ServerlessConfiguration } from './configuration.ts'
import { endUnanswered, fail, keep, settle } from './ends.ts'
import { inlineBytes } from './files.ts'
import { readAnswer } from './protocol.ts'
import { requestOf } from './requests.ts'
import { clock, limitSeconds, shortDeadlineSeconds, troubleOf, type FunctionSite, type TroubledCall } from './site.ts'

/** A call that this driver attends to. */
export interface Attendance {
  /** Ends the request under way; the call goes on at its platform. */
  controller: AbortController
  /** Why it waits. */
  cause: string | undefined
  done: Promise<void>
}

/** Where a call stands. Times are seconds since epoch. */
export interface CallState {
  /** The platform may have it: sent by this driver, or by one that died. */
  taken: boolean
  /** Since then the platform has it: it is asked for its answer, and not called again. */
  heldSince: number | undefined
  failures: number
  /** Seconds until it is tried again, and until its answer is asked for again. */
  pause: number
  pollPause: number
}

/** What is known when the next step is decided. */
export interface CallNow {
  now: number
  sentAt: number | undefined
  /** Somebody asked for its end. */
  stopAsked: boolean
  submittedAt: number
  limitSeconds: number
  patienceSeconds: number
}

export type CallStep =
  | { step: 'cancelled' | 'unreachable' | 'late' }
  /** Seconds that are left for the call. */
  | { step: 'poll' | 'wait' | 'give'; left: number }

const firstPauseSeconds = 0.5
const longestPauseSeconds = 30
/** A callback may get lost: after so many polls' pauses of silence the function is asked. */
const pollsPerSilence = 60

type Rules = Pick<ServerlessConfiguration, 'mode' | 'shape' | 'idempotent' | 'retries' | 'queueSeconds' | 'pollSeconds'>

export const begin = (sentAt: number | undefined, { mode, pollSeconds }: Pick<Rules, 'mode' | 'pollSeconds'>): CallState => ({
  taken: sentAt !== undefined,
  heldSince: undefined,
  failures: 0,
  pause: firstPauseSeconds,
  pollPause: mode === 'callback' ? pollSeconds * pollsPerSilence : pollSeconds,
})

/** What a call without an answer needs next. */
export const nextStep = (state: CallState, known: CallNow, { idempotent }: Pick<Rules, 'idempotent'>): CallStep => {
  const { now, sentAt } = known
  if (sentAt === undefined && known.stopAsked) return { step: 'cancelled' }
  if (sentAt === undefined && now >= known.submittedAt + known.patienceSeconds) return { step: 'unreachable' }
  if (sentAt !== undefined && now >= sentAt + known.limitSeconds) return { step: 'late' }
  const left = (sentAt ?? now) + known.limitSeconds - now
  if (state.heldSince !== undefined) return { step: 'poll', left }
  return { step: state.taken && !idempotent ? 'wait' : 'give', left }
}

/** What a failed step means: the end of the call, or how long to wait before the next one. */
export const afterTrouble = (
  state: CallState,
  error: unknown,
  { retries, idempotent }: Pick<Rules, 'retries' | 'idempotent'>,
): { end: 'walltime' | 'memory' } | { end: 'refused' | 'infrastructure'; message: string } | ({ end: undefined } & TroubledCall) => {
  if (error instanceof DriverError && error.trouble === 'refused') return { end: 'refused', message: error.message }
  const { trouble, message, retryAfterSeconds } = troubleOf(error)
  if (trouble === 'timeLimit') return { end: 'walltime' }
  if (trouble === 'memory') return { end: 'memory' }
  if (['missing', 'refused', 'login'].includes(trouble)) return { end: 'refused', message }
  if (trouble === 'failed' && (++state.failures > retries || !idempotent))
    return { end: 'infrastructure', message: `${message}${state.failures > 1 ? `, ${state.failures} times` : ''}` }
  return { end: undefined, trouble, message, retryAfterSeconds }
}

/** One call, from its turn to its end. */
class Conduct {
  readonly #site: FunctionSite
  readonly #ask: Ask
  readonly #name: string
  readonly #facts: CallFacts
  readonly #attendance: Attendance
  readonly #rules: Rules
  readonly #state: CallState

  constructor(site: FunctionSite, ask: Ask, name: string, facts: CallFacts, attendance: Attendance) {
    this.#site = site
    this.#ask = ask
    this.#name = name
    this.#facts = facts
    this.#attendance = attendance
    this.#rules = site.settings().configuration
    this.#state = begin(site.calls.sentAt(name), this.#rules)
  }

  get #signal(): AbortSignal {
    return this.#attendance.controller.signal
  }

  /** Until the time is over, or something has come. */
  async #wait(seconds: number): Promise<void> {
    const { calls, pollSeconds } = this.#site
    for (const until = clock() + seconds; clock() < until && !this.#signal.aborted;) {
      if (calls.hasAnswer(this.#name) || calls.end(this.#name) !== undefined) return
      if (calls.stopAsked(this.#name) && calls.sentAt(this.#name) === undefined) return
      await sleep(Math.max(1, Math.min(pollSeconds, until - clock()) * 1000))
    }
  }

  /** Writes down that it is sent. False: somebody has cancelled it, and sees that it was not. */
  #markSent(): boolean {
    const { calls } = this.#site
    calls.markSent(this.#name, clock())
    // Who cancels writes this down before looking whether it was sent: one of us sees the other.
    if (calls.stopAsked(this.#name)) {
      calls.unmarkSent(this.#name)
      return false
    }
    this.#state.taken = true
    return true
  }

  /** Sends the whole request, and waits for the answer where that comes with the response. */
  async #give(deadlineSeconds: number): Promise<void> {
    const { calls, sending, first } = this.#site
    const sent = await sending.enter(inlineBytes(calls.staged(this.#name)) * 2, this.#signal)
    try {
      const { body, callbackUrl } = await requestOf(this.#site, this.#name, this.#facts)
      const firstTime = !this.#state.taken
      if (firstTime && !this.#markSent()) return
      const firstEver = !first.made
      first.made = true
      const asynchronous = this.#rules.mode !== 'sync'
      const deadline = asynchronous ? Math.min(deadlineSeconds, shortDeadlineSeconds) : deadlineSeconds
      const more = { deadlineSeconds: deadline, signal: this.#signal, asynchronous, callbackUrl, onSent: sent }
      const response = await this.#ask(this.#name, body, more).catch((error: unknown) => {
        const notTaken = error instanceof DriverError || ['unreachable', 'busy', 'login'].includes(troubleOf(error).trouble)
        if (firstTime && notTaken) {
          calls.unmarkSent(this.#name)
          this.#state.taken = false
        }
        throw error
      })
      await this.#given(response, firstEver)
    } finally {
      sent()
    }
  }

  async #given(response: FunctionResponse, firstEver: boolean): Promise<void> {
    this.#attendance.cause = undefined
    this.#state.pause = firstPauseSeconds
    const said = response.status === 202 ? 'running' : readAnswer(this.#name, response.body)
    if (said === 'running') this.#state.heldSince = clock()
    else if (said === 'unknown') throw new DriverError('refused', 'the function says that it does not know a call that it was given')
    else {
      const answer = said.coldStart === undefined && firstEver ? { ...said, coldStart: true } : said
      await keep(this.#site.calls, this.#name, answer, response)
    }
  }

  /** What was held is gone: with its instance, if it is not still on its way there. */
  #forgotten(since: number): void {
    const { idempotent, shape, queueSeconds } = this.#rules
    if (idempotent && clock() >= since + (shape === 'http' ? 0 : queueSeconds)) this.#state.heldSince = undefined
  }

  async #poll(left: number): Promise<void> {
    const { heldSince = 0 } = this.#state
    const { mode, pollSeconds } = this.#rules
    await this.#wait(Math.min(this.#state.pollPause, left))
    if (mode !== 'callback') this.#state.pollPause = Math.min(this.#state.pollPause * 2, pollSeconds * 10)
    if (this.#site.calls.hasAnswer(this.#name) || this.#signal.aborted) return
    try {
      const more = { deadlineSeconds: shortDeadlineSeconds, signal: this.#signal }
      const response = await this.#ask(this.#name, pollBody(this.#name), more)
      const said = response.status === 202 ? 'running' : readAnswer(this.#name, response.body)
      if (said === 'unknown') this.#forgotten(heldSince)
      else if (said !== 'running') await keep(this.#site.calls, this.#name, said, response)
    } catch (error) {
      if (troubleOf(error).trouble === 'missing') this.#forgotten(heldSince)
      // A function that cannot be asked may still call back.
      else if (mode !== 'callback') throw error
    }
  }

  /** Ends a call that waits for nothing any more. */
  #end(step: 'cancelled' | 'unreachable' | 'late'): void {
    const { calls, patienceSeconds, closing } = this.#site
    const name = this.#name
    if (step === 'cancelled') endUnanswered(calls, name, 'cancelled')
    else if (step === 'unreachable') {
      const words = this.#attendance.cause ?? 'nothing was heard of it'
      fail(calls, name, 'infrastructure', `the function could not be called within ${patienceSeconds} s: ${words}`)
    } else if (!this.#rules.idempotent)
      fail(calls, name, 'infrastructure', 'no answer came within its time limit, and it may not be called again (idempotent: false)')
    else {
      endUnanswered(calls, name, 'walltime')
      const more = { deadlineSeconds: shortDeadlineSeconds, signal: closing.signal }
      void this.#ask(name, cancelBody(name, 0), more).catch(() => undefined)
    }
  }

  /** True: it has an end. */
  async #recover(error: unknown): Promise<boolean> {
    const { calls } = this.#site
    if (this.#signal.aborted) return true
    const verdict = afterTrouble(this.#state, error, this.#rules)
    if (verdict.end === undefined) {
      this.#attendance.cause = verdict.message
      await this.#wait(verdict.retryAfterSeconds ?? this.#state.pause)
      this.#state.pause = Math.min(this.#state.pause * 2, longestPauseSeconds)
      return false
    }
    if ('message' in verdict) fail(calls, this.#name, verdict.end, verdict.message)
    else endUnanswered(calls, this.#name, verdict.end)
    return true
  }

  async run(): Promise<void> {
    const { calls, patienceSeconds } = this.#site
    for (;;) {
      if (this.#signal.aborted || calls.end(this.#name) !== undefined) return
      if (await settle(this.#site, this.#name, this.#facts)) return
      const known: CallNow = {
        now: clock(),
        sentAt: calls.sentAt(this.#name),
        stopAsked: calls.stopAsked(this.#name),
        submittedAt: this.#facts.submittedAt,
        limitSeconds: limitSeconds(this.#site, this.#facts),
        patienceSeconds,
      }
      const next = nextStep(this.#state, known, this.#rules)
      if (!('left' in next)) return this.#end(next.step)
      try {
        if (next.step === 'poll') await this.#poll(next.left)
        else if (next.step === 'wait') await this.#wait(next.left)
        else await this.#give(next.left)
      } catch (error) {
        if (await this.#recover(error)) return
      }
    }
  }
}

/** Attends to a call until it has an end, or this driver closes. */
export async function conduct(site: FunctionSite, ask: Ask, name: string, facts: CallFacts, attendance: Attendance): Promise<void> {
  const { configuration, underWay } = site.settings()
  attendance.cause = `waiting for one of ${configuration.concurrency} calls under way to end`
  await underWay.inTurn(async () => {
    attendance.cause = undefined
    await new Conduct(site, ask, name, facts, attendance).run()
  }, attendance.controller.signal)
}
