import { randomUUID } from 'node:crypto'
import type { FleetKeys } from './relay-keys.ts'
import { NotHeld } from './relay-frames.ts'
import { RelayLink } from './relay-link.ts'
import { openRelayServer, type HeldLogins, type RelayServer } from './relay-server.ts'
import { RelaySession } from './relay-session.ts'
import { within } from './route.ts'

/** What is on record of a login at a process: a person logged in there (`address` says where it is reached), or it waits there for one. */
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
  /** Those of all processes that have renewed theirs lately. */
  read(): Promise<LoginRecord[]>
  /** Replaces what is on record of a process, and renews it. */
  write(process: string, records: readonly Omit<LoginRecord, 'process'>[]): Promise<void>
}

/** The logins of the other processes of a fleet. */
export interface OtherProcesses {
  /** A login that a person made in another process; undefined when none is known to hold it. Never rejects, takes 2 s at most. */
  find(login: string): Promise<RelaySession | undefined>
  /** Whether a login waits for a person somewhere else. */
  waits(login: string): Promise<boolean>
  /** What this process holds is otherwise now. Resolves when that is on record, or after 2 s. */
  changed(): Promise<void>
  /** Tells every process that holds the login to end it. */
  forget(login: string): Promise<void>
  close(): Promise<void>
}

export interface RelayOptions {
  keys: FleetKeys
  records: LoginRecords
  /** Where the other processes reach this one; port 0: a free one. */
  address: { host: string; port: number }
  /** Told of trouble that a person should see. */
  warn: (error: unknown, message: string) => void
  /** Pause between renewals of what is on record; default 5 s. */
  renewMs?: number
}

/** What others hold is known this late at most. */
const recordAgeMs = 1_000
const recordDeadlineMs = 2_000
/** A process that cannot be reached is tried again after this time, twice as long after each failure. */
const awayMs = { first: 2_000, longest: 60_000 }

/**
 * Lends the logins that a person made in this process to the others of the fleet, and theirs to this one. It listens from the first such login on.
 * Who held a login and lost it, or cannot be reached, is passed over.
 */
export const openRelay = (options: RelayOptions, held: HeldLogins): OtherProcesses => {
  const { keys, records, warn } = options
  const own = randomUUID()
  const links = new Map<string, RelayLink>()
  const away = new Map<string, { until: number; pause: number }>()
  /** Logins that a process does not hold any more, by process and login: the time since it was said to. */
  const lost = new Map<string, string>()
  let server: Promise<RelayServer> | undefined
  let known: { at: number; records: Promise<LoginRecord[]> } | undefined
  let closed = false

  const late = (): Error => new Error(`the database did not answer within ${recordDeadlineMs / 1_000} s`)

  const others = (): Promise<LoginRecord[]> => {
    const now = performance.now()
    if (known !== undefined && now - known.at < recordAgeMs) return known.records
    const before = known?.records
    const read = within(records.read(), recordDeadlineMs, late).then(
      (all) => all.filter(({ process }) => process !== own),
      // The holders themselves say what they hold: the last that was known is better than nothing.
      () => before ?? [],
    )
    known = { at: now, records: read }
    return read
  }

  const linkTo = (address: string): RelayLink => {
    const link = links.get(address) ?? new RelayLink(address, keys)
    links.set(address, link)
    return link
  }

  const sessionOf = ({ login, process, address = '', since }: LoginRecord): RelaySession =>
    new RelaySession(linkTo(address), login, (unreachable) => {
      if (!unreachable) {
        lost.set(`${process} ${login}`, since)
        return
      }
      const pause = Math.min(awayMs.longest, (away.get(process)?.pause ?? awayMs.first / 2) * 2)
      away.set(process, { until: performance.now() + pause, pause })
    })

  const holders = async (login: string): Promise<LoginRecord[]> => {
    const all = await others()
    for (const process of away.keys()) if (!all.some((record) => record.process === process)) away.delete(process)
    for (const name of lost.keys()) if (!all.some((record) => `${record.process} ${record.login}` === name)) lost.delete(name)
    for (const [address, link] of links)
      if (link.calls === 0 && !all.some((record) => record.address === address)) {
        link.close()
        links.delete(address)
      }
    const now = performance.now()
    return all
      .filter((record) => record.login === login && record.address !== undefined)
      .filter(({ process, since }) => (away.get(process)?.until ?? 0) <= now && lost.get(`${process} ${login}`) !== since)
  }

  let warned = false
  const address = async (): Promise<string | undefined> => {
    server ??= openRelayServer(held, { keys, address: options.address })
    try {
      return (await server).address
    } catch (error) {
      server = undefined
      const { host, port } = options.address
      const remedy = "other processes cannot use logins that are made here; give an address of this host and a port of this process's own"
      if (!warned) warn(error, `SERVICE_RELAY_ADDRESS=${host}:${port} cannot be listened at: ${remedy}`)
      warned = true
      return undefined
    }
  }

  let onRecord = false
  const publish = async (): Promise<void> => {
    const list = closed ? [] : held.list()
    if (list.length === 0 && !onRecord) return
    const reached = list.some(({ waiting }) => !waiting) ? await address() : undefined
    const rows = list.flatMap(({ login, waiting, since }) => {
      const row = { login, waiting, since: since.toISOString() }
      return waiting ? [row] : reached === undefined ? [] : [{ ...row, address: reached }]
    })
    onRecord = true
    await within(records.write(own, rows), recordDeadlineMs, late)
    onRecord = rows.length > 0
  }

  let underWay: Promise<void> | undefined
  let again: Promise<void> | undefined
  /** One at a time: what changed meanwhile is in the next one, which all share who asked meanwhile. */
  const changed = (): Promise<void> => {
    const next = (): Promise<void> => {
      underWay = publish()
        .catch((error: unknown) => {
          warn(error, 'what this process holds of logins could not be put on record; it is tried again')
        })
        .finally(() => (underWay = undefined))
      return underWay
    }
    if (underWay === undefined) return next()
    again ??= underWay.then(() => {
      again = undefined
      return next()
    })
    return again
  }
  const timer = setInterval(() => void changed(), options.renewMs ?? 5_000)
  timer.unref()

  return {
    async find(login) {
      const [record] = await holders(login)
      return record === undefined || closed ? undefined : sessionOf(record)
    },
    waits: async (login) => (await others()).some((record) => record.login === login && record.waiting),
    changed,
    async forget(login) {
      await Promise.all(
        (await holders(login)).map((record) =>
          sessionOf(record)
            .forget()
            .catch((error: unknown) => {
              if (!(error instanceof NotHeld))
                warn(error, 'a login that is not wanted any more could not be ended at the process that holds it')
            }),
        ),
      )
    },
    async close() {
      closed = true
      clearInterval(timer)
      await changed()
      for (const link of links.values()) link.close()
      await server?.then(
        (opened) => opened.close(),
        () => undefined,
      )
    },
  }
}
