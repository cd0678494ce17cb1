/**
 * Lets equal reads share one. Callers that arrive during a read of the same key wait for the next
 * read, which starts when the present one ends, and all of them get its result. So each caller gets
 * a state read after its request, never an older one, and a record that a hundred clients poll
 * costs the database one statement at a time. Failures are shared too; the next caller starts a new
 * read.
 */
export const sharedReads = <T>(read: (key: string) => Promise<T>): ((key: string) => Promise<T>) => {
  interface UnderWay {
    now: Promise<T>
    next: Promise<T> | undefined
  }
  const underWay = new Map<string, UnderWay>()
  const start = (key: string): Promise<T> => {
    const entry: UnderWay = { now: read(key), next: undefined }
    underWay.set(key, entry)
    const leave = (): void => {
      if (underWay.get(key) === entry) underWay.delete(key)
    }
    entry.now.then(leave, leave)
    return entry.now
  }
  return (key) => {
    const entry = underWay.get(key)
    if (entry === undefined) return start(key)
    const again = (): Promise<T> => start(key)
    entry.next ??= entry.now.then(again, again)
    return entry.next
  }
}
