import { within } from '../pacing/within.ts'

/**
 * Why an external service gave no answer, in text that may be public: without codes, paths and
 * names of hosts.
 */
export class NoAnswerError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'NoAnswerError'
  }
}

/** The message for a deadline that has passed. */
export const lateText = (deadlineMs: number): string => `no answer within ${deadlineMs / 1_000} s`

/**
 * Returns the result of `work`. @throws NoAnswerError after `deadlineMs`; the work itself goes on
 */
export const withinDeadline = <T>(deadlineMs: number, work: Promise<T>): Promise<T> =>
  within(work, deadlineMs, () => new NoAnswerError(lateText(deadlineMs)))
