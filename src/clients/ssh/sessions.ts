import { createHash } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Duplex } from 'node:stream'
import type { Client } from 'ssh2'
import { openGate } from '../../pacing/gate.ts'
import { LinkError, type RunOptions, type ShellResult, type ShellStream, type SiteShell } from '../../drivers/shell.ts'
import { Journey, messageOf } from './journey.ts'
import { logIn, type Ask } from './login.ts'
import { countBuffersWithHeap } from './packets.ts'
import { NotHeld } from './relay-frames.ts'
import type { OtherProcesses } from './relay.ts'
import type { RelaySession } from './relay-session.ts'
import { openProxyCommand, openRoute, within } from './route.ts'
import { runDefaults, Session } from './session.ts'
import type { LoginPrompts, SshProbe, SshSecret, SshSessions, SshSessionsOptions, SshState, SshTarget } from './target.ts'

/** A call waits this long for the next attempt; when that is later it is told of the last failure at once. */
const longestWaitMs = 5000
/** A connection that lived this long ended for a reason of its own; one that did not counts as a failed attempt. */
const shortLifeMs = 10_000
/** A login that nobody answers is left after this time; OpenSSH would end it after 120 s (`LoginGraceTime`). */
const answerMs = 100_000
/** Logins to one host that wait for people over an open connection. */
const longestQueueOfPeople = 3
const probeMs = 14_500

/** The target of the last jump, with the jumps before it. */
const jumpOf = (target: SshTarget): SshTarget | undefined => {
  const last = target.jump?.at(-1)
  return last === undefined ? undefined : { ...last, jump: target.jump!.slice(0, -1) }
}

/** Equal for targets that share a connection: all that decides who is reached, how, and who it is believed to be. */
const keyOf = (target: SshTarget): string => {
  const { host, port, username, credential, proxyCommand, forwardAgent, timeouts, hostKeys } = target
  const { policy, knownHosts, fingerprints, hostKeyAlias } = hostKeys
  const own = { host, port, username, credential, proxyCommand, forwardAgent, timeouts, policy, knownHosts, fingerprints, hostKeyAlias }
  return createHash('sha256')
    .update(JSON.stringify([own, ...(target.jump ?? []).map(keyOf)]))
    .digest('hex')
}

/** What of a target is wrong, before anything is tried. */
const faultOf = (target: SshTarget): string | undefined => {
  // A leading dash would be an option for a proxy command.
  if (!/^[^\s\p{Cc}/@-][^\s\p{Cc}/@]{0,254}$/u.test(target.host)) return 'the host is no name and no address'
  if (!Number.isInteger(target.port) || target.port < 1 || target.port > 65_535) return `the port ${target.port} is not within 1 and 65535`
  if (!/^[^\s\p{Cc}-][^\p{Cc}]{0,254}$/u.test(target.username)) return 'the user name is empty or has characters that none can have'
  return undefined
}

/** Bounds the logins to one host and port that are not authenticated yet; those that wait for a person are counted apart. */
class Gate {
  readonly #logins: ReturnType<typeof openGate>
  #parked: (() => void)[] = []
  constructor(limit: number) {
    this.#logins = openGate(limit)
  }

  enter(): Promise<() => void> {
    return this.#logins.enter()
  }

  /** `leave` is called when too many wait. @returns to be called when it waits no longer. */
  park(leave: () => void): () => void {
    this.#parked.push(leave)
    if (this.#parked.length > longestQueueOfPeople) this.#parked.shift()!()
    return () => {
      const at = this.#parked.indexOf(leave)
      if (at >= 0) this.#parked.splice(at, 1)
    }
  }
}

/** A login that asked something. */
interface Waiting {
  prompts: LoginPrompts
  error?: string
  /** Where its connection is still open. */
  deliver?: (answers: readonly string[]) => void
  stop?: () => void
}

/** What a person has answered to prompts of a connection that is gone. */
interface Given {
  prompts: LoginPrompts
  answers: readonly string[]
}

interface Asked {
  waits: (prompts: LoginPrompts) => void
  goesOn: () => void
}

/** A connection that a host behind it can be reached over. */
type Way = Pick<Session, 'forward'>

/** All there is about one login: at most one connection, and what becomes of attempts. */
class Entry {
  /** Names the login in all processes of a fleet. */
  readonly key: string
  readonly target: SshTarget
  readonly parent: Entry | undefined
  readonly #options: SshSessionsOptions
  readonly #others: () => OtherProcesses | undefined
  readonly #gate: Gate
  #session: Session | undefined
  #attempt: Promise<Session> | undefined
  #waiting: Waiting | undefined
  /** Somebody logged in by hand: not ended for idleness. */
  #byPerson = false
  #failures = 0
  #notBefore = 0
  #error: LinkError | undefined
  #state: SshState['state'] = 'disconnected'
  #since = new Date()
  #connectedAt = 0
  #closed = false
  #journey: Journey | undefined
  /** What the login under way asked last. */
  #lastPrompts: LoginPrompts | undefined
  #changed: (() => void)[] = []
  /** What the other processes were told last. */
  #told: Entry['held']

  constructor(
    key: string,
    target: SshTarget,
    parent: Entry | undefined,
    gate: Gate,
    options: SshSessionsOptions,
    others: () => OtherProcesses | undefined,
  ) {
    this.key = key
    this.target = target
    this.parent = parent
    this.#gate = gate
    this.#options = options
    this.#others = others
  }

  get journey(): Journey | undefined {
    return this.#journey
  }

  get connected(): Session | undefined {
    return this.#session?.alive === true ? this.#session : undefined
  }

  /** What other processes may know of it: that a person logged in here, or is waited for. */
  get held(): { waiting: boolean; since: Date } | undefined {
    if (this.connected !== undefined) return this.#byPerson ? { waiting: false, since: this.#since } : undefined
    return this.#waiting === undefined ? undefined : { waiting: true, since: this.#since }
  }

  /** The entry that waits for a person: this one or a host on the way to it. */
  get waits(): Entry | undefined {
    return this.parent?.waits ?? (this.#waiting === undefined ? undefined : this)
  }

  state(): SshState {
    const waits = this.waits
    if (waits !== undefined && waits !== this && this.connected === undefined) return waits.state()
    return {
      state: this.#state,
      since: this.#since,
      ...(this.#waiting === undefined ? {} : { prompts: this.#waiting.prompts }),
      ...(this.#waiting?.error !== undefined
        ? { error: this.#waiting.error }
        : this.#error === undefined
          ? {}
          : { error: this.#error.message, stage: this.#error.stage }),
    }
  }

  /** The connection, made when there is none. */
  session(): Promise<Session> {
    if (this.connected !== undefined) return Promise.resolve(this.connected)
    if (this.#closed) return Promise.reject(new LinkError('link', 'the connections of this process are closed'))
    if (this.#waiting !== undefined) return Promise.reject(waitsForPerson(this.#waiting.prompts))
    if (this.#attempt === undefined) {
      const pause = this.#notBefore - performance.now()
      if (this.#error !== undefined && pause > (this.#error.permanent ? 0 : longestWaitMs)) return Promise.reject(this.#error)
      this.#begin(pause)
    }
    return this.#attempt!
  }

  /** For a host behind this one: over a connection of this process, else over another one's that a person logged in at. */
  async way(): Promise<Way> {
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
    const waiting = this.#waiting
    if (waiting === undefined || this.connected !== undefined) return
    this.#waiting = undefined
    this.#lastPrompts = undefined
    waiting.stop?.()
    this.#set('disconnected')
  }

  /** Starts a login; `#attempt` settles as soon as it is connected, has failed, or waits for a person, and anew when the person has answered. */
  #begin(pause: number, given?: Given): void {
    let current = this.#startAttempt()
    const asked: Asked = {
      waits: (prompts) => {
        this.#attempt = undefined
        current.reject(waitsForPerson(prompts))
      },
      goesOn: () => (current = this.#startAttempt()),
    }
    this.#lastPrompts = undefined
    const journey = new Journey()
    this.#journey = journey
    this.#set('connecting')
    const login = async (): Promise<Session> => {
      if (pause > 0) await sleep(pause)
      return this.#connect(journey, asked, given)
    }
    login().then(
      (session) => {
        this.#attempt = undefined
        current.resolve(session)
      },
      (error: unknown) => {
        this.#attempt = undefined
        current.reject(this.#failed(journey, error))
      },
    )
  }

  #startAttempt(): PromiseWithResolvers<Session> {
    const attempt = Promise.withResolvers<Session>()
    attempt.promise.catch(() => undefined)
    this.#attempt = attempt.promise
    return attempt
  }

  async #connect(journey: Journey, asked: Asked, given?: Given): Promise<Session> {
    const closed = (): LinkError => new LinkError('link', 'the connection was closed')
    if (this.#closed) throw closed()
    // First the way there: a jump host that waits for a person holds no place at this host.
    if (this.parent !== undefined) journey.reached('route', `behind ${this.parent.target.host}`)
    const parent = await this.parent?.way().catch((error: unknown) => {
      throw onTheWay(this.parent!.target, error)
    })
    let leave = await this.#gate.enter()
    let over = false
    let byPerson = false
    try {
      const { client, route } = await dial(this.target, parent, journey, this.#options, true, async (prompts, error) => {
        byPerson = true
        const earlier = given
        given = undefined
        this.#lastPrompts = prompts
        if (earlier !== undefined && error === undefined && samePrompts(earlier.prompts, prompts)) return earlier.answers
        leave()
        const answers = await this.#askPerson(prompts, error, asked)
        leave = await this.#gate.enter()
        if (over) leave()
        return answers
      })
      const session = new Session(client, route, this.#options.channels ?? 8)
      if (this.#closed) {
        session.close()
        throw closed()
      }
      this.#session = session
      this.#waiting = undefined
      this.#error = undefined
      this.#byPerson = byPerson
      this.#connectedAt = performance.now()
      this.#set('connected')
      session.onEnd((error) => this.#ended(session, error))
      return session
    } finally {
      over = true
      leave()
    }
  }

  #askPerson(prompts: LoginPrompts, error: string | undefined, asked: Asked): Promise<readonly string[]> {
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
      const unpark = this.#gate.park(stop)
      const waiting: Waiting = {
        prompts,
        ...(error === undefined ? {} : { error }),
        stop,
        deliver: (answers) => {
          end()
          this.#waiting = undefined
          asked.goesOn()
          this.#set('connecting')
          resolve(answers)
        },
      }
      this.#waiting = waiting
      this.#set('waiting for login')
      asked.waits(prompts)
    })
  }

  #failed(journey: Journey, error: unknown): LinkError {
    // A host on the way waits: nothing was tried here.
    if (error instanceof LinkError && error.waitsForPerson && this.#waiting === undefined) {
      this.#set('disconnected')
      return error
    }
    const link = this.#waiting === undefined ? journey.failed(error) : undefined
    // The connection ended after a person was asked: no attempt is made without one, so that no account gets locked.
    const prompts = this.#waiting?.prompts ?? (link?.stage === 'login' ? this.#lastPrompts : undefined)
    if (prompts !== undefined && !this.#closed) {
      this.#waiting?.stop?.()
      const words = link?.message ?? this.#waiting?.error
      this.#waiting = { prompts, ...(words === undefined ? {} : { error: words }) }
      this.#set('waiting for login')
      return waitsForPerson(prompts)
    }
    const failure = link ?? journey.failed(error)
    this.#error = failure
    this.#backOff(failure.permanent ? 10 : 1)
    this.#set(failure.permanent ? 'refused' : 'disconnected')
    return failure
  }

  /** `patience`: refused logins are tried again far more seldom, or the site would lock the account. */
  #backOff(patience: number): void {
    const { first, longest } = this.#options.backOffMs ?? { first: 500, longest: 30_000 }
    const pause = patience * Math.min(longest, first * 2 ** Math.min(20, this.#failures++))
    // Between half and one and a half of it: those who lost the same host do not come back together.
    this.#notBefore = performance.now() + pause * (0.5 + Math.random())
  }

  #ended(session: Session, error: LinkError): void {
    if (this.#session !== session) return
    this.#session = undefined
    this.#error = error
    if (performance.now() - this.#connectedAt < shortLifeMs) this.#backOff(1)
    else {
      this.#failures = 0
      this.#notBefore = 0
    }
    this.#set('disconnected')
  }

  /** As `SshSessions.answer`. */
  async answer(answers: readonly string[]): Promise<SshState> {
    const waits = this.waits
    if (waits !== undefined && waits !== this) {
      const state = await waits.answer(answers)
      if (state.state !== 'connected') return state
      // On to this one; it may ask as well.
      await this.session().catch(() => undefined)
      return this.state()
    }
    const waiting = this.#waiting
    if (waiting === undefined) {
      await this.session().catch(() => undefined)
      return this.state()
    }
    const settled = this.#nextState()
    if (waiting.deliver !== undefined) waiting.deliver(answers)
    else {
      this.#waiting = undefined
      this.#begin(0, { prompts: waiting.prompts, answers })
    }
    await settled
    return this.state()
  }

  /** Resolves when it is no longer connecting. */
  async #nextState(): Promise<void> {
    do await new Promise<void>((resolve) => this.#changed.push(resolve))
    while (this.#state === 'connecting')
  }

  /** What a refusal said is forgotten: the next call tries at once. */
  retryNow(): void {
    this.#notBefore = 0
    this.#failures = 0
  }

  sweep(idleMs: number): void {
    const idleSince = this.connected?.idleSince
    if (idleSince === undefined || this.#byPerson || performance.now() - idleSince < idleMs) return
    this.#connectedAt = -Infinity
    this.#session!.close('the connection was closed after a time without use')
    this.#error = undefined
  }

  close(): void {
    this.#closed = true
    this.#session?.close()
    const waiting = this.#waiting
    this.#waiting = undefined
    waiting?.stop?.()
    this.#set('disconnected')
  }

  #set(state: SshState['state']): void {
    if (this.#state !== state) this.#since = new Date()
    this.#state = state
    for (const tell of this.#changed.splice(0)) tell()
    const now = this.held
    if (now?.waiting !== this.#told?.waiting || now?.since !== this.#told?.since) {
      this.#told = now
      void this.#others()?.changed()
    }
    this.#options.onState?.(this.target, this.state())
  }
}

const waitsForPerson = (prompts: LoginPrompts): LinkError =>
  new LinkError('login', `the login waits for a person: ${prompts.prompts.map(({ prompt }) => prompt).join(' ') || prompts.instruction}`, {
    waitsForPerson: true,
  })

const samePrompts = (one: LoginPrompts, other: LoginPrompts): boolean =>
  JSON.stringify(one.prompts.map(({ prompt }) => prompt)) === JSON.stringify(other.prompts.map(({ prompt }) => prompt))

/** The failure of a host on the way, as the failure of the way. */
const onTheWay = (jump: SshTarget, error: unknown): LinkError => {
  const { stage, permanent, waitsForPerson: waits } = error instanceof LinkError ? error : new LinkError('route', messageOf(error))
  return new LinkError('route', `jump host ${jump.host}: ${stage}: ${messageOf(error)}`, { cause: error, permanent, waitsForPerson: waits })
}

/** The whole way to a login over a connection of its own. */
const dial = async (
  target: SshTarget,
  parent: Way | undefined,
  journey: Journey,
  options: SshSessionsOptions,
  record: boolean,
  ask: Ask,
): Promise<{ client: Client; route: Duplex }> => {
  const fault = faultOf(target)
  if (fault !== undefined) throw new LinkError('name', fault, { permanent: true })
  const secret: SshSecret = target.secret === undefined ? {} : await openSecret(target.secret)
  let route: Duplex
  let said: (() => Promise<string>) | undefined
  if (parent !== undefined) {
    route = await within(
      parent.forward(target.host, target.port),
      target.timeouts?.routeMs ?? 10_000,
      () => new LinkError('route', `no connection to ${target.host} through the jump host in time`),
      (late) => late.destroy(),
    )
  } else if (target.proxyCommand !== undefined) {
    journey.reached('route', 'through a proxy command')
    if (options.allowProxyCommand !== true) throw new LinkError('route', 'proxy commands are not allowed here', { permanent: true })
    const proxy = openProxyCommand(target.proxyCommand, target)
    route = proxy.stream
    said = proxy.said
  } else route = await openRoute(target, journey, options.addressAllowed ?? (() => true))
  journey.reached('host key', journey.address)
  const { record: _record, ...hostKeys } = target.hostKeys
  try {
    const client = await logIn(record ? target : { ...target, hostKeys }, secret, route, journey, ask)
    return { client, route }
  } catch (error) {
    route.destroy()
    const words = (await said?.()) ?? ''
    if (words === '' || !(error instanceof LinkError)) throw error
    throw new LinkError(error.stage, `${error.message} (the proxy command said: ${words})`, { cause: error, permanent: error.permanent })
  }
}

const openSecret = async (open: () => Promise<SshSecret>): Promise<SshSecret> => {
  try {
    return await open()
  } catch (error) {
    throw new LinkError('login', `the credential cannot be used: ${messageOf(error)}`, { cause: error, permanent: true })
  }
}

/** See `SshSessions`. */
export const openSshSessions = (options: SshSessionsOptions = {}): SshSessions => {
  countBuffersWithHeap()
  const entries = new Map<string, Entry>()
  const gates = new Map<string, Gate>()
  let closed = false

  const gateOf = (target: SshTarget): Gate => {
    const name = `${target.host.toLowerCase()}:${target.port}`
    const gate = gates.get(name) ?? new Gate(options.loginsPerHost ?? 5)
    gates.set(name, gate)
    return gate
  }

  const entryOf = (target: SshTarget): Entry => {
    const key = keyOf(target)
    const known = entries.get(key)
    if (known !== undefined) return known
    const jump = jumpOf(target)
    const entry = new Entry(key, target, jump === undefined ? undefined : entryOf(jump), gateOf(target), options, () => others)
    entries.set(key, entry)
    return entry
  }

  const others = options.others?.({
    list: () => [...entries].flatMap(([login, { held }]) => (held === undefined ? [] : [{ login, ...held }])),
    session: (login) => {
      const entry = entries.get(login)
      return entry?.held?.waiting === false ? entry.connected : undefined
    },
    probe: (login) => probe(entries.get(login)!.target),
    forget: (login) => forgetHere(login),
  })

  const forgetHere = (login: string): void => {
    entries.get(login)?.close()
    entries.delete(login)
  }

  /** How a login stands that this process does not hold, where another one holds it or the way to it; undefined where none does. */
  const standingElsewhere = async (entry: Entry): Promise<SshState | undefined> => {
    if (others === undefined || entry.connected !== undefined) return undefined
    const since = await (await others.find(entry.key))?.since().catch(() => undefined)
    if (since !== undefined) {
      entry.leaveLogin()
      return { state: 'connected', since }
    }
    const { waits } = entry
    if (waits === undefined || waits === entry) return undefined
    const wayThere = await (await others.find(waits.key))?.since().catch(() => undefined)
    if (wayThere === undefined) return undefined
    waits.leaveLogin()
    await entry.session().catch(() => undefined)
    return entry.state()
  }

  /** Where a login waits for a person at another process, it is begun here as well: this one may be the one that the person is asked by. */
  const standing = async (entry: Entry): Promise<SshState> => {
    const elsewhere = await standingElsewhere(entry)
    if (elsewhere !== undefined) return elsewhere
    if (others === undefined || entry.connected !== undefined || entry.waits !== undefined) return entry.state()
    for (let at: Entry | undefined = entry; at !== undefined; at = at.parent)
      if (await others.waits(at.key)) {
        await within(entry.session(), probeMs, () => new Error('no prompt in time')).catch(() => undefined)
        break
      }
    return entry.state()
  }

  const idleMs = options.idleMs ?? 300_000
  const sweeper = setInterval(
    () => {
      for (const entry of entries.values()) entry.sweep(idleMs)
    },
    Math.min(30_000, Math.max(50, idleMs / 4)),
  )
  sweeper.unref()

  /** Over connections of its own, the jumps' as well. */
  const dialFresh = async (
    target: SshTarget,
    journey: Journey,
    opened: Session[],
    asked: (prompts: LoginPrompts) => void,
  ): Promise<Session> => {
    const jump = jumpOf(target)
    let parent: Session | undefined
    if (jump !== undefined) {
      journey.reached('route', `behind ${jump.host}`)
      parent = await dialFresh(jump, new Journey(), opened, asked).catch((error: unknown) => {
        throw onTheWay(jump, error)
      })
    }
    const leave = await gateOf(target).enter()
    try {
      const { client, route } = await dial(target, parent, journey, options, false, (prompts) => {
        asked(prompts)
        return Promise.reject(waitsForPerson(prompts))
      })
      const session = new Session(client, route, options.channels ?? 8)
      opened.push(session)
      return session
    } finally {
      leave()
    }
  }

  const probe: SshSessions['probe'] = async (target, { fresh = false, now = false } = {}) => {
    const opened: Session[] = []
    const until = performance.now() + probeMs
    let journey = new Journey()
    let prompts: LoginPrompts | undefined
    const late = (): LinkError => new LinkError(journey.stage, `no answer within ${probeMs / 1000} s`)
    let over = false
    try {
      let session: Session
      if (fresh) {
        const dialled = dialFresh(target, journey, opened, (asked) => (prompts = asked))
        dialled.then(
          (late) => over && late.close(),
          () => undefined,
        )
        session = await within(dialled, probeMs, late)
        entries.get(keyOf(target))?.retryNow()
      } else {
        const entry = entryOf(target)
        const other = entry.connected === undefined ? await others?.find(entry.key) : undefined
        const seen = await other?.probe().catch((error: unknown) => {
          if (!(error instanceof NotHeld)) throw error
        })
        if (seen !== undefined) {
          entry.leaveLogin()
          return seen
        }
        if (now) entry.retryNow()
        const was = entry.connected
        const attempt = entry.session()
        journey = entry.journey ?? journey
        session = await within(attempt, probeMs, late).finally(() => (prompts = entry.state().prompts))
        journey = was === undefined ? journey.copy() : journey.again()
      }
      await session.greet(Math.max(1, until - performance.now()))
      journey.arrived()
    } catch (error) {
      journey = journey.copy()
      if (!journey.hasFailed) journey.failed(error)
    } finally {
      over = true
      for (const session of opened.reverse()) session.close()
    }
    return told(journey, prompts)
  }

  const shell = (target: SshTarget): SiteShell => {
    let open = true
    const session = async (until: number): Promise<Session | RelaySession> => {
      if (!open || closed) throw new LinkError('link', 'this shell is closed')
      const entry = entryOf(target)
      return (
        entry.connected ??
        (await others?.find(entry.key)) ??
        within(entry.session(), Math.max(1, until - performance.now()), () => {
          const { error, stage } = entry.state()
          return new LinkError(
            stage ?? entry.journey?.stage ?? 'route',
            `no connection until the deadline${error === undefined ? '' : `: ${error}`}`,
          )
        })
      )
    }
    const used = async <T>(deadlineMs: number, use: (session: Session | RelaySession, leftMs: number) => Promise<T>): Promise<T> => {
      const until = performance.now() + deadlineMs
      for (;;) {
        const made = await session(until)
        try {
          const result = await use(made, Math.max(1, until - performance.now()))
          if (!(made instanceof Session)) entryOf(target).leaveLogin()
          return result
        } catch (error) {
          // That process is passed over now.
          if (!(error instanceof NotHeld)) throw error
        }
      }
    }
    return {
      run: (script: string, runOptions: RunOptions = {}): Promise<ShellResult> =>
        used(runOptions.deadlineMs ?? runDefaults.deadlineMs, (made, deadlineMs) => made.run(script, { ...runOptions, deadlineMs })),
      open: (script: string): Promise<ShellStream> => used(runDefaults.deadlineMs, (made, deadlineMs) => made.open(script, deadlineMs)),
      close: async () => {
        open = false
      },
    }
  }

  return {
    shell,
    state: (target) => entryOf(target).state(),
    standing: (target) => standing(entryOf(target)),
    answer: async (target, answers) => {
      const entry = entryOf(target)
      const elsewhere = await standingElsewhere(entry)
      if (elsewhere !== undefined) return elsewhere
      const state = await entry.answer(answers)
      // Whoever is told that it is connected may use it at any process.
      if (state.state === 'connected') await others?.changed()
      return state
    },
    forget: async (target) => {
      const key = keyOf(target)
      forgetHere(key)
      await others?.forget(key)
    },
    close: async () => {
      closed = true
      clearInterval(sweeper)
      for (const entry of entries.values()) entry.close()
      entries.clear()
      await others?.close()
    },
    probe,
  }
}

const told = (journey: Journey, prompts: LoginPrompts | undefined): SshProbe => {
  const { stages, address, banner, hostKey, hostKeyIsNew } = journey
  const failed = stages.find(({ ok }) => !ok)
  return {
    healthy: failed === undefined,
    stages: [...stages],
    ...(address === undefined ? {} : { address }),
    ...(banner === undefined ? {} : { banner }),
    ...(hostKey === undefined ? {} : { hostKey }),
    ...(hostKeyIsNew === true ? { hostKeyIsNew } : {}),
    ...(prompts === undefined ? {} : { prompts }),
    message: failed === undefined ? 'the login works and a shell answers' : `${failed.stage}: ${failed.detail ?? 'failed'}`,
  }
}
