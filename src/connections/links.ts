import { z } from 'zod'
import type {
  HostKeys,
  LoginPrompts,
  SshHostKey,
  SshSecret,
  SshSessions,
  SshState,
  SshTarget,
} from '../clients/ssh/target.ts'
import type { Db } from '../db/sql.ts'
import { ownRecords } from '../db/own-records.ts'
import type { SiteFiles } from '../shell/site-files.ts'
import { append } from '../lists.ts'
import { LinkError, type SiteShell } from '../shell/site-shell.ts'
import { present } from '../json-object.ts'
import { existing, Refusal, type Problem } from '../refusal.ts'
import type { Secret, SecretOpener } from '../vault/secret.ts'
import { recordAudit } from '../domains/audit-events/store.ts'
import { parseHostPort, parseJump } from './endpoint.ts'
import { connectionProblems, givesTrust } from './rules.ts'
import type { ConnectionDocument } from '../domains/environment-connections/schemas.ts'
import {
  keepHostKey,
  readConnection,
  readConnections,
  recordedHostKeys,
  type ConnectionsOf,
} from '../domains/environment-connections/store.ts'

export interface LinkParts {
  db: Db
  secrets: SecretOpener
  sessions: SshSessions
  /** The shell of connections of type local. */
  localShell: SiteShell
  allowProxyCommand: boolean
  /**
   * Whether `accept-new` is the policy of connections that give neither a policy nor a means to
   * identify the host.
   */
  trustOnFirstUse: boolean
}

/**
 * The state of a connection's link: in this process, or over the login of another process of the
 * fleet.
 */
export interface LinkState {
  state: SshState['state']
  since: string
  prompts?: LoginPrompts
  error?: string
}

/** A connection's document is read again after this long, so that a change reaches links in use. */
const documentAgeMs = 2_000

/** The owner for which a secret is opened, as far as the document names it. */
const ownerOf = ({ environmentId, id }: { environmentId: string; id: string }) => ({
  ...(environmentId === '' ? {} : { environmentId }),
  ...(id === '' ? {} : { connectionId: id }),
})

const sshSecretOf = async (
  secrets: SecretOpener,
  connection: ConnectionDocument,
  purpose: string,
  actor: string,
): Promise<SshSecret> => {
  const { credentialRef: reference } = connection
  const secret = await ownRecords(secrets.open(reference, { actor, purpose, ...ownerOf(connection) }))
  if (secret.kind !== 'ssh-key')
    throw new LinkError(
      'login',
      `credentialRef ${JSON.stringify(reference)} is not an SSH key; refer to one`,
      { permanent: true },
    )
  return { privateKey: secret.privateKey }
}

/** Records the first key that a host has shown. @throws LinkError when another key is on record */
const recordHostKey = async (db: Db, connection: ConnectionDocument, key: SshHostKey): Promise<void> => {
  const { fingerprint, isNew } = await keepHostKey(db, connection.id, key)
  if (fingerprint !== key.fingerprint)
    throw new LinkError(
      'host key',
      `the host key of ${key.host} has changed: ${fingerprint} was recorded at first contact, ` +
        `${key.fingerprint} is shown now; if that is right, save the connection with it in hostKeyFingerprints`,
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

/** How a connection's host is identified. `trial`: as for `loginTarget`. */
const hostKeysOf = async (
  { db, trustOnFirstUse }: LinkParts,
  connection: ConnectionDocument,
  settings: z.output<typeof Settings>,
  trial: string | undefined,
): Promise<HostKeys> => {
  const policy =
    settings.hostKeyPolicy ?? (trustOnFirstUse && !givesTrust(connection) ? 'accept-new' : 'strict')
  // Under accept-new `record` compares the keys. So the target stays the same, and its login
  // shared, when the first key is recorded.
  const recorded = trial === undefined && policy === 'strict' ? await recordedHostKeys(db, connection.id) : []
  const lines = [settings.knownHosts ?? '', ...recorded.map(({ line }) => line)].filter((text) => text !== '')
  return {
    policy,
    ...present({
      knownHosts: lines.length === 0 ? undefined : `${lines.join('\n')}\n`,
      fingerprints: settings.hostKeyFingerprints,
      hostKeyAlias: settings.hostKeyAlias,
    }),
    ...(trial === undefined
      ? {
          record: (key) => recordHostKey(db, connection, key),
          // A key is compared with the record of one connection at each login, so the login is its own.
          ...(policy === 'accept-new' ? { recordName: connection.id } : {}),
        }
      : { record: () => Promise.resolve() }),
  }
}

interface LoginPurpose {
  purpose: string
  actor?: string
  trial?: string
}

/**
 * The login that a document describes. `trial`: the connection is not stored; nothing is recorded
 * and the login is not shared.
 */
const loginTarget = async (
  parts: LinkParts,
  connection: ConnectionDocument,
  { purpose, actor = 'service', trial }: LoginPurpose,
): Promise<SshTarget> => {
  const [problem] = connectionProblems(connection, parts)
  if (problem !== undefined)
    throw new LinkError('name', `${problem.path}: ${problem.message}`, { permanent: true })
  const settings = Settings.parse(connection.configuration ?? {})
  const hostKeys = await hostKeysOf(parts, connection, settings, trial)
  const place = parseHostPort(connection.endpoint) as { host: string; port?: number }
  const { credentialRef } = connection
  const login = present({
    credential: `${credentialRef}${trial === undefined ? '' : ` ${trial}`}` || undefined,
    secret: credentialRef === '' ? undefined : () => sshSecretOf(parts.secrets, connection, purpose, actor),
  })
  const { hostKeyAlias: _alias, ...jumpKeys } = hostKeys
  const jump = jumpsOf(settings.proxyJump).map((text) => {
    const hop = parseJump(text) as { host: string; port?: number; username?: string }
    return {
      host: hop.host,
      port: hop.port ?? 22,
      username: hop.username ?? connection.username,
      ...login,
      hostKeys: jumpKeys,
    }
  })
  return {
    host: place.host,
    port: place.port ?? settings.port ?? 22,
    username: connection.username,
    ...login,
    hostKeys,
    ...present({
      jump: jump.length === 0 ? undefined : jump,
      proxyCommand: settings.proxyCommand,
      forwardAgent: settings.forwardAgent === true || undefined,
    }),
  }
}

/** As `Links.credentialProblem`. */
const credentialProblem = async (secrets: SecretOpener, document: unknown): Promise<Problem | undefined> => {
  const parsed = Referring.safeParse(document)
  if (!parsed.success || parsed.data.credentialRef === '') return undefined
  const { type, credentialRef, configuration } = parsed.data
  const problemOf = (message: string): Problem => ({ path: 'credentialRef', message })
  if (type === 'local') return problemOf('a local connection needs no credential; leave it empty')
  try {
    const { kind, ...secret } = await secrets.open(credentialRef, {
      actor: 'service',
      purpose: 'see whether a connection may use it',
      ...ownerOf(parsed.data),
    })
    if (kind !== neededKinds[type])
      return problemOf(
        `${JSON.stringify(credentialRef)} is ${kindNames[kind]}; a connection of type ${type} needs ` +
          kindNames[neededKinds[type]],
      )
    const provider = configuration?.['provider']
    if ('provider' in secret && typeof provider === 'string' && secret.provider !== provider)
      return problemOf(
        `${JSON.stringify(credentialRef)} is a credential of ${secret.provider}, and ` +
          `configuration.provider is ${provider}`,
      )
    return undefined
  } catch (error) {
    if (error instanceof Refusal && error.code === 'unacceptable') return problemOf(error.message)
    throw error
  }
}

const notSsh = (type: string): string => `is of type ${type}; only ssh connections log in`

/** The members of a connection that decide the login and the host. */
const loginMembers = ({
  type,
  endpoint,
  username,
  credentialRef,
  configuration = {},
}: ConnectionDocument): string =>
  JSON.stringify([
    type,
    endpoint,
    username,
    credentialRef,
    Object.entries(configuration).toSorted(([a], [b]) => (a < b ? -1 : 1)),
  ])

/** The logins and shells of stored connections, by connection id. */
const openStored = (parts: LinkParts) => {
  const { db, sessions } = parts
  const known = new Map<string, { at: number; shell: Promise<SiteShell> }>()
  /**
   * The targets of a connection's links, to be closed when the connection changes or is deleted.
   */
  const targets = new Map<string, SshTarget>()

  /** Removes what is kept of a connection. @returns the target of its links, whose login is to end */
  const drop = (connectionId: string): SshTarget[] => {
    known.delete(connectionId)
    const old = targets.get(connectionId)
    targets.delete(connectionId)
    return old === undefined ? [] : [old]
  }
  const forget = (connectionId: string): Promise<void> => sessions.forget(drop(connectionId))

  /** The login of a stored connection, also where this process has not used it. */
  const storedLogin = async (connection: ConnectionDocument): Promise<SshTarget | undefined> => {
    if (connection.type !== 'ssh') return undefined
    return loginTarget(parts, connection, { purpose: 'end its login' }).catch((error: unknown) => {
      // A document with a fault has no login.
      if (error instanceof LinkError) return undefined
      throw error
    })
  }

  /** As `Links.changing`. */
  const changing = async <T>(of: ConnectionsOf, change: () => Promise<T>): Promise<T> => {
    const before: { connection: ConnectionDocument; login: SshTarget | undefined }[] = []
    for (const connection of await readConnections(db, of))
      before.push({ connection, login: await storedLogin(connection) })
    const result = await change()
    const after = new Map((await readConnections(db, of)).map((each) => [each.id, loginMembers(each)]))
    const ended: SshTarget[] = []
    for (const { connection, login } of before) {
      // A session that a person opened by hand is not ended for a mere change of the name.
      if (after.get(connection.id) === loginMembers(connection)) continue
      append(ended, drop(connection.id))
      if (login !== undefined) ended.push(login)
    }
    await sessions.forget(ended)
    return result
  }

  /** The login of a connection; undefined for this machine. @throws LinkError where there is none */
  const loginOf = async (
    connectionId: string,
    connection: ConnectionDocument | undefined,
    purpose: string,
  ): Promise<SshTarget | undefined> => {
    if (connection?.type === 'local') return undefined
    if (connection?.type === 'ssh') {
      const target = await loginTarget(parts, connection, { purpose })
      targets.set(connectionId, target)
      return target
    }
    if (connection === undefined) await forget(connectionId)
    const why = connection === undefined ? 'does not exist' : notSsh(connection.type)
    const stage = connection === undefined ? 'name' : 'shell'
    throw new LinkError(stage, `connection ${JSON.stringify(connectionId)} ${why}`, { permanent: true })
  }

  const open = async (connectionId: string, purpose: string): Promise<SiteShell> => {
    const login = await loginOf(connectionId, await readConnection(db, connectionId), purpose)
    return login === undefined ? parts.localShell : sessions.shell(login)
  }

  /** @throws LinkError where a connection is not of type ssh */
  const targetOf = async (
    connectionId: string,
    connection: ConnectionDocument | undefined,
    purpose: string,
  ): Promise<SshTarget> => {
    const login = await loginOf(connectionId, connection, purpose)
    if (login !== undefined) return login
    throw new LinkError('login', `connection ${JSON.stringify(connectionId)} ${notSsh('local')}`, {
      permanent: true,
    })
  }

  return {
    forget,
    changing,

    /** The login that a document of the connection describes. */
    described: async (connection: ConnectionDocument, purpose: LoginPurpose): Promise<SshTarget> => {
      const target = await loginTarget(parts, connection, purpose)
      if (purpose.trial === undefined) targets.set(connection.id, target)
      return target
    },

    /** @throws LinkError where a connection is not of type ssh */
    target: (connectionId: string, purpose: string): Promise<SshTarget> =>
      ownRecords(
        readConnection(db, connectionId).then((connection) => targetOf(connectionId, connection, purpose)),
      ),

    /** As `target`. @throws Refusal for an unknown connection and one of another type */
    async requested(connectionId: string, purpose: string): Promise<SshTarget> {
      const connection = existing(await readConnection(db, connectionId), 'connection', connectionId)
      return targetOf(connectionId, connection, purpose).catch((error: unknown) => {
        if (error instanceof LinkError) throw new Refusal('unacceptable', error.message, { cause: error })
        throw error
      })
    },

    /** The shell that the document describes now; rejects with a LinkError. */
    shell(connectionId: string, purpose: string): Promise<SiteShell> {
      const now = Date.now()
      const entry = known.get(connectionId)
      if (entry !== undefined && now - entry.at < documentAgeMs) return entry.shell
      const shell = ownRecords(open(connectionId, purpose))
      known.set(connectionId, { at: now, shell })
      shell.catch(() => known.delete(connectionId))
      return shell
    },
  }
}

/**
 * Links to sites through stored connections, and the helpers with which checks use documents that
 * are not stored.
 */
export const openLinks = (parts: LinkParts) => {
  const { sessions, secrets } = parts
  const stored = openStored(parts)
  return {
    /**
     * The shell of a stored connection. It connects by itself, follows changes of the connection's
     * document, and closing it leaves the session to its other users. A connection that is deleted
     * or has no shell rejects at the first call.
     */
    shell: (connectionId: string, purpose = 'run tasks at the site'): SiteShell => ({
      link: connectionId,
      run: async (script, options) => (await stored.shell(connectionId, purpose)).run(script, options),
      open: async (script, options) => (await stored.shell(connectionId, purpose)).open(script, options),
      terminal: async (script, size) => {
        const shell = await stored.shell(connectionId, purpose)
        if (shell.terminal !== undefined) return shell.terminal(script, size)
        throw new LinkError('shell', 'this connection opens no pseudo terminals', { permanent: true })
      },
      close: () => Promise.resolve(),
    }),

    /**
     * The account's files by SFTP, for accounts without a shell; as `shell`. The caller closes it.
     */
    files: (connectionId: string, purpose: string): SiteFiles =>
      sessions.files(() => stored.target(connectionId, purpose)),

    /**
     * The state of an ssh connection's login. @throws Refusal for an unknown connection and one of
     * another type
     */
    state: async (connectionId: string): Promise<LinkState> =>
      stateOf(await sessions.state(await stored.requested(connectionId, 'show how the login stands'))),

    /**
     * Takes a person's answers to the login's prompts, in order; returns the state afterwards.
     * @throws Refusal as `state`
     */
    answer: async (connectionId: string, answers: readonly string[]): Promise<LinkState> =>
      stateOf(
        await sessions.answer(
          await stored.requested(connectionId, 'log in with the answers of a person'),
          answers,
        ),
      ),

    target: stored.described,

    /**
     * The fault of a document's credential: it is missing, may not be read, or is of another kind
     * than the type needs.
     */
    credentialProblem: (document: unknown) => credentialProblem(secrets, document),

    /** Opens the secret that a connection refers to, for checks of other protocols. */
    secret: (connection: ConnectionDocument, purpose: string, actor = 'service') =>
      secrets.open(connection.credentialRef, { actor, purpose, ...ownerOf(connection) }),
    sessions,
    localShell: parts.localShell,
    allowProxyCommand: parts.allowProxyCommand,
    forget: stored.forget,

    /**
     * Makes a change of stored connections, then ends the logins of those that it has deleted or led
     * elsewhere, also those that a person made at other processes.
     */
    changing: stored.changing,
  }
}

export type Links = ReturnType<typeof openLinks>

const stateOf = ({ state, since, prompts, error }: SshState): LinkState => ({
  state,
  since: since.toISOString(),
  ...present({ prompts, error }),
})

const Referring = z.object({
  id: z.string().catch(''),
  environmentId: z.string().catch(''),
  type: z.enum(['ssh', 'kubernetes', 'cloud', 'local']),
  credentialRef: z.string(),
  configuration: z.record(z.string(), z.unknown()).optional().catch(undefined),
})
const neededKinds = { ssh: 'ssh-key', kubernetes: 'kubernetes-token', cloud: 'cloud-credential' } as const
const kindNames: Record<Secret['kind'], string> = {
  'ssh-key': 'an SSH key',
  'kubernetes-token': 'a Kubernetes token',
  'cloud-credential': 'a cloud credential',
  'registry-credential': 'a login of a registry',
  'signing-key': 'a signing key',
  'machine-variables': 'secret variables of playbooks',
}

/**
 * The part of an ssh connection's configuration that describes how to connect; `connectionProblems`
 * has checked it.
 */
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
  (typeof proxyJump === 'string' ? proxyJump.split(',') : [...(proxyJump ?? [])])
    .map((text) => text.trim())
    .filter((text) => text !== '')
