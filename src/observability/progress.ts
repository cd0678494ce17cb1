import type { Log } from './log.ts'

const everyMs = 15_000

/**
 * Reports long steps: on a terminal by one line that renews itself, else by a log line now and then
 * and at each change of the subject.
 */
export const openProgress = (
  log: Log,
  terminal: NodeJS.WriteStream,
): { say: (message: string) => void; end: () => void } => {
  let subject = ''
  let saidAt = 0
  let open = false
  return {
    say: (message) => {
      if (terminal.isTTY) {
        terminal.write(`\r\x1b[K${message}`)
        open = true
        return
      }
      const about = message.replace(/:.*/, '')
      if (about === subject && Date.now() - saidAt < everyMs) return
      subject = about
      saidAt = Date.now()
      log.info(message)
    },
    end: () => {
      if (open) terminal.write('\r\x1b[K')
      open = false
    },
  }
}
