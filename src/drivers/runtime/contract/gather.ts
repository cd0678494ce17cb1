const groups = 2

/**
 * Serves calls that come close together as one group: the first waits `milliseconds` for others.
 * While two groups are under way, further calls wait for the end of one, so groups grow with the
 * load.
 *
 * `serve` answers every given key; a key without an answer, and everything when it rejects,
 * rejects.
 */
export function gather<Key, Answer>(
  serve: (keys: readonly Key[]) => Promise<ReadonlyMap<Key, Answer | Error>>,
  { milliseconds = 2, most = 500 }: { milliseconds?: number; most?: number } = {},
): (key: Key) => Promise<Answer> {
  interface Call {
    key: Key
    resolve: (answer: Answer) => void
    reject: (error: unknown) => void
  }
  let waiting: Call[] = []
  let underWay = 0
  let timer: NodeJS.Timeout | undefined

  const begin = async (): Promise<void> => {
    timer = undefined
    if (underWay >= groups || waiting.length === 0) return
    const calls = waiting.slice(0, most)
    waiting = waiting.slice(most)
    underWay++
    try {
      const answers = await serve([...new Set(calls.map((call) => call.key))])
      for (const { key, resolve, reject } of calls) {
        const answer = answers.get(key)
        if (answer === undefined) reject(new Error('there was no answer'))
        else if (answer instanceof Error) reject(answer)
        else resolve(answer)
      }
    } catch (error) {
      for (const call of calls) call.reject(error)
    } finally {
      underWay--
      if (waiting.length > 0) void begin()
    }
  }

  return (key) =>
    new Promise((resolve, reject) => {
      waiting.push({ key, resolve, reject })
      timer ??= setTimeout(() => void begin(), milliseconds)
    })
}
