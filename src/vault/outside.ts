import { constants } from 'node:fs'
import { open, realpath } from 'node:fs/promises'
import { isAbsolute, sep } from 'node:path'
import { importSshKey, KeyProblem } from '../clients/ssh/keys.ts'
import type { CredentialVariables } from '../config.ts'
import { unacceptableAt } from '../refusal.ts'
import { providerOf } from './provider-documents.ts'
import type { Secret } from './secret.ts'

/** The sources that the configuration allows for references of earlier clients. */
export interface OutsideSources {
  variables: Pick<CredentialVariables, 'read'>
  folders: readonly string[]
}

const mostBytes = 1_048_576

const codeOf = (error: unknown): string => (error as NodeJS.ErrnoException).code ?? 'no answer'

/**
 * The text in place of a reference may be a secret itself: only text in the form of a reference is
 * shown.
 */
export const shownReference = (reference: string): string =>
  /^(?:vault|env|file|cloud-file):[^\p{Cc}]{1,500}$/su.test(reference)
    ? reference
    : '(hidden: of no known form)'

const refused = (reference: string, why: string) =>
  unacceptableAt('', `the credential ${JSON.stringify(shownReference(reference))} ${why}`)

/**
 * A secret's text shows its kind: a private key begins with its line, a provider's document is a
 * JSON object, all else is a token.
 */
const secretOf = (reference: string, text: string): Secret => {
  const content = text.trim()
  if (content === '') throw refused(reference, 'is empty')
  if (content.startsWith('-----BEGIN')) {
    try {
      return { kind: 'ssh-key', privateKey: importSshKey(content).privateKey }
    } catch (error) {
      if (!(error instanceof KeyProblem)) throw error
      throw refused(
        reference,
        error.field === 'passphrase'
          ? 'holds an encrypted key; import it with its passphrase (POST /ssh-keys/import/)'
          : error.message,
      )
    }
  }
  if (!content.startsWith('{')) return { kind: 'kubernetes-token', token: content }
  let document: unknown
  try {
    document = JSON.parse(content)
  } catch {
    throw refused(reference, 'is not valid JSON')
  }
  const provider = providerOf(document as Record<string, unknown>)
  if (provider === undefined) throw refused(reference, 'is no document of gcp, aws or azure that is complete')
  return { kind: 'cloud-credential', provider, document: document as Record<string, unknown> }
}

/**
 * The file's text and its version; links are followed first, so that none leads out of the allowed
 * folders.
 */
const readAllowed = async (
  reference: string,
  path: string,
  folders: readonly string[],
): Promise<{ text: string; version: string }> => {
  const notAllowed =
    'is not in a folder that may be read: name its folder in SERVICE_CREDENTIAL_FOLDERS or store ' +
    'the credential here'
  if (!isAbsolute(path)) throw refused(reference, 'must name an absolute path')
  const roots = await Promise.all(folders.map((folder) => realpath(folder).catch(() => folder)))
  const real = await realpath(path).catch((error: unknown) => {
    // The answer must not reveal whether a file exists elsewhere.
    const inside = [...folders, ...roots].some((folder) => path.startsWith(folder + sep))
    throw refused(reference, inside ? `cannot be read (${codeOf(error)})` : notAllowed)
  })
  if (!roots.some((folder) => real.startsWith(folder + sep))) throw refused(reference, notAllowed)
  // Without waiting: a pipe would hold the request until a process writes into it.
  await using file = await open(real, constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOFOLLOW).catch(
    (error: unknown) => {
      throw refused(reference, `cannot be read (${codeOf(error)})`)
    },
  )
  const facts = await file.stat()
  if (!facts.isFile()) throw refused(reference, 'is not a file')
  if (facts.size > mostBytes) throw refused(reference, `is larger than ${mostBytes} bytes`)
  return { text: await file.readFile('utf8'), version: `${String(facts.ino)}-${String(facts.mtimeMs)}` }
}

/**
 * Reads `env:NAME`, `file:/path` and `cloud-file:/path`.
 * @throws Refusal `unacceptable` naming the reference when its form is unknown, it is not allowed,
 * or it
 *   cannot be read
 */
export const readOutside = async (
  reference: string,
  sources: OutsideSources,
): Promise<{ secret: Secret; version: string }> => {
  const [, scheme, rest = ''] = /^(env|file|cloud-file):(.+)$/s.exec(reference) ?? []
  if (scheme === undefined)
    throw refused(
      reference,
      'is no reference to a credential; give the credentialRef of one that was stored here (vault:…)',
    )
  if (scheme === 'env') {
    const value = sources.variables.read(rest)
    if (value === undefined)
      throw refused(
        reference,
        'is not set, or not among the names in SERVICE_CREDENTIAL_ENVIRONMENT; name it there or ' +
          'store the credential here',
      )
    return { secret: secretOf(reference, value), version: 'environment' }
  }
  const { text, version } = await readAllowed(reference, rest, sources.folders)
  return { secret: secretOf(reference, text), version }
}
