import { z } from 'zod'
import type { HostKeys, LoginPrompts, SshHostKey, SshSecret, SshSessions, SshState, SshTarget } from '../../clients/ssh/target.ts'
import type { Db } from '../../db/sql.ts'
import { LinkError, type SiteShell } from '../../drivers/shell.ts'
import { missing, Refusal, type Problem } from '../../refusal.ts'
import type { Secret, SecretOpener } from '../../vault/secret.ts'
import { recordAudit } from '../audit-events/store.ts'
import { parseHostPort, parseJump } from './endpoint.ts'
import { connectionProblems, givesTrust } from './rules.ts'
import type { ConnectionDocument } from './schemas.ts'
import { keepHostKey, readConnection, recordedHostKeys } from './store.ts'

export interface LinkParts {
  db: Db
  secrets: SecretOpener
  sessions: SshSessions
  /** Of connections of type local. */
  localShell: SiteShell
  allowProxyCommand: boolean
  /** Whether `accept-new` is the policy of connections that give neither a policy nor anything to know the host by. */
  trustOnFirstUse: boolean
}

/** How the link of a connection stands: in this process, or over the login of another one of the fleet. */
export interface LinkState {
  state: SshState['state']
  since: string
  prompts?: LoginPrompts
  error?: string
}

/** A connection's document is read again after this long, so that a change reaches links that are in use. */
const documentAgeMs = 2_000

export const openLinks = (parts: LinkParts) => {
  const { db, sessions } = parts
  const known = new Map<string, { at: number; shell: Promise<SiteShell> }>()
  /** What is or was connected to for a connection, to be ended when it changes or goes. */
  const targets = new Map<string, SshTarget>()

  const secretOf = async (connection: ConnectionDocument, purpose: string, actor: string): Promise<SshSecret> => {
    const { credentialRef: reference, environmentId, id } = connection
    const owner = { ...(environmentId === '' ? {} : { environmentId }), ...(id === '' ? {} : { connectionId: id }) }
    const secret = await parts.secrets.open(reference, { actor, purpose, ...owner })
    if (secret.kind !== 'ssh-key')
      throw new LinkError('login', `credentialRef ${JSON.stringify(reference)} is not an SSH key; refer to one`, { permanent: true })
    return { privateKey: secret.privateKey }
  }

  /** The login that a document describes. `trial`: not stored; nothing is recorded and the login is shared with nobody. */
  const target = async (
    connection: ConnectionDocument,
    { purpose, actor = 'service', trial }: { purpose: string; actor?: string; trial?: string },
  ): Promise<SshTarget> => {
    const [problem] = connectionProblems(connection, parts)
    if (problem !== undefined) throw new LinkError('name', `${problem.path}: ${problem.message}`, { permanent: true })
    const settings = Settings.parse(connection.configuration ?? {})
    const policy = settings.hostKeyPolicy ?? (parts.trustOnFirstUse && !givesTrust(connection) ? 'accept-new' : 'strict')
    // Under accept-new `record` compares, so that the target stays the same, and its login shared, when the first key is recorded.
    const recorded = trial === undefined && policy === 'strict' ? await recordedHostKeys(db, connection.id) : []
    const place = parseHostPort(connection.endpoint) as { host: string; port?: number }
    const lines = [settings.knownHosts ?? '', ...recorded.map(({ line }) => line)].filter((text) => text !== '')
    const hostKeys: HostKeys = {
      policy,
      ...(lines.length === 0 ? {} : { knownHosts: `${lines.join('\n')}\n` }),
      ...(settings.hostKeyFingerprints === undefined ? {} : { fingerprints: settings.hostKeyFingerprints }),
      ...(settings.hostKeyAlias === undefined ? {} : { hostKeyAlias: settings.hostKeyAlias }),
      record: trial === undefined ? (key) => record(connection, key) : () => Promise.resolve(),
    }
    const credential = `${connection.credentialRef}${trial === undefined ? '' : ` ${trial}`}`
    const login = {
      ...(credential === '' ? {} : { credential }),
      ...(connection.credentialRef === '' ? {} : { secret: () => secretOf(connection, purpose, actor) }),
    }
    const { hostKeyAlias: _alias, ...jumpKeys } = hostKeys
    const jump = jumpsOf(settings.proxyJump).map((text) => {
      const hop = parseJump(text) as { host: string; port?: number; username?: string }
      return { host: hop.host, port: hop.port ?? 22, username: hop.username ?? connection.username, ...login, hostKeys: jumpKeys }
    })
    return {
      host: place.host,
      port: place.port ?? settings.port ?? 22,
      username: connection.username,
      ...login,
      hostKeys,
      ...(jump.length === 0 ? {} : { jump }),
      ...(settings.proxyCommand === undefined ? {} : { proxyCommand: settings.proxyCommand }),
      ...(settings.forwardAgent === true ? { forwardAgent: true } : {}),
    }
  }

  const record = async (connection: ConnectionDocument, key: SshHostKey): Promise<void> => {
    const { fingerprint, isNew } = await keepHostKey(db, connection.id, key)
    if (fingerprint !== key.fingerprint)
      throw new LinkError(
        'host key',
        `the host key of ${key.host} has changed: ${fingerprint} was recorded at first contact, ${key.fingerprint} is shown now; if that is right, save the connection with it in hostKeyFingerprints`,
        { permanent: true },
      )
    if (!isNew) return
    await recordAudit(db, {
      eventType: 'connection.host-key-recorded',
      actorType: 'service',
      environmentId: connection.environmentId,
      connectionId: connection.id,
      outcome: 'succeeded',
      summary: `first contact with ${key.host}: ${key.type} key ${key.fingerprint} recorded`,
    })
  }

  const targetOf = async (connectionId: string, purpose: string): Promise<SshTarget> => {
    const connection = await readConnection(db, connectionId)
    if (connection === undefined) throw missing('connection', connectionId)
    if (connection.type !== 'ssh')
      throw new Refusal(
        'unacceptable',
        `connection ${JSON.stringify(connectionId)} is of type ${connection.type}; only ssh connections log in`,
      )
    try {
      const made = await target(connection, { purpose })
      targets.set(connectionId, made)
      return made
    } catch (error) {
      if (error instanceof LinkError) throw new Refusal('unacceptable', error.message, { cause: error })
      throw error
    }
  }

  const forget = async (connectionId: string): Promise<void> => {
    known.delete(connectionId)
    const old = targets.get(connectionId)
    targets.delete(connectionId)
    if (old !== undefined) await sessions.forget(old)
  }

  const open = async (connectionId: string, purpose: string): Promise<SiteShell> => {
    const connection = await readConnection(db, connectionId)
    if (connection === undefined) {
      await forget(connectionId)
      throw new LinkError('name', `connection ${JSON.stringify(connectionId)} does not exist`, { permanent: true })
    }
    if (connection.type === 'local') return parts.localShell
    if (connection.type !== 'ssh')
      throw new LinkError('shell', `connection ${JSON.stringify(connectionId)} is of type ${connection.type}, which has no shell`, {
        permanent: true,
      })
    const made = await target(connection, { purpose })
    targets.set(connectionId, made)
    return sessions.shell(made)
  }

  const current = (connectionId: string, purpose: string): Promise<SiteShell> => {
    const now = Date.now()
    const entry = known.get(connectionId)
    if (entry !== undefined && now - entry.at < documentAgeMs) return entry.shell
    const shell = open(connectionId, purpose)
    known.set(connectionId, { at: now, shell })
    shell.catch(() => known.delete(connectionId))
    return shell
  }

  return {
    /**
     * The shell of a stored connection: connecting is its own affair, it follows changes of the connection's document, and closing it leaves
     * the session to its other users. A connection that is gone or has no shell rejects at the first call.
     */
    shell: (connectionId: string, purpose = 'run tasks at the site'): SiteShell => ({
      run: async (script, options) => (await current(connectionId, purpose)).run(script, options),
      open: async (script) => (await current(connectionId, purpose)).open(script),
      close: () => Promise.resolve(),
    }),

    /** How the login of an ssh connection stands. @throws Refusal for an unknown connection and one of another type */
    state: async (connectionId: string): Promise<LinkState> =>
      stateOf(await sessions.standing(await targetOf(connectionId, 'show how the login stands'))),

    /** A person's answers to what the login asks, in order; the state afterwards. @throws Refusal as `state` */
    answer: async (connectionId: string, answers: readonly string[]): Promise<LinkState> =>
      stateOf(await sessions.answer(await targetOf(connectionId, 'log in with the answers of a person'), answers)),

    target,

    /** What stands against a document's credential: it is not there, may not be read, or is of another kind than the type needs. */
    async credentialProblem(document: unknown): Promise<Problem | undefined> {
      const parsed = Referring.safeParse(document)
      if (!parsed.success || parsed.data.credentialRef === '') return undefined
      const { type, credentialRef, id, environmentId, configuration } = parsed.data
      const say = (message: string): Problem => ({ path: 'credentialRef', message })
      if (type === 'local') return say('a local connection needs no credential; leave it empty')
      const owner = { ...(environmentId === '' ? {} : { environmentId }), ...(id === '' ? {} : { connectionId: id }) }
      try {
        const { kind, ...secret } = await parts.secrets.open(credentialRef, {
          actor: 'service',
          purpose: 'see whether a connection may use it',
          ...owner,
        })
        if (kind !== neededKinds[type])
          return say(
            `${JSON.stringify(credentialRef)} is ${kindWords[kind]}; a connection of type ${type} needs ${kindWords[neededKinds[type]]}`,
          )
        const provider = configuration?.['provider']
        if ('provider' in secret && typeof provider === 'string' && secret.provider !== provider)
          return say(`${JSON.stringify(credentialRef)} is a credential of ${secret.provider}, and configuration.provider is ${provider}`)
        return undefined
      } catch (error) {
        if (error instanceof Refusal && error.code === 'unacceptable') return say(error.message)
        throw error
      }
    },

    /** Opens what a connection refers to, for checks of other protocols. */
    secret: (connection: ConnectionDocument, purpose: string, actor = 'service') =>
      parts.secrets.open(connection.credentialRef, {
        actor,
        purpose,
        ...(connection.environmentId === '' ? {} : { environmentId: connection.environmentId }),
        ...(connection.id === '' ? {} : { connectionId: connection.id }),
      }),
    sessions,
    localShell: parts.localShell,
    allowProxyCommand: parts.allowProxyCommand,
    forget,
  }
}

export type Links = ReturnType<typeof openLinks>

const stateOf = ({ state, since, prompts, error }: SshState): LinkState => ({
  state,
  since: since.toISOString(),
  ...(prompts === undefined ? {} : { prompts }),
  ...(error === undefined ? {} : { error }),
})

const Referring = z.object({
  id: z.string().catch(''),
  environmentId: z.string().catch(''),
  type: z.enum(['ssh', 'kubernetes', 'cloud', 'local']),
  credentialRef: z.string(),
  configuration: z.record(z.string(), z.unknown()).optional().catch(undefined),
})
const neededKinds = { ssh: 'ssh-key', kubernetes: 'kubernetes-token', cloud: 'cloud-credential' } as const
const kindWords: Record<Secret['kind'], string> = {
  'ssh-key': 'an SSH key',
  'kubernetes-token': 'a Kubernetes token',
  'cloud-credential': 'a cloud credential',
}

/** What of an ssh connection's configuration says how to connect; checked by `connectionProblems` before. */
const Settings = z.object({
  port: z.number().optional(),
  proxyJump: z.union([z.string(), z.array(z.string())]).optional(),
  proxyCommand: z.string().optional(),
  hostKeyAlias: z.string().optional(),
  knownHosts: z.string().optional(),
  hostKeyFingerprints: z.array(z.string()).optional(),
  hostKeyPolicy: z.enum(['strict', 'accept-new']).optional(),
  forwardAgent: z.boolean().optional(),
})

/** Hops of a `proxyJump`, the nearest first. */
const jumpsOf = (proxyJump: string | readonly string[] | undefined): string[] =>
  (typeof proxyJump === 'string' ? proxyJump.split(',') : [...(proxyJump ?? [])]).map((text) => text.trim()).filter((text) => text !== '')
