const chunkBits = 6
const chunkMask = (1 << chunkBits) - 1

/**
 * Numbers by index of which many versions exist beside each other. A version shares with the one it
 * was made of all parts that neither has changed, so that a version costs n / 64 instead of n.
 */
export class VersionedColumn {
  readonly #chunks: Float64Array[]

  private constructor(chunks: Float64Array[]) {
    this.#chunks = chunks
  }

  static of(values: ArrayLike<number>): VersionedColumn {
    const all = Float64Array.from(values)
    const chunks: Float64Array[] = []
    for (let at = 0; at < all.length; at += chunkMask + 1) chunks.push(all.slice(at, at + chunkMask + 1))
    return new VersionedColumn(chunks)
  }

  get(index: number): number {
    return this.#chunks[index >> chunkBits]![index & chunkMask]!
  }

  /** A version that can be written without a change of this one. */
  copy(): VersionedColumn {
    return new VersionedColumn(this.#chunks.slice())
  }

  /** Only before `copy` was called on this version. */
  set(index: number, value: number): void {
    const at = index >> chunkBits
    const chunk = this.#chunks[at]!.slice()
    chunk[index & chunkMask] = value
    this.#chunks[at] = chunk
  }
}
