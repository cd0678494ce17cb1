import { createHash, type Hash } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import { invalid } from '../refusal.ts'

/**
 * The algorithms of RFC 9530 that are checked; others are ignored. The first one identifies a body
 * in the fingerprint of an Idempotency-Key.
 */
const algorithms = {
  'sha-256': { hash: 'sha256', bytes: 32 },
  'sha-512': { hash: 'sha512', bytes: 64 },
} as const
type Algorithm = keyof typeof algorithms
const known = Object.keys(algorithms) as Algorithm[]

/**
 * One member of a dictionary of byte sequences (RFC 9651): `sha-256=:base64:`, parameters allowed.
 */
const memberForm = /^([a-z*][a-z0-9_\-.*]*)=:([A-Za-z0-9+/]*={0,2}):(?:;.*)?$/

/**
 * The digests of a Content-Digest field by algorithm.
 * @throws Refusal `invalid` for a malformed field, or a digest of the wrong length
 */
const statedDigests = (field: string): Map<Algorithm, Buffer> => {
  const digests = new Map<Algorithm, Buffer>()
  for (const member of field.split(',')) {
    const [, name, text] = memberForm.exec(member.trim()) ?? []
    if (name === undefined || text === undefined)
      throw invalid('Content-Digest must be a list like sha-256=:BASE64: (RFC 9530)', [
        { path: 'Content-Digest', message: `has the member ${JSON.stringify(member.trim().slice(0, 100))}` },
      ])
    const algorithm = known.find((one) => one === name)
    if (algorithm === undefined) continue
    const digest = Buffer.from(text, 'base64')
    if (digest.length !== algorithms[algorithm].bytes)
      throw invalid(
        `Content-Digest: ${algorithm} must have ${algorithms[algorithm].bytes} bytes in base64, not ${digest.length}`,
      )
    digests.set(algorithm, digest)
  }
  return digests
}

/**
 * Hashes the bytes of a body while they arrive, and compares the result with the digests that the
 * request states, in a header or a trailer.
 */
export class DigestCheck {
  readonly #stated: ReadonlyMap<Algorithm, Buffer>
  readonly #trails: boolean
  readonly #sums: ReadonlyMap<Algorithm, Hash>

  constructor(stated: ReadonlyMap<Algorithm, Buffer>, trails: boolean) {
    this.#stated = stated
    this.#trails = trails
    const wanted = trails ? known : [...stated.keys()]
    this.#sums = new Map(wanted.map((algorithm) => [algorithm, createHash(algorithms[algorithm].hash)]))
  }

  /**
   * The digest that the request states before its body, as text: equal for equal bodies. Undefined
   * where it states none that is checked.
   */
  get stated(): string | undefined {
    const algorithm = known.find((one) => this.#stated.has(one))
    return algorithm === undefined
      ? undefined
      : `${algorithm}:${this.#stated.get(algorithm)?.toString('base64') ?? ''}`
  }

  update(bytes: Buffer): void {
    for (const sum of this.#sums.values()) sum.update(bytes)
  }

  /**
   * To be called after the last byte. @throws Refusal `invalid` where the bytes do not match a
   * digest
   */
  finish(trailers: NodeJS.Dict<string>): void {
    const stated = new Map(this.#stated)
    if (this.#trails) {
      const field = trailers['content-digest']
      if (field === undefined)
        throw invalid('the request announces Content-Digest behind its body, and there is none')
      for (const [algorithm, digest] of statedDigests(field)) stated.set(algorithm, digest)
    }
    for (const [algorithm, digest] of stated) {
      const found = this.#sums.get(algorithm)?.digest()
      if (found?.equals(digest) !== true)
        throw invalid(`the body is not the one that Content-Digest names; send it again`, [
          {
            path: 'Content-Digest',
            message: `${algorithm} of the body is ${found?.toString('base64') ?? ''}`,
          },
        ])
    }
  }
}

/**
 * The check of a request's Content-Digest; undefined where it states none. @throws Refusal
 * `invalid` for a malformed field
 */
export const digestCheck = (req: IncomingMessage): DigestCheck | undefined => {
  const { 'content-digest': field, trailer } = req.headers
  const trails = trailer !== undefined && /(?:^|,)\s*content-digest\s*(?:,|$)/i.test(trailer)
  if (field === undefined && !trails) return undefined
  return new DigestCheck(typeof field === 'string' ? statedDigests(field) : new Map(), trails)
}
