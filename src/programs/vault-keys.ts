import { join } from 'node:path'
import { ArgumentError, readArguments } from './arguments.ts'
import { ConfigError, configFromEnvironment, type Config } from '../config.ts'
import { openDatabase } from '../db/pool.ts'
import { signRecord } from '../domains/audit-events/seal.ts'
import { recordAudit } from '../domains/audit-events/store.ts'
import { findEndpoints } from '../embedded/ready-file.ts'
import { makeKey, openVaultKeys, replaceKeys, type VaultKeys } from '../vault/keys.ts'
import { openVault, type Vault } from '../vault/vault.ts'

// `vault status|rotate|rewrap|retire KEY`: the keys of the vault, beside a running service.
const usage = `npm run vault -- status          lists the keys of the key file, and how many credentials
                                 each of them wraps
npm run vault -- rotate          makes a new key, which seals from then on and wraps every credential
npm run vault -- rewrap          wraps every credential under the first key of the file
npm run vault -- retire KEY      takes a key that wraps nothing out of the file
npm run vault -- --help | --version
`

/**
 * Only the database is needed: that of the configuration, or of the daemon that runs on the data
 * folder.
 */
const databaseUrl = (config: Config): string => config.databaseUrl ?? findEndpoints(config).databaseUrl

interface Held {
  keys: VaultKeys
  vault: Vault
  /** Records a change of the key file, signed with the key that seals then. */
  audit: (verb: string, key: string) => Promise<void>
}

const verbs: Record<string, (held: Held, key: string) => Promise<string>> = {
  status: async ({ keys, vault }) => {
    const usage = await vault.usage()
    const held = await keys.all()
    const lines = held.map(
      ({ id }, i) => `${id}  ${String(usage.get(id) ?? 0)} credentials${i === 0 ? ', seals' : ''}`,
    )
    const lost = await vault.lost()
    return [
      keys.file,
      ...lines,
      ...lost.map(
        ([id, records]) => `${id}  ${String(records)} credentials, NOT IN THE FILE: they cannot be opened`,
      ),
    ].join('\n')
  },

  rotate: async (of) => {
    const { keys, audit } = of
    const fresh = makeKey()
    await replaceKeys(keys.file, [fresh, ...(await keys.all())])
    await audit('rotated', fresh.id)
    return `${fresh.id} seals now; ${await verbs['rewrap']!(of, '')}`
  },

  rewrap: async ({ keys, vault }) => {
    const { wrapped, broken } = await vault.rewrap()
    const { id } = await keys.primary()
    if (broken.length > 0)
      throw new Error(
        `${String(wrapped)} credentials are wrapped under ${id}; these do not open and stay as they ` +
          `were: ${broken.join(', ')}`,
      )
    return (
      `${String(wrapped)} credentials are wrapped under ${id}. Older keys stay in the file: ` +
      'histories of workflows need them until Temporal has removed those'
    )
  },

  retire: async ({ keys, vault, audit }, key) => {
    const held = await keys.all()
    if (!held.some(({ id }) => id === key))
      throw new Error(`${keys.file} holds no key ${key}: npm run vault -- status lists them`)
    if (held[0]?.id === key)
      throw new Error(`${key} seals: put another before it first (npm run vault -- rotate)`)
    const records = (await vault.usage()).get(key) ?? 0
    if (records > 0)
      throw new Error(
        `${key} wraps ${String(records)} credentials: npm run vault -- rewrap moves them to the first key`,
      )
    await replaceKeys(
      keys.file,
      held.filter(({ id }) => id !== key),
    )
    await audit('retired', key)
    return `${key} is out of ${keys.file}`
  },
}

/** The command that the arguments name, with its key. */
const wanted = readArguments({ usage, positionals: [1, 2] }, ({ positionals: [verb = '', key] }) => {
  const run = Object.hasOwn(verbs, verb) ? verbs[verb] : undefined
  if (run === undefined) throw new ArgumentError(`${verb} is not a command of this program`)
  if (verb === 'retire' && key === undefined)
    throw new ArgumentError('retire needs the id of a KEY; status lists them')
  if (verb !== 'retire' && key !== undefined) throw new ArgumentError(`${key} is not an argument of ${verb}`)
  return (held: Held) => run(held, key ?? '')
})
try {
  const config = configFromEnvironment()
  if (config.vaultKeyFile === undefined && config.databaseUrl !== undefined)
    throw new ConfigError([
      'SERVICE_VAULT_KEY_FILE is not set, and with SERVICE_DATABASE_URL there is no key file of its own: name the file',
    ])
  const keys = await openVaultKeys(config.vaultKeyFile ?? join(config.dataDir, 'vault.key'))
  await using db = openDatabase(databaseUrl(config), { max: 1, sign: (text) => signRecord(keys, text) })
  const vault = openVault({
    db,
    keys,
    outside: { variables: config.credentialVariables, folders: [] },
    audit: () => Promise.resolve(),
  })
  const audit = (verb: string, key: string): Promise<void> =>
    recordAudit(db, {
      ...{ eventType: `vault.key.${verb}`, actorId: 'vault', actorType: 'service', outcome: 'succeeded' },
      ...{ summary: `key ${key} of the vault ${verb}`, metadata: { key } },
    })
  process.stdout.write(`${await wanted({ keys, vault, audit })}\n`)
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`)
  process.exitCode = error instanceof ConfigError ? 2 : 1
}
