/** Pauses that a ring ends. */
export const openBell = () => {
  let rung = false
  let wake: () => void = () => undefined
  return {
    /** An event has come since `hush`. */
    get rung(): boolean {
      return rung
    },
    hush(): void {
      rung = false
    },
    ring: (): void => {
      rung = true
      wake()
    },
    /** Resolves after so many milliseconds, or at the next ring. */
    rest: (ms: number): Promise<void> =>
      new Promise((resolve) => {
        const timer = setTimeout(resolve, ms)
        wake = () => {
          clearTimeout(timer)
          resolve()
        }
      }),
  }
}

export type Bell = ReturnType<typeof openBell>
