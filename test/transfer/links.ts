import { PassThrough } from 'node:stream'
import { LinkError, type ShellStream, type SiteShell } from '../../src/shell/site-shell.ts'

/** What a link does to those who use it. */
export interface LinkFailures {
  /** Calls so far, and bytes that came out of streams. */
  calls: number
  bytes: number
  /**
   * The call of this number (from 1) loses the link: `before` it reached the site, or `after` the
   * site did it.
   */
  cut?: { call: number; when: 'before' | 'after' }
  /** After so many bytes of streams the link breaks, or falls silent for ever. */
  cutAtBytes?: number
  silentAtBytes?: number
}

const lost = (): LinkError => new LinkError('link', 'the link was cut')

/**
 * The site's own shell behind a link that can be cut: what ran goes on there, its answer is lost.
 */
export const overLink = (shell: SiteShell, failures: LinkFailures): SiteShell => {
  const passing = async <T>(work: () => Promise<T>): Promise<T> => {
    const call = ++failures.calls
    if (failures.cut?.call === call && failures.cut.when === 'before') throw lost()
    const result = await work()
    if (failures.cut?.call === call) throw lost()
    return result
  }
  return {
    run: (script, options) => passing(() => shell.run(script, options)),
    open: (script) =>
      passing(async () => {
        const inner = await shell.open(script)
        const stdout = new PassThrough({ highWaterMark: 64 * 1024 })
        let cut: (error: Error) => void = () => undefined
        const broken = new Promise<never>((_resolve, reject) => (cut = reject))
        inner.stdout.on('data', (chunk: Buffer) => {
          const room = (failures.cutAtBytes ?? failures.silentAtBytes ?? Infinity) - failures.bytes
          const part = chunk.subarray(0, Math.max(0, room))
          failures.bytes += part.length
          const more = stdout.write(part)
          if (part.length < chunk.length && failures.cutAtBytes !== undefined) {
            cut(lost())
            stdout.destroy()
            inner.kill()
          } else if (!more) {
            inner.stdout.pause()
            stdout.once('drain', () => inner.stdout.resume())
          }
        })
        inner.stdout.on('end', () => {
          if (failures.bytes < (failures.silentAtBytes ?? Infinity)) stdout.end()
        })
        const done = Promise.race([inner.done, broken])
        done.catch(() => undefined)
        return { stdin: inner.stdin, stdout, done, kill: inner.kill } satisfies ShellStream
      }),
    close: () => shell.close(),
  }
}
