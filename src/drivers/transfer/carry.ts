import { DriverError } from '../runtime/contract/driver.ts'
import { LinkError, type SiteShell, type ShellStream } from '../../shell/site-shell.ts'
import { orAfter } from '../../pacing/within.ts'

/** How the streams of one transfer run, and their shared state. */
export interface Traffic {
  signal: AbortSignal | undefined
  /** A link without a byte for this long counts as lost. */
  stallMs: number
  /** Counts the bytes from the source. */
  moved: (bytes: number) => void
}

export interface ScriptAnswer {
  code: number | null
  stdout: Buffer
  stderr: string
}

/** The error of callers that wait for a site that cannot be reached. */
export const asSiteError = (site: string, error: unknown): unknown =>
  error instanceof LinkError
    ? new DriverError(error.permanent ? 'refused' : 'unknown', `${site}: ${error.message}`, { cause: error })
    : error

/** Time for the far end to record its progress, once its input has ended. */
const farewellMs = 3_000

/**
 * Waits for `work`. It fails after `stallMs` without progress, or when aborted. `work` reports
 * progress by `heard`, which restarts the time.
 */
const whileHeard = async <T>(
  { signal, stallMs }: Traffic,
  work: (heard: () => void) => Promise<T>,
): Promise<T> => {
  const { promise: given, reject: fail } = Promise.withResolvers<never>()
  const timer = setTimeout(
    () => fail(new LinkError('link', `no byte for ${String(stallMs / 1_000)} s`)),
    stallMs,
  )
  const abort = (): void =>
    fail(signal?.reason instanceof Error ? signal.reason : new Error('the transfer was given up'))
  signal?.addEventListener('abort', abort, { once: true })
  if (signal?.aborted === true) abort()
  let stopped = false
  const working = work(() => {
    if (!stopped) timer.refresh()
  })
  working.catch(() => undefined)
  try {
    return await Promise.race([given, working])
  } finally {
    stopped = true
    clearTimeout(timer)
    signal?.removeEventListener('abort', abort)
  }
}

/**
 * Runs a script with its input, whose output may be large and take long; it only has to make
 * progress.
 */
export const converse = async (
  shell: SiteShell,
  script: string,
  input: Uint8Array,
  traffic: Traffic,
): Promise<ScriptAnswer> => {
  const stream = await shell.open(script)
  const chunks: Buffer[] = []
  try {
    return await whileHeard(traffic, async (heard) => {
      for (const each of [stream.stdin, stream.stdout]) each.on('error', () => undefined)
      stream.stdin.on('drain', heard)
      stream.stdin.end(input)
      stream.stdout.on('data', (chunk: Buffer) => {
        heard()
        chunks.push(chunk)
      })
      const { code, stderr } = await stream.done
      return { code, stderr, stdout: Buffer.concat(chunks) }
    })
  } catch (error) {
    stream.kill()
    throw error
  }
}

/**
 * Copies one stream from site to site. Returns the target's output, with the source's errors. When
 * anything breaks, the target's input ends, so that the target records its progress.
 */
export const pump = async (
  from: { shell: SiteShell; site: string; script: string; input: Uint8Array },
  to: { shell: SiteShell; site: string; script: string },
  traffic: Traffic,
): Promise<ScriptAnswer> => {
  const open = async (end: { shell: SiteShell; site: string; script: string }): Promise<ShellStream> => {
    try {
      return await end.shell.open(end.script)
    } catch (error) {
      throw asSiteError(end.site, error)
    }
  }
  const opened = await Promise.allSettled([open(from), open(to)])
  const failed = opened.find((one) => one.status === 'rejected')
  if (failed !== undefined || opened[0].status === 'rejected' || opened[1].status === 'rejected') {
    for (const one of opened) if (one.status === 'fulfilled') one.value.kill()
    throw failed?.reason
  }
  const [source, target] = [opened[0].value, opened[1].value]
  const chunks: Buffer[] = []
  try {
    return await whileHeard(traffic, async (heard) => {
      for (const stream of [source.stdin, target.stdin, source.stdout, target.stdout])
        stream.on('error', () => undefined)
      source.stdin.end(from.input)
      source.stdout.on('data', (chunk: Buffer) => {
        heard()
        traffic.moved(chunk.length)
      })
      source.stdout.pipe(target.stdin)
      target.stdin.on('drain', heard)
      target.stdout.on('data', (chunk: Buffer) => {
        heard()
        chunks.push(chunk)
      })
      const given = source.done.catch((error: unknown) => {
        throw asSiteError(from.site, error)
      })
      // After the loss of the source, the caller does not wait for the target.
      const lost = given.then(() => new Promise<never>(() => undefined))
      const taken = target.done.catch((error: unknown) => {
        throw asSiteError(to.site, error)
      })
      const { code, stderr } = await Promise.race([taken, lost])
      // A target that ended before its input did has a reason of its own; the source would wait
      // for ever.
      if (!source.stdout.readableEnded) source.kill()
      const sender = await given.catch(() => ({ code: null, stderr: '' }))
      return {
        code: code === 0 ? sender.code : code,
        stdout: Buffer.concat(chunks),
        stderr: `${stderr}${sender.stderr}`.trim(),
      }
    })
  } catch (error) {
    source.kill()
    source.stdout.unpipe(target.stdin)
    target.stdin.end()
    await orAfter(target.done, farewellMs, undefined).catch(() => undefined)
    target.kill()
    throw asSiteError(`${from.site} to ${to.site}`, error)
  }
}
