import { styleText } from 'node:util'

/** The output of the demo. A terminal replaces its last line; any other output gets plain lines. */
export interface Screen {
  /** Whether `live` lines replace each other. */
  renews: boolean
  heading(text: string): void
  say(text: string): void
  /** A line that the next one replaces; without a terminal, an occasional line. */
  live(text: string): void
}

const everyMs = 5000

export const openScreen = (out: NodeJS.WriteStream): Screen => {
  const renews = out.isTTY
  // The terminal was closed, or the reader of a pipe is gone. The demo still has to stop its
  // processes, without output.
  out.on('error', () => undefined)
  let open = false
  let saidAt = -Infinity
  const line = (text: string): void => {
    out.write(`${open ? '\r\x1b[K' : ''}${text}\n`)
    open = false
    // A plain live line soon after another one would repeat it.
    saidAt = performance.now()
  }
  return {
    renews,
    heading: (text) => {
      line('')
      line(renews ? styleText('bold', text, { stream: out }) : text)
    },
    say: (text) => {
      for (const each of text.split('\n')) line(`      ${each}`.trimEnd())
    },
    live: (text) => {
      if (renews) {
        out.write(`\r\x1b[K${`      ${text}`.slice(0, Math.max(20, out.columns - 1))}`)
        open = true
      } else if (performance.now() - saidAt >= everyMs) line(`      ${text}`)
    },
  }
}

/** A bar of `width` characters. */
export const bar = (share: number, width: number): string => {
  const full = Math.floor(Math.min(1, Math.max(0, share)) * width)
  return '█'.repeat(full) + '░'.repeat(width - full)
}

/** `12.3 s`, `2 min 5 s`. */
export const duration = (seconds: number): string => {
  if (seconds < 10) return `${seconds.toFixed(1)} s`
  if (seconds < 120) return `${seconds.toFixed(0)} s`
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`
}
