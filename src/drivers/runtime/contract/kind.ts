import type { FunctionCredential, InvokeFunction } from '../../../clients/functions.ts'
import type { KubernetesCluster } from '../../../clients/kubernetes-cluster.ts'
import type { SlurmrestdServer } from '../../../clients/slurmrestd.ts'
import type { SiteShell } from '../../../shell/site-shell.ts'
import type { CallLinks } from '../serverless/links.ts'
import type { Capability } from './driver.ts'
import type { RootedDriver } from './rooted.ts'
import type { TerminalHost } from './terminal.ts'

/** A driver of a site, and what kept containers of a run need besides. */
export type SiteDriver = RootedDriver & {
  /** Ends the kept containers of a run. */
  closeScope?: (scope: string) => Promise<void>
}

/**
 * A driver, and a shell to the files of its site; `close` closes both as far as they were opened
 * for it.
 */
export interface OpenedDriver {
  driver: SiteDriver
  shell: SiteShell
  close(): Promise<void>
}

/** The ways out of this process; each connects by itself, and again after a cut. */
export interface WaysOut {
  /** The shell of a connection; absent: this machine. */
  shellOf: (connectionId: string | undefined) => SiteShell
  /** The shell of a machine that a cloud provider made for runs, by the id of its instance. */
  machineShell: (instanceId: string) => SiteShell
  clusterOf: (connectionId: string) => Pick<KubernetesCluster, 'request' | 'list' | 'watch' | 'exec' | 'log'>
  /**
   * The HTTP client for Slurm; the token that a runtime's `slurmrestd.credentialRef` names is
   * opened for each request.
   */
  slurmrestd: Pick<SlurmrestdServer, 'http'> & { tokenOf: (reference: string) => Promise<string> }
  /** How functions are called, and where the files of their tasks are on this machine. */
  functions: {
    root: string
    invoke: InvokeFunction
    credentialOf: (reference: string) => Promise<FunctionCredential>
    /** Absent: functions cannot reach this service. */
    links?: CallLinks | undefined
  }
}

/** The options of a site's driver. */
export interface SiteRequest {
  /** Used in messages and manifests. */
  runtime: string
  /** Environment variable that marks a task's processes with its name. */
  taskVariable: string
  connectionId?: string | undefined
  /** The cloud instance of the run, for kinds that run `onMachines`. */
  machine?: string | undefined
  /** Keys of the runtime and its binding: partition, account, walltimeFactor, volume, endpoint … */
  configuration: Readonly<Record<string, unknown>>
}

/** An activity's demands on the configuration of a runtime. */
export interface Demand {
  gpus: number
  image?: string
  timeoutSeconds: number
  memoryBytes: number
}

/**
 * A kind of site for tasks, as far as code outside its driver has to know it. It holds all
 * differences between kinds, so that no code tests for a kind by its name.
 */
export interface DriverKind {
  /**
   * The capabilities that a driver of this version has at all; the rest of the flags is the site's,
   * as its runtime declares them.
   */
  capabilities: Readonly<Record<Capability, boolean>>
  /**
   * Tasks wait at the site itself for their resources; elsewhere this service counts the
   * processors.
   */
  schedulesItself: boolean
  /**
   * The site is a machine whose other files a connection reaches as well; a cluster shows only its
   * own volume.
   */
  sharesFiles: boolean
  /**
   * The type of connection by which the site is reached; `optional`: the site may be this machine
   * instead. Absent: it is this machine.
   */
  connection?: { type: 'ssh' | 'kubernetes'; optional: boolean }
  /**
   * A run gets a machine for each resource when it needs it, and the machine ends after its use.
   * So the files of every attempt are brought to the host of the run before the attempt is over.
   */
  onMachines?: true
  /** A binding may name a part of the site. */
  hasPartitions: boolean
  /** Tasks run in a namespace, with a claim and a helper image that their environment may name. */
  inNamespace: boolean
  /** Whether activities with an image run in that image there. */
  containers: 'always' | 'configured' | 'never'
  /** Tasks without a memory limit of their author get the default limit. */
  holdsDefaultMemory: boolean
  /** One executor, one driver, one record of starts, per site and run. */
  siteOf: (runtime: {
    runtimeId: string
    resourceId: string
    connectionId: string | undefined
    host: string
  }) => string
  /**
   * The faults of a configuration, and the demands of an activity that it cannot meet; absent: the
   * rules of sites with processes of their own.
   */
  problems?: (
    configuration: Readonly<Record<string, unknown>>,
    demand: Demand,
  ) => { path: string; message: string }[]
  /** Contacts nothing yet. Absent: this process has one driver for all. */
  open?: (site: SiteRequest, ways: WaysOut) => OpenedDriver
  /**
   * A place of its own for each terminal, under this name. Contacts nothing yet. Absent: terminals
   * are at the site's own shell.
   */
  terminalPlace?: (site: SiteRequest, ways: WaysOut, name: string) => TerminalHost
}
