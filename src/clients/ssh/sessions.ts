import { hash, randomUUID } from 'node:crypto'
import { leftOf, within } from '../../pacing/within.ts'
import { present } from '../../json-object.ts'
import type { SiteFiles } from '../../shell/site-files.ts'
import {
  LinkError,
  runDefaults,
  type RunOptions,
  type ShellResult,
  type ShellStream,
  type SiteShell,
  type TerminalSize,
} from '../../shell/site-shell.ts'
import { openFiles } from './files.ts'
import { LoginProgress } from './login-progress.ts'
import { printableMessage } from './printable.ts'
import { LoginEntry } from './login-entry.ts'
import { LoginGate } from './login-gate.ts'
import { countBuffersWithHeap } from './packets.ts'
import { NotHeld } from './relay-frames.ts'
import type { OtherProcesses } from './relay.ts'
import type { HeldLogins } from './relay-server.ts'
import type { RelaySession } from './relay-session.ts'
import { SshSession } from './session.ts'
import type { SshSessionsOptions } from './sessions-options.ts'
import type { LoginPrompts, SshProbe, SshSessions, SshState, SshTarget } from './target.ts'

const probeMs = 14_500

/** The target of the last jump, with the jumps before it. */
const jumpOf = (target: SshTarget): SshTarget | undefined => {
  const last = target.jump?.at(-1)
  return last === undefined ? undefined : { ...last, jump: target.jump!.slice(0, -1) }
}

/**
 * Equal for targets that share a connection: it covers the host, the way to it and its identity.
 */
const keyOf = (target: SshTarget): string => {
  const { jump = [], secret: _secret, hostKeys, ...own } = target
  const { record: _record, ...keys } = hostKeys
  const parts = [own, keys].map((each) => Object.entries(each).sort(([a], [b]) => (a < b ? -1 : 1)))
  return hash('sha256', JSON.stringify([...parts, ...jump.map(keyOf)]))
}

/**
 * The logins of this process by key, and the gates of their hosts: both as long as they are used.
 */
class Logins {
  readonly #entries = new Map<string, LoginEntry>()
  readonly #gates = new Map<string, LoginGate>()
  readonly #options: SshSessionsOptions
  readonly #others: () => OtherProcesses | undefined

  constructor(options: SshSessionsOptions, others: () => OtherProcesses | undefined) {
    this.#options = options
    this.#others = others
  }

  get count(): { logins: number; hosts: number } {
    return { logins: this.#entries.size, hosts: this.#gates.size }
  }

  gateOf(target: SshTarget): LoginGate {
    const name = `${target.host.toLowerCase()}:${target.port}`
    const gate = this.#gates.get(name) ?? new LoginGate()
    this.#gates.set(name, gate)
    return gate
  }

  /**
   * The login of a target, created when there is none; the call counts as use. `further`: 0 for the
   * login itself, then for the connections that carry its lasting streams.
   */
  of(target: SshTarget, further = 0): LoginEntry {
    const login = keyOf(target)
    const key = further === 0 ? login : `${login}/${further}`
    let entry = this.#entries.get(key)
    if (entry === undefined) {
      const jump = jumpOf(target)
      entry = new LoginEntry({
        ...{ key, target, options: this.#options, others: this.#others, isFurther: further > 0 },
        parent: jump === undefined ? undefined : this.of(jump),
        gate: this.gateOf(target),
      })
      this.#entries.set(key, entry)
    }
    entry.used()
    return entry
  }

  withKey(key: string): LoginEntry | undefined {
    return this.#entries.get(key)
  }

  /** The logins that other processes may see. */
  held(): { login: string; waiting: boolean; since: Date }[] {
    return [...this.#entries].flatMap(([login, { held }]) => (held === undefined ? [] : [{ login, ...held }]))
  }

  /** A login with its further connections. */
  #withFurther(login: string): [key: string, entry: LoginEntry][] {
    return [...this.#entries].filter(([key]) => key === login || key.startsWith(`${login}/`))
  }

  /** Forgets the refusals of a login and of its further connections: the next calls try at once. */
  retryNow(login: string): void {
    for (const [, entry] of this.#withFurther(login)) entry.retryNow()
  }

  /** Ends a login with its further connections. */
  forget(login: string): void {
    for (const [key, entry] of this.#withFurther(login)) {
      entry.close()
      this.#entries.delete(key)
    }
  }

  /** Closes idle connections, and removes unused logins and gates. */
  sweep(idleMs: number, forgetMs: number): void {
    for (const entry of this.#entries.values()) entry.sweep(idleMs)
    // A host on the way stays as long as the hosts behind it; a later sweep removes it.
    const parents = new Set([...this.#entries.values()].map(({ parent }) => parent))
    for (const [key, entry] of this.#entries)
      if (!parents.has(entry) && entry.isForgettable(forgetMs)) this.#entries.delete(key)
    const used = new Set([...this.#entries.values()].map(({ gate }) => gate))
    for (const [name, gate] of this.#gates) if (!used.has(gate) && gate.isEmpty) this.#gates.delete(name)
  }

  close(): void {
    for (const entry of this.#entries.values()) entry.close()
    this.#entries.clear()
  }
}

/** The common state of all calls of one `SshSessions`. */
interface Pool {
  readonly options: SshSessionsOptions
  readonly logins: Logins
  others: OtherProcesses | undefined
  closed: boolean
}

/**
 * The state of a login that this process does not hold, where another process holds it or the way
 * to it; undefined where none does.
 */
const standingElsewhere = async ({ others }: Pool, entry: LoginEntry): Promise<SshState | undefined> => {
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

/**
 * Where a login waits for a person at another process, it begins here as well: the person may
 * answer at this process.
 */
const standing = async (pool: Pool, entry: LoginEntry): Promise<SshState> => {
  const elsewhere = await standingElsewhere(pool, entry)
  if (elsewhere !== undefined) return elsewhere
  const { others } = pool
  if (others === undefined || entry.connected !== undefined || entry.waits !== undefined) return entry.state()
  for (let at: LoginEntry | undefined = entry; at !== undefined; at = at.parent)
    if (await others.waits(at.key)) {
      await within(entry.session(), probeMs, () => new Error('no prompt in time')).catch(() => undefined)
      break
    }
  return entry.state()
}

/** As `SshSessions.answer`. */
const answerLogin = async (pool: Pool, entry: LoginEntry, answers: readonly string[]): Promise<SshState> => {
  const elsewhere = await standingElsewhere(pool, entry)
  if (elsewhere !== undefined) return elsewhere
  const state = await entry.answer(answers)
  // A client that reads that it is connected may use it at any process.
  if (state.state === 'connected') await pool.others?.changed()
  return state
}

/** Probes over the shared connection; where another process holds the login, that one does it. */
const probeLogin = async ({ logins, others }: Pool, target: SshTarget): Promise<SshProbe> => {
  const until = performance.now() + probeMs
  const entry = logins.of(target)
  let progress = new LoginProgress()
  let prompts: LoginPrompts | undefined
  try {
    const other = entry.connected === undefined ? await others?.find(entry.key) : undefined
    const seen = await other?.probe().catch((error: unknown) => {
      if (!(error instanceof NotHeld)) throw error
    })
    if (seen !== undefined) {
      entry.leaveLogin()
      return seen
    }
    const was = entry.connected
    const attempt = entry.session()
    progress = entry.progress ?? progress
    const late = (): LinkError => new LinkError(progress.stage, `no answer within ${probeMs / 1000} s`)
    const session = await within(attempt, probeMs, late).finally(() => (prompts = entry.state().prompts))
    progress = was === undefined ? progress.copy() : progress.again()
    await session.greet(leftOf(until))
    progress.arrived()
  } catch (error) {
    progress = progress.copy()
    if (!progress.hasFailed) progress.failed(error)
  }
  return probeOf(progress, prompts)
}

/**
 * Probes by a login of its own at the host itself; its jump hosts are reached over the logins that others use.
 */
const probeFresh = async (pool: Pool, target: SshTarget): Promise<SshProbe> => {
  const { credential = '', hostKeys } = target
  const own: SshTarget = {
    ...target,
    credential: `${credential} ${randomUUID()}`,
    hostKeys: { ...hostKeys, record: () => Promise.resolve() },
  }
  try {
    const seen = await probeLogin(pool, own)
    if (seen.healthy) pool.logins.retryNow(keyOf(target))
    return seen
  } finally {
    pool.logins.forget(keyOf(own))
  }
}

/** The connection of a login of this process. */
const ownSessionOf = (entry: LoginEntry, until: number): Promise<SshSession> =>
  within(entry.session(), leftOf(until), () => {
    const { error, stage } = entry.state()
    return new LinkError(
      stage ?? entry.progress?.stage ?? 'route',
      `no connection until the deadline${error === undefined ? '' : `: ${error}`}`,
    )
  })

/** The connection of a login, here or at another process. */
const sessionOf = async (
  { logins, others }: Pool,
  target: SshTarget,
  until: number,
): Promise<SshSession | RelaySession> => {
  const entry = logins.of(target)
  return entry.connected ?? (await others?.find(entry.key)) ?? ownSessionOf(entry, until)
}

const isFull = (error: unknown): error is LinkError => error instanceof LinkError && error.full
/** Whether a connection that was made has ended. */
const isLost = (error: unknown): error is LinkError => error instanceof LinkError && error.stage === 'link'

/**
 * A lasting stream: over the first further connection of the login that has a channel for it. Where
 * the service cannot open one by itself, over the login's only connection.
 * @throws LinkError that is `full`, with the remedy; one that is `permanent` where that only connection
 *   ended as a terminal was asked for, since another try would end what others do over it, too
 */
const openLasting = async (
  { logins }: Pool,
  target: SshTarget,
  made: SshSession | RelaySession,
  { script, until, terminal }: { script: string; until: number; terminal: TerminalSize | undefined },
): Promise<ShellStream> => {
  const over = (session: SshSession | RelaySession): Promise<ShellStream> =>
    session.open(script, { deadlineMs: leftOf(until), terminal, lasting: true })
  const byPerson = !(made instanceof SshSession) || logins.of(target).held !== undefined
  let reason = 'a person made this login, and the service makes no other'
  for (let further = 1; !byPerson; further++) {
    try {
      return await over(await ownSessionOf(logins.of(target, further), until))
    } catch (error) {
      if (isFull(error)) continue
      // A server that ends the connection at the request for a terminal would end the shared one too.
      if (terminal !== undefined && isLost(error)) throw error
      // A server may allow one connection, or ask a person at each.
      reason = `a further connection cannot be opened: ${printableMessage(error)}`
      break
    }
  }
  return over(made).catch((error: unknown) => {
    // Busy channels and a lost relay have the stage `link`, too.
    if (terminal !== undefined && isLost(error) && made instanceof SshSession && !made.alive)
      throw new LinkError(
        'link',
        `the connection ended at the request for a pseudo terminal: ${error.message}`,
        {
          ...{ permanent: true, cause: error },
        },
      )
    if (!isFull(error)) throw error
    const { username, host } = target
    const remedy = byPerson
      ? 'close one of them, or give the connection a key with which the service logs in by itself'
      : 'close one of them, or let the server accept more connections'
    throw new LinkError('shell', `${username}@${host}: ${error.message}; ${reason}; ${remedy}`, {
      full: true,
    })
  })
}

const openShell = (pool: Pool, target: SshTarget): SiteShell => {
  let open = true
  const used = async <T>(
    deadlineMs: number,
    use: (session: SshSession | RelaySession, leftMs: number) => Promise<T>,
  ): Promise<T> => {
    const until = performance.now() + deadlineMs
    for (;;) {
      if (!open || pool.closed) throw new LinkError('link', 'this shell is closed')
      const made = await sessionOf(pool, target, until)
      try {
        const result = await use(made, leftOf(until))
        if (!(made instanceof SshSession)) pool.logins.of(target).leaveLogin()
        return result
      } catch (error) {
        // Later calls skip that process.
        if (!(error instanceof NotHeld)) throw error
      }
    }
  }
  const openedLasting = (script: string, terminal?: TerminalSize): Promise<ShellStream> =>
    used(runDefaults.deadlineMs, (made, leftMs) =>
      openLasting(pool, target, made, { script, until: performance.now() + leftMs, terminal }),
    )
  return {
    run: (script: string, runOptions: RunOptions = {}): Promise<ShellResult> =>
      used(runOptions.deadlineMs ?? runDefaults.deadlineMs, (made, deadlineMs) =>
        made.run(script, { ...runOptions, deadlineMs }),
      ),
    open: (script: string, { lasting = false } = {}): Promise<ShellStream> =>
      lasting
        ? openedLasting(script)
        : used(runDefaults.deadlineMs, (made, deadlineMs) => made.open(script, { deadlineMs })),
    terminal: (script, size) => openedLasting(script, size),
    close: async () => {
      open = false
    },
  }
}

/** As `SshSessions.files`. */
const openTargetFiles = (pool: Pool, targetOf: () => Promise<SshTarget>): SiteFiles =>
  openFiles(async () => {
    const until = performance.now() + runDefaults.deadlineMs
    if (pool.closed) throw new LinkError('link', 'the connections are closed')
    const made = await sessionOf(pool, await targetOf(), until)
    if (made instanceof SshSession) return made.files(leftOf(until))
    throw new LinkError(
      'login',
      'another process of the service holds this login, and files go over the process that holds it only; ' +
        'use a key for accounts without a shell',
      { permanent: true },
    )
  })

/** The calls that other processes may make here. */
const lent = (pool: Pool): HeldLogins => ({
  list: () => pool.logins.held(),
  session: (login) => {
    const entry = pool.logins.withKey(login)
    return entry?.held?.waiting === false ? entry.connected : undefined
  },
  probe: (login) => probeLogin(pool, pool.logins.withKey(login)!.target),
  forget: (login) => pool.logins.forget(login),
})

/** See `SshSessions`. */
export const openSshSessions = (options: SshSessionsOptions = {}): SshSessions => {
  countBuffersWithHeap()
  const logins = new Logins(options, () => pool.others)
  const pool: Pool = { options, logins, others: undefined, closed: false }
  pool.others = options.others?.(lent(pool))
  const { idleMs = 300_000, forgetMs = 3_600_000 } = options
  const sweeper = setInterval(
    () => logins.sweep(idleMs, forgetMs),
    Math.min(30_000, Math.max(50, idleMs / 4)),
  )
  sweeper.unref()

  return {
    shell: (target) => openShell(pool, target),
    files: (targetOf) => openTargetFiles(pool, targetOf),
    state: (target) => standing(pool, logins.of(target)),
    answer: (target, answers) => answerLogin(pool, logins.of(target), answers),
    forget: async (targets, { wayToo = false } = {}) => {
      const keys = new Set<string>()
      for (const target of targets)
        for (let at: SshTarget | undefined = target; at !== undefined; at = wayToo ? jumpOf(at) : undefined)
          keys.add(keyOf(at))
      for (const key of keys) logins.forget(key)
      await pool.others?.forget([...keys])
    },
    count: () => logins.count,
    close: async () => {
      pool.closed = true
      clearInterval(sweeper)
      logins.close()
      await pool.others?.close()
    },
    probe: (target, { fresh = false } = {}) => (fresh ? probeFresh : probeLogin)(pool, target),
  }
}

const probeOf = (progress: LoginProgress, prompts: LoginPrompts | undefined): SshProbe => {
  const { stages, address, banner, hostKey } = progress
  const hostKeyIsNew = progress.hostKeyIsNew === true || undefined
  const failed = stages.find(({ ok }) => !ok)
  return {
    healthy: failed === undefined,
    stages: [...stages],
    ...present({ address, banner, hostKey, hostKeyIsNew, prompts }),
    message:
      failed === undefined
        ? 'the login works and a shell answers'
        : `${failed.stage}: ${failed.detail ?? 'failed'}`,
  }
}
