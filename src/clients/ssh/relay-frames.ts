import { z } from 'zod'
import { LinkError } from '../../shell/site-shell.ts'

/**
 * The protocol between two processes for a login that one of them holds. A call is a stream of
 * HTTP/2: a head, then the bytes of its input. The answer is frames of a kind (1 byte), a length (4
 * bytes, big-endian) and so many bytes.
 */
export const frameKinds = { begun: 0, bytes: 1, answer: 2, failure: 3 } as const
type Kind = (typeof frameKinds)[keyof typeof frameKinds]

/** The drivers' scripts stay far under it. */
export const longestHead = 8 * 1024 * 1024
/** Answers contain 64 KiB of standard error at most, or the result of a probe. */
const longestText = 1024 * 1024
const headerBytes = 5

/**
 * The asked process does not hold the login, or is not there. It did nothing, so another way may be
 * tried.
 */
export class NotHeld extends Error {
  constructor(message = 'the process that was asked does not hold the login') {
    super(message)
    this.name = 'NotHeld'
  }
}

const milliseconds = z.number().positive().max(86_400_000)
const login = z.string().regex(/^[0-9a-f]{64}$/)
const size = z.strictObject({ rows: z.int().min(1).max(1_000), columns: z.int().min(1).max(1_000) })
const common = { login, id: z.string().regex(/^[0-9a-f]{32}$/) }

/**
 * The head of a call; durations in milliseconds. `login` is the hash that names a login, `id` a
 * name of the call for `kill` and `resize`.
 */
export const Head = z.discriminatedUnion('call', [
  z.strictObject({
    ...common,
    call: z.literal('run'),
    script: z.string(),
    input: z.string().optional(),
    deadlineMs: milliseconds,
    maxBytes: z.number().nonnegative(),
  }),
  z.strictObject({
    ...common,
    call: z.literal('open'),
    script: z.string(),
    deadlineMs: milliseconds,
    hasInput: z.boolean(),
    terminal: size.optional(),
    lasting: z.boolean().optional(),
  }),
  z.strictObject({ ...common, call: z.literal('resize'), size }),
  z.strictObject({
    ...common,
    call: z.literal('forward'),
    host: z.string().max(255),
    port: z.int().min(1).max(65_535),
  }),
  z.strictObject({ ...common, call: z.enum(['look', 'probe', 'forget', 'kill']) }),
])
export type Head = z.output<typeof Head>

/** The header of a frame whose payload follows. */
export const header = (kind: Kind, length: number): Buffer => {
  const bytes = Buffer.alloc(headerBytes)
  bytes[0] = kind
  bytes.writeUInt32BE(length, 1)
  return bytes
}

/** A frame with a document. */
export const framed = (kind: Kind, value: unknown): Buffer => {
  const payload = Buffer.from(JSON.stringify(value))
  return Buffer.concat([header(kind, payload.length), payload])
}

/**
 * The head of a call on the wire: its length (4 bytes), its JSON. @throws RangeError for a script
 * that is too long
 */
export const headBytes = (head: Head): Buffer => {
  const payload = Buffer.from(JSON.stringify(head))
  if (payload.length > longestHead)
    throw new RangeError(
      `the script has ${payload.length} bytes, more than ${longestHead} go to another process`,
    )
  const length = Buffer.alloc(4)
  length.writeUInt32BE(payload.length)
  return Buffer.concat([length, payload])
}

/**
 * Reads frames in pieces as they arrive: it passes bytes on as they are, and documents when they
 * are complete.
 */
export class Frames {
  readonly #bytes: (chunk: Buffer) => void
  readonly #onText: (kind: Exclude<Kind, 1>, value: unknown) => void
  #head: Buffer = Buffer.alloc(0)
  #kind: number | undefined
  #left = 0
  #payload: Buffer[] = []

  constructor(bytes: (chunk: Buffer) => void, onText: (kind: Exclude<Kind, 1>, value: unknown) => void) {
    this.#bytes = bytes
    this.#onText = onText
  }

  /** @throws RangeError or SyntaxError for bytes that are no frame */
  take(chunk: Buffer): void {
    let rest = chunk
    while (rest.length > 0) {
      if (this.#kind === undefined) {
        const more = Math.min(headerBytes - this.#head.length, rest.length)
        this.#head = Buffer.concat([this.#head, rest.subarray(0, more)])
        rest = rest.subarray(more)
        if (this.#head.length < headerBytes) return
        this.#kind = this.#head[0]!
        this.#left = this.#head.readUInt32BE(1)
        this.#head = Buffer.alloc(0)
        if (this.#kind > frameKinds.failure || (this.#kind !== frameKinds.bytes && this.#left > longestText))
          throw new RangeError('no frame of a relay')
      }
      const part = rest.subarray(0, this.#left)
      rest = rest.subarray(part.length)
      this.#left -= part.length
      if (this.#kind !== frameKinds.bytes) this.#payload.push(part)
      else if (part.length > 0) this.#bytes(part)
      if (this.#left > 0) return
      const kind = this.#kind as Kind
      this.#kind = undefined
      if (kind === frameKinds.bytes) continue
      const text = Buffer.concat(this.#payload.splice(0)).toString('utf8')
      this.#onText(kind, JSON.parse(text))
    }
  }
}

const stages = ['name', 'route', 'host key', 'login', 'shell', 'link'] as const

const Failure = z.object({
  kind: z.enum(['link', 'range', 'not held']),
  message: z.string().default(''),
  stage: z.enum(stages).default('link'),
  permanent: z.boolean().default(false),
  waitsForPerson: z.boolean().default(false),
  full: z.boolean().default(false),
})

/** The form of an error in a frame. */
export const failureOf = (error: unknown): z.input<typeof Failure> => {
  const message = (error instanceof Error ? error.message : String(error)).slice(0, 10_000)
  if (error instanceof NotHeld) return { kind: 'not held', message }
  if (error instanceof RangeError) return { kind: 'range', message }
  const link = error instanceof LinkError ? error : new LinkError('link', message)
  const { stage, permanent, waitsForPerson, full } = link
  return { kind: 'link', message, stage, permanent, waitsForPerson, full }
}

/** The error of a frame; the inverse of `failureOf`. */
export const errorOf = (value: unknown): Error => {
  const { data: failure } = Failure.safeParse(value)
  if (failure === undefined)
    return new LinkError('link', 'the process that holds the login answered with something unknown')
  const { kind, stage, message, ...how } = failure
  if (kind === 'not held') return new NotHeld()
  return kind === 'range' ? new RangeError(message) : new LinkError(stage, message, how)
}
