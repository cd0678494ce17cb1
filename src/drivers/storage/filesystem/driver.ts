import { fork, type ChildProcess } from 'node:child_process'
import { hash } from 'node:crypto'
import { getCompileCacheDir } from 'node:module'
import { dirname, extname } from 'node:path'
import { Readable } from 'node:stream'
import { piecesOf } from '../../../clients/pieces.ts'
import {
  StorageError,
  type FileReading,
  type StorageDriver,
  type Watch,
  type WriteOptions,
  type Written,
} from '../contract.ts'
import { whole } from '../continued.ts'
import { shorter, wrongSize } from '../faults.ts'
import type { StoragePath } from '../paths.ts'
import { untilBreak } from '../streams.ts'
import type { FromHost, HostCalls, ToHost, Where } from './host.ts'

/** Deadline of one call. Flushing written bytes may take minutes on a busy disk. */
const deadlines: Partial<Record<keyof HostCalls, number>> = {
  commit: 600_000,
  keep: 600_000,
  writeMany: 600_000,
}
const pieceBytes = 1024 * 1024
/**
 * A larger file is hashed in a process of its own, so that other requests do not wait and two files
 * take two processors.
 */
const ownProcessBytes = 8 * 1024 * 1024
/** An unused process ends after this time: it takes some 45 MB. */
const idleMs = 60_000
const hostFile = `${import.meta.dirname}/host${extname(import.meta.filename)}`

interface Waiting {
  /** A method: each takes the answer of its own call. */
  resolve(value: unknown): void
  reject: (error: Error) => void
  refresh: () => void
  stop: () => void
}

/**
 * The folder in which Node keeps what it compiles, where this process has one: from source the other
 * process starts in 0.1 s then, not in 0.3 s.
 */
const keptCode = (): Record<string, string> => {
  const folder = getCompileCacheDir()
  return folder === undefined ? {} : { NODE_COMPILE_CACHE: dirname(folder), NODE_COMPILE_CACHE_PORTABLE: '1' }
}

/**
 * The process that touches the file system: started at its first call, ended when a deadline
 * passes, when it is unused, and by `close`.
 */
class Host {
  readonly #where: Where
  readonly #deadlineMs: number
  readonly #waiting = new Map<number, Waiting>()
  #child: ChildProcess | undefined
  #last = 0
  #held = 0
  #idle: NodeJS.Timeout | undefined
  #closed = false

  constructor(where: Where, deadlineMs: number) {
    this.#where = where
    this.#deadlineMs = deadlineMs
  }

  #start(): ChildProcess {
    clearTimeout(this.#idle)
    if (this.#child !== undefined) return this.#child
    if (this.#closed) throw new StorageError('away', 'the storage is closed')
    const child = fork(hostFile, [], {
      serialization: 'advanced',
      stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
      cwd: '/',
      env: { UV_THREADPOOL_SIZE: '8', NODE_NO_WARNINGS: '1', ...keptCode() },
      execArgv: [],
      detached: true,
    })
    this.#child = child
    child.on('message', (message: FromHost) => this.#answered(message))
    child.on('error', () => this.#lost(child))
    child.on('exit', () => this.#lost(child))
    child.on('disconnect', () => this.#lost(child))
    child.unref()
    child.channel?.unref()
    child.send(this.#where satisfies ToHost)
    return child
  }

  #answered(message: FromHost): void {
    if (message === 'reading') {
      for (const { refresh } of this.#waiting.values()) refresh()
      return
    }
    const waiting = this.#waiting.get(message.id)
    if (waiting === undefined) return
    this.#waiting.delete(message.id)
    waiting.stop()
    if ('answer' in message) waiting.resolve(message.answer)
    else waiting.reject(new StorageError(message.fault.fault, message.fault.message, message.fault))
  }

  #lost(child: ChildProcess): void {
    if (this.#child === child)
      this.kill(new StorageError('away', 'the process that reads the file system has ended; try again'))
  }

  /** Makes all calls reject; the next one starts another process. @returns that of before */
  #leave(error: StorageError): ChildProcess | undefined {
    clearTimeout(this.#idle)
    const child = this.#child
    this.#child = undefined
    for (const { reject, stop } of this.#waiting.values()) {
      stop()
      reject(error)
    }
    this.#waiting.clear()
    return child
  }

  /** Keeps the process alive while a file is open in it. */
  hold(): () => void {
    this.#held += 1
    let held = true
    return () => {
      if (!held) return
      held = false
      this.#held -= 1
      this.#rest()
    }
  }

  #rest(): void {
    clearTimeout(this.#idle)
    if (this.#held > 0 || this.#waiting.size > 0 || this.#child === undefined) return
    this.#idle = setTimeout(() => this.close(), idleMs)
    this.#idle.unref()
  }

  /** Ends the file that a call has opened whose caller left before the answer. */
  #abandon(call: 'open' | 'create', args: readonly unknown[], answer: unknown): void {
    const file = call === 'open' ? (answer as { file: number }).file : (answer as number)
    // The bytes of an upload in parts stay: the attempt after this one may have them open.
    const isWhole = call === 'create' && args[2] === undefined
    this.call(isWhole ? 'drop' : 'close', {}, file).catch(() => undefined)
  }

  async call<N extends keyof HostCalls>(
    call: N,
    { signal }: Watch,
    ...args: Parameters<HostCalls[N]>
  ): Promise<Awaited<ReturnType<HostCalls[N]>>> {
    signal?.throwIfAborted()
    const deadlineMs = Math.max(deadlines[call] ?? 0, this.#deadlineMs)
    const { promise, resolve, reject } = Promise.withResolvers<Awaited<ReturnType<HostCalls[N]>>>()
    const child = this.#start()
    this.#last += 1
    const id = this.#last
    const late = (): void =>
      this.kill(
        new StorageError(
          'late',
          `the file system does not answer within ${deadlineMs / 1_000} s; see whether its server ` +
            'is there, and try again',
        ),
      )
    const timer = setTimeout(late, deadlineMs)
    const leave = (): void => {
      reject(signal?.reason as Error)
      clearTimeout(timer)
      const waiting = this.#waiting.get(id)
      if (waiting !== undefined && (call === 'open' || call === 'create'))
        this.#waiting.set(id, {
          ...waiting,
          resolve: (answer) => this.#abandon(call, args, answer),
          reject: () => this.#rest(),
          refresh: () => undefined,
        })
      else this.#waiting.delete(id)
      this.#rest()
    }
    signal?.addEventListener('abort', leave, { once: true })
    this.#waiting.set(id, {
      resolve,
      reject,
      refresh: () => timer.refresh(),
      stop: () => {
        clearTimeout(timer)
        signal?.removeEventListener('abort', leave)
      },
    })
    child.send({ id, call, args } satisfies ToHost, (error) => {
      if (error !== null) this.#lost(child)
    })
    try {
      return await promise
    } finally {
      this.#rest()
    }
  }

  /** Drops files that are being written, unless they belong to an upload in parts. */
  close(final = false): void {
    this.#closed ||= final
    const child = this.#leave(new StorageError('away', 'the storage is closed'))
    if (child?.connected === true) child.disconnect()
  }

  kill(error: StorageError): void {
    const child = this.#leave(error)
    // It may hang in a system call and end only after it: no caller waits for that.
    child?.kill('SIGKILL')
    if (child?.connected === true) child.disconnect()
  }
}

export interface FilesystemOptions {
  /** See `Where`. */
  base: string
  below?: StoragePath
  /** Deadline of one call; default 30 s. */
  deadlineMs?: number
}

/** The bytes of an open file, one piece ahead of the reader. */
async function* pieces(
  host: Host,
  file: number,
  {
    offset,
    end,
    path,
    signal,
  }: { offset: number; end: number; path: StoragePath; signal: AbortSignal | undefined },
) {
  const read = (place: number): Promise<Buffer> =>
    host.call('read', { signal }, file, place, Math.min(pieceBytes, end - place))
  let place = offset
  let next = place < end ? read(place) : undefined
  next?.catch(() => undefined)
  while (next !== undefined) {
    const piece: Buffer = await next
    if (piece.length === 0) throw shorter(path)
    place += piece.length
    next = place < end ? read(place) : undefined
    next?.catch(() => undefined)
    yield piece
  }
}

/** A folder of this machine, on any file system. */
export const openFilesystem = (options: FilesystemOptions): StorageDriver => {
  const { base, below = [], deadlineMs = 30_000 } = options
  const host = new Host({ base, below }, deadlineMs)
  const take = async (
    file: number,
    source: Readable,
    { sizeBytes, part, signal, digest, attributes }: WriteOptions,
    path: StoragePath,
  ): Promise<Written> => {
    let size = part?.offset ?? 0
    const cut: { error?: unknown } = {}
    const tolerated: AsyncIterable<Buffer> =
      part?.keepsAfter === undefined ? source : untilBreak(source, part.keepsAfter, cut)
    // A call for each small piece would cost more than its bytes.
    for await (const bytes of piecesOf(tolerated, pieceBytes / 2)) {
      signal?.throwIfAborted()
      size += bytes.length
      await host.call('append', { signal }, file, bytes)
    }
    if ('error' in cut) throw cut.error
    const last = part?.last ?? true
    if (last && sizeBytes !== undefined && size !== sizeBytes) throw wrongSize(path, sizeBytes, size)
    if (!last) return { receivedBytes: await host.call('keep', {}, file) }
    const { entry, sha256 } = await host.call('commit', {}, file, { sha256: digest?.(), attributes })
    return { receivedBytes: size, entry, sha256 }
  }

  return {
    capabilities: { directories: true, versions: false },
    list: (path, { signal, ...page }) => host.call('list', { signal }, path, page),
    stat: (path, watch = {}) => host.call('stat', watch, path),

    async read(path, { offset = 0, length = Infinity, signal } = {}): Promise<FileReading> {
      const release = host.hold()
      try {
        const { file, entry } = await host.call('open', { signal }, path)
        const end = Math.min(entry.sizeBytes ?? 0, offset + length)
        const stream = Readable.from(pieces(host, file, { offset, end, path, signal }), {
          objectMode: false,
          highWaterMark: pieceBytes,
        })
        stream.once('close', () => {
          host.call('close', {}, file).catch(() => undefined)
          release()
        })
        return { entry, stream }
      } catch (error) {
        release()
        throw error
      }
    },

    async digest(path, watch = {}) {
      const { sizeBytes = 0 } = await host.call('stat', watch, path)
      if (sizeBytes <= ownProcessBytes) return host.call('digest', watch, path)
      const own = new Host({ base, below }, deadlineMs)
      try {
        return await own.call('digest', watch, path)
      } finally {
        own.kill(new StorageError('away', 'the process was ended'))
      }
    },

    async write(path, all, given = {}) {
      const { source, write } = whole(all, given)
      const { overwrite = false, part, signal } = write
      const release = host.hold()
      try {
        const file = await host.call('create', { signal }, path, overwrite, part?.upload, part?.offset ?? 0)
        try {
          return await take(file, source, write, path)
        } catch (error) {
          const stays = part?.keepsAfter?.(error) === true
          await host.call(stays ? 'keep' : 'drop', {}, file).catch(() => undefined)
          throw error
        }
      } catch (error) {
        source.destroy()
        throw error
      } finally {
        release()
      }
    },

    readMany: (folder, names, watch = {}) => host.call('readMany', watch, folder, names),
    writeMany: (folder, given, { overwrite = false, signal } = {}) => {
      const files = given.map((file) => ({
        ...file,
        sha256: hash('sha256', file.bytes),
      }))
      return host.call('writeMany', { signal }, folder, files, overwrite)
    },
    openUpload: async (path, { name, earlier, signal }) => ({
      upload: name,
      receivedBytes: await host.call('adopt', { signal }, path, name, earlier),
    }),
    received: (path, upload, watch = {}) => host.call('received', watch, path, upload),
    discard: (path, upload, watch = {}) => host.call('discard', watch, path, upload),
    delete: (path, watch = {}) => host.call('delete', watch, path),
    makeDirectory: (path, watch = {}) => host.call('makeDirectory', watch, path),
    makeLink: (path, target, { signal, ...how } = {}) => host.call('makeLink', { signal }, path, target, how),
    setAttributes: (path, attributes, watch = {}) => host.call('setAttributes', watch, path, attributes),
    space: async (watch = {}) => ({ availableBytes: await host.call('space', watch) }),
    close: () => {
      host.close(true)
      return Promise.resolve()
    },
  }
}
