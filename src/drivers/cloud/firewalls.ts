/** The service reads a firewall again after this long: a person may have changed or removed it. */
const trustedMs = 300_000

/** Firewalls that a driver has made or found, by name, so that many machines cost one look. */
export interface Firewalls {
  /** The firewall of a name, from `make` where it is not known. */
  of(name: string, make: () => Promise<string>): Promise<string>
  /** The provider says that it is not there. */
  forget(name: string): void
}

export const openFirewalls = (now: () => number = () => performance.now()): Firewalls => {
  const known = new Map<string, { at: number; made: Promise<string> }>()
  return {
    of(name, make) {
      const entry = known.get(name)
      if (entry !== undefined && now() - entry.at < trustedMs) return entry.made
      const made = make()
      known.set(name, { at: now(), made })
      made.catch(() => {
        if (known.get(name)?.made === made) known.delete(name)
      })
      return made
    },
    forget: (name) => void known.delete(name),
  }
}
