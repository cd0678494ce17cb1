import type { LinkStage, SiteShell } from '../../drivers/shell.ts'
import type { OtherProcesses } from './relay.ts'
import type { HeldLogins } from './relay-server.ts'

/** An account on a host and the way to it. Plain data but for `secret` and `record`; equal data share one connection. */
export interface SshTarget {
  /** A name or an address, without scheme, port or user. */
  host: string
  /** 1–65535. */
  port: number
  username: string
  /** Names the secret without telling it (reference and version): a new one is a new login. */
  credential?: string
  /** Asked for at every login and not kept; absent where only a person can log in. */
  secret?: () => Promise<SshSecret>
  hostKeys: HostKeys
  /** Hosts to go through, the first is reached from here. A jump has no `jump` of its own. */
  jump?: readonly SshTarget[]
  /** Text for `/bin/sh` here whose input and output are the connection; `%h`, `%p`, `%r` become host, port and user. */
  proxyCommand?: string
  /** Lets programs at the site log in elsewhere with the private key while they run; the key itself never leaves this process. */
  forwardAgent?: boolean
  timeouts?: SshTimeouts
}

export interface SshSecret {
  /** OpenSSH or PEM text without passphrase. */
  privateKey?: string
  password?: string
}

export interface HostKeys {
  /** `strict`: only keys that `knownHosts` or `fingerprints` tell. `accept-new`: also the first key ever seen, which is recorded. */
  policy: 'strict' | 'accept-new'
  /** Text of a `known_hosts` file. */
  knownHosts?: string
  /** `SHA256:…` of keys that are right. */
  fingerprints?: readonly string[]
  /** The name under which `knownHosts` has the key, instead of `host`. */
  hostKeyAlias?: string
  /** Called at first contact under `accept-new`, before the login; a rejection refuses the key. */
  record?: (key: SshHostKey) => Promise<void>
}

export interface SshHostKey {
  /** As in `known_hosts`: `example.org` or `[example.org]:2222`. */
  host: string
  /** `ssh-ed25519`, `ecdsa-sha2-nistp256`, … */
  type: string
  /** `SHA256:…` */
  fingerprint: string
  /** A line for `known_hosts`. */
  line: string
}

export interface SshTimeouts {
  /** To find the name and make the TCP connection; default 10 s. */
  routeMs?: number
  /** From there to the end of the login, a person's time for answers not counted; default 20 s. */
  loginMs?: number
  /** Pause between keepalives; default 15 s. 0: none. */
  keepaliveMs?: number
  /** Keepalives without answer after which the link counts as lost; default 3. */
  keepaliveCount?: number
}

/** What a server asks a person (RFC 4256). */
export interface LoginPrompts {
  name: string
  instruction: string
  prompts: { prompt: string; echo: boolean }[]
}

export interface SshState {
  state: 'disconnected' | 'connecting' | 'connected' | 'waiting for login' | 'refused'
  since: Date
  /** While it waits for a person. */
  prompts?: LoginPrompts
  /** The last failure since it was connected, in words that may be shown. */
  error?: string
  /** How far the last failed attempt came. */
  stage?: LinkStage
}

export interface SshStage {
  stage: Exclude<LinkStage, 'link'>
  ok: boolean
  milliseconds: number
  detail?: string
}

export interface SshProbe {
  healthy: boolean
  /** The stages gone through, in order; the last one is the failed one if one failed. */
  stages: SshStage[]
  /** The address connected to; absent behind a proxy command and when none was. */
  address?: string
  /** What the server says of itself, `SSH-2.0-OpenSSH_9.2p1 …`. */
  banner?: string
  hostKey?: SshHostKey
  /** The key was not known before: recorded under `accept-new`, refused under `strict`. */
  hostKeyIsNew?: boolean
  /** A person has to answer. */
  prompts?: LoginPrompts
  /** In one sentence, for people. */
  message: string
}

/** All SSH connections of this process: one per login, made when needed, shared by all callers. */
export interface SshSessions {
  /** Never fails and connects nothing: the first `run` or `open` does. Closing it leaves the connection to the others. */
  shell(target: SshTarget): SiteShell
  state(target: SshTarget): SshState
  /** As `state`, and what the other processes of the fleet tell: connected where a person logged in at one of them, within 20 s. */
  standing(target: SshTarget): Promise<SshState>
  /**
   * A person's answers to the prompts of `state`, in their order. The state afterwards: connected, or waiting with the next prompts or with
   * the same ones and `error`. Without a login that waits it logs in until the server asks; where another process of the fleet holds the login
   * nothing is answered.
   */
  answer(target: SshTarget, answers: readonly string[]): Promise<SshState>
  /**
   * Health by stages, ≤ 15 s, never throws. Over the shared connection where there is one or one can be made; after a failed attempt what
   * that one told, until the next is due, unless `now`. `fresh`: over a connection of its own that is closed afterwards and records nothing.
   * A login that waits for a person is not tried again.
   */
  probe(target: SshTarget, options?: { fresh?: boolean; now?: boolean }): Promise<SshProbe>
  /** Ends the connection of the target, also those that a person made at other processes of the fleet, and forgets its state. */
  forget(target: SshTarget): Promise<void>
  /** Ends all; calls afterwards reject. */
  close(): Promise<void>
}

export interface SshSessionsOptions {
  /** Asked about the address itself before a byte is sent to it; a text is the reason against it. Default: all are allowed. */
  addressAllowed?: (address: string) => true | string
  /** Default false. */
  allowProxyCommand?: boolean
  /** Session channels per connection; default 8, under OpenSSH's `MaxSessions` 10. */
  channels?: number
  /** Default 5 min; a connection that a person logged in stays. */
  idleMs?: number
  /** First and longest pause before an attempt after a failed one; default 0.5 s and 30 s. */
  backOffMs?: { first: number; longest: number }
  /** Logins under way to one host and port at once; default 5, under OpenSSH's `MaxStartups` 10:30:100. */
  loginsPerHost?: number
  /** Lends logins that a person made to the other processes of the fleet, and theirs to this one. Default: each process has its own. */
  others?: (held: HeldLogins) => OtherProcesses
  /** Told of each change. */
  onState?: (target: SshTarget, state: SshState) => void
}
