import { z } from 'zod'
import type { SshSessions, SshTarget } from '../../clients/ssh/target.ts'
import { sql, type Db } from '../../db/sql.ts'
import { LinkError, type SiteShell } from '../../shell/site-shell.ts'
import type { SecretOpener } from '../../vault/secret.ts'

/** The login of the service at an instance. */
const LoginRow = z.object({
  publicAddress: z.string().nullish(),
  sshUsername: z.string(),
  sshCredentialRef: z.string().nullish(),
  hostKey: z.string().nullish(),
})
export type InstanceLogin = z.output<typeof LoginRow>

/** The host key was pinned from the console before the first login; no other key is accepted. */
export const sshTargetOf = (vault: SecretOpener, login: InstanceLogin): SshTarget => {
  const host = login.publicAddress ?? ''
  const reference = login.sshCredentialRef ?? ''
  return {
    ...{ host, port: 22, username: login.sshUsername, credential: reference },
    secret: async () => {
      const secret = await vault.open(reference, {
        actor: 'service',
        purpose: 'log in at a cloud instance',
      })
      return secret.kind === 'ssh-key' ? { privateKey: secret.privateKey } : {}
    },
    hostKeys: { policy: 'strict', knownHosts: `${host} ${login.hostKey ?? ''}\n` },
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
    const login = await db.maybe(
      LoginRow,
      sql`select public_address, ssh_username, ssh_credential_ref, host_key from cloud_instances
        where id = ${instanceId}`,
    )
    if (login?.publicAddress == null || login.sshCredentialRef == null)
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
