import { z } from 'zod'
import { pathTrouble } from '../../../outside-path.ts'
import { outsideText, reasonText } from '../../../outside-text.ts'
import { DriverError } from '../contract/driver.ts'
import { isInside } from '../contract/links.ts'

/**
 * The messages between this service and a function, as JSON over any platform's way to call one;
 * `examples/functions` implements it. Times are seconds since epoch by the sender's own clock,
 * contents base64, paths relative to the work directory. In a path, a byte b that is no UTF-8 is the
 * lone surrogate U+DC00+b, as Python writes it.
 *
 * Request: `CallRequest`, with the header `Idempotency-Key: NAME` where the platform passes headers
 * on. The function runs `argv` in an empty folder that holds `inputs`, and answers with
 * `CallAnswer`. A name it has answered before gets the same answer; one that it is working on gets
 * the answer when it is there, or 202 with `{ schemaVersion, name, state: 'running' }`, to be
 * polled again.
 *
 * `respond`: `answer`: hold the request until the end; `callback`: 202 at once, the answer goes to
 * `callback.url` by POST; `poll`: 202 at once, then it is polled by `{ schemaVersion, name, poll:
 * true }`, which starts nothing and answers 404 with `state: 'unknown'` for an unknown name.
 *
 * `{ schemaVersion, name, cancel: true, graceSeconds }` ends the command (SIGTERM, after the grace
 * SIGKILL) and answers as at its end, with the reason `cancelled`; a name that has not begun never
 * will.
 *
 * By reference: `inputs[].url` is read by GET. In URLs a byte that is no UTF-8 is `\xe9`, and backslashes
 * beside it stand twice. With `uploads`, outputs may be sent by PUT to its
 * URL, path after path appended to the URL's path, in parts `{ offset, contentBase64 }` of at most
 * 4 MiB, and be listed with `uploaded: true`.
 */
export interface CallRequest {
  schemaVersion: 1
  /** The attempt's key. */
  name: string
  argv: readonly string[]
  environment: Readonly<Record<string, string>>
  /**
   * Variables whose values are paths below the work directory, made absolute by the function; an
   * empty one is the work directory itself. Where neither list sets `HOME`, it is an empty folder of
   * the call's own, outside of the work directory.
   */
  pathEnvironment: Readonly<Record<string, string>>
  workingDirectory?: string
  inputs: readonly CallInput[]
  expectedOutputs: readonly string[]
  /**
   * `changed`: every file that is new or differs from its input; `expected`: only files at or below
   * an expected path.
   */
  outputs: 'changed' | 'expected'
  /** The command's own limit, 0 is none: its end has the reason `timeout`. */
  timeoutSeconds: number
  /**
   * The platform's limit: better ended shortly before, with the reason `walltime`, than killed
   * without an answer.
   */
  limitSeconds: number
  /** 0: not given. */
  memoryBytes: number
  /**
   * Largest answer in bytes of JSON; larger outputs are uploaded, or the answer reports them in
   * `problem`.
   */
  answerLimitBytes: number
  respond: 'answer' | 'callback' | 'poll'
  callback?: { url: string }
  uploads?: { url: string }
}

export interface CallInput {
  path: string
  /** Permission bits. */
  mode: number
  sizeBytes: number
  /** Hexadecimal. */
  sha256: string
  contentBase64?: string
  url?: string
  /** A symbolic link; no content then. */
  target?: string
}

export const longestPath = 4096
export const mostFiles = 100_000

const Path = z
  .string()
  .max(longestPath)
  .refine(
    (path) => isInside(path) && !path.split('/').some((part) => part === '' || part === '.'),
    'must be a relative path without . and ..',
  )
  .refine((path) => pathTrouble(path) === undefined, {
    error: ({ input }) => pathTrouble(String(input)) ?? '',
  })
  .refine(
    (path) => path.replace(/[\udc80-\udcff]/gu, '').isWellFormed(),
    'must hold no lone surrogates but U+DC80 to U+DCFF',
  )
const Sha256 = z.string().regex(/^[0-9a-f]{64}$/, 'must be 64 hexadecimal digits')
const Bytes = z.int().min(0)
const Base64 = z
  .string()
  .refine((text) => text.length % 4 === 0 && /^[A-Za-z0-9+/]*={0,2}$/.test(text), 'must be base64')

export const CallOutput = z.object({
  path: Path,
  mode: z.int().min(0).max(0o777).optional(),
  sizeBytes: Bytes,
  sha256: Sha256.optional(),
  contentBase64: Base64.optional(),
  uploaded: z.boolean().optional(),
  target: z.string().max(longestPath).optional(),
})
export type CallOutput = z.output<typeof CallOutput>

export const CallAnswer = z.object({
  schemaVersion: z.literal(1),
  name: z.string(),
  exitCode: z.int().min(0).max(255).nullable(),
  signal: z.string().max(32).transform(outsideText).nullish(),
  reason: z.enum(['exited', 'timeout', 'cancelled', 'memory', 'walltime']).default('exited'),
  startedAt: z.number().min(0),
  finishedAt: z.number().min(0),
  /** The instance that ran it was started for it. */
  coldStart: z.boolean().optional(),
  cpuSeconds: z.number().min(0).nullish(),
  peakMemoryBytes: Bytes.nullish(),
  /** Its output, at least the end. */
  stdout: Base64.default(''),
  stderr: Base64.default(''),
  outputs: z.array(CallOutput).max(mostFiles).default([]),
  /** Inputs that were deleted. */
  deleted: z.array(Path).max(mostFiles).default([]),
  /** What could not be read, and so is no output. */
  warnings: z
    .array(
      z
        .string()
        .max(4096)
        .transform((text) => reasonText(text)),
    )
    .max(100)
    .optional(),
  /** Why the outputs could not be returned; permanent. */
  problem: z
    .string()
    .max(4096)
    .transform((text) => reasonText(text))
    .optional(),
  requestId: z.string().max(255).transform(outsideText).optional(),
})
export type CallAnswer = z.output<typeof CallAnswer>

const Standing = z.object({
  schemaVersion: z.literal(1),
  name: z.string(),
  state: z.enum(['running', 'unknown']),
})

/** The beginning of a body for a person, printable. */
export const excerpt = (body: Buffer): string => {
  const text = body
    .subarray(0, 400)
    .toString()
    .replace(/[^\x20-\x7e]+/g, ' ')
    .trim()
  return text === '' ? 'nothing' : JSON.stringify(text.length > 200 ? `${text.slice(0, 200)}…` : text)
}

const refuse = (message: string): never => {
  throw new DriverError('refused', message)
}

/**
 * The answer in a body, or the state of the call without one.
 *
 * @throws DriverError `refused` with an excerpt where the body has another form, or belongs to
 *   another call.
 */
export const readAnswer = (name: string, body: Buffer): CallAnswer | 'running' | 'unknown' => {
  let document: unknown
  try {
    document = JSON.parse(body.toString())
  } catch {
    return refuse(
      `the function does not speak the call protocol: it answered ${excerpt(body)}, which is not JSON`,
    )
  }
  const standing = Standing.safeParse(document)
  if (standing.success && standing.data.name === name) return standing.data.state
  const parsed = CallAnswer.safeParse(document)
  if (!parsed.success) {
    const problems = parsed.error.issues
      .slice(0, 3)
      .map(({ path, message }) => `${path.length === 0 ? 'the answer' : path.join('.')}: ${message}`)
    return refuse(
      `the function does not speak the call protocol, version 1: ${problems.join('; ')}; it answered ${excerpt(body)}`,
    )
  }
  if (parsed.data.name !== name)
    return refuse(
      `the function answered for ${JSON.stringify(parsed.data.name.slice(0, 80))} when it was asked ` +
        `for ${JSON.stringify(name)}`,
    )
  return parsed.data
}

const isBelow = (path: string, folder: string): boolean =>
  path === folder || path.startsWith(`${folder.replace(/\/$/, '')}/`)

/**
 * Compares the outputs of an answer with the request, before any of them is written.
 *
 * @throws DriverError `refused` naming the output: twice there, not promised, a link to the
 *   outside, below a link, or without content.
 */
export const checkOutputs = (
  answer: CallAnswer,
  asked: Pick<CallRequest, 'expectedOutputs' | 'outputs'>,
): void => {
  if (answer.problem !== undefined) refuse(`the function could not give its outputs: ${answer.problem}`)
  const seen = new Map<string, CallOutput>()
  for (const output of answer.outputs) {
    const what = `output ${JSON.stringify(output.path)}`
    if (seen.has(output.path)) refuse(`${what} is in the answer twice`)
    seen.set(output.path, output)
    if (
      asked.outputs === 'expected' &&
      !asked.expectedOutputs.some((expected) => isBelow(output.path, expected))
    )
      refuse(`${what} was not promised; expected are ${asked.expectedOutputs.join(', ') || 'none'}`)
    const forms = [
      output.contentBase64 !== undefined,
      output.uploaded === true,
      output.target !== undefined,
    ].filter(Boolean)
    if (forms.length !== 1) refuse(`${what} must have one of contentBase64, uploaded: true and target`)
    if (output.target === undefined && output.sha256 === undefined) refuse(`${what} has no sha256`)
  }
  for (const { path } of seen.values()) {
    const parts = path.split('/')
    for (let depth = 1; depth < parts.length; depth++) {
      const above = parts.slice(0, depth).join('/')
      if (seen.has(above))
        refuse(`output ${JSON.stringify(path)} lies below ${JSON.stringify(above)}, which is no folder`)
    }
  }
}

export interface PlacedRun {
  startedAt: number
  finishedAt: number
  wallSeconds: number
}

/**
 * Places a run that a function timed with its own clock on our clock: its duration is the
 * function's, its position is between our sending and the answer. An impossible clock puts all
 * overhead before the run.
 */
export const placeRun = (
  answer: Pick<CallAnswer, 'startedAt' | 'finishedAt'>,
  sentAt: number,
  receivedAt: number,
): PlacedRun => {
  const last = Math.max(sentAt, receivedAt)
  const wallSeconds = Math.min(Math.max(0, answer.finishedAt - answer.startedAt), last - sentAt)
  const believed = answer.startedAt >= sentAt && answer.startedAt + wallSeconds <= last
  const startedAt = believed ? answer.startedAt : last - wallSeconds
  return { startedAt, finishedAt: startedAt + wallSeconds, wallSeconds }
}
