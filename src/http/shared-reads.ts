/**
 * Lets equal reads share one: callers that come while a read of the same key is under way wait for the next, which starts when that
 * one has ended, and all get its result. So everybody is answered with a state read after he asked, never an older one, and a record
 * that a hundred clients poll costs the database one statement at a time. Failures are shared too; the next caller starts anew.
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
