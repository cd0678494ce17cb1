import { poll } from '../../../pacing/poll.ts'
import type { FunctionResponse } from '../../../clients/functions.ts'
import { DriverError } from '../contract/driver.ts'
import { cancelBody, pollBody, type Ask } from './asking.ts'
import type { CallFacts } from './calls.ts'
import type { ServerlessConfiguration } from './configuration.ts'
import { endUnanswered, fail, keep, settle } from './ends.ts'
import { inlineBytes } from './files.ts'
import { readAnswer } from './protocol.ts'
import { functionRequest } from './requests.ts'
import {
  clock,
  limitSeconds,
  shortDeadlineSeconds,
  troubleOf,
  type FunctionSite,
  type TroubledCall,
} from './site.ts'

/** A call whose owner is this driver. */
export interface OwnedCall {
  /** Ends the request under way; the call goes on at its platform. */
  controller: AbortController
  /** Why the call waits. */
  cause: string | undefined
  done: Promise<void>
}

/** The state of a call. Times are seconds since epoch. */
export interface CallState {
  /** The platform may have it: this driver sent it, or one that died. */
  taken: boolean
  /** Since when the platform has it: the driver polls for its answer, and does not call again. */
  heldSince: number | undefined
  failures: number
  /** Seconds until the next try, and until the next poll. */
  pause: number
  pollPause: number
}

/** The facts for the decision about the next step. */
export interface CallNow {
  now: number
  sentAt: number | undefined
  /** A cancel was requested. */
  stopAsked: boolean
  submittedAt: number
  limitSeconds: number
  patienceSeconds: number
}

export type CallStep =
  | { step: 'cancelled' | 'unreachable' | 'late' }
  /** Seconds that remain for the call. */
  | { step: 'poll' | 'wait' | 'give'; left: number }

const firstPauseSeconds = 0.5
const longestPauseSeconds = 30
/**
 * A callback may get lost: after a silence of so many polls' pauses the driver polls the function.
 */
const pollsPerSilence = 60

type Rules = Pick<
  ServerlessConfiguration,
  'mode' | 'shape' | 'idempotent' | 'retries' | 'queueSeconds' | 'pollSeconds'
>

export const beginCall = (
  sentAt: number | undefined,
  { mode, pollSeconds }: Pick<Rules, 'mode' | 'pollSeconds'>,
): CallState => ({
  taken: sentAt !== undefined,
  heldSince: undefined,
  failures: 0,
  pause: firstPauseSeconds,
  pollPause: mode === 'callback' ? pollSeconds * pollsPerSilence : pollSeconds,
})

/** The next step of a call without an answer. */
export const nextStep = (
  state: CallState,
  known: CallNow,
  { idempotent }: Pick<Rules, 'idempotent'>,
): CallStep => {
  const { now, sentAt } = known
  if (sentAt === undefined && known.stopAsked) return { step: 'cancelled' }
  if (sentAt === undefined && now >= known.submittedAt + known.patienceSeconds) return { step: 'unreachable' }
  if (sentAt !== undefined && now >= sentAt + known.limitSeconds) return { step: 'late' }
  const left = (sentAt ?? now) + known.limitSeconds - now
  if (state.heldSince !== undefined) return { step: 'poll', left }
  return { step: state.taken && !idempotent ? 'wait' : 'give', left }
}

/** The effect of a failed step: the end of the call, or a pause before the next one. */
export const afterTrouble = (
  state: CallState,
  error: unknown,
  { retries, idempotent }: Pick<Rules, 'retries' | 'idempotent'>,
):
  | { end: 'walltime' | 'memory' }
  | { end: 'refused' | 'infrastructure'; message: string }
  | ({ end: undefined } & TroubledCall) => {
  if (error instanceof DriverError && error.trouble === 'refused')
    return { end: 'refused', message: error.message }
  const { trouble, message, retryAfterSeconds } = troubleOf(error)
  if (trouble === 'timeLimit') return { end: 'walltime' }
  if (trouble === 'memory') return { end: 'memory' }
  if (['missing', 'refused', 'login'].includes(trouble)) return { end: 'refused', message }
  if (trouble === 'failed' && (++state.failures > retries || !idempotent))
    return {
      // A second attempt would be a second call.
      end: idempotent ? 'infrastructure' : 'refused',
      message: `${message}${state.failures > 1 ? `, ${state.failures} times` : ''}`,
    }
  return { end: undefined, trouble, message, retryAfterSeconds }
}

/** One call, from its slot to its end. */
class CallRun {
  readonly #site: FunctionSite
  readonly #ask: Ask
  readonly #name: string
  readonly #facts: CallFacts
  readonly #owned: OwnedCall
  readonly #rules: Rules
  readonly #state: CallState

  constructor(site: FunctionSite, ask: Ask, name: string, facts: CallFacts, owned: OwnedCall) {
    this.#site = site
    this.#ask = ask
    this.#name = name
    this.#facts = facts
    this.#owned = owned
    this.#rules = site.settings().configuration
    this.#state = beginCall(site.calls.sentAt(name), this.#rules)
  }

  get #signal(): AbortSignal {
    return this.#owned.controller.signal
  }

  /** Waits until the time is over, or an event has come. */
  async #wait(seconds: number): Promise<void> {
    const { calls, pollSeconds } = this.#site
    const hasCome = (): boolean =>
      calls.hasAnswer(this.#name) ||
      calls.end(this.#name) !== undefined ||
      (calls.stopAsked(this.#name) && calls.sentAt(this.#name) === undefined)
    await poll(() => hasCome() || undefined, {
      everyMs: pollSeconds * 1_000,
      deadlineMs: seconds * 1_000,
      signal: this.#signal,
    })
  }

  /**
   * Records that it is sent. False: a cancel came first, and its sender sees that the call was not
   * sent.
   */
  #markSent(): boolean {
    const { calls } = this.#site
    calls.markSent(this.#name, clock())
    // A cancel is recorded before its sender reads whether the call was sent: one of the two sees
    // the other.
    if (calls.stopAsked(this.#name)) {
      calls.unmarkSent(this.#name)
      return false
    }
    this.#state.taken = true
    return true
  }

  /** Sends the whole request, and waits for the answer where it comes with the response. */
  async #give(deadlineSeconds: number): Promise<void> {
    const { calls, sending, first } = this.#site
    const sent = await sending.enter(inlineBytes(calls.staged(this.#name)) * 2, this.#signal)
    try {
      const { body, callbackUrl } = await functionRequest(this.#site, this.#name, this.#facts)
      const firstTime = !this.#state.taken
      if (firstTime && !this.#markSent()) return
      const firstEver = !first.made
      first.made = true
      const asynchronous = this.#rules.mode !== 'sync'
      const deadline = asynchronous ? Math.min(deadlineSeconds, shortDeadlineSeconds) : deadlineSeconds
      const more = {
        deadlineSeconds: deadline,
        signal: this.#signal,
        asynchronous,
        callbackUrl,
        onSent: sent,
      }
      const response = await this.#ask(this.#name, body, more).catch((error: unknown) => {
        const notTaken =
          error instanceof DriverError || ['unreachable', 'busy', 'login'].includes(troubleOf(error).trouble)
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
    this.#owned.cause = undefined
    this.#state.pause = firstPauseSeconds
    const result = response.status === 202 ? 'running' : readAnswer(this.#name, response.body)
    if (result === 'running') this.#state.heldSince = clock()
    else if (result === 'unknown')
      throw new DriverError('refused', 'the function does not know a call that it accepted')
    else {
      const answer = result.coldStart === undefined && firstEver ? { ...result, coldStart: true } : result
      await keep(this.#site.calls, this.#name, answer, response)
    }
  }

  /** The held call is lost: with its instance, unless it is still on its way there. */
  #forgotten(since: number): void {
    const { idempotent, shape, queueSeconds } = this.#rules
    if (idempotent && clock() >= since + (shape === 'http' ? 0 : queueSeconds))
      this.#state.heldSince = undefined
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
      const result = response.status === 202 ? 'running' : readAnswer(this.#name, response.body)
      if (result === 'unknown') this.#forgotten(heldSince)
      else if (result !== 'running') await keep(this.#site.calls, this.#name, result, response)
    } catch (error) {
      if (troubleOf(error).trouble === 'missing') this.#forgotten(heldSince)
      // A function that cannot be polled may still call back.
      else if (mode !== 'callback') throw error
    }
  }

  /** Ends a call that has nothing left to wait for. */
  #end(step: 'cancelled' | 'unreachable' | 'late'): void {
    const { calls, patienceSeconds, closing } = this.#site
    const name = this.#name
    if (step === 'cancelled') endUnanswered(calls, name, 'cancelled')
    else if (step === 'unreachable') {
      const reason = this.#owned.cause ?? 'nothing was heard of it'
      fail(
        calls,
        name,
        'infrastructure',
        `the function could not be called within ${patienceSeconds} s: ${reason}`,
      )
    } else if (!this.#rules.idempotent)
      fail(
        calls,
        name,
        'refused',
        'no answer came within its time limit, and it may not be called again (idempotent: false)',
      )
    else {
      endUnanswered(calls, name, 'walltime')
      const more = { deadlineSeconds: shortDeadlineSeconds, signal: closing.signal }
      void this.#ask(name, cancelBody(name, 0), more).catch(() => undefined)
    }
  }

  /** True: the call has an end. */
  async #recover(error: unknown): Promise<boolean> {
    const { calls } = this.#site
    if (this.#signal.aborted) return true
    const verdict = afterTrouble(this.#state, error, this.#rules)
    if (verdict.end === undefined) {
      this.#owned.cause = verdict.message
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

/** Runs a call until it has an end, or this driver closes. */
export async function runCall(
  site: FunctionSite,
  ask: Ask,
  name: string,
  facts: CallFacts,
  owned: OwnedCall,
): Promise<void> {
  const { configuration, underWay } = site.settings()
  owned.cause = `waiting for one of ${configuration.concurrency} calls under way to end`
  await underWay.inTurn(async () => {
    owned.cause = undefined
    await new CallRun(site, ask, name, facts, owned).run()
  }, owned.controller.signal)
}
