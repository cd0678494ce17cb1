import { generateKeyPairSync, verify } from 'node:crypto'

/** The key file of a service account, as far as sites use it. */
export interface ServiceAccount {
  type: 'service_account'
  project_id: string
  client_email: string
  private_key: string
  private_key_id: string
}

/** A service account, and what its signatures are verified with. */
export interface GoogleServiceAccount {
  file: ServiceAccount
  publicKey: string
}

/** A new account with a key. */
export const accountNamed = (name: string, project = 'project'): GoogleServiceAccount => {
  const { privateKey, publicKey } = generateKeyPairSync('rsa', {
    modulusLength: 2048,
    publicKeyEncoding: { type: 'spki', format: 'pem' },
    privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
  })
  const file: ServiceAccount = {
    ...{ type: 'service_account', project_id: project, private_key_id: `${name}-key` },
    ...{ client_email: `${name}@${project}.iam.gserviceaccount.com`, private_key: privateKey },
  }
  return { file, publicKey }
}

/** The account of a token for one of these scopes; undefined for an invalid one. */
export const bearerOf = (
  header: string,
  accounts: readonly GoogleServiceAccount[],
  scopes: RegExp,
): GoogleServiceAccount | undefined => {
  const [head = '', claims = '', signature = ''] = header.replace(/^Bearer /, '').split('.')
  try {
    const { alg } = JSON.parse(Buffer.from(head, 'base64url').toString()) as { alg: string }
    const { iss, scope, iat, exp } = JSON.parse(Buffer.from(claims, 'base64url').toString()) as Record<
      string,
      string & number
    >
    const account = accounts.find(({ file }) => file.client_email === iss)
    const now = Date.now() / 1_000
    const isRight =
      alg === 'RS256' &&
      scopes.test(scope ?? '') &&
      Number(iat) <= now + 60 &&
      Number(exp) > now &&
      Number(exp) - Number(iat) <= 3_600
    if (account === undefined || !isRight) return undefined
    const text = Buffer.from(`${head}.${claims}`)
    return verify('RSA-SHA256', text, account.publicKey, Buffer.from(signature, 'base64url'))
      ? account
      : undefined
  } catch {
    return undefined
  }
}
