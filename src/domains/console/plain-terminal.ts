import { PassThrough, Writable } from 'node:stream'
import { quoteAll } from '../../shell/quote.ts'
import type { ShellStream, SiteShell, TerminalSize } from '../../shell/site-shell.ts'
import { frameOf, openFrames, sizeContent, type Frame } from './frames.ts'

/** Input that the output has not repeated; more of it is not recorded. */
const mostPendingBytes = 4_096
/** A program that takes no input for this long loses what does not fit, as at the holder. */
const mostStuckMs = 2_000
/** The limit of one recording, as the holder has it. */
const mostRecordedBytes = 64 * 1024 * 1024

/** The login shell of the account; sh where none is named. `via`: what runs a shell elsewhere. */
const loginShell = (via: readonly string[]): string =>
  'shell=$(getent passwd "$(id -un)" 2>/dev/null | cut -d: -f7); [ -x "$shell" ] || shell=${SHELL:-/bin/sh}; ' +
  `TERM=xterm-256color; export TERM; cd; exec ${quoteAll(via)} "$shell" -l`

/**
 * A terminal that ends with this connection, for a place where no holder runs: the server's
 * own pseudo terminal, with the holder's frames in both directions. Input is recorded where the
 * output repeats it, which no password's does.
 * @returns undefined where the shell opens no pseudo terminals
 * @throws LinkError
 */
export const openPlainTerminal = async (
  shell: SiteShell,
  size: TerminalSize,
  via: readonly string[],
): Promise<ShellStream | undefined> => {
  const terminal = await shell.terminal?.(loginShell(via), size)
  if (terminal === undefined) return undefined
  const began = performance.now()
  const stdout = new PassThrough({ highWaterMark: 1024 * 1024 })
  let pending: Buffer = Buffer.alloc(0)
  let recorded = 0
  let end: string | undefined
  const record = (kind: Frame['kind'], content: Buffer): boolean => {
    recorded += content.length
    return stdout.write(frameOf(kind, content, (performance.now() - began) / 1_000))
  }
  record('r', sizeContent(size.rows, size.columns))

  terminal.stdout.on('data', (chunk: Buffer) => {
    let same = 0
    while (same < chunk.length && same < pending.length && chunk[same] === pending[same]) same++
    if (same > 0) record('i', pending.subarray(0, same))
    pending = same > 0 ? pending.subarray(same) : Buffer.alloc(0)
    if (!record('o', chunk)) terminal.stdout.pause()
    if (recorded > mostRecordedBytes && end === undefined) {
      end = 'the recording has reached 64 MiB'
      terminal.kill()
    }
  })
  stdout.on('drain', () => terminal.stdout.resume())

  let stuck = false
  const act = ({ kind, content }: Frame): void => {
    if (kind === 'i') {
      stuck &&= terminal.stdin.writableNeedDrain
      if (stuck) return
      const more = pending.length + content.length > mostPendingBytes
      pending = more ? Buffer.alloc(0) : Buffer.concat([pending, content])
      terminal.stdin.write(content)
    } else if (kind === 'r') {
      terminal.resize?.(content.readUInt32BE(0), content.readUInt32BE(4))
      record('r', content)
    } else if (kind === 'c') {
      end ??= 'the session was closed'
      terminal.kill()
    }
  }
  const framesOf = openFrames(0)
  const stdin = new Writable({
    write(chunk: Buffer, _encoding, callback) {
      for (const frame of framesOf(chunk)) act(frame)
      if (stuck || !terminal.stdin.writableNeedDrain) return callback()
      const late = setTimeout(() => {
        stuck = true
        go()
      }, mostStuckMs)
      const go = (): void => {
        clearTimeout(late)
        terminal.stdin.off('drain', go).off('close', go)
        callback()
      }
      terminal.stdin.once('drain', go).once('close', go)
    },
  })
  stdin.on('error', () => undefined)

  const done = terminal.done.then(
    (over) => {
      record('x', Buffer.from(end ?? `the shell ended with exit status ${String(over.code ?? over.signal)}`))
      stdout.end()
      return over
    },
    (error: unknown) => {
      stdout.destroy(error as Error)
      throw error
    },
  )
  done.catch(() => undefined)
  return { stdin, stdout, done, kill: () => terminal.kill() }
}
