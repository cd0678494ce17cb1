/** Lets at most this much weight through at once, in order of arrival. */
export interface Gate {
  /**
   * Waits for its turn; the returned function frees the weight, once. @throws the signal's reason
   * when it is aborted before
   */
  enter(weight?: number, signal?: AbortSignal): Promise<() => void>
  /** Does work of weight 1 in its turn. */
  inTurn<T>(work: () => Promise<T>, signal?: AbortSignal): Promise<T>
}

/** A call that weighs more than `most` runs alone. */
export const openGate = (most: number): Gate => {
  let inside = 0
  const waiting: { weight: number; go: () => void }[] = []
  const admit = (): void => {
    for (
      let next = waiting[0];
      next !== undefined && (inside === 0 || inside + next.weight <= most);
      next = waiting[0]
    ) {
      waiting.shift()
      inside += next.weight
      next.go()
    }
  }
  const enter: Gate['enter'] = (weight = 1, signal) =>
    new Promise((resolve, reject) => {
      if (signal?.aborted === true) return reject(signal.reason as Error)
      const entry = {
        weight,
        go: () => {
          signal?.removeEventListener('abort', leave)
          let given = false
          resolve(() => {
            if (given) return
            given = true
            inside -= weight
            admit()
          })
        },
      }
      const leave = (): void => {
        const at = waiting.indexOf(entry)
        if (at === -1) return
        waiting.splice(at, 1)
        reject(signal?.reason as Error)
        admit()
      }
      signal?.addEventListener('abort', leave, { once: true })
      waiting.push(entry)
      admit()
    })
  return {
    enter,
    async inTurn(work, signal) {
      const leave = await enter(1, signal)
      try {
        return await work()
      } finally {
        leave()
      }
    },
  }
}
