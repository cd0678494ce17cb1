import { setTimeout as sleep } from 'node:timers/promises'
import type { ShellStream } from '../../../shell/site-shell.ts'
import { NoWayError, throughDoor } from '../../transfer/copy.ts'
import {
  StorageError,
  type SiteFile,
  type StorageDriver,
  type Watch,
  type WriteFromOptions,
} from '../contract.ts'
import { otherBytes, silentSite } from '../faults.ts'
import { quotedPath, temporaryName, type StoragePath } from '../paths.ts'
import {
  collected,
  siteDigest,
  siteErrorOf,
  faultOf,
  openScript,
  putFile,
  Script,
  yesOrNo,
  type Scripts,
} from './scripts.ts'

/** How often the site says what has come. */
const askMs = 2_000
/** A refusal reads bytes that are under way for so long. */
const restSeconds = 10

/** Ends a script that is aborted, or brings nothing for too long. @throws the reason */
const watched = async (
  stream: ShellStream,
  work: Promise<string>,
  {
    signal,
    received,
    path,
    stallMs,
  }: Watch & { received: (over: AbortSignal) => Promise<boolean>; path: StoragePath; stallMs: number },
): Promise<string> => {
  const over = new AbortController()
  let reason: unknown
  const end = (error: unknown): void => {
    reason ??= error
    stream.kill()
  }
  const abort = (): void => end(signal?.reason)
  signal?.addEventListener('abort', abort, { once: true })
  if (signal?.aborted === true) abort()
  const watch = async (): Promise<void> => {
    let heardAt = performance.now()
    for (;;) {
      await sleep(askMs, undefined, { signal: over.signal })
      // The script itself fails where the site cannot be asked.
      if (await received(over.signal).catch(() => false)) heardAt = performance.now()
      if (performance.now() - heardAt > stallMs) end(silentSite(path, stallMs))
    }
  }
  const watching = watch().catch(() => undefined)
  try {
    return await work
  } catch (error) {
    await stream.done.catch(() => undefined)
    throw reason ?? error
  } finally {
    over.abort()
    signal?.removeEventListener('abort', abort)
    await watching
  }
}

/** Files that go from one site to another without passing this process. */
export const directOf = (scripts: Scripts) => {
  const { shell, stallMs, run, beside } = scripts

  /** Brings the missing bytes of a file into the temporary file of its upload. */
  const carry = async (
    path: StoragePath,
    file: SiteFile,
    temporary: string,
    { by, door, continued, sizeBytes, overwrite, signal, onBytes }: WriteFromOptions,
  ): Promise<void> => {
    const { receivedBytes } = continued
    if (receivedBytes === 0) {
      const { script, name } = beside(path)
      await run(script.line(`begin ${name} ${yesOrNo(overwrite)} ${temporary}`), path, { signal })
    }
    const { script, name } = beside(path, new Script().fed(restSeconds))
    const words = `${name} ${yesOrNo(overwrite)} ${temporary} ${receivedBytes}`
    const take = script.line(`take ${words} nocreat`).toString()
    const give = file.content(receivedBytes, sizeBytes - receivedBytes)
    const isPush = by === 'source-push'
    const stream = await openScript(
      door.shell ?? (isPush ? file.shell : shell),
      isPush ? throughDoor(door, take, give, 'push') : throughDoor(door, give, take, 'pull'),
      { signal },
    )
    stream.stdin.on('error', () => undefined)
    stream.stdin.end()
    let counted = receivedBytes
    const count = (size: number): boolean => {
      if (size <= counted) return false
      onBytes(size - counted)
      counted = size
      return true
    }
    const text = await watched(
      stream,
      collected(stream, () => stream.kill()),
      {
        ...{ signal, path, stallMs },
        received: async (over) => {
          const asked = beside(path).script.line(`printf +; kept ${temporary}`)
          return count(Number((await run(asked, path, { signal: over })).toString()))
        },
      },
    )
    if (text.startsWith('!')) throw faultOf(text, path)
    const size = Number(/^\+(\d+)\n?$/.exec(text)?.[1] ?? 0)
    count(size)
    if (size === sizeBytes) return
    const { code, stderr } = await stream.done
    const refusal = /^!\w+ .*$/m.exec(stderr)?.[0]
    if (refusal !== undefined) throw faultOf(refusal, file.path)
    const said = stderr.replace(/[^\x20-\x7e]+/g, ' ').trim()
    throw new NoWayError(
      said === '' ? `${size} of ${sizeBytes} bytes came, and ssh ended with ${code}` : said.slice(-1_000),
    )
  }

  return {
    fileAtSite: async (path) => ({
      ...{ path, shell },
      content: (offset, length) => {
        const { script, name } = beside(path, new Script().line('exec 5>&1 >&2'))
        return script.line(`give ${name} ${offset} ${length}`).toString()
      },
    }),

    async writeFrom(path, file, options) {
      const { continued, sizeBytes, signal } = options
      const temporary = temporaryName(path, continued.upload)
      try {
        if (continued.receivedBytes > sizeBytes)
          throw new StorageError(
            'changed',
            `${quotedPath(path)}: ${continued.receivedBytes} bytes are kept of a file of ${sizeBytes}; send it again`,
          )
        if (continued.receivedBytes < sizeBytes) await carry(path, file, temporary, options)
        const written = [...path.slice(0, -1), temporary]
        const [sha256, given] = await Promise.all([siteDigest(scripts, written, signal), options.digest()])
        if (sha256 !== given) throw otherBytes(path)
        const entry = await putFile(scripts, path, { ...options, temporary })
        return { receivedBytes: sizeBytes, entry, sha256 }
      } catch (error) {
        throw siteErrorOf(error)
      }
    },
  } satisfies Partial<StorageDriver>
}
