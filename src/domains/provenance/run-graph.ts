/**
 * The files and tasks of one run as integers: the task that made a file, and the tasks that used
 * it. It holds the content of the view `data_uses` by positions of activities instead of pairs,
 * because a wide workflow has millions of pairs. Pure; `run-graphs.ts` fills it from the database.
 */

/**
 * Edges by position, both ways: the neighbours of `p` are `to[start[p]] … to[start[p + 1] - 1]`.
 */
export interface Neighbours {
  start: Int32Array
  to: Int32Array
}

/** The facts of the workflow version. They never change. */
export interface RunShape {
  /** Number of positions. */
  positions: number
  before: Neighbours
  after: Neighbours
  /**
   * Names of the files that an activity declares of each predecessor, for activities that get only
   * declared files.
   */
  declaredOnly: ReadonlyMap<number, readonly { producer: number; name: string }[]>
}

export const neighboursOf = (positions: number, from: Int32Array, to: Int32Array): Neighbours => {
  const start = new Int32Array(positions + 1)
  for (const p of from) start[p + 1] = (start[p + 1] as number) + 1
  for (let p = 0; p < positions; p++) start[p + 1] = (start[p + 1] as number) + (start[p] as number)
  const next = start.slice()
  const ends = new Int32Array(to.length)
  for (let e = 0; e < from.length; e++) {
    const p = from[e] as number
    const place = next[p] as number
    ends[place] = to[e] as number
    next[p] = place + 1
  }
  return { start, to: ends }
}

export interface GraphTask {
  id: string
  /** The id that the run's plan uses. With the attempt it names the task too. */
  activityId: string
  position: number
  attempt: number
  completed: boolean
  /** The task has a handle: its effect was started, so its files were staged. */
  given: boolean
}

export interface GraphFile {
  id: string
  path: string
  /** Activity and attempt that made the file. */
  activityId: string
  attempt: number
}

const attemptKey = ({ activityId, attempt }: { activityId: string; attempt: number }): string =>
  attempt === 1 ? activityId : `${activityId}\n${String(attempt)}`

/** A set of integers below a bound, in the order in which they came. */
class Marks {
  readonly #bits: Uint8Array
  readonly #list: Int32Array
  size = 0
  constructor(bound: number) {
    this.#bits = new Uint8Array(bound)
    this.#list = new Int32Array(bound)
  }
  add(n: number): boolean {
    if (this.#bits[n] === 1) return false
    this.#bits[n] = 1
    this.#list[this.size++] = n
    return true
  }
  at(i: number): number {
    return this.#list[i] as number
  }
  toList(): Int32Array {
    return this.#list.subarray(0, this.size)
  }
  clear(): void {
    for (const n of this.toList()) this.#bits[n] = 0
    this.size = 0
  }
}

const idsOf = (marks: Marks, rows: readonly { id: string }[]): string[] => {
  const ids: string[] = []
  for (const n of marks.toList()) ids.push((rows[n] as { id: string }).id)
  return ids
}

/** Items by the bytes of their ids, as PostgreSQL orders them under the collation "C". */
export const byBytes = <T>(items: readonly T[], idOf: (item: T) => string): T[] =>
  items
    .map((item) => ({ item, bytes: Buffer.from(idOf(item)) }))
    .toSorted((a, b) => a.bytes.compare(b.bytes))
    .map(({ item }) => item)

const inOrder = (numbers: Iterable<number>, rows: readonly { id: string }[]): { n: number; id: string }[] =>
  byBytes(
    Array.from(numbers, (n) => ({ n, id: (rows[n] as { id: string }).id })),
    ({ id }) => id,
  )

const none: readonly number[] = []

export class RunGraph {
  readonly shape: RunShape
  readonly #tasks: GraphTask[] = []
  readonly #taskAt = new Map<string, number>()
  /** The first attempt of an activity by its id. Later attempts have the attempt in the key. */
  readonly #attemptAt = new Map<string, number>()
  readonly #files: GraphFile[] = []
  readonly #fileAt = new Map<string, number>()
  /** Number of the task that made a file. */
  readonly #maker: number[] = []
  /** Files by the number of the task that made them. */
  readonly #made: (number[] | undefined)[] = []
  /** Attempts by position. */
  readonly #attempts: (number[] | undefined)[] = []
  /** Whether an attempt of a position left a file. */
  readonly #leaves: Uint8Array
  /** Number of the first completed attempt of a position; -1: none. */
  readonly #completed: Int32Array

  constructor(shape: RunShape) {
    this.shape = shape
    this.#leaves = new Uint8Array(shape.positions)
    this.#completed = new Int32Array(shape.positions).fill(-1)
  }

  /** The approximate memory in bytes, for a bound on all graphs. */
  get bytes(): number {
    return this.#tasks.length * 200 + this.#files.length * 300
  }

  /** Whether the graph holds a task or file of the run. */
  has(entity: 'task_executions' | 'data_instances', id: string): boolean {
    return entity === 'task_executions' ? this.#taskAt.has(id) : this.#fileAt.has(id)
  }

  /** Adds tasks, or replaces their facts. */
  putTasks(tasks: readonly GraphTask[]): void {
    for (const task of tasks) {
      const known = this.#taskAt.get(task.id)
      const attempts = (this.#attempts[task.position] ??= [])
      if (known === undefined) {
        const n = this.#tasks.push(task) - 1
        this.#taskAt.set(task.id, n)
        this.#attemptAt.set(attemptKey(task), n)
        attempts.push(n)
      } else this.#tasks[known] = task
      this.#completed[task.position] = attempts.find((n) => (this.#tasks[n] as GraphTask).completed) ?? -1
    }
  }

  /** Adds files of tasks that the graph holds. */
  putFiles(files: readonly GraphFile[]): void {
    for (const file of files) {
      const maker = this.#attemptAt.get(attemptKey(file))
      if (maker === undefined || this.#fileAt.has(file.id)) continue
      const n = this.#files.push(file) - 1
      this.#fileAt.set(file.id, n)
      this.#maker[n] = maker
      const made = (this.#made[maker] ??= [])
      made.push(n)
      this.#leaves[(this.#tasks[maker] as GraphTask).position] = 1
    }
  }

  /**
   * Ids of the ancestors of the given tasks and files (`prior`), or of their descendants. The given
   * ones are included where the graph holds them.
   */
  reach(
    given: { tasks: readonly string[]; files: readonly string[] },
    direction: 'prior' | 'downstream',
  ): { tasks: string[]; files: string[] } {
    const tasks = new Marks(this.#tasks.length)
    const files = new Marks(this.#files.length)
    for (const id of given.tasks) {
      const n = this.#taskAt.get(id)
      if (n !== undefined) tasks.add(n)
    }
    for (const id of given.files) {
      const n = this.#fileAt.get(id)
      if (n !== undefined) files.add(n)
    }
    // Each position is searched once for consumers that take all files, so a walk is linear in the
    // edges.
    const through = new Marks(this.shape.positions)
    const makers = new Marks(this.shape.positions)
    let t = 0
    let f = 0
    while (t < tasks.size || f < files.size) {
      if (t < tasks.size) {
        const n = tasks.at(t++)
        if (direction === 'prior') this.#filesGivenTo(n, files, through)
        else for (const file of this.#made[n] ?? none) files.add(file)
      } else {
        const n = files.at(f++)
        if (direction === 'prior') tasks.add(this.#maker[n] as number)
        else this.#tasksGiven(n, tasks, through, makers)
      }
    }
    return {
      tasks: idsOf(tasks, this.#tasks),
      files: idsOf(files, this.#files),
    }
  }

  /**
   * Every file that a task was given, by the ids of both, as the view `data_uses` has them. Where they
   * are more than `most`, it ends with the first task that exceeds that.
   */
  uses(most = Infinity): { task: string; file: string }[] {
    const pairs: { task: string; file: string }[] = []
    const [files, through] = [new Marks(this.#files.length), new Marks(this.shape.positions)]
    for (const [n, task] of this.#tasks.entries()) {
      this.#filesGivenTo(n, files, through)
      for (const file of idsOf(files, this.#files)) pairs.push({ task: task.id, file })
      if (pairs.length > most) break
      for (const marks of [files, through]) marks.clear()
    }
    return pairs
  }

  /**
   * One step along the uses: the files that tasks were given, or the tasks that files were given to.
   * The ends are in order, each with those of `ids` that lead to it, in order too. Of the ends that
   * are not known it has the first `most`, because all pairs of a wide run are millions.
   */
  usesOf(
    entity: 'task_executions' | 'data_instances',
    ids: readonly string[],
    known: (end: string) => boolean,
    most: number,
  ): { end: string; from: string[] }[] {
    const ofTasks = entity === 'task_executions'
    const [rows, endRows] = ofTasks ? [this.#tasks, this.#files] : [this.#files, this.#tasks]
    const [through, makers] = [new Marks(this.shape.positions), new Marks(this.shape.positions)]
    const ends = new Marks(endRows.length)
    const follow = (n: number): void => {
      if (ofTasks) this.#filesGivenTo(n, ends, through)
      else this.#tasksGiven(n, ends, through, makers)
    }
    const numbers = ofTasks ? this.#taskAt : this.#fileAt
    const given = ids.map((id) => numbers.get(id)).filter((n) => n !== undefined)
    for (const n of given) follow(n)
    const found = new Map<number, { end: string; from: string[] }>()
    let unknown = 0
    for (const { n, id } of inOrder(ends.toList(), endRows))
      if (known(id) || unknown++ < most) found.set(n, { end: id, from: [] })
    let reached: { from: string[] }[] = []
    let before: number | undefined
    for (const { n, id } of inOrder(given, rows)) {
      // The files of a task follow one another mostly, and have the same consumers.
      const maker = ofTasks || this.shape.declaredOnly.size > 0 ? undefined : this.#maker[n]
      if (maker === undefined || maker !== before) {
        for (const marks of [ends, through, makers]) marks.clear()
        follow(n)
        reached = Array.from(ends.toList(), (end) => found.get(end)).filter((one) => one !== undefined)
      }
      before = maker
      for (const { from } of reached) from.push(id)
    }
    return [...found.values()]
  }

  /** A completed predecessor without output files passes on its own inputs. */
  #handsOn(position: number): boolean {
    return this.#leaves[position] === 0 && this.#completed[position] !== -1
  }

  #completedFiles(position: number): readonly number[] {
    const n = this.#completed[position] as number
    return n === -1 ? none : (this.#made[n] ?? none)
  }

  #filesGivenTo(n: number, files: Marks, through: Marks): void {
    const task = this.#tasks[n] as GraphTask
    if (!task.given) return
    const declared = this.shape.declaredOnly.get(task.position)
    if (declared !== undefined) {
      this.#declaredFiles(task.position, declared, files)
      return
    }
    const { start, to } = this.shape.before
    let position: number | undefined = task.position
    // Most producers leave files: then nothing is passed on, and no stack is needed.
    let stack: number[] | undefined
    do {
      for (let e = start[position] as number; e < (start[position + 1] as number); e++) {
        const producer = to[e] as number
        if (!through.add(producer)) continue
        for (const file of this.#completedFiles(producer)) files.add(file)
        if (this.#handsOn(producer)) (stack ??= []).push(producer)
      }
      position = stack?.pop()
    } while (position !== undefined)
  }

  /**
   * Files of an activity that takes only declared files: those of a predecessor by producer and
   * name, passed-on files by name.
   */
  #declaredFiles(
    position: number,
    declared: readonly { producer: number; name: string }[],
    files: Marks,
  ): void {
    const seen = new Set<number>()
    const { start, to } = this.shape.before
    const stack: [position: number, direct: boolean][] = [[position, true]]
    const direct = new Set(to.subarray(start[position], start[position + 1]))
    for (let next = stack.pop(); next !== undefined; next = stack.pop()) {
      const [at, first] = next
      for (let e = start[at] as number; e < (start[at + 1] as number); e++) {
        const producer = to[e] as number
        if (seen.has(producer)) continue
        if (!first && direct.has(producer)) continue
        seen.add(producer)
        for (const file of this.#completedFiles(producer))
          if (names((this.#files[file] as GraphFile).path, declared, first ? producer : undefined))
            files.add(file)
        if (this.#handsOn(producer)) stack.push([producer, false])
      }
    }
  }

  #tasksGiven(file: number, tasks: Marks, through: Marks, makers: Marks): void {
    const maker = this.#tasks[this.#maker[file] as number] as GraphTask
    if (!maker.completed) return
    // Where no activity declares its files, all files of a task have the same consumers.
    if (!makers.add(maker.position) && this.shape.declaredOnly.size === 0) return
    const { path } = this.#files[file] as GraphFile
    const { start, to } = this.shape.after
    const direct = new Set(
      this.shape.declaredOnly.size === 0
        ? none
        : to.subarray(start[maker.position], start[maker.position + 1]),
    )
    const seen = new Set<number>()
    const stack: [position: number, first: boolean][] = [[maker.position, true]]
    for (let next = stack.pop(); next !== undefined; next = stack.pop()) {
      const [at, first] = next
      for (let e = start[at] as number; e < (start[at + 1] as number); e++) {
        const consumer = to[e] as number
        const declared = this.shape.declaredOnly.get(consumer)
        if (declared !== undefined) {
          const known = first || !direct.has(consumer)
          if (known && names(path, declared, first ? maker.position : undefined)) this.#give(consumer, tasks)
        } else if (through.add(consumer)) this.#give(consumer, tasks)
        if (this.#handsOn(consumer) && !seen.has(consumer)) {
          seen.add(consumer)
          stack.push([consumer, false])
        }
      }
    }
  }

  #give(position: number, tasks: Marks): void {
    for (const n of this.#attempts[position] ?? []) if ((this.#tasks[n] as GraphTask).given) tasks.add(n)
  }
}

/**
 * Whether a path is one of the declared names or is below one; `producer` restricts the search to
 * the names declared for that position.
 */
const names = (
  path: string,
  declared: readonly { producer: number; name: string }[],
  producer: number | undefined,
): boolean =>
  declared.some(
    (one) =>
      (producer === undefined || one.producer === producer) &&
      (one.name === path || path.startsWith(`${one.name}/`)),
  )
