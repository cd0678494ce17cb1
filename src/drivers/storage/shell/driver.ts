import { createHash } from 'node:crypto'
import { finished, Readable, Transform, Writable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { ShellStream } from '../../../shell/site-shell.ts'
import {
  StorageError,
  type Entry,
  type EntryPage,
  type ListOptions,
  type StorageDriver,
  type Watch,
  type WriteOptions,
  type Written,
} from '../contract.ts'
import { whole } from '../continued.ts'
import { quote } from '../../../shell/quote.ts'
import { otherBytes, shorter, silentSite, wrongSize } from '../faults.ts'
import { isSettled, openNames, pageBehind, type ReadNames } from '../names.ts'
import { bytesOf, quotedPath, temporaryName, type ByteName, type StoragePath } from '../paths.ts'
import { through, untilBreak } from '../streams.ts'
import { smallFilesOf } from './packs.ts'
import {
  attributeWords,
  collected,
  endedShell,
  entriesOf,
  siteDigest,
  siteErrorOf,
  faultOf,
  firstOf,
  openScripts,
  orAborted,
  openScript,
  putFile,
  Script,
  secondsWord,
  yesOrNo,
  type Scripts,
  type ShellStorageOptions,
} from './scripts.ts'
import { directOf } from './direct.ts'

/** Limit for the names of one directory in one read. */
const namesBytes = 256 * 1024 * 1024

const readsOf = (scripts: Scripts) => {
  const { shell, base, stallMs, run, beside } = scripts

  const stat = async (path: StoragePath, watch: Watch = {}): Promise<Entry> => {
    if (path.length === 0)
      return firstOf(await run(new Script().walk(base, []).line('base_entry'), path, watch), path, true)
    const { script, name } = beside(path)
    return firstOf(await run(script.line(`entry ${name}`), path, watch), path)
  }

  const kept = openNames()
  const readNames = async (path: StoragePath, signal: AbortSignal | undefined): Promise<ReadNames> => {
    const answer = await run(new Script().walk(base, path).line('names'), path, {
      signal,
      maxBytes: namesBytes,
    })
    const [stamp = '', now = '', ...rest] = answer.toString('latin1').split('\0').slice(0, -1)
    const read = { stamp, names: (rest as ByteName[]).sort() }
    if (isSettled(Number(stamp.split(' ')[2]), Number(now))) kept.keep(path, read)
    return read
  }

  /** Undefined where a name came or went since `known` was read; `known` without a stamp is as it is. */
  const pageOf = async (
    path: StoragePath,
    { names, stamp }: ReadNames,
    options: ListOptions,
  ): Promise<EntryPage | undefined> => {
    const { page, more } = pageBehind(names, options)
    if (page.length === 0) return { entries: [] }
    const input = Buffer.concat(
      page.map((name) => Buffer.concat([Buffer.from('./'), bytesOf(name), Buffer.of(0)])),
    )
    const script = new Script().walk(base, path).line(`page ${quote(stamp)}`)
    const answer = await run(script, path, { signal: options.signal, input })
    const head = answer.indexOf(0)
    if (answer.subarray(0, head).toString() === 'changed') return undefined
    return { entries: entriesOf(answer.subarray(head + 1)), ...more }
  }

  return {
    async list(path, options) {
      const known = options.after === undefined ? undefined : kept.find(path)
      const further = known === undefined ? undefined : await pageOf(path, known, options)
      if (further !== undefined) return further
      const read = await readNames(path, options.signal)
      const page = await pageOf(path, { ...read, stamp: '' }, options)
      if (page !== undefined) return page
      throw new StorageError('away', `${quotedPath(path)} was written to while it was listed; try again`)
    },

    stat,

    async read(path, { offset = 0, length, signal } = {}) {
      const { script, name } = beside(path)
      const text = script.line(`content ${name} ${offset} ${length ?? ''}`).toString()
      let reading: Reading | undefined
      try {
        reading = openReading(await openScript(shell, text, { signal }), path, { signal, stallMs })
        const { entry, rest } = await Promise.race([headOf(reading.stream, path), reading.failed])
        const expected = Math.max(0, Math.min((entry.sizeBytes ?? 0) - offset, length ?? Infinity))
        return { entry, stream: counted(reading, rest, expected, path) }
      } catch (error) {
        reading?.end()
        throw siteErrorOf(error)
      }
    },

    digest: (path, { signal } = {}) => siteDigest(scripts, path, signal),
    async space({ signal } = {}) {
      const free = Number((await run(new Script().walk(base, []).line('space'), [], { signal })).toString())
      return Number.isSafeInteger(free) && free > 0 ? { availableBytes: free } : {}
    },
  } satisfies Partial<StorageDriver>
}

/** Sends bytes to the temporary file of an upload: its size, and the digest of what began at 0. */
const takeBytes = async (
  { shell, beside }: Scripts,
  path: StoragePath,
  source: Readable,
  temporary: string,
  {
    overwrite,
    part,
    signal,
    forget,
  }: Pick<WriteOptions, 'overwrite' | 'part' | 'signal'> & { forget: () => Promise<unknown> },
) => {
  const { script, name } = beside(path)
  const offset = part?.offset ?? 0
  let size = offset
  const hash = createHash('sha256')
  const counting = new Transform({
    transform: (bytes: Buffer, _, done) => {
      size += bytes.length
      hash.update(bytes)
      done(null, bytes)
    },
  })
  const take = script.fed().line(`take ${name} ${yesOrNo(overwrite)} ${temporary} ${offset}`)
  const stream = await openScript(shell, take.toString(), {
    signal,
    // A later attempt goes on with the file of an upload that has a name.
    ...(part?.upload === undefined ? { afterLate: forget } : {}),
  })
  // A refusal needs no more bytes. The script must not take the bytes before an error for the
  // whole.
  const refused = new AbortController()
  const answer = collected(stream, () => refused.abort())
  answer.then(
    () => refused.abort(),
    () => refused.abort(),
  )
  // The pipeline destroys its last stream where it fails; the link's own stays for the end.
  const sink = new Writable({
    write: (bytes: Buffer, _, done) => stream.stdin.write(bytes, done),
    final: (done) => void stream.stdin.end(done),
  })
  stream.stdin.once('close', () => sink.destroy())
  // The first failure ends the others with its error.
  let broken = source.errored !== null
  // The received bytes of a part that may stay are written to their end.
  const cut: { error?: unknown } = {}
  const tolerated =
    part?.keepsAfter === undefined
      ? source
      : Readable.from(untilBreak(source, part.keepsAfter, cut), { objectMode: false })
  source.prependOnceListener('error', () => (broken = !stream.stdin.destroyed))
  try {
    await pipeline(tolerated, counting, sink, {
      signal: signal === undefined ? refused.signal : AbortSignal.any([signal, refused.signal]),
    })
  } catch (error) {
    if (!refused.signal.aborted && (broken || signal?.aborted === true)) {
      stream.kill()
      throw source.errored ?? error
    }
    // The script reads its input to the end.
    stream.stdin.end()
    await answeredIn(refusalMs, answer, stream, path)
  }
  const text = await orAborted(() => answeredIn(flushMs, answer, stream, path), signal).catch(
    (error: unknown) => {
      stream.kill()
      throw 'error' in cut ? cut.error : error
    },
  )
  if ('error' in cut) throw cut.error
  if (!text.startsWith('+')) throw faultOf(text, path)
  if (Number(text.slice(1)) !== size)
    throw new StorageError(
      'away',
      `${quotedPath(path)}: ${size - offset} bytes were sent and ${text.slice(1)} came; send it again`,
    )
  return { size, sha256: offset === 0 ? hash.digest('hex') : undefined }
}

const writesOf = (scripts: Scripts) => {
  const { run, beside } = scripts

  const write = async (path: StoragePath, all: Readable, given: WriteOptions): Promise<Written> => {
    const { source, write: options } = whole(all, given)
    const { part, sizeBytes, signal } = options
    const temporary = temporaryName(path, part?.upload)
    const forget = (): Promise<unknown> =>
      run(beside(path).script.line(`shorten ${temporary} ${part?.offset ?? 0}`), path)
    const leave = async (error: unknown): Promise<void> => {
      if (part?.keepsAfter?.(error) === true || (error instanceof StorageError && error.fault === 'offset'))
        return
      await forget().catch(() => undefined)
    }
    try {
      const { size, sha256 } = await takeBytes(scripts, path, source, temporary, { ...options, forget })
      if (part?.last === false) return { receivedBytes: size }
      if (sizeBytes !== undefined && size !== sizeBytes) throw wrongSize(path, sizeBytes, size)
      const digest = sha256 ?? (await siteDigest(scripts, [...path.slice(0, -1), temporary], signal))
      if (digest !== (options.digest?.() ?? digest)) throw otherBytes(path)
      const entry = await putFile(scripts, path, { ...options, temporary, sizeBytes: size })
      return { receivedBytes: size, entry, sha256: digest }
    } catch (error) {
      await leave(error)
      throw siteErrorOf(error)
    } finally {
      source.destroy()
    }
  }

  return {
    write: (path, source, options = {}) => write(path, source, options),

    async received(path, upload, { signal } = {}) {
      const { script } = beside(path)
      return Number(
        (
          await run(script.line(`printf +; kept ${temporaryName(path, upload)}`), path, { signal })
        ).toString(),
      )
    },

    async discard(path, upload, { signal } = {}) {
      const { script } = beside(path)
      await run(script.line(`shorten ${temporaryName(path, upload)} 0`), path, { signal })
    },

    async delete(path, { signal } = {}) {
      const { script, name } = beside(path)
      await run(script.line(`remove ${name}`), path, { signal })
    },

    async makeDirectory(path, { signal } = {}) {
      const { script, name } = beside(path)
      await run(script.line(`make ${name}`), path, { signal })
    },
  } satisfies Partial<StorageDriver>
}

/** What there is beside bytes: uploads to go on with, links, modes and times. */
const besidesOf = ({ base, run, beside }: Scripts) =>
  ({
    async openUpload(path, { name, earlier, signal }) {
      const { script } = beside(path)
      const names = [name, ...earlier].map((each) => temporaryName(path, each))
      const receivedBytes = Number(
        (await run(script.line(`adopt ${names.join(' ')}`), path, { signal })).toString(),
      )
      return { upload: name, receivedBytes }
    },

    async makeLink(path, target, { overwrite = false, modifiedAt, signal } = {}) {
      const { script, name } = beside(path)
      const words = [name, yesOrNo(overwrite), temporaryName(path, undefined), script.word(target)]
      await run(script.line(`make_link ${words.join(' ')} '${secondsWord(modifiedAt)}'`), path, { signal })
    },

    async setAttributes(path, attributes, { signal } = {}) {
      const script = new Script().walk(base, path)
      await run(script.line(`attributes ${attributeWords(attributes)}`), path, { signal })
    },
  }) satisfies Partial<StorageDriver>

/** A folder at a site that has a shell with GNU's find, dd and coreutils. */
export const openShellStorage = (options: ShellStorageOptions): StorageDriver => {
  const scripts = openScripts(options)
  return {
    capabilities: { directories: true, versions: false },
    ...readsOf(scripts),
    ...writesOf(scripts),
    ...besidesOf(scripts),
    ...smallFilesOf(scripts),
    ...directOf(scripts),
    close: () => Promise.resolve(),
  }
}

/** Where the link takes no more bytes, the answer gives the reason in this time, or the link has broken. */
const refusalMs = 10_000
/** The site writes what it has taken to its disk: minutes on a busy one. */
const flushMs = 3_600_000

/**
 * The answer of the script that writes a file, which is ended after so many milliseconds.
 * @throws StorageError `late` then
 */
const answeredIn = async (
  milliseconds: number,
  answer: Promise<string>,
  stream: ShellStream,
  path: StoragePath,
): Promise<string> => {
  let late = false
  const timer = setTimeout(() => {
    late = true
    stream.kill()
  }, milliseconds)
  try {
    return await answer
  } catch (error) {
    if (!late) throw error
    throw new StorageError(
      'late',
      `${quotedPath(path)}: the site has not confirmed the bytes for ${milliseconds / 1_000} s`,
      { cause: error },
    )
  } finally {
    clearTimeout(timer)
  }
}

/**
 * A script whose output is read. `failed` rejects where the signal is aborted, and where the site
 * sends nothing for too long to a reader that waits.
 */
const openReading = (
  stream: ShellStream,
  path: StoragePath,
  { signal, stallMs }: Watch & { stallMs: number },
) => {
  const { promise: failed, reject } = Promise.withResolvers<never>()
  failed.catch(() => undefined)
  let hasMore = (): boolean => false
  const timer = setTimeout(() => {
    if (hasMore()) timer.refresh()
    else reject(silentSite(path, stallMs))
  }, stallMs)
  const abort = (): void => reject(signal?.reason as Error)
  signal?.addEventListener('abort', abort, { once: true })
  if (signal?.aborted === true) abort()
  return {
    stream,
    failed,
    heard: (): void => void timer.refresh(),
    /** The output passes through `bytes`: a reader that has not taken all of it does not wait. */
    passes: (bytes: Transform): void =>
      void (hasMore = () => bytes.readableLength + bytes.writableLength > 0),
    /** Ends the script where it still runs. */
    end: (): void => {
      clearTimeout(timer)
      signal?.removeEventListener('abort', abort)
      stream.kill()
    },
  }
}
type Reading = ReturnType<typeof openReading>

/** Reads the record before the bytes of a file. */
const headOf = async (
  { stdout, done }: ShellStream,
  path: StoragePath,
): Promise<{ entry: Entry; rest: Buffer }> => {
  let head = Buffer.alloc(0)
  // A lost link closes the output without an end.
  const closed = new Promise<void>((resolve) => void finished(stdout, { writable: false }, () => resolve()))
  for (;;) {
    const piece = stdout.read() as Buffer | null
    if (piece !== null) head = Buffer.concat([head, piece])
    if (head[0] === 0x21) {
      for await (const more of stdout as AsyncIterable<Buffer>) head = Buffer.concat([head, more])
      throw faultOf(head.toString(), path)
    }
    let end = -1
    for (let fields = 0; fields < 3; fields++) {
      end = head.indexOf(0, end + 1)
      if (end === -1) break
    }
    if (end !== -1) return { entry: firstOf(head.subarray(1, end + 1), path), rest: head.subarray(end + 1) }
    if (piece !== null) continue
    if (stdout.readableEnded || stdout.destroyed) throw endedShell(await done)
    await Promise.race([new Promise((resolve) => stdout.once('readable', resolve)), closed])
  }
}

/**
 * The expected bytes of a file; fails where the link breaks, or they are fewer. The site sends more
 * where the file grows behind its record.
 */
const counted = (reading: Reading, rest: Buffer, expected: number, path: StoragePath): Readable => {
  const { stdout, done } = reading.stream
  let size = 0
  const bytes = new Transform({
    transform: (piece: Buffer, _, next) => {
      reading.heard()
      const bytes = piece.subarray(0, Math.max(0, expected - size))
      size += bytes.length
      next(null, bytes)
    },
    flush: (next) =>
      void done.finally(reading.end).then(
        () => next(size < expected ? shorter(path) : null),
        (error: unknown) => next(siteErrorOf(error)),
      ),
  })
  const fail = (error: unknown): void => void bytes.destroy(siteErrorOf(error))
  bytes.on('drain', reading.heard)
  bytes.once('close', reading.end)
  reading.passes(bytes)
  reading.failed.catch(fail)
  bytes.write(rest)
  // Where the output closes without an end, the end of the script gives the reason.
  finished(stdout, { writable: false }, (error) => {
    if (error != null) void done.then((end) => fail(endedShell(end)), fail)
  })
  return through(stdout, bytes, siteErrorOf)
}
