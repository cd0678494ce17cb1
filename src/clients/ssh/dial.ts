import type { Duplex } from 'node:stream'
import type { Client } from 'ssh2'
import { within } from '../../pacing/within.ts'
import { LinkError } from '../../shell/site-shell.ts'
import type { LoginProgress } from './login-progress.ts'
import { printableMessage } from './printable.ts'
import { ChangedHostKey, logIn, type AskPerson } from './login.ts'
import { openProxyCommand, openRoute } from './route.ts'
import type { SshSession } from './session.ts'
import type { SshSessionsOptions } from './sessions-options.ts'
import type { LoginPrompts, SshSecret, SshTarget } from './target.ts'

/** A connection over which a host behind it can be reached. */
export type Forwarder = Pick<SshSession, 'forward'>

/** The fault of a target that is known before any attempt. */
const faultOf = (target: SshTarget): string | undefined => {
  // A proxy command would read a leading dash as an option.
  if (!/^[^\s\p{Cc}/@-][^\s\p{Cc}/@]{0,254}$/u.test(target.host)) return 'the host is no name and no address'
  if (!Number.isInteger(target.port) || target.port < 1 || target.port > 65_535)
    return `the port ${target.port} is not within 1 and 65535`
  if (!/^[^\s\p{Cc}-][^\p{Cc}]{0,254}$/u.test(target.username))
    return 'the user name is empty or has characters that none can have'
  return undefined
}

export const waitsForPerson = (prompts: LoginPrompts): LinkError =>
  new LinkError(
    'login',
    `the login waits for a person: ${prompts.prompts.map(({ prompt }) => prompt).join(' ') || prompts.instruction}`,
    {
      waitsForPerson: true,
    },
  )

/** The failure of a host on the way, as the failure of the way. */
export const onTheWay = (jump: SshTarget, error: unknown): LinkError => {
  const {
    stage,
    permanent,
    waitsForPerson: waits,
  } = error instanceof LinkError ? error : new LinkError('route', printableMessage(error))
  return new LinkError('route', `jump host ${jump.host}: ${stage}: ${printableMessage(error)}`, {
    cause: error,
    permanent,
    waitsForPerson: waits,
  })
}

interface Dialling {
  target: SshTarget
  /** The last host on the way. */
  parent: Forwarder | undefined
  progress: LoginProgress
  options: SshSessionsOptions
  ask: AskPerson
}
interface Dialled {
  client: Client
  route: Duplex
}

/**
 * The whole way to a login over a connection of its own. A fingerprint does not tell the type of its
 * key: a host with several keys is asked for each, until one has a known fingerprint.
 */
export const dial = async (dialling: Dialling): Promise<Dialled> => {
  const { target, progress } = dialling
  const before = progress.stages.length
  let changed: ChangedHostKey | undefined
  for (const shown: string[] = []; ;) {
    try {
      return await dialWithout(shown, dialling)
    } catch (error) {
      const other = error instanceof ChangedHostKey && !shown.includes(error.type) ? error : undefined
      // What it shows last, or that it has no other, says less than its first key.
      if (other === undefined && changed !== undefined && isHostKeyFault(error)) throw changed
      if (other === undefined || (target.hostKeys.fingerprints ?? []).length === 0) throw error
      changed ??= other
      shown.push(other.type)
      progress.back(before)
    }
  }
}

const isHostKeyFault = (error: unknown): boolean => error instanceof LinkError && error.stage === 'host key'

const dialWithout = async (
  types: readonly string[],
  { target, parent, progress, options, ask }: Dialling,
): Promise<Dialled> => {
  const fault = faultOf(target)
  if (fault !== undefined) throw new LinkError('name', fault, { permanent: true })
  const secret: SshSecret = target.secret === undefined ? {} : await openSecret(target.secret)
  let route: Duplex
  let printed: (() => Promise<string>) | undefined
  if (parent !== undefined) {
    route = await within(
      parent.forward(target.host, target.port),
      target.timeouts?.routeMs ?? 10_000,
      () => new LinkError('route', `no connection to ${target.host} through the jump host in time`),
      (late) => late.destroy(),
    )
  } else if (target.proxyCommand !== undefined) {
    progress.reached('route', 'through a proxy command')
    if (options.allowProxyCommand !== true)
      throw new LinkError('route', 'proxy commands are not allowed here', { permanent: true })
    const proxy = openProxyCommand(target.proxyCommand, target)
    route = proxy.stream
    printed = proxy.printed
  } else route = await openRoute(target, progress, options.addressAllowed ?? (() => true))
  progress.reached('host key', progress.address)
  try {
    return { client: await logIn(target, secret, route, progress, ask, types), route }
  } catch (error) {
    route.destroy()
    const output = (await printed?.()) ?? ''
    if (output === '' || !(error instanceof LinkError)) throw error
    throw new LinkError(error.stage, `${error.message} (the proxy command printed: ${output})`, {
      cause: error,
      permanent: error.permanent,
    })
  }
}

const openSecret = async (open: () => Promise<SshSecret>): Promise<SshSecret> => {
  try {
    return await open()
  } catch (error) {
    throw new LinkError('login', `the credential cannot be used: ${printableMessage(error)}`, {
      cause: error,
      permanent: !(error instanceof LinkError) || error.permanent,
    })
  }
}
