import type { FunctionCredential, InvokeFunction } from '../../clients/functions.ts'
import type { SlurmrestdServer } from '../../clients/slurmrestd.ts'
import type { SiteShell } from '../shell.ts'
import { withContainers, type ContainerDriver } from './container.ts'
import type { Capability, RuntimeDriver } from './driver.ts'
import { kubernetesCapabilities, openKubernetesDriver, openKubernetesShell, type KubernetesPlace } from './kubernetes.ts'
import { localCapabilities } from './local.ts'
import type { RootedDriver } from './rooted.ts'
import { openServerlessDriver, serverlessCapabilities } from './serverless.ts'
import type { CallLinks } from './serverless-links.ts'
import { openSlurmDriver, slurmCapabilities } from './slurm.ts'
import { openSshDriver, sshCapabilities } from './ssh.ts'

interface AnySite {
  /** Named in messages and manifests. */
  runtime: string
  /** Environment variable that marks a task's processes with its name. */
  taskVariable: string
  /** Keys of the runtime and its binding: partition, account, walltimeFactor, volume, endpoint … */
  configuration: Readonly<Record<string, unknown>>
}

/** A site that is reached through a shell. */
export interface ShellSite extends AnySite {
  kind: 'ssh' | 'slurm'
  shell: SiteShell
  /** Absolute at the site; absent: below the account's home. */
  root?: string
  /** Of Slurm: ask over HTTP instead of by commands. */
  slurmrestd?: SlurmrestdServer
}

export interface ClusterSite extends AnySite {
  kind: 'kubernetes'
  cluster: KubernetesPlace['cluster']
  namespace: string
}

/** How functions are called, and where the files of their tasks lie on this machine. */
export interface FunctionPlatform {
  root: string
  invoke: InvokeFunction
  credential?: () => Promise<FunctionCredential>
  links?: CallLinks | undefined
}

export interface FunctionSite extends AnySite {
  kind: 'serverless'
  /** To the files, which are on this machine. */
  shell: SiteShell
  functions: FunctionPlatform
}

export type RuntimeSite = ShellSite | ClusterSite | FunctionSite
export type SiteDriver = RootedDriver & Partial<Pick<ContainerDriver, 'closeScope'>>

type Capabilities = RuntimeDriver['capabilities']
const inContainers = (capabilities: Capabilities): Capabilities => ({ ...capabilities, container: true })

/** Which capabilities a driver of this version has at all; the rest of the flags is the site's, as its runtime declares them. */
export const driverCapabilities: Readonly<Record<string, Readonly<Record<Capability, boolean>>>> = {
  local: inContainers(localCapabilities),
  ssh: inContainers(sshCapabilities),
  slurm: inContainers(slurmCapabilities),
  kubernetes: kubernetesCapabilities,
  serverless: serverlessCapabilities,
}

/** Opens the driver of a site other than this machine, and a shell to its files; the caller closes the driver. Nothing is contacted yet. */
export const openRemoteDriver = (site: RuntimeSite): { driver: SiteDriver; shell: SiteShell } => {
  if (site.kind === 'kubernetes') {
    const shell = openKubernetesShell(site)
    return { driver: openKubernetesDriver({ ...site, shell }), shell }
  }
  if (site.kind === 'serverless') {
    const { functions, shell, ...rest } = site
    return { driver: openServerlessDriver({ ...rest, ...functions }), shell }
  }
  const driver = site.kind === 'slurm' ? openSlurmDriver(site) : openSshDriver(site)
  const { shell, taskVariable } = site
  const contained = withContainers(driver, {
    shell,
    root: driver.root,
    taskVariable,
    engine: 'auto',
    endsDescendants: site.kind === 'slurm',
  })
  return { driver: { ...contained, root: driver.root }, shell }
}
