import type { FunctionCredential, InvokeFunction } from '../../../clients/functions.ts'
import type { KubernetesCluster } from '../../../clients/kubernetes-cluster.ts'
import type { SlurmrestdServer } from '../../../clients/slurmrestd.ts'
import type { SiteShell } from '../../shell.ts'
import type { CallLinks } from '../serverless/links.ts'
import type { Capability } from './driver.ts'
import type { RootedDriver } from './rooted.ts'

/** A driver of a site, and what containers that are kept for a run need besides. */
export type SiteDriver = RootedDriver & {
  /** Ends containers that are kept for a run. */
  closeScope?: (scope: string) => Promise<void>
}

/** A driver, and a shell to the files of its site; `close` ends both as far as they were opened for it. */
export interface OpenedDriver {
  driver: SiteDriver
  shell: SiteShell
  close(): Promise<void>
}

/** What leads out of this process; connecting is each one's own affair, and is done again after a cut. */
export interface WaysOut {
  /** Of a connection; absent: this machine. */
  shellOf: (connectionId: string | undefined) => SiteShell
  clusterOf: (connectionId: string) => Pick<KubernetesCluster, 'request' | 'list' | 'watch' | 'exec' | 'log'>
  /** How Slurm is asked over HTTP; the token that a runtime's `slurmrestd.credentialRef` names is opened for each request. */
  slurmrestd: Pick<SlurmrestdServer, 'http'> & { tokenOf: (reference: string) => Promise<string> }
  /** How functions are called, and where the files of their tasks lie on this machine. */
  functions: {
    root: string
    invoke: InvokeFunction
    credentialOf: (reference: string) => Promise<FunctionCredential>
    /** Absent: functions cannot reach this service. */
    links?: CallLinks | undefined
  }
}

/** What a driver of a site is opened with. */
export interface SiteRequest {
  /** Named in messages and manifests. */
  runtime: string
  /** Environment variable that marks a task's processes with its name. */
  taskVariable: string
  connectionId?: string | undefined
  /** Keys of the runtime and its binding: partition, account, walltimeFactor, volume, endpoint … */
  configuration: Readonly<Record<string, unknown>>
}

/** What an activity demands of the configuration of a runtime. */
export interface Demand {
  gpus: number
  image?: string
  timeoutSeconds: number
  memoryBytes: number
}

/**
 * A kind of site that tasks run at, as far as others than its driver have to know it. Everything that differs between kinds is said here, so
 * that nobody asks for a kind by its name.
 */
export interface DriverKind {
  /** Which capabilities a driver of this version has at all; the rest of the flags is the site's, as its runtime declares them. */
  capabilities: Readonly<Record<Capability, boolean>>
  /** Tasks wait at the site itself for what they need; elsewhere this service counts the processors. */
  schedulesItself: boolean
  /** The files of tasks lie on this machine. */
  filesHere: boolean
  /** The site is a machine whose other files a connection reaches as well; a cluster shows its own volume and nothing else. */
  sharesFiles: boolean
  /** The type of connection by which the site is reached; `optional`: or it is at this machine. Absent: it is at this machine. */
  connection?: { type: 'ssh' | 'kubernetes'; optional: boolean }
  /** A binding may name a part of the site. */
  hasPartitions: boolean
  /** Tasks run in a namespace, on a claim and with a helper image that their environment may give. */
  inNamespace: boolean
  /** Whether activities with an image run in it there. */
  containers: 'always' | 'configured' | 'never'
  /** Tasks whose author gave no limit of memory are held to the default one. */
  holdsDefaultMemory: boolean
  /** One executor, one driver, one record of what was started, per site and run. */
  siteOf: (runtime: { runtimeId: string; connectionId: string | undefined; host: string }) => string
  /** What is wrong with a configuration, and what of an activity is beyond it; absent: what every site of tasks' own processes has. */
  problems?: (configuration: Readonly<Record<string, unknown>>, demand: Demand) => { path: string; message: string }[]
  /** Nothing is contacted yet. Absent: this process has one driver for all. */
  open?: (site: SiteRequest, ways: WaysOut) => OpenedDriver
}
