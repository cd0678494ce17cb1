/** A map that forgets what was set longest ago once it holds more than `most`: what is remembered of tasks that nobody may ever ask for again. */
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
