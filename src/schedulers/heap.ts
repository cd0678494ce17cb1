/** A queue from which items come in the order of `before`, a strict weak order; equal ones in any order. */
export class Heap<T> {
  readonly #items: T[] = []
  readonly #before: (a: T, b: T) => boolean

  constructor(before: (a: T, b: T) => boolean) {
    this.#before = before
  }

  /** The item that comes next; undefined when empty. */
  get first(): T | undefined {
    return this.#items[0]
  }

  push(item: T): void {
    const items = this.#items
    let at = items.length
    for (; at > 0; at = (at - 1) >> 1) {
      const above = items[(at - 1) >> 1]!
      if (!this.#before(item, above)) break
      items[at] = above
    }
    items[at] = item
  }

  /** Removes the first item; undefined when empty. */
  pop(): T | undefined {
    const items = this.#items
    const first = items[0]
    const last = items.pop()
    if (items.length === 0 || last === undefined) return first
    let at = 0
    for (let below = 1; below < items.length; at = below, below = 2 * at + 1) {
      if (below + 1 < items.length && this.#before(items[below + 1]!, items[below]!)) below++
      if (!this.#before(items[below]!, last)) break
      items[at] = items[below]!
    }
    items[at] = last
    return first
  }
}
