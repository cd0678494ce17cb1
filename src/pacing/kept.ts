/**
 * Makes one query at a time. Callers within the lifetime of its answer share the answer. A
 * rejection is not kept.
 */
export function kept<T>(milliseconds: number, question: () => Promise<T>): () => Promise<T> {
  let last: { answer: Promise<T>; at: number } | undefined
  return () => {
    if (last !== undefined && performance.now() - last.at < milliseconds) return last.answer
    const one = { answer: question(), at: performance.now() }
    last = one
    one.answer.catch(() => last === one && (last = undefined))
    return one.answer
  }
}
