import type { SiteShell } from '../../shell/site-shell.ts'

/**
 * Limit for streams at one site, over all transfers: the session has 8 channels for everything, and
 * a file server one disk.
 */
const streamsPerSite = 4
/** What yields leaves one place free: a transfer of a run starts at once beside long copies. */
const yieldingPerSite = streamsPerSite - 1

interface Places {
  order: number
  busy: number
  waiting: (() => void)[]
  yielding: (() => void)[]
}
const byShell = new WeakMap<SiteShell, Places>()
const byLink = new Map<string, Places>()
let lastOrder = 0

/** Shells of one connection share its places; a shell without one has its own. */
const placesOf = (place: string | SiteShell): Places => {
  const key = typeof place === 'string' ? place : (place.link ?? place)
  const known = typeof key === 'string' ? byLink.get(key) : byShell.get(key)
  if (known !== undefined) return known
  const places: Places = { order: ++lastOrder, busy: 0, waiting: [], yielding: [] }
  if (typeof key === 'string') byLink.set(key, places)
  else byShell.set(key, places)
  return places
}

interface Wait {
  yields?: boolean
  signal?: AbortSignal | undefined
}

const enter = (places: Places, { yields = false, signal }: Wait): Promise<void> =>
  new Promise((resolve, reject) => {
    if (signal?.aborted === true) return reject(signal.reason as Error)
    if (places.busy < (yields ? yieldingPerSite : streamsPerSite)) {
      places.busy++
      return resolve()
    }
    const queue = yields ? places.yielding : places.waiting
    const giveUp = (): void => {
      queue.splice(queue.indexOf(go), 1)
      reject(signal?.reason as Error)
    }
    const go = (): void => {
      signal?.removeEventListener('abort', giveUp)
      resolve()
    }
    signal?.addEventListener('abort', giveUp, { once: true })
    queue.push(go)
  })

const leave = (places: Places): void => {
  places.busy--
  const next = places.waiting.shift() ?? (places.busy < yieldingPerSite ? places.yielding.shift() : undefined)
  if (next === undefined) return
  places.busy++
  next()
}

/**
 * Waits for a place at every site, given as the shell or as the id of its connection, always in the
 * same order of sites, so that two transfers in opposite directions never wait for each other. What
 * `yields` waits until no other transfer does. @throws the signal's reason where it is aborted before
 */
export const inPlaces = async <T>(
  all: readonly (string | SiteShell)[],
  work: () => Promise<T>,
  wait: Wait = {},
): Promise<T> => {
  const entered: Places[] = []
  try {
    for (const places of [...new Set(all.map(placesOf))].sort((a, b) => a.order - b.order)) {
      await enter(places, wait)
      entered.push(places)
    }
    return await work()
  } finally {
    for (const places of entered) leave(places)
  }
}
