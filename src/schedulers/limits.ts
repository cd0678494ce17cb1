/**
 * Sums of decimal seconds and prices, and sizes such as 0.1 + 0.2, differ from their exact value by a
 * relative 1e-16 or so. What is missed by no more than this counts as met.
 */
export const roundingSlack = 1e-9

/** Whether a makespan or cost is above a deadline or budget; a limit of 0 means none. */
export const exceeds = (value: number, limit: number): boolean =>
  limit > 0 && value > limit * (1 + roundingSlack)
