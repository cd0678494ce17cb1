/** Why something outside gave no answer, in words that may be public: without codes, paths and names of hosts. */
export class NoAnswerError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'NoAnswerError'
  }
}

/** The words for a deadline that has passed. */
export const lateWords = (deadlineMs: number): string => `no answer within ${deadlineMs / 1_000} s`

/** What `work` gives. @throws NoAnswerError after `deadlineMs`; the work itself is not ended */
export const withinDeadline = async <T>(deadlineMs: number, work: Promise<T>): Promise<T> => {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      reject(new NoAnswerError(lateWords(deadlineMs)))
    }, deadlineMs)
  })
  try {
    return await Promise.race([work, late])
  } finally {
    clearTimeout(timer)
  }
}
