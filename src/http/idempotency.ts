import { createHash } from 'node:crypto'
import { Refusal } from '../refusal.ts'
import { HttpRefusal } from './errors.ts'

/** An answer stored for a repeated request; the body is text as it was sent. */
export interface StoredAnswer {
  status: number
  headers: Record<string, string>
  body: string
}

/**
 * The store of `Idempotency-Key`s, for `keyLifeMs`. `begin` is atomic: of equal concurrent calls
 * exactly one gets `fresh`, and that one calls `renew` each `renewMs` until it calls `complete` or
 * `abandon`. A key of a process that died is free again after a minute.
 */
export interface IdempotencyStore {
  begin(key: string, fingerprint: string): Promise<'fresh' | 'in-flight' | 'mismatch' | StoredAnswer>
  complete(key: string, answer: StoredAnswer): Promise<void>
  abandon(key: string): Promise<void>
  renew(key: string): Promise<void>
}

/** A key and its answer are stored for this long. */
export const keyLifeMs = 24 * 3_600_000
/** Well below the minute after which the key of a process that died is free. */
export const renewMs = 5_000

const hash = (...parts: (string | Buffer)[]): string => {
  const sum = createHash('sha256')
  // Lengths keep ('ab', 'c') and ('a', 'bc') apart.
  for (const part of parts) sum.update(`${part.length}:`).update(part)
  return sum.digest('base64url')
}

/**
 * The key under which a request is stored: per method, path and caller. @throws 400 for a key that
 * is not 1–255 visible characters
 */
export const idempotencyKey = (
  given: string,
  request: { method: string; path: string; caller: string },
): string => {
  if (!/^[\x21-\x7e]{1,255}$/.test(given))
    throw new Refusal('invalid', 'Idempotency-Key must be 1 to 255 visible ASCII characters')
  return hash(request.method, request.path, request.caller, given)
}

/** The fingerprint by which two requests are equal: query, media type and the bytes of the body. */
export const idempotencyFingerprint = (request: { query: string; format: string; body: Buffer }): string =>
  hash(request.query, request.format, request.body)

/**
 * The id, a UUID, of the record that a request makes. Repetitions of the request have the same one,
 * also where the process that answered the first died.
 */
export const idOfRequest = (key: string, fingerprint: string): string => {
  const digits = Buffer.from(hash(key, fingerprint), 'base64url').toString('hex')
  return digits.replace(/^(.{8})(.{4}).(.{3}).(.{3})(.{12}).*$/, '$1-$2-8$3-8$4-$5')
}

/**
 * `undefined` where the work is to be done now, else the earlier answer. @throws 409 while the work
 * is in progress, 422 for another body
 */
export const beginOnce = async (
  store: IdempotencyStore,
  key: string,
  fingerprint: string,
): Promise<StoredAnswer | undefined> => {
  const found = await store.begin(key, fingerprint)
  if (found === 'fresh') return undefined
  if (found === 'in-flight')
    throw new HttpRefusal(
      'conflict',
      'a request with this Idempotency-Key is being answered; repeat it in a moment',
      {
        'Retry-After': '1',
      },
    )
  if (found === 'mismatch')
    throw new Refusal(
      'unacceptable',
      'this Idempotency-Key was used with another body; use a new key for a new request',
    )
  return found
}
