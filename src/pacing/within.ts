/** Milliseconds until a time of `performance.now()`, at least 1. */
export const leftOf = (until: number): number => Math.max(1, until - performance.now())

/** Resolves with `otherwise` when `promise` takes longer. The wait keeps no process open. */
export const orAfter = <T, Otherwise>(
  promise: Promise<T>,
  milliseconds: number,
  otherwise: Otherwise,
): Promise<T | Otherwise> => {
  const late = Promise.withResolvers<Otherwise>()
  const timer = setTimeout(late.resolve, milliseconds, otherwise).unref()
  return Promise.race([promise, late.promise]).finally(() => clearTimeout(timer))
}

/** Rejects with `error` when `promise` takes longer; a later result goes to `late`. */
export const within = <T>(
  promise: Promise<T>,
  milliseconds: number,
  error: () => Error,
  late?: (value: T) => void,
): Promise<T> =>
  new Promise<T>((resolve, reject) => {
    let over = false
    const timer = setTimeout(() => {
      over = true
      reject(error())
    }, milliseconds)
    promise.then(
      (value) => {
        clearTimeout(timer)
        if (over) late?.(value)
        else resolve(value)
      },
      (failure: unknown) => {
        clearTimeout(timer)
        reject(failure instanceof Error ? failure : new Error(String(failure)))
      },
    )
  })
