import { randomUUID } from 'node:crypto'
import { within } from '../../pacing/within.ts'
import { fresh } from '../../pacing/fresh.ts'
import { openRetries } from '../../pacing/retries.ts'
import type { FleetKeys } from './relay-keys.ts'
import { NotHeld } from './relay-frames.ts'
import { RelayLink } from './relay-link.ts'
import { openRelayServer, type HeldLogins, type RelayServer } from './relay-server.ts'
import { RelaySession } from './relay-session.ts'

/**
 * The record of a login at a process: a person logged in there (`address` is where other processes
 * reach it), or the login waits there for a person.
 */
export interface LoginRecord {
  login: string
  process: string
  waiting: boolean
  address?: string
  /** RFC 3339; the same until the login ends. */
  since: string
}

/** The record that all processes of a fleet share. */
export interface LoginRecords {
  /** The records of all processes that have renewed theirs lately. */
  read(): Promise<LoginRecord[]>
  /** Replaces and renews the records of a process. */
  write(process: string, records: readonly Omit<LoginRecord, 'process'>[]): Promise<void>
}

/** The logins of the other processes of a fleet. */
export interface OtherProcesses {
  /**
   * A login that a person made in another process; undefined when no process is known to hold it.
   * Never rejects, takes 2 s at most.
   */
  find(login: string): Promise<RelaySession | undefined>
  /** Whether a login waits for a person at another process. */
  waits(login: string): Promise<boolean>
  /**
   * Called when the logins of this process have changed. Resolves when the change is on record, or
   * after 2 s.
   */
  changed(): Promise<void>
  /** Asks every process that holds one of the logins to end it. */
  forget(logins: readonly string[]): Promise<void>
  close(): Promise<void>
}

export interface RelayOptions {
  keys: FleetKeys
  records: LoginRecords
  /** Where the other processes reach this one; port 0: a free one. */
  address: { host: string; port: number }
  /** Called with trouble that a person should see. */
  warn: (error: unknown, message: string) => void
  /** Pause between renewals of the record; default 5 s. */
  renewMs?: number
}

/** Records of other processes are this old at most, where the caller does not ask for fresh ones. */
const recordAgeMs = 1_000
const recordDeadlineMs = 2_000
/** Pause before a process that cannot be reached is tried again; it doubles after each failure. */
const awayMs = { firstMs: 2_000, longestMs: 60_000 }

const late = (): Error => new Error(`the database did not answer within ${recordDeadlineMs / 1_000} s`)

type Others = (options?: { isFresh?: boolean }) => Promise<LoginRecord[]>

/** The logins of the other processes, read again when the records are older than `recordAgeMs`. */
const openOthers = ({ records, warn }: RelayOptions, own: string): Others => {
  let known: { at: number; records: Promise<LoginRecord[]> } | undefined
  return ({ isFresh = false } = {}) => {
    const now = performance.now()
    if (!isFresh && known !== undefined && now - known.at < recordAgeMs) return known.records
    const before = known?.records
    const read = within(records.read(), recordDeadlineMs, late).then(
      (all) => all.filter(({ process }) => process !== own),
      (error: unknown) => {
        if (isFresh) warn(error, 'a login that is younger than a second may stay at another process')
        // Each holder refuses a login that it does not hold, so outdated records do no harm.
        return before ?? []
      },
    )
    known = { at: now, records: read }
    return read
  }
}

/** The links to other processes, and the processes that can be asked for a login now. */
const openHolders = (keys: FleetKeys, others: Others) => {
  const links = new Map<string, RelayLink>()
  const away = openRetries(awayMs)
  /** The logins that a process has lost, by process and login: `since` of the wrong record. */
  const lost = new Map<string, string>()

  const linkTo = (address: string): RelayLink => {
    const link = links.get(address) ?? new RelayLink(address, keys)
    links.set(address, link)
    return link
  }

  const sessionOf = ({ login, process, address = '', since }: LoginRecord): RelaySession =>
    new RelaySession(linkTo(address), login, (unreachable) => {
      if (unreachable) away.failed(process)
      else lost.set(`${process} ${login}`, since)
    })

  const holders = async (
    logins: readonly string[],
    options?: { isFresh: boolean },
  ): Promise<LoginRecord[]> => {
    const all = await others(options)
    for (const name of lost.keys())
      if (!all.some((record) => `${record.process} ${record.login}` === name)) lost.delete(name)
    for (const [address, link] of links)
      if (link.calls === 0 && !all.some((record) => record.address === address)) {
        link.close()
        links.delete(address)
      }
    return away
      .due(all, ({ process }) => process)
      .filter(
        ({ login, address, process, since }) =>
          logins.includes(login) && address !== undefined && lost.get(`${process} ${login}`) !== since,
      )
  }

  return {
    holders,
    sessionOf,
    close(): void {
      for (const link of links.values()) link.close()
    },
  }
}

/** Opens the server for other processes at its first use, and warns once where it cannot. */
const openListener = ({ keys, address, warn }: RelayOptions, held: HeldLogins) => {
  let server: Promise<RelayServer> | undefined
  let warned = false
  const reached = async (): Promise<string | undefined> => {
    server ??= openRelayServer(held, { keys, address })
    try {
      return (await server).address
    } catch (error) {
      server = undefined
      const { host, port } = address
      const remedy =
        'other processes cannot use logins that are made here; give an address of this host and a ' +
        'port that no other process has'
      if (!warned) warn(error, `SERVICE_RELAY_ADDRESS=${host}:${port} cannot be listened at: ${remedy}`)
      warned = true
      return undefined
    }
  }

  return {
    /** Where other processes reach this one; undefined where it cannot listen. */
    reached,
    close: async (): Promise<void> => {
      await server?.then(
        (opened) => opened.close(),
        () => undefined,
      )
    },
  }
}

/**
 * Lends the logins that a person made in this process to the other processes of the fleet, and
 * theirs to this one. It listens from the first such login on. It skips processes that have lost a
 * login or cannot be reached.
 */
export const openRelay = (options: RelayOptions, held: HeldLogins): OtherProcesses => {
  const { keys, records, warn } = options
  const own = randomUUID()
  const others = openOthers(options, own)
  const holding = openHolders(keys, others)
  const listener = openListener(options, held)
  let closed = false

  let onRecord = false
  const publish = async (): Promise<void> => {
    const list = closed ? [] : held.list()
    if (list.length === 0 && !onRecord) return
    const reached = list.some(({ waiting }) => !waiting) ? await listener.reached() : undefined
    const rows = list.flatMap(({ login, waiting, since }) => {
      const row = { login, waiting, since: since.toISOString() }
      return waiting ? [row] : reached === undefined ? [] : [{ ...row, address: reached }]
    })
    onRecord = true
    await within(records.write(own, rows), recordDeadlineMs, late)
    onRecord = rows.length > 0
  }

  const changed = fresh(() =>
    publish().catch((error: unknown) => {
      warn(error, 'what this process holds of logins could not be put on record; it is tried again')
    }),
  )
  const timer = setInterval(() => void changed(), options.renewMs ?? 5_000)
  timer.unref()

  return {
    async find(login) {
      const [record] = await holding.holders([login])
      return record === undefined || closed ? undefined : holding.sessionOf(record)
    },
    waits: async (login) => (await others()).some((record) => record.login === login && record.waiting),
    changed,
    async forget(logins) {
      if (logins.length === 0) return
      // A login that is younger than the records at hand has to end too.
      await Promise.all(
        (await holding.holders(logins, { isFresh: true })).map((record) =>
          holding
            .sessionOf(record)
            .forget()
            .catch((error: unknown) => {
              if (!(error instanceof NotHeld))
                warn(
                  error,
                  'a login that is not wanted any more could not be ended at the process that holds it',
                )
            }),
        ),
      )
    },
    async close() {
      closed = true
      clearInterval(timer)
      await changed()
      holding.close()
      await listener.close()
    },
  }
}
