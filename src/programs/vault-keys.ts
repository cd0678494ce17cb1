import { dirname, join } from 'node:path'
import { ArgumentError, readArguments } from './arguments.ts'
import { ConfigError, configFromEnvironment, type Config } from '../config.ts'
import { openDatabase } from '../db/pool.ts'
import type { Db } from '../db/sql.ts'
import { signRecord } from '../domains/audit-events/seal.ts'
import { auditKeyUse, recordAudit } from '../domains/audit-events/store.ts'
import { hold } from '../embedded/hold.ts'
import { findEndpoints } from '../embedded/ready-file.ts'
import { makeKey, openVaultKeys, replaceKeys, type VaultKey, type VaultKeys } from '../vault/keys.ts'
import { openVault, type Vault } from '../vault/vault.ts'

// `vault status|rotate|rewrap|retire KEY`: the keys of the vault, beside a running service.
const usage = `npm run vault -- status          lists the keys of the key file, and how many credentials each of
                                 them wraps and how many audit records it proves
npm run vault -- rotate          makes a new key, which seals from then on and wraps every credential
npm run vault -- rewrap          wraps every credential under the first key of the file
npm run vault -- retire KEY [--forget-audit]
                                 takes a key that wraps nothing out of the file; with --forget-audit also
                                 one that audit records need: /audit-events/verify/ proves none from the
                                 first of them on
npm run vault -- --help | --version
`

/**
 * Only the database is needed: that of the configuration, or of the daemon that runs on the data
 * folder.
 */
const databaseUrl = (config: Config): string => config.databaseUrl ?? findEndpoints(config).databaseUrl

interface Held {
  db: Db
  keys: VaultKeys
  vault: Vault
  /** Records a change of the key file, signed with the key that seals then. */
  audit: (verb: string, key: string) => Promise<void>
}

/**
 * Replaces the keys of the file by those that `change` makes of them. Of several programs on this
 * machine one does so at a time.
 */
const changeKeys = async (
  keys: VaultKeys,
  change: (held: readonly VaultKey[]) => Promise<readonly VaultKey[]> | readonly VaultKey[],
): Promise<void> => {
  const folder = await hold(dirname(keys.file), 'vault-keys', () => {
    process.stderr.write(`another program changes ${keys.file}; this one waits for its end\n`)
  })
  try {
    await keys.refresh()
    await replaceKeys(keys.file, await change(await keys.all()))
  } finally {
    await folder.release()
  }
}

/** References in a sentence; a hundred at most. */
const named = (references: readonly string[]): string =>
  references.slice(0, 100).join(', ') +
  (references.length > 100 ? ` and ${String(references.length - 100)} others` : '')

interface Wanted {
  key: string
  forgetsAudit: boolean
}
const verbs: Record<string, (held: Held, wanted: Wanted) => Promise<string>> = {
  status: async ({ db, keys, vault }) => {
    const [wraps, proves, held] = [await vault.usage(), await auditKeyUse(db), await keys.all()]
    const line = (id: string, note: string): string =>
      `${id}  ${String(wraps.get(id) ?? 0)} credentials, ${String(proves.get(id) ?? 0)} audit records${note}`
    const lost = new Set([...wraps.keys(), ...proves.keys()])
    for (const { id } of held) lost.delete(id)
    return [
      keys.file,
      ...held.map(({ id }, i) => line(id, i === 0 ? ', seals' : '')),
      ...Array.from(lost, (id) => line(id, ', NOT IN THE FILE: they can be neither opened nor proved')),
    ].join('\n')
  },

  rotate: async (of, wanted) => {
    const { keys, audit } = of
    const fresh = makeKey()
    await changeKeys(keys, (held) => [fresh, ...held])
    await audit('rotated', fresh.id)
    return `${fresh.id} seals now; ${await verbs['rewrap']!(of, wanted)}`
  },

  rewrap: async ({ keys, vault }) => {
    const { wrapped, broken, keyless } = await vault.rewrap()
    const { id } = await keys.primary()
    const left = [
      ...(keyless.length === 0
        ? []
        : [
            `the file lacks the keys of ${named(keyless)} (npm run vault -- status names the keys): add the ` +
              'keys to it, or store or delete these credentials',
          ]),
      ...(broken.length === 0
        ? []
        : [`${named(broken)} do not open, as their records were changed: store them again or delete them`]),
    ]
    if (left.length > 0)
      throw new Error(
        `${String(wrapped)} credentials are wrapped under ${id}; others stay as they were: ${left.join('; ')}`,
      )
    return (
      `${String(wrapped)} credentials are wrapped under ${id}. Older keys stay in the file: ` +
      'histories of workflows need them until Temporal has removed those, and the audit trail as long as ' +
      'it is to be proved'
    )
  },

  retire: async ({ db, keys, vault, audit }, { key, forgetsAudit }) => {
    await changeKeys(keys, async (held) => {
      if (!held.some(({ id }) => id === key))
        throw new Error(`${keys.file} holds no key ${key}: npm run vault -- status lists them`)
      if (held[0]?.id === key)
        throw new Error(`${key} seals: put another before it first (npm run vault -- rotate)`)
      const records = (await vault.usage()).get(key) ?? 0
      if (records > 0)
        throw new Error(
          `${key} wraps ${String(records)} credentials: npm run vault -- rewrap moves them to the first key`,
        )
      const proved = (await auditKeyUse(db)).get(key) ?? 0
      if (proved > 0 && !forgetsAudit)
        throw new Error(
          `${key} proves ${String(proved)} audit records: leave it in the file as long as the trail is to be ` +
            'proved; with --forget-audit it goes, and /audit-events/verify/ ends at the first of them',
        )
      return held.filter(({ id }) => id !== key)
    })
    await audit('retired', key)
    return `${key} is out of ${keys.file}`
  },
}

/** The command that the arguments name, with its key. */
const options = { 'forget-audit': { type: 'boolean' } } as const
const wanted = readArguments({ usage, options, positionals: [1, 2] }, ({ values, positionals }) => {
  const [verb = '', key] = positionals
  const forgetsAudit = values['forget-audit'] === true
  const run = Object.hasOwn(verbs, verb) ? verbs[verb] : undefined
  if (run === undefined) throw new ArgumentError(`${verb} is not a command of this program`)
  if (verb === 'retire' && key === undefined)
    throw new ArgumentError('retire needs the id of a KEY; status lists them')
  if (verb !== 'retire' && key !== undefined) throw new ArgumentError(`${key} is not an argument of ${verb}`)
  if (verb !== 'retire' && forgetsAudit) throw new ArgumentError(`--forget-audit is no option of ${verb}`)
  return (held: Held) => run(held, { key: key ?? '', forgetsAudit })
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
  process.stdout.write(`${await wanted({ db, keys, vault, audit })}\n`)
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`)
  process.exitCode = error instanceof ConfigError ? 2 : 1
}
