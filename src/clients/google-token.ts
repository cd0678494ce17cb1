import { sign } from 'node:crypto'

/** A service account's key. */
export interface ServiceAccountKey {
  clientEmail: string
  /** PEM. */
  privateKey: string
  privateKeyId?: string | undefined
}

const tokenSeconds = 3_600
const base64url = (value: object): string => Buffer.from(JSON.stringify(value)).toString('base64url')

/**
 * A token that the account signs itself. Google's services accept it as it is, so the URL for
 * tokens in the key's document is never contacted. It is signed again before it expires.
 */
export const openGoogleToken = (
  { clientEmail, privateKey, privateKeyId }: ServiceAccountKey,
  scope: string,
): (() => string) => {
  let token = ''
  let until = 0
  return () => {
    const now = Math.floor(Date.now() / 1_000)
    if (now < until - 300) return token
    until = now + tokenSeconds
    const head = base64url({
      alg: 'RS256',
      typ: 'JWT',
      ...(privateKeyId === undefined ? {} : { kid: privateKeyId }),
    })
    const claims = base64url({ iss: clientEmail, sub: clientEmail, scope, iat: now, exp: until })
    const text = `${head}.${claims}`
    token = `${text}.${sign('RSA-SHA256', Buffer.from(text), privateKey).toString('base64url')}`
    return token
  }
}
