import { hash, randomBytes } from 'node:crypto'
import {
  closeSync,
  constants,
  existsSync,
  linkSync,
  mkdirSync,
  openSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
  writeSync,
} from 'node:fs'
import { open, rm, writeFile, link, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { EndReason, LogSlice, PlaceDetail } from '../contract/driver.ts'
import { isErrno } from '../contract/errno.ts'
import { readSlice } from '../local/collect.ts'
import { isAlive, type ProcessIdentity } from '../local/processes.ts'
import type { CallAnswer } from './protocol.ts'
import type { StagedFile } from '../local/staging.ts'

/**
 * What is known of calls, so that any process of this machine can go on with them: `NAME.call`, its record; `NAME.answer`, a large answer until
 * it is applied; `NAME.cancel` if somebody asked for its end; `NAME.staged`; `NAME.out` and `NAME.err` if it wrote something; `NAME.outputs/`,
 * what the function uploads.
 *
 * The record is made exclusively, with what is to be done or that it never will be, and grows by lines: who attends to it, when it was sent,
 * the answer, the end. Of each claim, of answers and of ends the first line counts, so answering twice changes nothing. A line begins on a new
 * line, whatever a crash has left before it; one that cannot be read is not there. One file, because a new inode on a disk in use costs up to 0.9 ms.
 */
export interface CallFacts {
  directory: string
  argv: readonly string[]
  environment: Readonly<Record<string, string>>
  workingDirectory?: string
  expectedOutputs: readonly string[]
  timeoutSeconds: number
  memoryBytes: number
  /** Seconds since epoch. */
  submittedAt: number
  /** Folders that its files were staged from, in the intent's order. */
  sources?: readonly string[]
}

export type CallRecord = { form: 'accepted'; facts: CallFacts } | { form: 'buried'; at: number }

export interface KeptAnswer {
  answer: CallAnswer
  /** Seconds since epoch, by our clock. */
  receivedAt: number
  requestId?: string | undefined
}

export type CallEnd =
  | {
      form: 'ended'
      startedAt: number
      finishedAt: number
      wallSeconds: number
      exitCode: number | null
      signal: string | null
      reason: EndReason
      cpuSeconds: number | null
      peakMemoryBytes: number | null
      detail: PlaceDetail
    }
  | { form: 'failed'; at: number; startedAt: number; trouble: 'refused' | 'infrastructure'; message: string }

/** A driver of a process. */
export interface Attendant {
  process: ProcessIdentity
  driver: string
}

type Part = 'call' | 'cancel' | 'answer' | 'staged' | 'out' | 'err' | 'outputs'

export interface Calls {
  readonly root: string
  path(name: string, part: Part): string
  record(name: string): CallRecord | undefined
  /** False if there is a record already. */
  accept(name: string, facts: CallFacts): boolean
  /** Makes sure that the call is never made. False if it has a record already. */
  bury(name: string): boolean
  /** Whether this driver attends to the call from now on: nobody else that lives does. */
  claim(name: string, attendant: Attendant): boolean
  release(name: string, attendant: Attendant): void
  /** When it was given to the platform first. */
  sentAt(name: string): number | undefined
  markSent(name: string, at: number): void
  /** It is known not to have been taken. */
  unmarkSent(name: string): void
  askToStop(name: string, graceSeconds: number): void
  stopAsked(name: string): boolean
  hasAnswer(name: string): boolean
  answer(name: string): Promise<KeptAnswer | undefined>
  /** False if there is one already. */
  keepAnswer(name: string, answer: KeptAnswer): Promise<boolean>
  end(name: string): CallEnd | undefined
  /** The first one stays. */
  keepEnd(name: string, end: CallEnd): void
  staged(name: string): StagedFile[]
  /** Where the parts of an uploaded output are gathered. */
  uploadOf(name: string, path: string): string
  /** Writes a part of an output; writing it again changes nothing. */
  saveUpload(name: string, path: string, offset: number, bytes: Buffer): Promise<void>
  saveLog(name: string, part: 'out' | 'err', bytes: Buffer): void
  readLog(name: string, part: 'out' | 'err', range: { offset: number; limit: number } | { tail: number }): LogSlice
  forget(name: string): void
}

/** As in `Intent.name`: safe as a file name. */
export const isCallName = (name: string): boolean => /^[a-z0-9-]{1,63}$/.test(name)

/** A larger answer has a file, which goes when it is applied. */
const largestLine = 16 * 1024
const viewsKept = 10_000

const draftOf = (path: string): string => `${path}.${process.pid}-${randomBytes(4).toString('hex')}`

/** Makes the file with all its content, or leaves the one that is there: false. */
const writeOnce = (path: string, text: string): boolean => {
  const draft = draftOf(path)
  writeFileSync(draft, text, { mode: 0o600 })
  try {
    linkSync(draft, path)
    return true
  } catch (error) {
    if (isErrno(error, 'EEXIST')) return false
    throw error
  } finally {
    rmSync(draft, { force: true })
  }
}

/** A record, read. */
interface View {
  record: CallRecord | undefined
  claims: number
  by: Attendant | null
  sentAt: number | undefined
  answer: string | undefined
  end: CallEnd | undefined
}

type Line =
  | { record: CallRecord }
  | { claim: number; by: Attendant | null }
  | { sent: number | null }
  | { answer: KeptAnswer }
  | { end: CallEnd }

const parse = (text: string): View => {
  const view: View = { record: undefined, claims: 0, by: null, sentAt: undefined, answer: undefined, end: undefined }
  for (const written of text.split('\n')) {
    if (written === '') continue
    let line: Line
    try {
      line = JSON.parse(written) as Line
    } catch {
      continue
    }
    if ('record' in line) view.record ??= line.record
    else if ('sent' in line) view.sentAt = line.sent ?? undefined
    else if ('answer' in line) view.answer ??= written
    else if ('end' in line) view.end ??= line.end
    else if (line.claim > view.claims) {
      view.claims = line.claim
      view.by = line.by
    }
  }
  return view
}

export const openCalls = (root: string): Calls => {
  const path: Calls['path'] = (name, part) => join(root, `${name}.${part}`)
  /** Records only grow: one of the same size says the same. */
  const views = new Map<string, { size: number; inode: number; view: View }>()

  const look = (name: string): View | undefined => {
    const facts = statSync(path(name, 'call'), { throwIfNoEntry: false })
    if (facts === undefined) return undefined
    const known = views.get(name)
    if (known?.size === facts.size && known.inode === facts.ino) return known.view
    try {
      const text = readFileSync(path(name, 'call'), 'utf8')
      const view = parse(text)
      if (views.size >= viewsKept) views.clear()
      // What grew while it was read is read again.
      views.set(name, { size: facts.size, inode: facts.ino, view })
      return view
    } catch (error) {
      if (isErrno(error, 'ENOENT')) return undefined
      throw error
    }
  }
  const add = (name: string, line: Line): void => {
    let file: number
    try {
      file = openSync(path(name, 'call'), constants.O_WRONLY | constants.O_APPEND)
    } catch (error) {
      // It was removed.
      if (isErrno(error, 'ENOENT')) return
      throw error
    }
    try {
      writeSync(file, `\n${JSON.stringify(line)}`)
    } finally {
      closeSync(file)
    }
  }
  const begin = (name: string, record: CallRecord): boolean => {
    if (existsSync(path(name, 'call'))) return false
    mkdirSync(root, { recursive: true, mode: 0o700 })
    return writeOnce(path(name, 'call'), JSON.stringify({ record } satisfies Line))
  }

  return {
    root,
    path,
    record: (name) => look(name)?.record,
    accept: (name, facts) => begin(name, { form: 'accepted', facts }),
    bury: (name) => begin(name, { form: 'buried', at: Date.now() / 1000 }),
    claim(name, attendant) {
      const view = look(name)
      if (view === undefined) return false
      if (view.by?.driver === attendant.driver) return true
      if (view.by !== null && isAlive(view.by.process)) return false
      add(name, { claim: view.claims + 1, by: attendant })
      return look(name)?.by?.driver === attendant.driver
    },
    release(name, attendant) {
      const view = look(name)
      if (view?.by?.driver === attendant.driver) add(name, { claim: view.claims + 1, by: null })
    },
    sentAt: (name) => look(name)?.sentAt,
    markSent: (name, at) => add(name, { sent: at }),
    unmarkSent: (name) => add(name, { sent: null }),
    askToStop(name, graceSeconds) {
      writeFileSync(path(name, 'cancel'), JSON.stringify({ graceSeconds }), { mode: 0o600 })
    },
    stopAsked: (name) => existsSync(path(name, 'cancel')),
    hasAnswer: (name) => look(name)?.answer !== undefined || existsSync(path(name, 'answer')),
    async answer(name) {
      const line = look(name)?.answer
      if (line !== undefined) return (JSON.parse(line) as { answer: KeptAnswer }).answer
      if (!existsSync(path(name, 'answer'))) return undefined
      try {
        return JSON.parse(await readFile(path(name, 'answer'), 'utf8')) as KeptAnswer
      } catch (error) {
        if (isErrno(error, 'ENOENT')) return undefined
        throw error
      }
    },
    async keepAnswer(name, answer) {
      const view = look(name)
      if (view === undefined || view.answer !== undefined || view.end !== undefined || existsSync(path(name, 'answer'))) return false
      const text = JSON.stringify(answer)
      if (text.length <= largestLine) {
        const line: Line = { answer }
        add(name, line)
        return look(name)?.answer === JSON.stringify(line)
      }
      const draft = draftOf(path(name, 'answer'))
      try {
        await writeFile(draft, text, { mode: 0o600 })
        await link(draft, path(name, 'answer'))
        return true
      } catch (error) {
        if (isErrno(error, 'EEXIST')) return false
        throw error
      } finally {
        await rm(draft, { force: true })
      }
    },
    end: (name) => look(name)?.end,
    keepEnd(name, end) {
      if (look(name)?.end !== undefined) return
      add(name, { end })
      // Contents of outputs are in the work directory now.
      if (existsSync(path(name, 'answer'))) rmSync(path(name, 'answer'), { force: true })
      if (existsSync(path(name, 'outputs'))) rmSync(path(name, 'outputs'), { recursive: true, force: true })
    },
    staged(name) {
      if (!existsSync(path(name, 'staged'))) return []
      return JSON.parse(readFileSync(path(name, 'staged'), 'utf8')) as StagedFile[]
    },
    uploadOf: (name, output) => join(path(name, 'outputs'), hash('sha256', output)),
    async saveUpload(name, output, offset, bytes) {
      mkdirSync(path(name, 'outputs'), { recursive: true, mode: 0o700 })
      const file = await open(join(path(name, 'outputs'), hash('sha256', output)), constants.O_WRONLY | constants.O_CREAT, 0o600)
      try {
        await file.write(bytes, 0, bytes.length, offset)
      } finally {
        await file.close()
      }
    },
    saveLog(name, part, bytes) {
      if (bytes.length > 0) writeFileSync(path(name, part), bytes, { mode: 0o600 })
    },
    readLog: (name, part, range) => readSlice(path(name, part), range),
    forget(name) {
      views.delete(name)
      for (const part of ['cancel', 'answer', 'staged', 'out', 'err', 'outputs', 'call'] as const)
        rmSync(path(name, part), { recursive: true, force: true })
    },
  }
}

/** Bytes of an uploaded output so far; 0 where nothing came. */
export const uploadedBytes = (calls: Calls, name: string, path: string): number =>
  statSync(calls.uploadOf(name, path), { throwIfNoEntry: false })?.size ?? 0
