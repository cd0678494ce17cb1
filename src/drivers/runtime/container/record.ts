import { reasonText } from '../../../outside-text.ts'
import type { PlaceDetail, TroubleClass } from '../contract/driver.ts'

/** The launcher's record (`launcher.ts`) of a task's container; lines of `records/NAME`. */
export interface ContainerRecord {
  detail: PlaceDetail
  /** The engine's own name of the image in use; absent until it is known. */
  imageId?: string
  /**
   * Absolute path of the engine's socket that the launcher received; absent where the engine's
   * program chooses.
   */
  engineSocket?: string
  /** Why there was no container, or why it is gone. */
  trouble?: { trouble: TroubleClass; words: string }
  /** Whether its program was started. */
  begun: boolean
  /** Absent while it runs, or when it did not start. */
  run?: {
    /**
     * Time from the launcher's start to the start of the task's program, bringing the image to the
     * host included.
     */
    beforeSeconds: number
    wallSeconds: number
    cpuSeconds: number | null
    /** Null where the container has no readable cgroup of its own. */
    peakMemoryBytes: number | null
    /** The kernel killed one of its processes for lack of memory. */
    outOfMemory: boolean
  }
}

/** `0m1.230000s` of the shell's `times`, in seconds. */
const secondsOf = (text: string): number => {
  const [, minutes = '0', seconds = '0'] = /^(\d+)m([\d.]+)s$/.exec(text) ?? []
  return Number(minutes) * 60 + Number(seconds)
}

/**
 * The first line is written before any other step; the last line of a launcher without a container
 * gives the reason.
 */
const unwritten = 'the record of its container could not be written: is the disk of the site full?'

/** `text`: undefined where no launcher has run. A torn or foreign line counts as absent. */
export const parseContainerRecord = (text: string | undefined): ContainerRecord => {
  const lines = new Map<string, string>()
  for (const line of (text ?? '').split('\n')) {
    const [, word = '', rest = ''] = /^([a-z]+) (.*)$/.exec(line) ?? []
    if (word !== '') lines.set(word, rest)
  }
  const word = (name: string): string | undefined => lines.get(name)
  const digest = word('digest')
  const size = Number(word('size') ?? Number.NaN)
  const pulled = Number(word('pull') ?? Number.NaN) / 100
  const [launched, began, ended] = (word('place') ?? '').split(' ').map(Number)
  const detail: PlaceDetail = {
    ...(word('engine') === undefined ? {} : { engine: word('engine')! }),
    ...(word('image') === undefined ? {} : { image: word('image')! }),
    ...(digest?.startsWith('sha256:') === true ? { imageDigest: digest } : {}),
    ...(Number.isFinite(size) ? { imageBytes: size } : {}),
    ...(Number.isFinite(pulled) ? { pullSeconds: pulled } : {}),
    ...(word('reused') === undefined ? {} : { containerReused: word('reused') === '1' }),
  }
  const begun = word('up') !== undefined
  const [, trouble, words] = /^(infrastructure|refused) (.*)$/.exec(word('trouble') ?? '') ?? []
  const silent =
    text !== undefined && !begun ? { trouble: { trouble: 'infrastructure' as const, words: unwritten } } : {}
  const socket = word('host')?.replace(/^unix:\/\//, '')
  const engine = {
    ...(word('id') === undefined ? {} : { imageId: word('id')! }),
    ...(socket === undefined ? {} : { engineSocket: socket }),
  }
  const facts =
    trouble === undefined
      ? silent
      : { trouble: { trouble: trouble as TroubleClass, words: reasonText(words ?? '') } }
  if (
    launched === undefined ||
    began === undefined ||
    ended === undefined ||
    !(launched <= began && began <= ended)
  )
    return { detail, begun, ...engine, ...facts }
  const beforeSeconds = (began - launched) / 100
  // The lines of `times` twice: this shell's own and its children's, before the task and after it.
  const times = (word('times') ?? '').split(' ').map(secondsOf)
  const childrenAt = (line: number): number => (times[line] ?? Number.NaN) + (times[line + 1] ?? Number.NaN)
  const cpuSeconds = childrenAt(6) - childrenAt(2)
  const peak = Number(word('peak') ?? Number.NaN)
  return {
    detail: {
      ...detail,
      coldStartSeconds: Math.max(0, Math.round((beforeSeconds - (detail.pullSeconds ?? 0)) * 100) / 100),
    },
    begun,
    ...engine,
    ...facts,
    run: {
      beforeSeconds,
      wallSeconds: (ended - began) / 100,
      cpuSeconds: Number.isFinite(cpuSeconds) ? Math.max(0, cpuSeconds) : null,
      peakMemoryBytes: Number.isFinite(peak) ? peak : null,
      outOfMemory: Number(word('oom') ?? 0) > 0,
    },
  }
}
