import { kindNamed } from '../../drivers/runtime/registry.ts'
import type { Problem } from '../../refusal.ts'
import type { SnapshotBinding, SnapshotRuntime } from '../../executor/sites.ts'
import { onlyConnection } from '../environments/only-connection.ts'
import type { z } from 'zod'

type Runtime = z.output<typeof SnapshotRuntime>
type Binding = z.output<typeof SnapshotBinding>
type Fields = Readonly<Record<string, unknown>>

/** Values of a run's environments that complete the runtimes' own configurations. */
export interface EnvironmentDefaults {
  /** Connections of the runtime's environment. */
  connectionsOf: (
    runtimeId: string,
  ) => readonly { id: string; type: string; namespace?: string | undefined }[]
  /** The claim of the runtime's default storage, where that is one of Kubernetes. */
  claimOf: (runtimeId: string) => { claim: string; mountPath: string } | undefined
  helperImage: string
}

const given = (value: unknown): boolean => value !== undefined && value !== ''

/**
 * The runtimes, completed from their environment: the connection, where exactly one has the fitting
 * type; for Kubernetes the connection's namespace, the claim of the default storage as volume, and
 * the helper image. `used`: pairs of runtime and resource that the run uses. Problems name the
 * runtimes whose connection is ambiguous. A Slurm runtime with `hostId`, or without any connection
 * to choose, belongs to this machine.
 */
export const withSiteDefaults = <R extends Runtime>(
  {
    runtimes,
    bindings,
    used,
  }: { runtimes: readonly R[]; bindings: readonly Binding[]; used: ReadonlySet<string> },
  surroundings: EnvironmentDefaults,
): { runtimes: R[]; problems: Problem[] } => {
  const problems: Problem[] = []
  const filled = runtimes.map((runtime): R => {
    const kind = kindNamed(runtime.driver)
    const { type, optional = false } = kind?.connection ?? {}
    const configuration = runtime.configuration ?? {}
    if (type === undefined || configuration['launch'] === 'none') return runtime
    const own = bindings.filter(
      ({ runtimeId, resourceId }) =>
        runtimeId === runtime.id && used.has(JSON.stringify([runtimeId, resourceId])),
    )
    if (own.length === 0) return runtime
    const needed =
      !given(configuration['connectionId']) &&
      own.some((binding) => !given(binding.configuration?.['connectionId']))
    const here = optional && given(configuration['hostId'])
    const only = needed && !here ? onlyConnection(surroundings.connectionsOf(runtime.id), type) : undefined
    if (only?.problem !== undefined && !(optional && only.count === 0))
      problems.push({
        path: `runtimes.${runtime.id}.configuration.connectionId`,
        message: `is missing, and the runtime's environment ${only.problem}`,
      })
    const reached = { ...configuration, ...(only?.id === undefined ? {} : { connectionId: only.id }) }
    return {
      ...runtime,
      configuration:
        kind?.inNamespace === true ? clusterDefaults(runtime.id, reached, surroundings) : reached,
    }
  })
  return { runtimes: filled, problems }
}

const clusterDefaults = (
  runtimeId: string,
  configuration: Fields,
  { connectionsOf, claimOf, helperImage }: EnvironmentDefaults,
): Fields & object => {
  const namespace = connectionsOf(runtimeId).find(({ id }) => id === configuration['connectionId'])?.namespace
  const storage = ['volume', 'keeperVolume', 'root'].some((key) => given(configuration[key]))
    ? undefined
    : claimOf(runtimeId)
  return {
    ...(given(namespace) ? { namespace } : {}),
    helperImage,
    ...(storage === undefined
      ? {}
      : {
          root: `${storage.mountPath.replace(/\/+$/, '')}/.orrery`,
          volume: { persistentVolumeClaim: storage.claim, mountPath: storage.mountPath },
        }),
    ...Object.fromEntries(Object.entries(configuration).filter(([, value]) => given(value))),
  }
}
