import type { Duplex } from 'node:stream'
import ssh2, { type AnyAuthMethod, type Client, type ParsedKey, type ServerHostKeyAlgorithm } from 'ssh2'
import { LinkError } from '../../shell/site-shell.ts'
import { KeyAgent } from './agent.ts'
import type { LoginProgress } from './login-progress.ts'
import { printableMessage, printable } from './printable.ts'
import {
  fingerprint,
  judgeHostKey,
  keyType,
  knownHostsName,
  linesOf,
  parseKnownHosts,
  type HostKeyVerdict,
} from './known-hosts.ts'
import { keepCipherKeys } from './packets.ts'
import type { HostKeys, LoginPrompts, SshHostKey, SshSecret, SshTarget } from './target.ts'

/**
 * Asks a person for answers to the prompts, in their order; a rejection ends the login. `error`:
 * the answers before were not accepted.
 */
export type AskPerson = (prompts: LoginPrompts, error?: string) => Promise<readonly string[]>

/** OpenSSH closes after 6 failed methods of a connection (`MaxAuthTries`). */
const answerRounds = 3

/**
 * Makes the handshake, judges the host key and logs in, over an open route. It judges the key
 * before it sends anything about the user. The caller uses or ends the returned client. `without`:
 * types of host keys that are not asked for.
 *
 * @throws LinkError in stage `host key` or `login`; `ChangedHostKey` for another key than the known
 *   ones.
 */
export const logIn = (
  target: SshTarget,
  secret: SshSecret,
  route: Duplex,
  progress: LoginProgress,
  ask: AskPerson,
  without: readonly string[] = [],
): Promise<Client> => {
  const client = new ssh2.Client()
  keepCipherKeys(client)
  const timeout = target.timeouts?.loginMs ?? 20_000
  const entries = parseKnownHosts(target.hostKeys.knownHosts ?? '')
  const name = target.hostKeys.hostKeyAlias?.toLowerCase() ?? knownHostsName(target.host, target.port)
  const key = secret.privateKey === undefined ? undefined : parsePrivateKey(secret.privateKey)
  const preferred = algorithmsOf(
    linesOf(entries, name).map((line) => line.type),
    without,
  )

  return new Promise<Client>((resolve, reject) => {
    let over = false
    let judged: Buffer | undefined
    let timer: NodeJS.Timeout | undefined
    const fail = (error: unknown): void => {
      if (over) return
      over = true
      clearTimeout(timer)
      client.destroy()
      route.destroy()
      reject(error instanceof Error ? error : new Error(String(error)))
    }
    const startTimer = (): void => {
      clearTimeout(timer)
      timer = setTimeout(() => {
        const what =
          progress.banner === undefined
            ? 'the server does not speak SSH or hangs'
            : 'the server stopped answering'
        fail(new LinkError(progress.stage, `${what}: nothing within ${timeout / 1000} s`))
      }, timeout)
    }
    startTimer()
    const auth = authentication(target, secret, key, (prompts, error, finish) => {
      clearTimeout(timer)
      ask(prompts, error).then((answers) => {
        if (over) return
        startTimer()
        finish(answers)
      }, fail)
    })

    client.on('error', (error: Error & { level?: string; code?: unknown }) => {
      if (over) return
      if (error.level === 'client-authentication') fail(auth.refusal())
      else if (progress.stage === 'host key' && /no matching/i.test(error.message)) {
        fail(
          new LinkError('host key', `nothing in common with the server: ${printableMessage(error)}`, {
            permanent: true,
          }),
        )
      } else if (progress.stage === 'host key') {
        const fault = progress.banner === undefined ? 'this is no SSH server' : 'the handshake failed'
        fail(new LinkError('host key', `${fault}: ${printableMessage(error)}`))
      } else {
        // "Too many authentication failures" and the like: the next attempt would fail too. A
        // broken link gives no such reason.
        const fromServer = error.level !== 'client-socket'
        const permanent = fromServer && (auth.refused() || /authentication fail/i.test(error.message))
        fail(new LinkError('login', `the server ended the login: ${printableMessage(error)}`, { permanent }))
      }
    })
    client.on('close', () => fail(new LinkError(progress.stage, 'the server closed the connection')))
    client.on('greeting', () => undefined)
    client.once('ready', () => {
      if (over) {
        client.end()
        return
      }
      over = true
      clearTimeout(timer)
      progress.reached('shell', auth.method())
      client.removeAllListeners('error').removeAllListeners('close')
      resolve(client)
    })

    const verify = async (shown: Buffer): Promise<void> => {
      progress.banner = identOf(client)
      progress.hostKey = {
        host: name,
        type: keyType(shown),
        fingerprint: fingerprint(shown),
        line: `${name} ${keyType(shown)} ${shown.toString('base64')}`,
      }
      const verdict = judgeHostKey(shown, progress.hostKey.host, {
        entries,
        fingerprints: target.hostKeys.fingerprints ?? [],
      })
      const isNew = verdict.verdict === 'unknown'
      // Under accept-new the record decides whether it is: a changed key is refused there.
      progress.hostKeyIsNew = isNew && target.hostKeys.policy === 'strict'
      await accept(verdict, progress.hostKey, target.hostKeys)
      progress.hostKeyIsNew = isNew
      progress.reached('login', `${progress.hostKey.type} ${progress.hostKey.fingerprint}`)
    }
    try {
      client.connect({
        sock: route,
        username: target.username,
        readyTimeout: 0,
        keepaliveInterval: target.timeouts?.keepaliveMs ?? 15_000,
        keepaliveCountMax: target.timeouts?.keepaliveCount ?? 3,
        ...(preferred === undefined ? {} : { algorithms: { serverHostKey: preferred } }),
        ...(target.forwardAgent === true && key !== undefined
          ? { agent: new KeyAgent(key), agentForward: true }
          : {}),
        hostVerifier: (shown: Buffer, answer: (accepted: boolean) => void) => {
          // Keys are exchanged again later: the host has to be the same.
          if (judged !== undefined) {
            answer(shown.equals(judged))
            return
          }
          verify(shown).then(
            () => {
              judged = Buffer.from(shown)
              answer(!over)
            },
            (error: unknown) => fail(error),
          )
        },
        authHandler: auth.next,
      })
    } catch (error) {
      fail(new LinkError('login', printableMessage(error), { permanent: true }))
    }
  })
}

/** @throws LinkError that does not quote the key */
export const parsePrivateKey = (text: string): ParsedKey => {
  const parsed = ssh2.utils.parseKey(text) as ParsedKey | ParsedKey[] | Error
  const key = Array.isArray(parsed) ? parsed[0]! : parsed
  // The parser's own message could quote the key.
  if (key instanceof Error || !key.isPrivateKey()) {
    throw new LinkError(
      'login',
      'the private key of the credential cannot be read: OpenSSH or PEM text without passphrase is needed',
      {
        permanent: true,
      },
    )
  }
  return key
}

/**
 * Prefers the types of the known host keys, as OpenSSH does: a server with several keys then shows
 * the recorded one.
 */
const algorithmsOf = (
  types: readonly string[],
  without: readonly string[],
): ServerHostKeyAlgorithm[] | undefined => {
  const ofTypes = (some: readonly string[]): ServerHostKeyAlgorithm[] => {
    const names = some.flatMap((type) => (type === 'ssh-rsa' ? ['rsa-sha2-512', 'rsa-sha2-256'] : [type]))
    return algorithms.filter((algorithm) => names.includes(algorithm))
  }
  const [first, never] = [ofTypes(types), ofTypes(without)]
  if (first.length === 0 && never.length === 0) return undefined
  const ordered = [...first, ...algorithms.filter((algorithm) => !first.includes(algorithm))]
  return ordered.filter((algorithm) => !never.includes(algorithm))
}

const algorithms: ServerHostKeyAlgorithm[] = [
  'ssh-ed25519',
  'ecdsa-sha2-nistp256',
  'ecdsa-sha2-nistp384',
  'ecdsa-sha2-nistp521',
  'rsa-sha2-512',
  'rsa-sha2-256',
]

/** A host shows a key that is not among the known ones. It may have others. */
export class ChangedHostKey extends LinkError {
  readonly type: string
  constructor(type: string, message: string) {
    super('host key', message, { permanent: true })
    this.type = type
  }
}

/** The server's own identification; ssh2 keeps the software part only. */
const identOf = (client: Client): string => {
  const software = (client as unknown as { _remoteVer?: string })._remoteVer
  return printable(`SSH-2.0-${software ?? ''}`)
}

/**
 * Records a key that is new where that is allowed. @throws LinkError that names the fingerprints of
 * a key that is not accepted.
 */
const accept = async (verdict: HostKeyVerdict, key: SshHostKey, rules: HostKeys): Promise<void> => {
  const refuse = (what: string): LinkError => new LinkError('host key', what, { permanent: true })
  switch (verdict.verdict) {
    case 'known':
      return
    case 'revoked':
      throw refuse(
        `the host key of ${key.host} is ${key.fingerprint} (${key.type}), which is marked as revoked`,
      )
    case 'changed':
      throw new ChangedHostKey(
        key.type,
        `the host key of ${key.host} has changed: expected ${verdict.expected.join(' or ')}, got ` +
          `${key.fingerprint} (${key.type}). ` +
          'Either the host has a new key or another host answers in its place',
      )
    case 'unknown':
      if (rules.policy === 'accept-new') {
        await rules.record?.(key)
        return
      }
      throw refuse(
        `the host key of ${key.host} is not known: it shows ${key.fingerprint} (${key.type}). ` +
          (verdict.authority
            ? 'Host certificates (@cert-authority) are not read: give the key itself or its fingerprint'
            : 'Give this fingerprint, if it is right, or its known_hosts line'),
      )
  }
}

/** The order of the login methods, and the result of each. */
const authentication = (
  target: SshTarget,
  secret: SshSecret,
  key: ParsedKey | undefined,
  ask: (
    prompts: LoginPrompts,
    error: string | undefined,
    finish: (answers: readonly string[]) => void,
  ) => void,
) => {
  const username = target.username
  const tried: string[] = []
  let offered: string[] = []
  let isPartial = false
  let rounds = 0
  let answered = false
  let passwordGiven = false

  const prompt = (
    name: string,
    instruction: string,
    _language: string,
    prompts: { prompt: string; echo?: boolean }[],
    finish: (answers: string[]) => void,
  ): void => {
    // A server that asks for the password by this method gets it once; when it asks again, the
    // password was wrong.
    const [only] = prompts
    if (
      secret.password !== undefined &&
      !passwordGiven &&
      prompts.length === 1 &&
      only!.echo !== true &&
      /password/i.test(only!.prompt)
    ) {
      passwordGiven = true
      finish([secret.password])
      return
    }
    const asked: LoginPrompts = {
      name: printable(name),
      instruction: printable(instruction),
      prompts: prompts
        .slice(0, 16)
        .map((one) => ({ prompt: printable(one.prompt), echo: one.echo === true })),
    }
    ask(asked, answered ? 'the answers were not accepted' : undefined, (answers) => {
      answered = true
      finish(prompts.map((_one, index) => answers[index] ?? ''))
    })
  }

  const next = (left: string[] | null, partial: boolean | null): AnyAuthMethod | false => {
    if (left !== null) offered = left
    if (partial === true) isPartial = true
    const possible = (type: string): boolean => left === null || left.includes(type)
    if (key !== undefined && !tried.includes('publickey') && possible('publickey')) {
      tried.push('publickey')
      return { type: 'publickey', username, key }
    }
    if (secret.password !== undefined && !tried.includes('password') && possible('password')) {
      tried.push('password')
      return { type: 'password', username, password: secret.password }
    }
    // Questions to a person do not replace a refused key: they are asked where the server wants
    // both, or where there is no secret.
    const mayAsk = isPartial || key === undefined
    if (
      left !== null &&
      mayAsk &&
      possible('keyboard-interactive') &&
      (rounds === 0 || (answered && rounds < answerRounds))
    ) {
      rounds++
      if (rounds === 1) tried.push('keyboard-interactive')
      return { type: 'keyboard-interactive', username, prompt: prompt }
    }
    if (left === null) return { type: 'none', username }
    return false
  }

  return {
    next,
    refused: () => tried.length > 0 && offered.length > 0,
    method: () => tried.at(-1) ?? 'none',
    refusal: () => {
      const shown = tried.map((method) =>
        method === 'publickey' && key !== undefined
          ? `the key ${fingerprint(key.getPublicSSH())}`
          : method === 'password'
            ? 'the password'
            : 'the answers',
      )
      const what =
        shown.length === 0
          ? `no way to log in as ${username} is left`
          : `${username} was refused with ${shown.join(' and ')}`
      return new LinkError(
        'login',
        `${what}${offered.length > 0 ? `; the server takes ${printable(offered.join(', '))}` : ''}`,
        {
          permanent: true,
        },
      )
    },
  }
}
