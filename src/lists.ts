/**
 * Lists of any length. A call takes some 125,000 arguments, so `push(...list)` and
 * `Math.max(...list)` fail on a list that a user can make longer.
 */

/** Adds the items at the end of the list. */
export const append = <T>(list: T[], items: Iterable<T>): void => {
  for (const item of items) list.push(item)
}

/** The greatest of the numbers and `least`; -Infinity where there is none. */
export const greatest = (numbers: Iterable<number>, least = -Infinity): number => {
  let found = least
  for (const number of numbers) found = Math.max(found, number)
  return found
}

/** The smallest of the numbers; Infinity where there is none. */
export const smallest = (numbers: Iterable<number>): number => {
  let found = Infinity
  for (const number of numbers) found = Math.min(found, number)
  return found
}

/** The first of the items; of more than `most`, `rest` stands for the others. */
export const firstItems = <T>(items: readonly T[], most: number, rest: (more: number) => T): T[] =>
  items.length <= most ? [...items] : [...items.slice(0, most), rest(items.length - most)]

/** The texts of the first items; of more than `most`, the last is `and 3 more`. */
export const firstTexts = <T>(
  items: readonly T[],
  most: number,
  textOf: (item: T) => string = String,
): string[] => {
  const texts = items.slice(0, most).map(textOf)
  return items.length <= most ? texts : [...texts, `and ${String(items.length - most)} more`]
}

/**
 * The bound of counted totals; a larger total is a lower bound. Stores count with `limit countBound
 * + 1` and pass the result on.
 */
export const countBound = 10_000
