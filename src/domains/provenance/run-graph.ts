/**
 * The files and tasks of one run as integers: which task made a file, which tasks were given it. It holds what the view `data_uses` derives, by
 * positions of activities instead of pairs, of which a wide workflow has millions. Pure; `run-graphs.ts` fills it from the database.
 */

/** Edges by position, both ways: the neighbours of `p` are `to[start[p]] … to[start[p + 1] - 1]`. */
export interface Adjacency {
  start: Int32Array
  to: Int32Array
}

/** What the workflow version says; it never changes. */
export interface RunShape {
  /** Number of positions. */
  positions: number
  before: Adjacency
  after: Adjacency
  /** Names of the files that an activity declares of each predecessor's, for those that are given nothing else. */
  declaredOnly: ReadonlyMap<number, readonly { producer: number; name: string }[]>
}

export const adjacency = (positions: number, from: Int32Array, to: Int32Array): Adjacency => {
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
  /** As the run's plan names it; with the attempt it names the task too. */
  activityId: string
  position: number
  attempt: number
  completed: boolean
  /** It has a handle: something was started, so its files were staged. */
  given: boolean
}

export interface GraphFile {
  id: string
  path: string
  /** Activity and attempt that made it. */
  activityId: string
  attempt: number
}

const attemptKey = ({ activityId, attempt }: { activityId: string; attempt: number }): string =>
  attempt === 1 ? activityId : `${activityId}\n${String(attempt)}`

/** A set of small integers that grows. */
class Marks {
  #bits = new Uint8Array(1_024)
  readonly list: number[] = []
  add(n: number): boolean {
    if (n >= this.#bits.length) {
      const grown = new Uint8Array(Math.max(n + 1, this.#bits.length * 2))
      grown.set(this.#bits)
      this.#bits = grown
    }
    if (this.#bits[n] === 1) return false
    this.#bits[n] = 1
    this.list.push(n)
    return true
  }
}

export class RunGraph {
  readonly shape: RunShape
  readonly #tasks: GraphTask[] = []
  readonly #taskAt = new Map<string, number>()
  /** The first attempt of an activity by its id, from the second on with the attempt. */
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

  constructor(shape: RunShape) {
    this.shape = shape
    this.#leaves = new Uint8Array(shape.positions)
  }

  /** Roughly what it holds, in bytes, for a bound on all of them. */
  get bytes(): number {
    return this.#tasks.length * 200 + this.#files.length * 300
  }

  /** Adds tasks, or replaces what is known of them. */
  putTasks(tasks: readonly GraphTask[]): void {
    for (const task of tasks) {
      const known = this.#taskAt.get(task.id)
      if (known !== undefined) {
        this.#tasks[known] = task
        continue
      }
      const n = this.#tasks.push(task) - 1
      this.#taskAt.set(task.id, n)
      this.#attemptAt.set(attemptKey(task), n)
      const attempts = (this.#attempts[task.position] ??= [])
      attempts.push(n)
    }
  }

  /** Adds files of tasks that are known. */
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

  /** Ids of tasks and files that lead to the given ones (`prior`), or that they lead to; the given ones are among them where they are known. */
  reach(
    given: { tasks: readonly string[]; files: readonly string[] },
    direction: 'prior' | 'downstream',
  ): { tasks: string[]; files: string[] } {
    const tasks = new Marks()
    const files = new Marks()
    for (const id of given.tasks) {
      const n = this.#taskAt.get(id)
      if (n !== undefined) tasks.add(n)
    }
    for (const id of given.files) {
      const n = this.#fileAt.get(id)
      if (n !== undefined) files.add(n)
    }
    // Each position is looked through once for consumers that take all, so a walk is linear in the edges.
    const through = new Uint8Array(this.shape.positions)
    const makers = new Uint8Array(this.shape.positions)
    let t = 0
    let f = 0
    while (t < tasks.list.length || f < files.list.length) {
      if (t < tasks.list.length) {
        const n = tasks.list[t++] as number
        if (direction === 'prior') this.#filesGivenTo(n, files, through)
        else for (const file of this.#made[n] ?? []) files.add(file)
      } else {
        const n = files.list[f++] as number
        if (direction === 'prior') tasks.add(this.#maker[n] as number)
        else this.#tasksGiven(n, tasks, through, makers)
      }
    }
    return {
      tasks: tasks.list.map((n) => (this.#tasks[n] as GraphTask).id),
      files: files.list.map((n) => (this.#files[n] as GraphFile).id),
    }
  }

  /** A predecessor that left nothing hands on what it was given, once it has completed. */
  #handsOn(position: number): boolean {
    return this.#leaves[position] === 0 && (this.#attempts[position] ?? []).some((n) => (this.#tasks[n] as GraphTask).completed)
  }

  #completedFiles(position: number): readonly number[] {
    const [n] = (this.#attempts[position] ?? []).filter((one) => (this.#tasks[one] as GraphTask).completed)
    return n === undefined ? [] : (this.#made[n] ?? [])
  }

  #filesGivenTo(n: number, files: Marks, through: Uint8Array): void {
    const task = this.#tasks[n] as GraphTask
    if (!task.given) return
    const declared = this.shape.declaredOnly.get(task.position)
    if (declared !== undefined) {
      this.#declaredFiles(task.position, declared, files)
      return
    }
    const { start, to } = this.shape.before
    const stack = [task.position]
    for (let position = stack.pop(); position !== undefined; position = stack.pop()) {
      for (let e = start[position] as number; e < (start[position + 1] as number); e++) {
        const producer = to[e] as number
        if (through[producer] === 1) continue
        through[producer] = 1
        for (const file of this.#completedFiles(producer)) files.add(file)
        if (this.#handsOn(producer)) stack.push(producer)
      }
    }
  }

  /** Of an activity that takes only what it declares: of a predecessor by producer and name, of what is handed on by name. */
  #declaredFiles(position: number, declared: readonly { producer: number; name: string }[], files: Marks): void {
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
          if (names((this.#files[file] as GraphFile).path, declared, first ? producer : undefined)) files.add(file)
        if (this.#handsOn(producer)) stack.push([producer, false])
      }
    }
  }

  #tasksGiven(file: number, tasks: Marks, through: Uint8Array, makers: Uint8Array): void {
    const maker = this.#tasks[this.#maker[file] as number] as GraphTask
    if (!maker.completed) return
    // Where nobody chooses among files, one file of a task goes where the others go.
    if (this.shape.declaredOnly.size === 0 && makers[maker.position] === 1) return
    makers[maker.position] = 1
    const { path } = this.#files[file] as GraphFile
    const { start, to } = this.shape.after
    const direct = new Set<number>()
    for (let e = start[maker.position] as number; e < (start[maker.position + 1] as number); e++) direct.add(to[e] as number)
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
        } else if (through[consumer] === 0) {
          through[consumer] = 1
          this.#give(consumer, tasks)
        }
        if (!seen.has(consumer) && this.#handsOn(consumer)) {
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

/** Whether a path is one of the declared names or lies below it; `producer` limits it to what is declared of that position. */
const names = (path: string, declared: readonly { producer: number; name: string }[], producer: number | undefined): boolean =>
  declared.some((one) => (producer === undefined || one.producer === producer) && (one.name === path || path.startsWith(`${one.name}/`)))
