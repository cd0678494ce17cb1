import { describeEngine, type EngineImage, type EngineSockets } from '../../clients/docker.ts'

/** For `sh`: the programs of container engines in the search path, one a line. */
export const enginesScript =
  'for engine in docker podman apptainer singularity; do command -v "$engine" >/dev/null 2>&1 && echo "$engine"; done; true'

/** For `sh`: prints `docker` where its program is in the search path and no engine answers it within 10 s. */
export const silentDockerScript = `if command -v docker >/dev/null 2>&1; then
  if command -v timeout >/dev/null 2>&1; then timeout 10 docker version; else docker version; fi >/dev/null 2>&1 </dev/null || echo docker
fi`

/** For `sh`: as `enginesScript`, without a Docker whose engine does not answer. */
export const answeringEnginesScript = `silent=$(${silentDockerScript}
)
for engine in $(${enginesScript}); do [ "$engine" = "$silent" ] || echo "$engine"; done; true`

/** A container engine of this machine. */
export interface LocalEngine {
  engine: 'docker' | 'podman' | 'apptainer' | 'singularity'
  /** Of what answers at its socket; absent where nothing does, which Podman and Apptainer do without. */
  version?: string
  apiVersion?: string
  images?: EngineImage[]
  /** Why tasks cannot run in it, with the remedy. */
  problem?: string
}

/** Debian's packages with the programs that start containers. */
const packages = { docker: 'docker.io', podman: 'podman' }

/** The engines of this machine, asked at their sockets for at most 10 s. `programs`: those in the search path of tasks. */
export const localEngines = async (programs: readonly string[], sockets: EngineSockets): Promise<LocalEngine[]> => {
  const asked = await Promise.all(
    (['docker', 'podman'] as const).map(async (engine): Promise<LocalEngine[]> => {
      const installed = programs.includes(engine)
      try {
        const { product, version, apiVersion, images } = await describeEngine(sockets[engine])
        const lacking = `its program ${engine}, which starts containers, is not in the search path; install it (Debian: ${packages[engine]})`
        return [
          {
            engine,
            version: product === engine ? version : `${product} ${version}`,
            apiVersion,
            images,
            ...(installed ? {} : { problem: lacking }),
          },
        ]
      } catch (error) {
        if (!installed) return []
        if (engine === 'podman') return [{ engine }]
        const remedy = `start it, or let this account use ${sockets.docker}`
        return [{ engine, problem: `it does not answer: ${(error as Error).message}; ${remedy}` }]
      }
    }),
  )
  const withoutApi = (['apptainer', 'singularity'] as const).filter((engine) => programs.includes(engine))
  return [...asked.flat(), ...withoutApi.map((engine) => ({ engine }))]
}

/** `docker 20.10.24 (API 1.41, 3 images)`, or why it cannot be used. */
export const engineWords = ({ engine, version, apiVersion, images = [], problem }: LocalEngine): string => {
  const silent = engine === 'podman' ? ' (version not known: its API service does not answer)' : ''
  const answers =
    version === undefined ? silent : ` ${version} (API ${apiVersion ?? 'unknown'}, ${images.length} image${images.length === 1 ? '' : 's'})`
  return `${engine}${answers}${problem === undefined ? '' : ` cannot be used: ${problem}`}`
}

/** Images that a snapshot keeps by name. */
const maxImages = 100

/** Of engines, what goes into the metadata of this machine's resource, into its snapshots, and what is warned of. */
export const engineFacts = (
  engines: readonly LocalEngine[],
): { metadata: Record<string, unknown>; observed: Record<string, unknown>; warnings: string[] } => {
  const versions = engines.flatMap(({ engine, version }) => (version === undefined ? [] : [[engine, version] as const]))
  const images = engines.flatMap(({ engine, images: present = [] }) => present.map((image) => ({ engine, ...image })))
  return {
    metadata: versions.length === 0 ? {} : { containerEngineVersions: Object.fromEntries(versions) },
    observed: images.length === 0 ? {} : { containerImages: images.slice(0, maxImages) },
    warnings: [
      ...engines.filter(({ problem }) => problem !== undefined).map(engineWords),
      ...(images.length > maxImages ? [`${images.length} images; the first ${maxImages} are taken`] : []),
    ],
  }
}
