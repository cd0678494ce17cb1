/**
 * A map that drops its oldest entries once it holds more than `most`: facts about things that
 * may never be asked for again.
 */
export class RecentMap<Key, Value> extends Map<Key, Value> {
  readonly most: number
  constructor(most: number) {
    super()
    this.most = most
  }
  override set(key: Key, value: Value): this {
    this.delete(key)
    super.set(key, value)
    const [oldest] = this.keys()
    if (this.size > this.most && oldest !== undefined) this.delete(oldest)
    return this
  }
}
