import type { Problem } from '../../refusal.ts'
import type { SnapshotBinding, SnapshotRuntime } from '../../executor/sites.ts'
import type { z } from 'zod'

type Runtime = z.output<typeof SnapshotRuntime>
type Binding = z.output<typeof SnapshotBinding>
type Fields = Readonly<Record<string, unknown>>

/** What the environments of a run's runtimes offer beside the runtimes' own configurations. */
export interface Surroundings {
  /** Connections of the runtime's environment. */
  connectionsOf: (runtimeId: string) => readonly { id: string; type: string; namespace?: string | undefined }[]
  /** The claim of the runtime's default storage, where that is one of Kubernetes. */
  claimOf: (runtimeId: string) => { claim: string; mountPath: string } | undefined
  helperImage: string
}

const neededTypes: Readonly<Record<string, string>> = { ssh: 'ssh', slurm: 'ssh', kubernetes: 'kubernetes' }

const given = (value: unknown): boolean => value !== undefined && value !== ''

/**
 * The runtimes with what they leave to their environment: the connection, where it has exactly one of the fitting type; for Kubernetes the
 * connection's namespace, the claim of the default storage as volume, and the helper image. `used`: pairs of runtime and resource that the
 * run uses. Problems name the runtimes whose connection cannot be guessed. A Slurm runtime with `hostId`, or without any connection to
 * choose, is of this machine.
 */
export const withSiteDefaults = <R extends Runtime>(
  { runtimes, bindings, used }: { runtimes: readonly R[]; bindings: readonly Binding[]; used: ReadonlySet<string> },
  surroundings: Surroundings,
): { runtimes: R[]; problems: Problem[] } => {
  const problems: Problem[] = []
  const filled = runtimes.map((runtime): R => {
    const type = neededTypes[runtime.driver]
    const configuration = runtime.configuration ?? {}
    if (type === undefined || configuration['launch'] === 'none') return runtime
    const own = bindings.filter(
      ({ runtimeId, resourceId }) => runtimeId === runtime.id && used.has(JSON.stringify([runtimeId, resourceId])),
    )
    if (own.length === 0) return runtime
    const needed = !given(configuration['connectionId']) && own.some((binding) => !given(binding.configuration?.['connectionId']))
    const here = runtime.driver === 'slurm' && given(configuration['hostId'])
    const choices = surroundings.connectionsOf(runtime.id).filter((connection) => connection.type === type)
    const guessed = needed && !here && choices.length === 1 ? { connectionId: choices[0]!.id } : {}
    if (needed && !here && choices.length !== 1 && !(runtime.driver === 'slurm' && choices.length === 0))
      problems.push({
        path: `runtimes.${runtime.id}.configuration.connectionId`,
        message:
          choices.length === 0
            ? `is missing, and the runtime's environment has no connection of type ${type}; save one and name it`
            : `is missing, and the runtime's environment has ${choices.length} connections of type ${type}; name one of ${choices.map(({ id }) => JSON.stringify(id)).join(', ')}`,
      })
    const reached = { ...configuration, ...guessed }
    return { ...runtime, configuration: runtime.driver === 'kubernetes' ? clusterDefaults(runtime.id, reached, surroundings) : reached }
  })
  return { runtimes: filled, problems }
}

const clusterDefaults = (
  runtimeId: string,
  configuration: Fields,
  { connectionsOf, claimOf, helperImage }: Surroundings,
): Fields & object => {
  const namespace = connectionsOf(runtimeId).find(({ id }) => id === configuration['connectionId'])?.namespace
  const storage = ['volume', 'keeperVolume', 'root'].some((key) => given(configuration[key])) ? undefined : claimOf(runtimeId)
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
