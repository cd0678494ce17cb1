import type { OtherProcesses } from './relay.ts'
import type { HeldLogins } from './relay-server.ts'

export interface SshSessionsOptions {
  /**
   * Judges the address itself before a byte is sent to it; a text is the reason against it.
   * Default: all are allowed.
   */
  addressAllowed?: (address: string) => true | string
  /** Default false. */
  allowProxyCommand?: boolean
  /** Session channels per connection; default 8, under OpenSSH's `MaxSessions` 10. */
  channels?: number
  /** Default 5 min; a connection that a person logged in stays. */
  idleMs?: number
  /**
   * A login without a connection is forgotten, with its last failure, after this time without a
   * call; default 1 h.
   */
  forgetMs?: number
  /** First and longest pause before an attempt after a failed one; default 0.5 s and 30 s. */
  backOffMs?: { first: number; longest: number }
  /**
   * Lends logins that a person made to the other processes of the fleet, and theirs to this one.
   * Default: each process has its own.
   */
  others?: (held: HeldLogins) => OtherProcesses
}
