import { describeEngine, type EngineImage, type EngineSockets } from '../../clients/docker.ts'
import { readProgram } from '../../shell/program.ts'

/** Functions of `sh` that list the container engines of a machine. */
export const enginesProgram = readProgram(import.meta.dirname, 'engines.sh')

/** For `sh`: the programs of container engines in the search path, one a line. */
export const enginesScript = `${enginesProgram}engines`

/** For `sh`: as `enginesScript`, without a Docker whose engine does not answer. */
export const answeringEnginesScript = `${enginesProgram}answering_engines`

/** A container engine of this machine. */
export interface LocalEngine {
  engine: 'docker' | 'podman' | 'apptainer' | 'singularity'
  /**
   * Version of the engine that answers at its socket; absent where none does, which Podman and
   * Apptainer do not need.
   */
  version?: string
  apiVersion?: string
  images?: EngineImage[]
  /** Why tasks cannot run in it, with the remedy. */
  problem?: string
}

/** Debian's packages with the programs that start containers. */
const packages = { docker: 'docker.io', podman: 'podman' }

/**
 * The engines of this machine, queried at their sockets for at most 10 s. `programs`: those in the
 * search path of tasks.
 */
export const localEngines = async (
  programs: readonly string[],
  sockets: EngineSockets,
): Promise<LocalEngine[]> => {
  const asked = await Promise.all(
    (['docker', 'podman'] as const).map(async (engine): Promise<LocalEngine[]> => {
      const installed = programs.includes(engine)
      try {
        const { product, version, apiVersion, images } = await describeEngine(sockets[engine])
        const lacking =
          `its program ${engine}, which starts containers, is not in the search path; install it ` +
          `(Debian: ${packages[engine]})`
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
    version === undefined
      ? silent
      : ` ${version} (API ${apiVersion ?? 'unknown'}, ${images.length} image${images.length === 1 ? '' : 's'})`
  return `${engine}${answers}${problem === undefined ? '' : ` cannot be used: ${problem}`}`
}

/** Number of images that a snapshot keeps by name. */
const maxImages = 100

/**
 * The facts about engines for the metadata of this machine's resource and for its snapshots, and
 * the warnings.
 */
export const engineFacts = (
  engines: readonly LocalEngine[],
): { metadata: Record<string, unknown>; observed: Record<string, unknown>; warnings: string[] } => {
  const versions = engines.flatMap(({ engine, version }) =>
    version === undefined ? [] : [[engine, version] as const],
  )
  const images = engines.flatMap(({ engine, images: present = [] }) =>
    present.map((image) => ({ engine, ...image })),
  )
  return {
    metadata: versions.length === 0 ? {} : { containerEngineVersions: Object.fromEntries(versions) },
    observed: images.length === 0 ? {} : { containerImages: images.slice(0, maxImages) },
    warnings: [
      ...engines.filter(({ problem }) => problem !== undefined).map(engineWords),
      ...(images.length > maxImages ? [`${images.length} images; the first ${maxImages} are taken`] : []),
    ],
  }
}
