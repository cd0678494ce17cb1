import { join } from 'node:path'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import {
  withContainers,
  type ContainerDriver,
  type ContainerOptions,
} from '../../src/drivers/runtime/container/driver.ts'
import type { ContainerRequest, RuntimeDriver } from '../../src/drivers/runtime/contract/driver.ts'
import { openLocalDriver } from '../../src/drivers/runtime/local/driver.ts'
import { openSlurmDriver } from '../../src/drivers/runtime/slurm/driver.ts'
import { openSshDriver } from '../../src/drivers/runtime/remote/ssh.ts'
import type { SiteShell } from '../../src/shell/site-shell.ts'
import { runnerProgram } from '../support/runner-program.ts'
import { inContainers } from './in-containers.ts'

/**
 * A site of this machine whose tasks run in containers; plain data, so that a program of its own
 * can open it too.
 */
export interface ContainerSiteOptions {
  kind: 'local' | 'ssh' | 'slurm'
  root: string
  /** The whole environment of its shell. */
  environment: Record<string, string>
  container: ContainerRequest
  containers?: Partial<Pick<ContainerOptions, 'mounts' | 'idleSeconds'>>
}

const taskVariable = 'ORRERY_TASK'

const openDriver = (kind: ContainerSiteOptions['kind'], shell: SiteShell, root: string): RuntimeDriver => {
  if (kind === 'local')
    return openLocalDriver({ controlDirectory: join(root, 'tasks'), taskVariable, runnerProgram })
  const remote = { shell, root, runtime: kind, taskVariable, pollMilliseconds: 500, outputPatienceSeconds: 0 }
  return kind === 'ssh'
    ? openSshDriver(remote)
    : openSlurmDriver({ ...remote, configuration: { settleSeconds: 3, outputPatienceSeconds: 0 } })
}

/**
 * `plain` takes intents as they are, with a container or without one; `driver` puts all into the
 * site's container.
 */
export const openContainerSite = (
  options: ContainerSiteOptions,
): { driver: RuntimeDriver; plain: ContainerDriver; shell: SiteShell } => {
  const { kind, root, environment, container, containers } = options
  const shell = openLocalShell({ environment })
  const plain = withContainers(openDriver(kind, shell, root), {
    shell,
    root: () => Promise.resolve(root),
    engine: 'auto',
    taskVariable,
    endsDescendants: kind !== 'ssh',
    ...containers,
  })
  return { driver: inContainers(plain, container), plain, shell }
}
