/** A run's request to a host: cores for the next task in order. */
export interface CoreRequest {
  need: number
  /** It is another attempt of an activity: it had its turn already. */
  retry: boolean
}

interface User {
  /** When its run was accepted. */
  acceptedAt: number
  held: number
  request: (CoreRequest & { since: number; seenAt: number; call: () => void }) | undefined
}

/**
 * A run that has not repeated its request for this long is stuck, and the others do not wait for it.
 * Milliseconds.
 */
const staleMs = 1_000

/**
 * The order of claims to the next core: another attempt, of the earlier run; then the run with the
 * fewest cores, then the one that has waited longest.
 */
const isBefore = (one: User, other: User, now: number): boolean => {
  const retries = Number(one.request?.retry === true) - Number(other.request?.retry === true)
  if (retries !== 0) return retries > 0
  if (one.request?.retry === true && one.acceptedAt !== other.acceptedAt)
    return one.acceptedAt < other.acceptedAt
  if (one.held !== other.held) return one.held < other.held
  return (one.request?.since ?? now) < (other.request?.since ?? now)
}

/**
 * The real cores of this host in the view of this worker. `lane_leases` holds each core's task
 * under `@host/<id>`, so that several workers of one host never start more processes than it has
 * cores. This object only picks cores that are probably free, and shares them among the runs of
 * this worker. `now` in milliseconds.
 */
export const openHostCores = (count: number, now: () => number = () => performance.now()) => {
  const used = new Uint8Array(count)
  const users = new Set<User>()
  let cursor = 0

  const waiting = (except: User): User[] =>
    [...users].filter(
      (user) => user !== except && user.request !== undefined && now() - user.request.seenAt < staleMs,
    )
  const freeInTurn = (): number[] => {
    const free: number[] = []
    for (let k = 0; k < count; k++) {
      const core = (cursor + k) % count
      if (used[core] === 0) free.push(core)
    }
    return free
  }

  /** One run's share. */
  const openShare = (user: User) => ({
    count,
    /** Number of cores that it may have now. */
    get free(): number {
      return this.inTurn().length
    },
    /**
     * Numbers of the cores that it may have now, in the order in which they should be taken; it
     * omits free ones that others get before it. The search goes round, so that a core of another
     * worker is not tried again at once.
     */
    inTurn(): number[] {
      const free = freeInTurn()
      const before = waiting(user).filter((other) => isBefore(other, user, now()))
      const kept = before.reduce((sum, { request }) => sum + (request?.need ?? 0), 0)
      return free.slice(0, Math.max(0, free.length - kept))
    },
    /** Takes free cores; the run waits no longer. */
    take(cores: readonly number[]): void {
      if (cores.length > 0) user.request = undefined
      for (const core of cores) used[core]! += 1
      user.held += cores.length
      cursor = ((cores.at(-1) ?? 0) + 1) % count
    },
    /**
     * A task that an earlier worker started goes on with its cores; the number of cores may have
     * changed since.
     */
    hold(cores: readonly number[]): number[] {
      const known = cores.filter((core) => core < count)
      for (const core of known) used[core]! += 1
      user.held += known.length
      return known
    },
    /**
     * Another run waits for cores: a run that has some frees them instead of passing them on to its
     * own next task.
     */
    get contended(): boolean {
      return waiting(user).length > 0
    },
    /**
     * The run waits for so many cores from now on, and `call` is called when some become free;
     * undefined: it does not wait. Repeated while it waits.
     */
    request(request: CoreRequest | undefined, call: () => void = () => undefined): void {
      user.request =
        request === undefined
          ? undefined
          : { ...request, since: user.request?.since ?? now(), seenAt: now(), call }
    },
    give(cores: readonly number[]): void {
      if (cores.length === 0) return
      for (const core of cores) used[core]! -= 1
      user.held -= cores.length
      for (const { request } of waiting(user)) request?.call()
    },
    /** The run uses the host no longer; its cores were returned. */
    close(): void {
      users.delete(user)
      for (const { request } of waiting(user)) request?.call()
    },
  })

  return {
    count,
    /** Number of cores that this worker does not use. */
    get free(): number {
      return freeInTurn().length
    },
    /** The share of one run. `acceptedAt` in seconds since the epoch. */
    share(acceptedAt: number) {
      const user: User = { acceptedAt, held: 0, request: undefined }
      users.add(user)
      return openShare(user)
    },
  }
}

export type HostCores = ReturnType<typeof openHostCores>
export type CoreShare = ReturnType<HostCores['share']>
