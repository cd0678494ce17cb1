import { parseIndexes } from './array.ts'

/**
 * The scheduler's report about elements of an array job. Times are seconds since epoch by the clock
 * of the cluster, so that midnight and time zones mean nothing.
 */
export interface SlurmJob {
  /** Id of the array. */
  job: string
  /**
   * Absent: all elements without a line of their own (the rest of an array that was cancelled as a
   * whole).
   */
  indexes?: number[] | undefined
  name: string
  /** Slurm's state in capitals (`PENDING`, `NODE_FAIL` …), without flags. */
  state: string
  /** Why it waits or why it ended, as reported by Slurm; absent where Slurm reports `None`. */
  reason?: string | undefined
  startedAt?: number | undefined
  endedAt?: number | undefined
  node?: string | undefined
  /** Largest resident set of a step; accounting only. */
  peakMemoryBytes?: number | undefined
}

const numberOf = (text: string | undefined): number | undefined =>
  text !== undefined && /^\d+$/.test(text) ? Number(text) : undefined
const wordOf = (text: string | undefined): string | undefined =>
  text === undefined || /^(|none|n\/a|none assigned|\(null\))$/i.test(text.trim()) ? undefined : text.trim()

/**
 * Format of `squeue -o` that `parseQueue` reads; the reason is last because it may contain any
 * character.
 */
export const queueFormat = '%F|%K|%j|%T|%S|%e|%N|%r'

/**
 * Lines of `squeue -h -o queueFormat` with `SLURM_TIME_FORMAT=%s`; a line of another shape is
 * skipped.
 */
export const parseQueue = (text: string): SlurmJob[] =>
  text.split('\n').flatMap((line) => {
    const [job = '', indexes = '', name = '', state = '', start, end, node, ...reason] = line.split('|')
    if (!/^\d+$/.test(job) || !/^[A-Z_]+$/.test(state)) return []
    return [
      {
        job,
        indexes: /^N\/A$/i.test(indexes) ? undefined : parseIndexes(indexes),
        name,
        state,
        reason: wordOf(reason.join('|')),
        startedAt: numberOf(start),
        endedAt: numberOf(end),
        node: wordOf(node),
      },
    ]
  })

/** Lines of `scontrol -o show job` with `SLURM_TIME_FORMAT=%s`; a line of another shape is skipped. */
export const parseJobRecords = (text: string): SlurmJob[] =>
  text.split('\n').flatMap((line) => {
    const fields = new Map([...line.matchAll(/(?:^| )(\w+)=(\S*)/g)].map(([, key, value]) => [key, value]))
    const [job, array] = [fields.get('JobId') ?? '', fields.get('ArrayJobId')]
    const state = fields.get('JobState') ?? ''
    if (!/^\d+$/.test(job) || !/^[A-Z_]+$/.test(state)) return []
    const indexes = fields.get('ArrayTaskId')
    return [
      {
        job: array ?? job,
        indexes: indexes === undefined ? undefined : parseIndexes(indexes),
        name: fields.get('JobName') ?? '',
        state,
        reason: wordOf(fields.get('Reason')),
        startedAt: numberOf(fields.get('StartTime')),
        endedAt: numberOf(fields.get('EndTime')),
        node: wordOf(fields.get('NodeList')),
      },
    ]
  })

/** Fields of `sacct -P -n -o` that `parseHistory` reads. */
export const historyFields = 'JobID,JobName,State,Start,End,NodeList,MaxRSS'

const units: Record<string, number> = { '': 1, K: 1024, M: 1024 ** 2, G: 1024 ** 3, T: 1024 ** 4 }

const bytesOf = (text: string | undefined): number | undefined => {
  const parts = /^(\d+(?:\.\d+)?)([KMGT]?)$/.exec(text ?? '')
  return parts === null ? undefined : Math.round(Number(parts[1]) * (units[parts[2] ?? ''] ?? 1))
}

const outOfMemory = 'OUT_OF_MEMORY'

/**
 * Lines of `sacct -P -n -o historyFields` with `SLURM_TIME_FORMAT=%s`. `CANCELLED by 1000` becomes
 * the state and the reason; memory, and a want of it, is in the lines of the steps (`12_3.batch`),
 * which belong to their element.
 */
export const parseHistory = (text: string): SlurmJob[] => {
  const jobs = new Map<string, SlurmJob>()
  for (const line of text.split('\n')) {
    const [id = '', name = '', states = '', start, end, node, memory] = line.split('|')
    const [, job, , list, step] = /^(\d+)(_(\[[^\]]*\]|\d+))?(\..+)?$/.exec(id) ?? []
    if (job === undefined) continue
    const key = `${job}_${list ?? ''}`
    if (step !== undefined) {
      const whole = jobs.get(key)
      const peak = bytesOf(memory)
      if (whole !== undefined && peak !== undefined)
        whole.peakMemoryBytes = Math.max(whole.peakMemoryBytes ?? 0, peak)
      // Of a step that ran out of memory the job may know nothing but its script's exit code.
      if (whole !== undefined && states === outOfMemory && /^(COMPLETED|FAILED)$/.test(whole.state))
        whole.state = outOfMemory
      continue
    }
    const [state = '', ...by] = states.split(' ')
    if (!/^[A-Z_]+$/.test(state)) continue
    jobs.set(key, {
      job,
      indexes: list === undefined ? undefined : parseIndexes(list),
      name,
      state,
      reason: wordOf(by.join(' ')),
      startedAt: numberOf(start),
      endedAt: numberOf(end),
      node: wordOf(node),
    })
  }
  return [...jobs.values()]
}
