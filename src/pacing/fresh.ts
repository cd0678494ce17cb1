/**
 * Makes one query at a time. Callers meanwhile share the next one: the answer that each gets was asked
 * for after its call.
 */
export function fresh<T>(question: () => Promise<T>): () => Promise<T> {
  let running: Promise<T> | undefined
  let next: Promise<T> | undefined
  const start = (): Promise<T> => {
    const answer = question().finally(() => {
      if (running === answer) running = undefined
    })
    running = answer
    return answer
  }
  return () => {
    if (running === undefined) return start()
    next ??= running
      .catch(() => undefined)
      .then(() => {
        next = undefined
        return start()
      })
    return next
  }
}
