import { createHash, createSecretKey, randomBytes, type KeyObject } from 'node:crypto'
import { chown, readFile, realpath, rename, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import type { Config } from '../config.ts'
import { Refusal } from '../refusal.ts'
import { createOnce, writeBeside } from '../whole-file.ts'

/**
 * A key of the key file. The id is derived from it, so that a file needs no names and no two
 * programs can disagree about one.
 */
export interface VaultKey {
  id: string
  secret: KeyObject
}

/**
 * The keys of a vault: a file of one key a line (32 bytes, base64); the first seals, all open. When
 * it has changed, it is read again before a seal, and when a requested key was missing in it: so a
 * rotation needs no restart.
 */
export interface VaultKeys {
  readonly file: string
  /** Reads a changed file. @throws Refusal naming file and remedy where it cannot be read */
  refresh(): Promise<void>
  /** The key that seals; while a changed file cannot be read, the one from before. */
  primary(): Promise<VaultKey>
  /** @throws Refusal as `refresh`, where the key is not among the known ones */
  find(id: string): Promise<VaultKey | undefined>
  /** All keys; while a changed file cannot be read, those from before. */
  all(): Promise<readonly VaultKey[]>
}

const keyLength = 32

const keyOf = (bytes: Buffer): VaultKey => ({
  id: createHash('sha256').update('orrery vault key').update(bytes).digest('hex').slice(0, 16),
  secret: createSecretKey(bytes),
})

/** Makes a new key. */
export const makeKey = (): VaultKey => keyOf(randomBytes(keyLength))

const remedy = (file: string): string => `make one with: umask 077; openssl rand -base64 32 > ${file}`

const codeOf = (error: unknown): string => (error as NodeJS.ErrnoException).code ?? String(error)

/** The message names the file, never a part of its content. */
const problem = (file: string, what: string): Refusal =>
  new Refusal('unavailable', `the vault's key file ${file} (SERVICE_VAULT_KEY_FILE) ${what}`, {
    retryAfterSeconds: 30,
  })

const readKeys = async (file: string): Promise<{ keys: VaultKey[]; state: string }> => {
  const facts = await stat(file).catch((error: unknown) => {
    throw problem(
      file,
      codeOf(error) === 'ENOENT' ? `does not exist: ${remedy(file)}` : `cannot be read (${codeOf(error)})`,
    )
  })
  if (!facts.isFile())
    throw problem(file, `is not a file: put the key file in its place; where there was none, ${remedy(file)}`)
  if ((facts.mode & 0o077) !== 0)
    throw problem(
      file,
      `may be read by others (mode ${(facts.mode & 0o777).toString(8).padStart(4, '0')}): chmod 600 ${file}`,
    )
  const text = await readFile(file, 'utf8').catch((error: unknown) => {
    throw problem(file, `cannot be read (${codeOf(error)}): chown ${String(process.getuid?.())} ${file}`)
  })
  const keys = text.split('\n').flatMap((line, index) => {
    const word = line.trim()
    if (word === '' || word.startsWith('#')) return []
    const bytes = Buffer.from(word, 'base64')
    if (bytes.length !== keyLength || bytes.toString('base64') !== word)
      throw problem(
        file,
        `holds no key in line ${index + 1}: each is 32 bytes in base64 on a line of its own; ${remedy(file)}`,
      )
    return [keyOf(bytes)]
  })
  if (keys.length === 0) throw problem(file, `holds no key: ${remedy(file)}`)
  return { keys, state: stateOf(facts) }
}

const stateOf = (facts: { ino: number; mtimeMs: number; size: number }): string =>
  `${String(facts.ino)} ${String(facts.mtimeMs)} ${String(facts.size)}`

/**
 * Opens a key file.
 * @throws Refusal naming file and remedy when it is absent, is readable by others, or has other
 *   content
 */
export const openVaultKeys = async (file: string): Promise<VaultKeys> => {
  let held = await readKeys(file)
  const refresh = async (): Promise<void> => {
    const facts = await stat(file).catch(() => undefined)
    // A file that is missing for a moment, or is being replaced, does not affect a running service.
    if (facts !== undefined && stateOf(facts) !== held.state) held = await readKeys(file)
  }
  const first = ({ keys }: { keys: VaultKey[] }): VaultKey => keys[0] as VaultKey
  // Without a key no worker can encode a payload and no run can record its end: both go on.
  const tryRefresh = (): Promise<void> => refresh().catch(() => undefined)
  return {
    file,
    refresh,
    async primary() {
      await tryRefresh()
      return first(held)
    },
    async find(id) {
      const known = held.keys.find((key) => key.id === id)
      if (known !== undefined) return known
      await refresh()
      return held.keys.find((key) => key.id === id)
    },
    async all() {
      await tryRefresh()
      return held.keys
    },
  }
}

const heading =
  '# Keys of the vault: without them its credentials cannot be opened. The first line seals; ' +
  'keep the others until nothing uses them.\n'

const textOf = (keys: readonly VaultKey[]): string =>
  heading + keys.map(({ secret }) => `${secret.export().toString('base64')}\n`).join('')

/** Creates the key file, with a new key, if there is none. */
export const ensureKeyFile = async (file: string): Promise<void> => {
  if ((await stat(file).catch(() => undefined)) === undefined) await createOnce(file, textOf([makeKey()]))
}

/**
 * The keys of the service: from the named file, or from one created in the data folder where the
 * database is embedded; else none.
 * @throws Refusal as `openVaultKeys`
 */
export const openServiceKeys = async ({
  vaultKeyFile,
  databaseUrl,
  dataDir,
}: Pick<Config, 'vaultKeyFile' | 'databaseUrl' | 'dataDir'>): Promise<VaultKeys | undefined> => {
  if (vaultKeyFile !== undefined) return openVaultKeys(vaultKeyFile)
  if (databaseUrl !== undefined) return undefined
  const file = join(dataDir, 'vault.key')
  await ensureKeyFile(file)
  return openVaultKeys(file)
}

/**
 * Replaces the keys of a file in one step: of the file that a link leads to, and its owner keeps it,
 * since root may run this beside a service of another account.
 * @throws Refusal naming the file when it cannot be written
 */
export const replaceKeys = async (file: string, keys: readonly VaultKey[]): Promise<void> => {
  let beside: string | undefined
  try {
    const target = await realpath(file)
    const { uid, gid } = await stat(target)
    beside = await writeBeside(target, textOf(keys))
    if ((await stat(beside)).uid !== uid) await chown(beside, uid, gid)
    await rename(beside, target)
  } catch (error) {
    if (beside !== undefined) await rm(beside, { force: true })
    throw problem(
      file,
      `cannot be written here (${codeOf(error)}): put the new key into its first line where the ` +
        'file is kept, then run: npm run vault -- rewrap',
    )
  }
}
