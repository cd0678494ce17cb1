import type { SiteFiles } from '../../shell/site-files.ts'
import type { LinkStage, SiteShell } from '../../shell/site-shell.ts'

/**
 * An account on a host and the way to it. Plain data but for `secret` and `record`; equal data
 * share one connection.
 */
export interface SshTarget {
  /** A name or an address, without scheme, port or user. */
  host: string
  /** 1–65535. */
  port: number
  username: string
  /** Names the secret without revealing it (reference and version): a new one is a new login. */
  credential?: string
  /** Called at every login, and the result is not kept; absent where only a person can log in. */
  secret?: () => Promise<SshSecret>
  hostKeys: HostKeys
  /** Hosts to go through; this process connects to the first. A jump has no `jump` of its own. */
  jump?: readonly SshTarget[]
  /**
   * Text for the local `/bin/sh`; its input and output are the connection. `%h`, `%p`, `%r` become
   * host, port and user.
   */
  proxyCommand?: string
  /**
   * Lets programs at the site log in elsewhere with the private key while they run; the key itself
   * never leaves this process.
   */
  forwardAgent?: boolean
  timeouts?: SshTimeouts
}

export interface SshSecret {
  /** OpenSSH or PEM text without passphrase. */
  privateKey?: string
  password?: string
}

export interface HostKeys {
  /**
   * `strict`: only keys in `knownHosts` or `fingerprints`. `accept-new`: also the first key ever
   * seen, which is recorded.
   */
  policy: 'strict' | 'accept-new'
  /** Text of a `known_hosts` file. */
  knownHosts?: string
  /** `SHA256:…` of the right keys. */
  fingerprints?: readonly string[]
  /** The name under which `knownHosts` has the key, instead of `host`. */
  hostKeyAlias?: string
  /** Called at first contact under `accept-new`, before the login; a rejection refuses the key. */
  record?: (key: SshHostKey) => Promise<void>
  /** Names the record that `record` keeps: only targets of one record share a connection. */
  recordName?: string
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
  /** Limit for looking up the name and making the TCP connection; default 10 s. */
  routeMs?: number
  /**
   * Limit from there to the end of the login, without a person's time for answers; default 20 s.
   */
  loginMs?: number
  /** Pause between keepalives; default 15 s. 0: none. */
  keepaliveMs?: number
  /** Unanswered keepalives after which the link counts as lost; default 3. */
  keepaliveCount?: number
}

/** A server's questions to a person (RFC 4256). */
export interface LoginPrompts {
  name: string
  instruction: string
  prompts: { prompt: string; echo: boolean }[]
}

export interface SshState {
  state: 'disconnected' | 'connecting' | 'connected' | 'waiting for login' | 'refused'
  since: Date
  /** Present while it waits for a person. */
  prompts?: LoginPrompts
  /** The last failure since it was connected, as text that may be shown. */
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
  /** The server's identification, `SSH-2.0-OpenSSH_9.2p1 …`. */
  banner?: string
  hostKey?: SshHostKey
  /** The key was not known before: recorded under `accept-new`, refused under `strict`. */
  hostKeyIsNew?: boolean
  /** A person has to answer. */
  prompts?: LoginPrompts
  /** One sentence, for people. */
  message: string
}

/**
 * All SSH connections of this process: one per login, opened when needed, shared by all callers, and
 * further ones for lasting streams where the service logs in by itself.
 */
export interface SshSessions {
  /**
   * Never fails and opens no connection: the first `run` or `open` does. Closing the shell leaves
   * the connection to the others.
   */
  shell(target: SshTarget): SiteShell
  /**
   * The account's files by SFTP, over the connection of the target, which is asked for at the first
   * call and after a lost link; as `shell`.
   */
  files(target: () => Promise<SshTarget>): SiteFiles
  /**
   * The state of the login at all processes of the fleet: connected where a person logged in at one
   * of them, within 20 s.
   */
  state(target: SshTarget): Promise<SshState>
  /**
   * Takes a person's answers to the prompts of `state`, in their order. Returns the state
   * afterwards: connected, or waiting with the next prompts or with the same ones and `error`.
   * Without a waiting login it logs in until the server asks; where another process of the fleet
   * holds the login, it sends no answers.
   */
  answer(target: SshTarget, answers: readonly string[]): Promise<SshState>
  /**
   * Health by stages, ≤ 15 s, never throws. It uses the shared connection where there is one or one
   * can be made. After a failed attempt it returns that attempt's result until the next is due.
   * `fresh`: it makes a connection of its own that is closed afterwards, and records nothing. It does
   * not retry a login that waits for a person.
   */
  probe(target: SshTarget, options?: { fresh?: boolean }): Promise<SshProbe>
  /**
   * Ends the connections of the targets, also those that a person made at other processes of the
   * fleet, and removes their state. `wayToo`: also those of the hosts on the way to them.
   */
  forget(targets: readonly SshTarget[], options?: { wayToo?: boolean }): Promise<void>
  /** The logins that are kept, connected or not, and the hosts whose logins are counted. */
  count(): { logins: number; hosts: number }
  /** Ends all connections; later calls reject. */
  close(): Promise<void>
}
