import type { SiteShell } from '../shell.ts'
import type { RootedDriver } from './rooted.ts'
import { openSlurmDriver } from './slurm.ts'
import { openSshDriver } from './ssh.ts'

/** A site that is reached through a shell. */
export interface RuntimeSite {
  /** Named in messages and manifests. */
  runtime: string
  shell: SiteShell
  /** Absolute at the site; absent: below the account's home. */
  root?: string
  /** Environment variable that marks a task's processes with its name. */
  taskVariable: string
  /** Keys of the runtime and its binding: partition, account, walltimeFactor … */
  configuration: Readonly<Record<string, unknown>>
  /** Of Slurm: ask over HTTP instead of by commands. */
  slurmrestd?: { url: string; user: string; token: () => Promise<string> }
}

const makers = { ssh: openSshDriver, slurm: openSlurmDriver } satisfies Record<string, (site: RuntimeSite) => RootedDriver>
export type RemoteKind = keyof typeof makers

/** Opens the driver of a site that is reached through a shell; the caller closes it. Nothing is contacted yet. */
export const openRemoteDriver = (kind: RemoteKind, site: RuntimeSite): RootedDriver => makers[kind](site)
