import { setTimeout as sleep } from 'node:timers/promises'
import { openBackoff, type Backoff } from '../../pacing/backoff.ts'
import { LinkError } from '../../shell/site-shell.ts'
import { dial, onTheWay, waitsForPerson, type Forwarder } from './dial.ts'
import { LoginProgress } from './login-progress.ts'
import type { LoginGate } from './login-gate.ts'
import type { AskPerson } from './login.ts'
import type { OtherProcesses } from './relay.ts'
import { SshSession } from './session.ts'
import type { SshSessionsOptions } from './sessions-options.ts'
import type { LoginPrompts, SshState, SshTarget } from './target.ts'

/**
 * A call waits this long for the next attempt; when that is later, the call fails at once with the
 * last error.
 */
const longestWaitMs = 5000
/**
 * The end of a connection that lived this long has a reason of its own; a shorter life counts as a
 * failed attempt.
 */
const shortLifeMs = 10_000
/**
 * A login without answers is given up after this time; OpenSSH would end it after 120 s
 * (`LoginGraceTime`).
 */
const answerMs = 100_000

/** A person's answers to prompts of a connection that is gone. */
interface Given {
  prompts: LoginPrompts
  answers: readonly string[]
}

/** One login under way, from its begin to its connection or its failure. */
interface Login {
  readonly progress: LoginProgress
  /** Answers that were given before it began, until they are used. */
  given: Given | undefined
  /** Its last prompts. */
  prompts: LoginPrompts | undefined
  /** A person has answered, or will: the connection is not closed for idleness. */
  byPerson: boolean
  /** Settles with the connection, its failure, or the wait for a person; anew after an answer. */
  result: PromiseWithResolvers<SshSession>
}

const newResult = (): PromiseWithResolvers<SshSession> => {
  const result = Promise.withResolvers<SshSession>()
  result.promise.catch(() => undefined)
  return result
}

/** A login that asked a person something. */
interface Waiting {
  readonly is: 'waiting for login'
  readonly prompts: LoginPrompts
  /** Why earlier answers were not taken. */
  readonly error?: string
  /** Present while its connection is still open. */
  readonly login?: Login
  /** @returns the next result of its login */
  deliver?: (answers: readonly string[]) => Promise<SshSession>
  readonly stop?: () => void
}

/** What a login is doing now. */
type State =
  | { readonly is: 'disconnected' | 'refused' }
  | { readonly is: 'connecting'; readonly login: Login }
  | Waiting
  | {
      readonly is: 'connected'
      readonly session: SshSession
      readonly byPerson: boolean
      /** The time of the login; milliseconds of the monotonic clock. */
      at: number
    }

export interface LoginEntryParts {
  /** Names the login in all processes of a fleet. */
  key: string
  target: SshTarget
  parent: LoginEntry | undefined
  gate: LoginGate
  options: SshSessionsOptions
  others: () => OtherProcesses | undefined
  /**
   * Whether it is a further connection of a login that has one: it carries lasting streams only, and
   * asks no person.
   */
  isFurther: boolean
}

/** The login to one target: at most one connection, and the results of attempts. */
export class LoginEntry {
  /** As `LoginEntryParts`. */
  readonly key: string
  readonly target: SshTarget
  readonly parent: LoginEntry | undefined
  readonly gate: LoginGate
  readonly #options: SshSessionsOptions
  readonly #others: () => OtherProcesses | undefined
  readonly #isFurther: boolean
  #state: State = { is: 'disconnected' }
  #since = new Date()
  #closed = false
  /** The last failure; undefined after a successful connection. */
  #error: LinkError | undefined
  /** Pauses after failed attempts since the last connection that lasted; the time of the next one. */
  readonly #pauses: Backoff
  #notBefore = 0
  /** The time of the last request for it. */
  #usedAt = performance.now()
  /** Of its last login. */
  progress: LoginProgress | undefined
  /** The state that was last sent to the other processes. */
  #announced: LoginEntry['held']

  constructor({ key, target, parent, gate, options, others, isFurther }: LoginEntryParts) {
    this.key = key
    this.target = target
    this.parent = parent
    this.gate = gate
    this.#options = options
    const { first, longest } = options.backOffMs ?? { first: 500, longest: 30_000 }
    this.#pauses = openBackoff({ firstMs: first, longestMs: longest })
    this.#others = others
    this.#isFurther = isFurther
  }

  get connected(): SshSession | undefined {
    return this.#state.is === 'connected' && this.#state.session.alive ? this.#state.session : undefined
  }

  /**
   * The state that other processes may see: a person logged in here, or the login waits for one.
   */
  get held(): { waiting: boolean; since: Date } | undefined {
    const state = this.#state
    if (state.is === 'waiting for login') return { waiting: true, since: this.#since }
    return state.is === 'connected' && state.byPerson && state.session.alive
      ? { waiting: false, since: this.#since }
      : undefined
  }

  /** The entry that waits for a person: this one or a host on the way to it. */
  get waits(): LoginEntry | undefined {
    return this.parent?.waits ?? (this.#state.is === 'waiting for login' ? this : undefined)
  }

  state(): SshState {
    const waits = this.waits
    if (waits !== undefined && waits !== this && this.connected === undefined) return waits.state()
    const waiting = this.#state.is === 'waiting for login' ? this.#state : undefined
    return {
      state: this.#state.is,
      since: this.#since,
      ...(waiting === undefined ? {} : { prompts: waiting.prompts }),
      ...(waiting?.error !== undefined
        ? { error: waiting.error }
        : this.#error === undefined
          ? {}
          : { error: this.#error.message, stage: this.#error.stage }),
    }
  }

  /** The connection, made when there is none. */
  session(): Promise<SshSession> {
    if (this.connected !== undefined) return Promise.resolve(this.connected)
    if (this.#closed)
      return Promise.reject(new LinkError('link', 'the connections of this process are closed'))
    const state = this.#state
    if (state.is === 'waiting for login') return Promise.reject(waitsForPerson(state.prompts))
    if (state.is === 'connecting') return state.login.result.promise
    const pause = this.#notBefore - performance.now()
    // The streams of a further connection have the login's own meanwhile.
    const longest = this.#error?.permanent === true || this.#isFurther ? 0 : longestWaitMs
    if (this.#error !== undefined && pause > longest) return Promise.reject(this.#error)
    return this.#begin(pause)
  }

  /**
   * For a host behind this one: a connection of this process, or of another process where a person
   * logged in.
   */
  async way(): Promise<Forwarder> {
    if (this.connected !== undefined) return this.connected
    const other = await this.#others()?.find(this.key)
    if (other === undefined) return this.session()
    return {
      forward: async (host, port) => {
        const route = await other.forward(host, port)
        this.leaveLogin()
        return route
      },
    }
  }

  /** A person has logged in at another process: the login that waits here is given up. */
  leaveLogin(): void {
    const state = this.#state
    if (state.is !== 'waiting for login') return
    if (state.login !== undefined) state.login.prompts = undefined
    this.#enter({ is: 'disconnected' })
    state.stop?.()
  }

  /** Starts a login. @returns its first result */
  #begin(pause: number, given?: Given): Promise<SshSession> {
    const login: Login = {
      ...{ progress: new LoginProgress(), given, prompts: undefined, byPerson: false },
      result: newResult(),
    }
    const { promise } = login.result
    this.progress = login.progress
    this.#enter({ is: 'connecting', login })
    const connect = async (): Promise<SshSession> => {
      if (pause > 0) await sleep(pause)
      return this.#connect(login)
    }
    connect().then(
      (session) => login.result.resolve(session),
      (error: unknown) => login.result.reject(this.#failed(login, error)),
    )
    return promise
  }

  async #connect(login: Login): Promise<SshSession> {
    const { progress } = login
    const closed = (): LinkError => new LinkError('link', 'the connection was closed')
    if (this.#closed) throw closed()
    // The way comes first: a jump host that waits for a person takes no slot at this host.
    if (this.parent !== undefined) progress.reached('route', `behind ${this.parent.target.host}`)
    const parent = await this.parent?.way().catch((error: unknown) => {
      throw onTheWay(this.parent!.target, error)
    })
    let leave = await this.gate.enter()
    let over = false
    try {
      const ask: AskPerson = async (prompts, error) => {
        if (this.#isFurther) throw waitsForPerson(prompts)
        const { given } = login
        Object.assign(login, { byPerson: true, given: undefined, prompts })
        if (given !== undefined && error === undefined && samePrompts(given.prompts, prompts))
          return given.answers
        leave()
        const answers = await this.#askPerson(login, prompts, error)
        leave = await this.gate.enter()
        if (over) leave()
        return answers
      }
      const { target } = this
      const { client, route } = await dial({ target, parent, progress, options: this.#options, ask })
      const session = new SshSession(client, route, this.#options.channels ?? 8, !this.#isFurther)
      if (this.#closed) {
        session.close()
        throw closed()
      }
      this.#error = undefined
      this.#enter({ is: 'connected', session, byPerson: login.byPerson, at: performance.now() })
      session.onEnd((error) => this.#ended(session, error))
      return session
    } finally {
      over = true
      leave()
    }
  }

  #askPerson(login: Login, prompts: LoginPrompts, error: string | undefined): Promise<readonly string[]> {
    return new Promise((resolve, reject) => {
      const end = (): void => {
        unpark()
        clearTimeout(timer)
        delete waiting.deliver
      }
      const stop = (): void => {
        end()
        reject(waitsForPerson(prompts))
      }
      const timer = setTimeout(stop, answerMs)
      const unpark = this.gate.park(stop)
      const waiting: Waiting = {
        is: 'waiting for login',
        prompts,
        ...(error === undefined ? {} : { error }),
        login,
        stop,
        deliver: (answers) => {
          end()
          login.result = newResult()
          this.#enter({ is: 'connecting', login })
          resolve(answers)
          return login.result.promise
        },
      }
      this.#enter(waiting)
      login.result.reject(waitsForPerson(prompts))
    })
  }

  /** Whether a login is the one of the present state; another may have begun since. */
  #isCurrent(login: Login): boolean {
    const state = this.#state
    return (state.is === 'connecting' || state.is === 'waiting for login') && state.login === login
  }

  /** The failure of a login for its callers; the state follows from it. */
  #failed(login: Login, error: unknown): LinkError {
    const waiting =
      this.#state.is === 'waiting for login' && this.#state.login === login ? this.#state : undefined
    // A host on the way waits: there was no attempt here.
    if (error instanceof LinkError && error.waitsForPerson && waiting === undefined) {
      // Nobody is asked for a further connection: another attempt at once would only be broken off
      // too, and a server shuts out addresses that do that often.
      if (this.#isFurther && this.parent?.waits === undefined) {
        this.#error = error
        this.#backOff(10)
      }
      if (this.#isCurrent(login)) this.#enter({ is: 'disconnected' })
      return error
    }
    const link = waiting === undefined ? login.progress.failed(error) : undefined
    if (!this.#isCurrent(login)) return link ?? login.progress.failed(error)
    // The connection ended after a person was asked. Without a person no attempt is made, so that
    // no account gets locked.
    const prompts = waiting?.prompts ?? (link?.stage === 'login' ? login.prompts : undefined)
    if (prompts !== undefined) {
      waiting?.stop?.()
      const reason = link?.message ?? waiting?.error
      this.#enter({ is: 'waiting for login', prompts, ...(reason === undefined ? {} : { error: reason }) })
      return waitsForPerson(prompts)
    }
    const failure = link ?? login.progress.failed(error)
    this.#error = failure
    this.#backOff(failure.permanent ? 10 : 1)
    this.#enter({ is: failure.permanent ? 'refused' : 'disconnected' })
    return failure
  }

  /**
   * `patience`: refused logins are tried again far less often, because the site would lock the
   * account.
   */
  #backOff(patience: number): void {
    const pause = patience * this.#pauses.next()
    // Between half and one and a half of it: callers that lost the same host do not return
    // together.
    this.#notBefore = performance.now() + pause * (0.5 + Math.random())
  }

  #ended(session: SshSession, error: LinkError): void {
    const state = this.#state
    if (state.is !== 'connected' || state.session !== session) return
    this.#error = error
    if (performance.now() - state.at < shortLifeMs) this.#backOff(1)
    else {
      this.#pauses.reset()
      this.#notBefore = 0
    }
    this.#enter({ is: 'disconnected' })
  }

  /** As `SshSessions.answer`. */
  async answer(answers: readonly string[]): Promise<SshState> {
    const waits = this.waits
    if (waits !== undefined && waits !== this) {
      const state = await waits.answer(answers)
      if (state.state !== 'connected') return state
      // Continues with this host; it may ask as well.
      await this.session().catch(() => undefined)
      return this.state()
    }
    const waiting = this.#state
    if (waiting.is !== 'waiting for login') {
      await this.session().catch(() => undefined)
      return this.state()
    }
    const next = waiting.deliver?.(answers) ?? this.#begin(0, { prompts: waiting.prompts, answers })
    await next.catch(() => undefined)
    return this.state()
  }

  used(): void {
    this.#usedAt = performance.now()
  }

  /**
   * Whether the entry is idle, has no pause pending, and was not requested in this time. One that waits
   * for a person is idle once its connection has ended.
   */
  isForgettable(forgetMs: number): boolean {
    const now = performance.now()
    const state = this.#state
    const isIdle =
      state.is === 'waiting for login'
        ? state.login === undefined
        : state.is !== 'connecting' && this.connected === undefined
    return isIdle && now >= this.#notBefore && now - this.#usedAt >= forgetMs
  }

  /** Forgets the last refusal: the next call tries at once. */
  retryNow(): void {
    this.#notBefore = 0
    this.#pauses.reset()
  }

  sweep(idleMs: number): void {
    const state = this.#state
    if (state.is !== 'connected' || state.byPerson) return
    const { idleSince } = state.session
    if (!state.session.alive || idleSince === undefined || performance.now() - idleSince < idleMs) return
    state.at = -Infinity
    state.session.close('the connection was closed after a time without use')
    this.#error = undefined
  }

  close(): void {
    this.#closed = true
    const state = this.#state
    if (state.is === 'connected') state.session.close()
    this.#enter({ is: 'disconnected' })
    if (state.is === 'waiting for login') state.stop?.()
  }

  #enter(state: State): void {
    if (this.#state.is !== state.is) this.#since = new Date()
    this.#state = state
    const now = this.held
    if (now?.waiting !== this.#announced?.waiting || now?.since !== this.#announced?.since) {
      this.#announced = now
      void this.#others()?.changed()
    }
  }
}

const samePrompts = (one: LoginPrompts, other: LoginPrompts): boolean =>
  JSON.stringify(one.prompts.map(({ prompt }) => prompt)) ===
  JSON.stringify(other.prompts.map(({ prompt }) => prompt))
