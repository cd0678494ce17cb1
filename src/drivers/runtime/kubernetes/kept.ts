/** One question under way at a time; whoever asks within the time that its answer is kept gets that. A rejection is not kept. */
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
