import { Refusal } from '../../refusal.ts'
import type { RuntimeDriver } from './driver.ts'
import { openLocalDriver } from './local.ts'
import { openNoneDriver } from './none.ts'

export const runtimeDriverKinds = ['slurm', 'kubernetes', 'ssh', 'local', 'serverless', 'simgrid', 'cloud'] as const
export type RuntimeDriverKind = (typeof runtimeDriverKinds)[number]

export interface RuntimeSite {
  /** The runtime's id, for messages and manifests. */
  runtime: string
  /** `launch: none`: everything but the work itself. */
  launch: 'process' | 'none'
  /** Where drivers that work on this machine keep their records. */
  controlDirectory: string
  /** Environment variable that marks a task's processes with its name. */
  taskVariable: string
}

export type RuntimeDriverMaker = (site: RuntimeSite) => RuntimeDriver

const unbuilt =
  (kind: RuntimeDriverKind): RuntimeDriverMaker =>
  ({ runtime }) => {
    throw new Refusal('unavailable', `runtime ${JSON.stringify(runtime)}: this version has no driver ${kind}; use local, or launch: none`)
  }

const makers = {
  slurm: unbuilt('slurm'),
  kubernetes: unbuilt('kubernetes'),
  ssh: unbuilt('ssh'),
  local: ({ runtime, controlDirectory, taskVariable }) => openLocalDriver({ runtime, controlDirectory, taskVariable }),
  serverless: unbuilt('serverless'),
  simgrid: unbuilt('simgrid'),
  cloud: unbuilt('cloud'),
} satisfies Record<RuntimeDriverKind, RuntimeDriverMaker>

/**
 * Opens the driver of one runtime; the caller closes it.
 *
 * @throws Refusal `unavailable` for a kind that is not built yet.
 */
export function openRuntimeDriver(kind: RuntimeDriverKind, site: RuntimeSite): RuntimeDriver {
  return site.launch === 'none' ? openNoneDriver({ runtime: site.runtime }) : makers[kind](site)
}
