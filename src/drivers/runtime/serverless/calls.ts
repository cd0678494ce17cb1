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
import { shownPath } from '../../../outside-path.ts'
import { RecentMap } from '../../../pacing/recent.ts'
import type { EndReason, LogRange, LogSlice, PlaceDetail } from '../contract/driver.ts'
import { isErrno } from '../contract/errno.ts'
import { readSlice } from '../local/collect.ts'
import { isAlive, type ProcessIdentity } from '../local/processes.ts'
import type { CallAnswer } from './protocol.ts'
import type { StagedFile } from '../local/staging.ts'

/**
 * The records of calls, with which any process of this machine can go on: `NAME.call`, its record;
 * `NAME.answer`, a large answer until it is applied; `NAME.cancel` if a cancel was requested;
 * `NAME.staged`; `NAME.out` and `NAME.err` if it wrote something; `NAME.outputs/`, the function's
 * uploads.
 *
 * The record is created exclusively, with the call's facts or its burial, and grows by lines: its
 * owner, the time of sending, the answer, the end. The first line of each claim, of answers and
 * of ends counts, so a second answer changes nothing. Each entry begins on a new line, whatever a
 * crash has left before it; an unreadable line does not count. One file, because a new inode on a
 * disk in use costs up to 0.9 ms.
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
  /** The source folders of its staged files, in the intent's order. */
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
      /** Of the function, about files of the call. */
      warnings?: string[]
    }
  | { form: 'failed'; at: number; startedAt: number; trouble: 'refused' | 'infrastructure'; message: string }

/** A driver of a process. */
export interface CallOwner {
  process: ProcessIdentity
  driver: string
}

type Part = 'call' | 'cancel' | 'answer' | 'staged' | 'out' | 'err' | 'outputs'

export interface CallRecords {
  readonly root: string
  path(name: string, part: Part): string
  record(name: string): CallRecord | undefined
  /** False if there is a record already. */
  accept(name: string, facts: CallFacts): boolean
  /** Ensures that the call is never made. False if it has a record already. */
  bury(name: string): boolean
  /** Makes this driver the call's owner, unless another living driver is. */
  claim(name: string, owner: CallOwner): boolean
  release(name: string, owner: CallOwner): void
  /** When it was first sent to the platform. */
  sentAt(name: string): number | undefined
  markSent(name: string, at: number): void
  /** The platform certainly did not take it. */
  unmarkSent(name: string): void
  askToStop(name: string, graceSeconds: number): void
  stopAsked(name: string): boolean
  hasAnswer(name: string): boolean
  answer(name: string): Promise<KeptAnswer | undefined>
  /** False if there is one already. */
  keepAnswer(name: string, answer: KeptAnswer): Promise<boolean>
  end(name: string): CallEnd | undefined
  /** The first end stays. */
  keepEnd(name: string, end: CallEnd): void
  staged(name: string): StagedFile[]
  /** The file that gathers the parts of an uploaded output. */
  uploadOf(name: string, path: string): string
  /** Writes a part of an output; a repeat changes nothing. */
  saveUpload(name: string, path: string, offset: number, bytes: Buffer): Promise<void>
  saveLog(name: string, part: 'out' | 'err', bytes: Buffer): void
  readLog(name: string, part: 'out' | 'err', range: LogRange): LogSlice
  forget(name: string): void
}

/** As in `Intent.name`: safe as a file name. */
export const isCallName = (name: string): boolean => /^[a-z0-9-]{1,63}$/.test(name)

/** A larger answer has a file, which is removed when it is applied. */
const largestLine = 16 * 1024
const viewsKept = 10_000

const draftOf = (path: string): string => `${path}.${process.pid}-${randomBytes(4).toString('hex')}`

/** Creates the file with all its content, or leaves the existing one: false. */
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

/** A parsed record. */
interface View {
  record: CallRecord | undefined
  claims: number
  by: CallOwner | null
  sentAt: number | undefined
  answer: string | undefined
  end: CallEnd | undefined
}

type Line =
  | { record: CallRecord }
  | { claim: number; by: CallOwner | null }
  | { sent: number | null }
  | { answer: KeptAnswer }
  | { end: CallEnd }

const parse = (text: string): View => {
  const view: View = {
    record: undefined,
    claims: 0,
    by: null,
    sentAt: undefined,
    answer: undefined,
    end: undefined,
  }
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

export const openCalls = (root: string): CallRecords => {
  const path: CallRecords['path'] = (name, part) => join(root, `${name}.${part}`)
  /** Records only grow: one of the same size has the same content. */
  const views = new RecentMap<string, { size: number; inode: number; view: View }>(viewsKept)

  const look = (name: string): View | undefined => {
    const facts = statSync(path(name, 'call'), { throwIfNoEntry: false })
    if (facts === undefined) return undefined
    const known = views.get(name)
    if (known?.size === facts.size && known.inode === facts.ino) return known.view
    try {
      const text = readFileSync(path(name, 'call'), 'utf8')
      const view = parse(text)
      // A record that grew during the read is read again.
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
    claim(name, owner) {
      const view = look(name)
      if (view === undefined) return false
      if (view.by?.driver === owner.driver) return true
      if (view.by !== null && isAlive(view.by.process)) return false
      add(name, { claim: view.claims + 1, by: owner })
      return look(name)?.by?.driver === owner.driver
    },
    release(name, owner) {
      const view = look(name)
      if (view?.by?.driver === owner.driver) add(name, { claim: view.claims + 1, by: null })
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
      if (
        view === undefined ||
        view.answer !== undefined ||
        view.end !== undefined ||
        existsSync(path(name, 'answer'))
      )
        return false
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
      // The contents of outputs are in the work directory now.
      if (existsSync(path(name, 'answer'))) rmSync(path(name, 'answer'), { force: true })
      if (existsSync(path(name, 'outputs'))) rmSync(path(name, 'outputs'), { recursive: true, force: true })
    },
    staged(name) {
      if (!existsSync(path(name, 'staged'))) return []
      return JSON.parse(readFileSync(path(name, 'staged'), 'utf8')) as StagedFile[]
    },
    uploadOf: (name, output) => join(path(name, 'outputs'), hash('sha256', shownPath(output))),
    async saveUpload(name, output, offset, bytes) {
      mkdirSync(path(name, 'outputs'), { recursive: true, mode: 0o700 })
      const upload = join(path(name, 'outputs'), hash('sha256', shownPath(output)))
      await using file = await open(upload, constants.O_WRONLY | constants.O_CREAT, 0o600)
      await file.write(bytes, 0, bytes.length, offset)
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

/** Bytes of an uploaded output so far; 0 without an upload. */
export const uploadedBytes = (calls: CallRecords, name: string, path: string): number =>
  statSync(calls.uploadOf(name, path), { throwIfNoEntry: false })?.size ?? 0
