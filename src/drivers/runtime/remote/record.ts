import { present } from '../../../json-object.ts'
import { memoryLimits, type MemoryLimit } from '../contract/cgroups.ts'
import { signalNames } from '../contract/results.ts'

/** Seconds since epoch are by this machine's clock. */
export type RemoteSight =
  /** `vanished`: it had a record when this process looked before. */
  | { form: 'none'; vanished?: true }
  /** Cancelled before it was started. */
  | { form: 'buried'; at: number }
  | ClaimedSight
  | StartedSight
  | EndedSight

/**
 * Its record is created and not written yet: the caller looks again, and after some seconds gives
 * it up. `givenUp`: its supervisor, if it lives, starts nothing any more. `unwritten`: why it cannot
 * be given up. `marked`: as in `StartedSight`, where one of the two is set.
 */
export interface ClaimedSight {
  form: 'claimed'
  ageSeconds: number
  givenUp?: true
  unwritten?: string
  marked?: true
}

/** The writer of a record that has no line at this age may never go on: the task is given up. */
export const claimedSeconds = 5
/** Whether its record has had no line for that long, and it is not given up. */
export const isOverdue = (sight: RemoteSight | undefined): boolean =>
  sight?.form === 'claimed' && sight.givenUp !== true && sight.ageSeconds >= claimedSeconds

export interface StartedSight {
  form: 'started'
  /** Process id of its supervisor. */
  pid: number
  node: string
  startedAt: number
  submittedAt: number
  /**
   * Whether the supervisor runs; undefined where processes were not queried, or where the host that
   * answered is not the host of the task.
   */
  supervised: boolean | undefined
  /** Whether its machine was restarted since; absent where that was not queried. */
  rebooted?: boolean
  /** Why the answer of this host does not show whether the supervisor runs. */
  unknownHere?: string
  /** Whether other processes with its mark live (checked only where the supervisor does not). */
  marked: boolean
  cancelAsked: boolean
}

export interface EndedSight {
  form: 'ended'
  pid: number
  node: string
  submittedAt: number
  startedAt: number
  finishedAt: number
  exitCode: number | null
  signal: string | null
  /** `stopped`: its supervisor got SIGTERM without a cancel: the site ended it. */
  reason: 'exited' | 'timeout' | 'cancelled' | 'memory' | 'stopped'
  /** As in `StartedSight`. */
  rebooted?: boolean
  wallSeconds: number
  cpuSeconds: number | null
  peakMemoryBytes: number | null
  measuredBy: 'time' | 'rusage' | 'none'
  limits?: MemoryLimit
  /** Its supervisor counted the kills for memory in its scheduler's job: its reason says of them. */
  countsKills?: true
}

/** The facts in the head of a task's script, for its collection, in one line of ASCII. */
export interface TaskFacts {
  directory: string
  expectedOutputs: readonly string[]
  /** The source folders of its staged files. */
  sources: readonly string[]
  /** It has a memory limit that the site does not enforce, as its runtime declares. */
  unlimited?: true
  /** Seconds since epoch, by the submitting machine's clock. */
  submittedAt: number
  /**
   * By the same clock: when the site's uptime was 0; and how far that clock was ahead of the
   * site's.
   */
  zero: number
  ahead: number
}

/** JSON without any byte that is not printable ASCII. */
export const factsLine = (facts: TaskFacts): string =>
  '# facts ' +
  JSON.stringify(facts).replace(/[^ -~]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)

/** Undefined also for a line that a full disk has cut off. */
export const parseFacts = (line: string): TaskFacts | undefined => {
  if (!line.startsWith('# facts ')) return undefined
  try {
    return JSON.parse(line.slice(8)) as TaskFacts
  } catch {
    return undefined
  }
}

/**
 * A record from the supervisor (`wrapper.ts`), with its raw numbers: hundredths of a second since
 * the site's start.
 */
export interface TaskRecord {
  /** `NAME.TOKEN`: the script from which it was started. */
  script: string
  pid: number
  birth: string
  boot: string
  node: string
  began: number
  /** Seconds since epoch by the clock of the node; absent where it was not read. */
  date?: number
  limits?: MemoryLimit
  countsKills?: true
  peakKib?: number
  /** From GNU time; without it only an exit code above 128 indicates a signal. */
  killedBy?: number
  cpuSeconds?: number
  exit?: { code: number; reason: EndedSight['reason']; ended: number }
}

/** The host that answers, by its own word. */
export interface AnsweringHost {
  boot: string
  hostname: string
  /** Seconds since epoch at its last start, by this machine's clock and by its own. */
  booted: { here: number; there: number }
}

/**
 * What the host that answers knows about a supervisor: whether it lives, or why the host cannot
 * know. `birth`: of the live process with its id there. One name may lead to several hosts with one
 * home, so a process that is not here is gone only where the host that started it answers: by its
 * name, and if it has another boot id, by a start after the task was submitted.
 */
export function supervisionOf(
  { node, boot, birth: born }: Pick<TaskRecord, 'node' | 'boot' | 'birth'>,
  birth: string | undefined,
  host: AnsweringHost,
  facts: Pick<TaskFacts, 'submittedAt' | 'ahead'> | undefined,
): boolean | string {
  if (boot === host.boot && birth === born) return true
  if (node !== host.hostname)
    return `it was started on ${node}, and ${host.hostname} answers: it may still run there, so it is waited for`
  if (boot === host.boot) return false
  const submittedAt = facts?.submittedAt ?? Infinity
  const { here, there } = host.booted
  return here > submittedAt || there > submittedAt - (facts?.ahead ?? 0)
    ? false
    : `it was started on another host of the name ${node} than the one that answers, which has been up ` +
        'since before: it may still run there, so it is waited for'
}

export type ParsedRecord =
  | { form: 'claimed' }
  | { form: 'buried'; at: number }
  | { form: 'started'; record: TaskRecord }

const reasons: readonly string[] = [
  'exited',
  'timeout',
  'cancelled',
  'memory',
  'stopped',
] satisfies EndedSight['reason'][]
const isReason = (word: string | undefined): word is EndedSight['reason'] =>
  word !== undefined && reasons.includes(word)

const minutes = (text: string): number => {
  const [, whole, rest] = /^(\d+)m([\d.]+)s$/.exec(text) ?? []
  return Number(whole) * 60 + Number(rest)
}

/** Lines of a record; a last line without its end, or torn by a full disk, does not count yet. */
export function parseRecord(lines: readonly string[]): ParsedRecord {
  let record: TaskRecord | undefined
  let times = 0
  for (const line of lines) {
    const words = line.split(' ')
    if (words[0] === 'cancelled' && words[2] === '.') return { form: 'buried', at: Number(words[1]) }
    if (words[0] === 'start' && words.length === 8) {
      const [, script = '', pid, birth = '', boot = '', node = '', began, date] = words
      record = { script, pid: Number(pid), birth, boot, node, began: Number(began) }
      // Without %N where the clock is busybox's, as in `clocks` of site.ts.
      if (date !== '-') record.date = Number.parseFloat(date ?? '')
    }
    if (record === undefined) continue
    const killed = /^Command terminated by signal (\d+)$/.exec(line)
    if (killed !== null) record.killedBy = Number(killed[1])
    const limits = words[0] === 'limits' ? memoryLimits.find((limit) => limit === words[1]) : undefined
    if (limits !== undefined) record.limits = limits
    if (line === 'counts kills') record.countsKills = true
    if (words[0] === 'peak' && words.length === 2) record.peakKib = Number(words[1])
    // The first pair is the supervisor's own.
    if (/^\d+m[\d.]+s \d+m[\d.]+s$/.test(line) && ++times === 2)
      record.cpuSeconds = minutes(words[0] ?? '') + minutes(words[1] ?? '')
    const [, code, reason, ended, point] = words
    if (words[0] === 'exit' && point === '.' && isReason(reason))
      record.exit = { code: Number(code), reason, ended: Number(ended) }
  }
  return record === undefined ? { form: 'claimed' } : { form: 'started', record }
}

/** SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH. */
const endNoProcess = new Set([17, 18, 19, 20, 21, 22, 23, 28])

/**
 * How it ended: the shell gives 128 + the signal's number; GNU time shows whether it was a signal.
 */
function endOf(record: TaskRecord, code: number): { exitCode: number | null; signal: string | null } {
  const guessed = record.peakKib === undefined && code > 128 && !endNoProcess.has(code - 128) ? code - 128 : 0
  const number = record.killedBy ?? guessed
  const signal = signalNames.get(number) ?? (record.killedBy === undefined ? undefined : `SIG${number}`)
  return signal === undefined ? { exitCode: code, signal: null } : { exitCode: null, signal }
}

/**
 * The state from a record, in seconds since epoch by the submitter's clock: from the node's uptime
 * where the task ran on the machine of the submission, else from the node's clock, corrected by the
 * error of that machine's clock.
 */
export function sightOf(
  parsed: ParsedRecord,
  facts: TaskFacts | undefined,
  seen: {
    ageSeconds: number
    /** `supervisionOf`; undefined where processes were not queried. */
    supervised: boolean | string | undefined
    marked: boolean
    cancelAsked: boolean
    givenUp?: boolean
    /** Where the supervisor runs; absent: it may be on another machine. */
    host?: AnsweringHost | undefined
  },
): RemoteSight {
  if (parsed.form === 'claimed') {
    const { ageSeconds, givenUp = false, marked } = seen
    const given = givenUp ? ({ givenUp } as const) : {}
    return { form: 'claimed', ageSeconds, ...given, ...(marked ? ({ marked } as const) : {}) }
  }
  if (parsed.form === 'buried') return parsed
  const { record } = parsed
  const { pid, node, began, date, exit, cpuSeconds = null, peakKib } = record
  const limits = record.limits ?? (facts?.unlimited === true ? 'none' : undefined)
  const submittedAt = facts?.submittedAt ?? 0
  const byClock = date === undefined ? undefined : date + (facts?.ahead ?? 0)
  const startedAt = Math.max(submittedAt, byClock ?? (facts?.zero ?? 0) + began / 100)
  const restarted = (seen.host?.booted.here ?? 0) > submittedAt
  const rebooted = seen.host === undefined ? {} : { rebooted: record.boot !== seen.host.boot || restarted }
  const common = { pid, node, submittedAt, startedAt, ...rebooted }
  const { supervised, marked, cancelAsked } = seen
  if (exit === undefined)
    return {
      ...{ form: 'started', ...common, marked, cancelAsked },
      ...(typeof supervised === 'string'
        ? { supervised: undefined, unknownHere: supervised }
        : { supervised }),
    }
  const wallSeconds = Math.max(0, exit.ended - began) / 100
  return {
    form: 'ended',
    ...common,
    finishedAt: startedAt + wallSeconds,
    ...endOf(record, exit.code),
    reason: exit.reason,
    wallSeconds,
    cpuSeconds,
    peakMemoryBytes: peakKib === undefined ? null : peakKib * 1024,
    measuredBy: peakKib !== undefined ? 'time' : cpuSeconds === null ? 'none' : 'rusage',
    ...present({ limits, countsKills: record.countsKills }),
  }
}
