/** The service asks a provider again after this long: a person may have changed or removed what it has named. */
const trustedMs = 300_000

/** What a provider has answered about things by name, such as firewalls and images: many machines cost one look. */
export interface Known {
  /** The answer about a name, from `ask` where it is not known. */
  of(name: string, ask: () => Promise<string>): Promise<string>
  /** The provider says that it is not there. */
  forget(name: string): void
}

export const openKnown = (): Known => {
  const known = new Map<string, { at: number; answer: Promise<string> }>()
  return {
    of(name, ask) {
      const entry = known.get(name)
      if (entry !== undefined && performance.now() - entry.at < trustedMs) return entry.answer
      const answer = ask()
      known.set(name, { at: performance.now(), answer })
      answer.catch(() => {
        if (known.get(name)?.answer === answer) known.delete(name)
      })
      return answer
    },
    forget: (name) => void known.delete(name),
  }
}
