import { DriverError, type Intent, type SubmitOutcome } from './driver.ts'

/**
 * Outcomes of intents that are submitted singly and gathered on their way: the site's id, or why
 * the site refused one. A rejection rejects them all, in the class that `errorOf` gives it.
 */
export const outcomesOf = async (
  intents: readonly Intent[],
  submitOne: (intent: Intent) => Promise<{ outcome: string | DriverError }>,
  errorOf: (error: unknown) => DriverError,
): Promise<SubmitOutcome[]> => {
  const outcomes = await Promise.all(intents.map(submitOne)).catch((error: unknown) => {
    throw errorOf(error)
  })
  return outcomes.map(({ outcome }, position): SubmitOutcome => {
    const name = intents[position]?.name ?? ''
    return outcome instanceof DriverError
      ? { name, ok: false, error: outcome }
      : { name, ok: true, externalId: outcome }
  })
}
