import { setImmediate as nextTurn } from 'node:timers/promises'

/**
 * A long body in parts, each short enough to be read, written and digested between two turns of the
 * event loop: twelve megabytes in one piece take it for 15 ms.
 */
export class Chunks {
  readonly parts: readonly Buffer[]
  constructor(parts: readonly Buffer[]) {
    this.parts = parts
  }
  get byteLength(): number {
    return this.parts.reduce((sum, part) => sum + part.length, 0)
  }
  /** With these bytes behind it. */
  and(text: string): Chunks {
    return new Chunks([...this.parts, Buffer.from(text)])
  }
  toString(): string {
    return Buffer.concat(this.parts).toString()
  }
}

/** Characters of a part; a longer text alone makes a longer part. */
const partLength = 262_144

/** The texts as bytes. Joining them first would copy them once more. */
const bytesOf = (texts: readonly string[]): Buffer => {
  const bytes = Buffer.allocUnsafeSlow(texts.reduce((sum, text) => sum + Buffer.byteLength(text), 0))
  let at = 0
  for (const text of texts) at += bytes.write(text, at)
  return bytes
}

/** A body of many texts: a short one as text, a longer one as chunks. */
export const inChunks = async (texts: readonly string[]): Promise<string | Chunks> => {
  let length = 0
  for (const text of texts) length += text.length
  if (length <= 2 * partLength) return texts.join('')
  const parts: Buffer[] = []
  let open: string[] = []
  let openLength = 0
  for (const [at, text] of texts.entries()) {
    open.push(text)
    openLength += text.length
    if (openLength < partLength && at < texts.length - 1) continue
    parts.push(bytesOf(open))
    open = []
    openLength = 0
    await nextTurn()
  }
  return new Chunks(parts)
}

/** A body with this text behind it. */
export const withEnd = (body: string | Chunks, end: string): string | Chunks =>
  typeof body === 'string' ? body + end : body.and(end)
