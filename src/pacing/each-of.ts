/**
 * Runs work for each item, at most so many at once. The first failure stops those that have not begun;
 * it is thrown when all that have begun are over. @returns the answers, in the order of the items
 */
export const eachOf = async <T, R>(
  items: readonly T[],
  most: number,
  work: (item: T) => Promise<R>,
): Promise<R[]> => {
  const answers: R[] = []
  const queue = items.entries()
  let failed = false
  const workers = Array.from({ length: Math.min(most, items.length) }, async () => {
    for (const [at, item] of queue) {
      if (failed) return
      try {
        answers[at] = await work(item)
      } catch (error) {
        failed = true
        throw error
      }
    }
  })
  for (const end of await Promise.allSettled(workers)) if (end.status === 'rejected') throw end.reason
  return answers
}
