import type { DestinationStream } from 'pino'

/** Members of a log line that a sentence shows elsewhere, or that serve programs alone. */
const unshown = new Set(['level', 'time', 'pid', 'program', 'msg', 'err', 'error', 'requestId'])

interface Line extends Record<string, unknown> {
  level: string
  time: string
  msg?: string
  err?: { message?: string; code?: string }
}

/**
 * One line of the log as people read it: time of day, the level where it is not `info`, the message, what an error says with its code, and
 * the other members. Never a stack: the log has stacks wherever it does not go to a terminal.
 */
export const sentence = (text: string): string => {
  const line = JSON.parse(text) as Line
  const clock = new Date(line.time).toTimeString().slice(0, 8)
  const level = line.level === 'info' ? '' : `${line.level}: `
  const { message, code } = line.err ?? {}
  const reason = line.err === undefined ? '' : `: ${message ?? ''}${code === undefined || message?.includes(code) ? '' : ` (${code})`}`
  const members = Object.entries(line)
    .filter(([name, value]) => !unshown.has(name) && value !== undefined && value !== null)
    .map(([name, value]) => `${name} ${typeof value === 'string' ? value : JSON.stringify(value)}`)
  return `${clock} ${level}${line.msg ?? ''}${reason}${members.length === 0 ? '' : ` (${members.join(', ')})`}\n`
}

/** Where a log goes that a person watches: each line becomes a sentence. */
export const sentences = (destination: DestinationStream): DestinationStream => ({
  write: (text) => {
    destination.write(sentence(text))
  },
})
