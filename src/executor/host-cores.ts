/**
 * The real cores of this host as this worker sees them; which task holds which is in `lane_leases` under `@host/<id>`, so that
 * several workers of one host never start more processes than it has cores. This object only picks likely free ones.
 */
export const openHostCores = (count: number) => {
  const used = new Uint8Array(count)
  let cursor = 0
  let waiting = new Set<() => void>()
  return {
    count,
    /** How many are free. */
    get free(): number {
      let free = 0
      for (const holds of used) if (holds === 0) free += 1
      return free
    },
    /**
     * Numbers of the free ones in the order in which they are to be taken. The search goes round, so that a core that
     * another worker holds is not asked for again at once.
     */
    inTurn(): number[] {
      const free: number[] = []
      for (let k = 0; k < count; k++) {
        const core = (cursor + k) % count
        if (used[core] === 0) free.push(core)
      }
      return free
    },
    /** Takes cores that are free. */
    take(cores: readonly number[]): void {
      for (const core of cores) used[core]! += 1
      cursor = ((cores.at(-1) ?? 0) + 1) % count
    },
    /** A task that an earlier worker started goes on with its cores; another number of cores may be in force now. */
    hold(cores: readonly number[]): number[] {
      const known = cores.filter((core) => core < count)
      for (const core of known) used[core]! += 1
      return known
    },
    /** Somebody waits for cores: whoever has some gives them back instead of passing them on to his own next task. */
    get contended(): boolean {
      return waiting.size > 0
    },
    /** Calls once when cores become free. Whoever waits is called before the giver can take them back, so that two runs take turns. */
    whenFree(call: () => void): void {
      waiting.add(call)
    },
    give(cores: readonly number[]): void {
      if (cores.length === 0) return
      for (const core of cores) used[core]! -= 1
      const called = waiting
      waiting = new Set()
      for (const call of called) call()
    },
  }
}

export type HostCores = ReturnType<typeof openHostCores>
