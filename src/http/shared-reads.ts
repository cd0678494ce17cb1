/**
 * Lets equal reads share one. Callers that arrive during a read of the same key wait for the next
 * read, which starts when the present one ends, and all of them get its result. So each caller gets
 * a state read after its request, never an older one, and a record that a hundred clients poll
 * costs the database one statement at a time. Failures are shared too; the next caller starts a new
 * read. Callers share only what they read from the same schema of `db`: an archive may have records
 * of the same ids.
 */
export const sharedReads = <T>(
  db: { readonly schema: string },
  read: (key: string) => Promise<T>,
): ((key: string) => Promise<T>) => {
  interface UnderWay {
    now: Promise<T>
    next: Promise<T> | undefined
  }
  const underWay = new Map<string, UnderWay>()
  const start = (key: string, place: string): Promise<T> => {
    const entry: UnderWay = { now: read(key), next: undefined }
    underWay.set(place, entry)
    const leave = (): void => {
      if (underWay.get(place) === entry) underWay.delete(place)
    }
    entry.now.then(leave, leave)
    return entry.now
  }
  return (key) => {
    const place = `${db.schema} ${key}`
    const entry = underWay.get(place)
    if (entry === undefined) return start(key, place)
    const again = (): Promise<T> => start(key, place)
    entry.next ??= entry.now.then(again, again)
    return entry.next
  }
}
