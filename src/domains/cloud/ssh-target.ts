import { z } from 'zod'
import { knownHostsName } from '../../clients/ssh/known-hosts.ts'
import type { SshSessions, SshTarget } from '../../clients/ssh/target.ts'
import { ownRecords } from '../../db/own-records.ts'
import { sql, type Db, type Sql } from '../../db/sql.ts'
import { LinkError, type SiteShell } from '../../shell/site-shell.ts'
import type { SecretOpener } from '../../vault/secret.ts'

/**
 * The login of the service at an instance. `address`: nullish until its machine runs. `sshPort`:
 * 1–65535.
 */
export const LoginRow = z.object({
  address: z.string().nullish(),
  sshPort: z.number(),
  sshUsername: z.string(),
  sshCredentialRef: z.string().nullish(),
  hostKey: z.string().nullish(),
})
type InstanceLogin = z.output<typeof LoginRow>

/** The columns of `LoginRow`: of the instance `i` and its target `t`. */
export const loginColumns: Sql = sql`case when t.configuration ->> 'sshAddress' = 'private' then i.private_address
    else coalesce(i.public_address, i.private_address) end as address,
  coalesce(jsonb_path_query_first(t.configuration, '$.sshPort ? (@ >= 1 && @ <= 65535)')::integer, 22) as ssh_port,
  i.ssh_username, i.ssh_credential_ref, i.host_key`

/** The host key was pinned from the console before the first login; no other key is accepted. */
export const sshTargetOf = (vault: SecretOpener, login: InstanceLogin): SshTarget => {
  const host = login.address ?? ''
  const reference = login.sshCredentialRef ?? ''
  return {
    ...{ host, port: login.sshPort, username: login.sshUsername, credential: reference },
    secret: async () => {
      const use = { actor: 'service', purpose: 'log in at a cloud instance' }
      const secret = await ownRecords(vault.open(reference, use))
      return secret.kind === 'ssh-key' ? { privateKey: secret.privateKey } : {}
    },
    hostKeys: {
      policy: 'strict',
      knownHosts: `${knownHostsName(host, login.sshPort)} ${login.hostKey ?? ''}\n`,
    },
    timeouts: { routeMs: 5_000, loginMs: 15_000 },
  }
}

/** The address of an instance is read again after this long: a start gives another one. */
const rowAgeMs = 2_000

export interface MachineShellParts {
  db: Db
  vault: SecretOpener
  sessions: SshSessions
}

/** Shells of instances. Each connects by itself, and rejects while the instance has no address. */
export const openMachineShells = ({ db, vault, sessions }: MachineShellParts) => {
  const known = new Map<string, { at: number; shell: Promise<SiteShell> }>()
  const open = async (instanceId: string): Promise<SiteShell> => {
    const login = await ownRecords(
      db.maybe(
        LoginRow,
        sql`select ${loginColumns} from cloud_instances i join cloud_capacity_targets t
          on t.id = i.capacity_target_id where i.id = ${instanceId}`,
      ),
    )
    if (login?.address == null || login.sshCredentialRef == null)
      throw new LinkError('name', `the cloud instance ${JSON.stringify(instanceId)} has no address now`)
    return sessions.shell(sshTargetOf(vault, login))
  }
  const shellOf = (instanceId: string): Promise<SiteShell> => {
    const now = Date.now()
    const entry = known.get(instanceId)
    if (entry !== undefined && now - entry.at < rowAgeMs) return entry.shell
    for (const [id, { at }] of known) if (now - at >= rowAgeMs) known.delete(id)
    const shell = open(instanceId)
    known.set(instanceId, { at: now, shell })
    shell.catch(() => known.delete(instanceId))
    return shell
  }
  return (instanceId: string): SiteShell => ({
    run: async (script, options) => (await shellOf(instanceId)).run(script, options),
    open: async (script) => (await shellOf(instanceId)).open(script),
    close: () => Promise.resolve(),
  })
}
