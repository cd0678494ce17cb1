import { createHmac, hkdfSync, timingSafeEqual, type KeyObject } from 'node:crypto'

/**
 * Keys that links are signed with; the first signs, all verify, so a rotation of them breaks no
 * call under way.
 */
export interface LinkKeys {
  primary(): Promise<{ secret: KeyObject }>
  all(): Promise<readonly { secret: KeyObject }[]>
}

/** The right of a link: reading the inputs of a call, writing its outputs, or giving its answer. */
export type LinkPurpose = 'inputs' | 'outputs' | 'result'

export interface CallLinks {
  /** Query of a link that allows one purpose for one call until `expires` (seconds since epoch). */
  sign(name: string, purpose: LinkPurpose, expires: number): Promise<string>
  verify(
    name: string,
    purpose: LinkPurpose,
    given: { expires: string; signature: string },
    now: number,
  ): Promise<boolean>
}

/**
 * Links by which a function reaches the files of its own call and no others. Nothing is stored: the
 * signature holds the right and its end.
 */
export const openCallLinks = (keys: LinkKeys): CallLinks => {
  // Derived from the keys: the secret of links opens no credential.
  const derived = (secret: KeyObject): Buffer =>
    Buffer.from(hkdfSync('sha256', secret.export(), '', 'links of function calls', 32))
  const signature = (secret: KeyObject, ...what: readonly string[]): Buffer =>
    createHmac('sha256', derived(secret)).update(JSON.stringify(what)).digest()
  return {
    async sign(name, purpose, expires) {
      const until = String(Math.ceil(expires))
      const { secret } = await keys.primary()
      return new URLSearchParams({
        expires: until,
        signature: signature(secret, name, purpose, until).toString('base64url'),
      }).toString()
    },
    async verify(name, purpose, { expires, signature: given }, now) {
      const bytes = Buffer.from(given, 'base64url')
      if (!/^\d{1,12}$/.test(expires) || Number(expires) < now || bytes.length !== 32) return false
      return (await keys.all()).some(({ secret }) =>
        timingSafeEqual(signature(secret, name, purpose, expires), bytes),
      )
    },
  }
}
