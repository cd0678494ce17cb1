import type { DestinationStream } from 'pino'

/** Members of a log line that a sentence shows elsewhere, or that only programs use. */
const unshown = new Set(['level', 'time', 'pid', 'program', 'msg', 'err', 'error', 'requestId'])

interface Line extends Record<string, unknown> {
  level: string
  time: string
  msg?: string
  err?: { message?: string; code?: string }
}

/**
 * One line of the log for people: time of day, the level where it is not `info`, the message, an
 * error's text with its code, and the other members. Never a stack: stacks are in the log wherever
 * it does not go to a terminal.
 */
export const logSentence = (text: string): string => {
  const line = JSON.parse(text) as Line
  const clock = new Date(line.time).toTimeString().slice(0, 8)
  const level = line.level === 'info' ? '' : `${line.level}: `
  const { message, code } = line.err ?? {}
  const reason =
    line.err === undefined
      ? ''
      : `: ${message ?? ''}${code === undefined || message?.includes(code) ? '' : ` (${code})`}`
  const members = Object.entries(line)
    .filter(([name, value]) => !unshown.has(name) && value !== undefined && value !== null)
    .map(([name, value]) => `${name} ${typeof value === 'string' ? value : JSON.stringify(value)}`)
  return `${clock} ${level}${line.msg ?? ''}${reason}${members.length === 0 ? '' : ` (${members.join(', ')})`}\n`
}

/** The destination of a log that a person watches: each line becomes a sentence. */
export const sentences = (destination: DestinationStream): DestinationStream => ({
  write: (text) => {
    destination.write(logSentence(text))
  },
})
