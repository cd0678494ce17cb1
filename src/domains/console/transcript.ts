import { recordsOf } from './sessions.ts'
import type { Db } from '../../db/sql.ts'

/** Decodes pieces, and holds the bytes of a UTF-8 character that a piece cuts. */
const openDecoder = (): ((bytes: Buffer) => string) => {
  const decoder = new TextDecoder()
  return (bytes) => decoder.decode(bytes, { stream: true })
}

/**
 * Text that cannot control the reader's terminal. Control characters appear in written form (`^[`,
 * `<U+009B>`), and so do those that change the direction of a text. Line ends and tabs stay.
 */
export const neutral = (text: string): string =>
  text
    .replaceAll('\r\n', '\n')
    .replace(/(?![\t\n])[\p{Cc}\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu, (letter) => {
      const code = letter.charCodeAt(0)
      return code < 0x80
        ? `^${String.fromCharCode(code ^ 64)}`
        : `<U+${code.toString(16).toUpperCase().padStart(4, '0')}>`
    })

/** The record as plain text. */
export async function* transcriptOf(db: Db, id: string): AsyncGenerator<string> {
  const decode = openDecoder()
  let held = ''
  for await (const { direction, content } of recordsOf(db, id)) {
    if (direction !== 'output') continue
    // A line end may arrive in two pieces.
    const text = held + decode(content)
    held = text.endsWith('\r') ? '\r' : ''
    yield neutral(text.slice(0, text.length - held.length))
  }
  yield neutral(held)
}

/**
 * The record as asciicast v2 (https://docs.asciinema.org/manual/asciicast/v2/). It replays the
 * shown output, escape sequences included.
 */
export async function* asciicastOf(db: Db, id: string, createdAt: string): AsyncGenerator<string> {
  const decoders = { input: openDecoder(), output: openDecoder(), resize: openDecoder() }
  const codes = { input: 'i', output: 'o', resize: 'r' } as const
  const timestamp = Math.floor(Date.parse(createdAt) / 1_000)
  yield `${JSON.stringify({ version: 2, width: 80, height: 24, timestamp, title: id })}\n`
  for await (const { direction, atSeconds, content } of recordsOf(db, id))
    yield `${JSON.stringify([atSeconds, codes[direction], decoders[direction](content)])}\n`
}
