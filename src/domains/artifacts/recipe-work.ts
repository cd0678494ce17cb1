import { buildImage, EngineRefusal } from '../../clients/docker.ts'
import type { DefinitionLimits } from '../../drivers/build/apptainer.ts'
import { judgedContext } from '../../drivers/build/context.ts'
import { BuildError } from '../../drivers/build/errors.ts'
import type { BuildWorkParts } from './build-parts.ts'
import { mostBases, type Journal } from './journal.ts'
import { buildBaseOf, engineImage, platformOf } from './pulls.ts'
import type { BuildWork } from './runs.ts'
import { argumentsOf } from './schemas.ts'

/** The step of a build from a recipe, by the engine. */

const endedByKernel = /exit code: 137\b/

/**
 * The engine's reason, with the last lines that the step printed: the engine alone names the step
 * and its exit code.
 */
const explained = ({ message }: EngineRefusal, said: readonly string[]): string => {
  const kernel = endedByKernel.test(message)
    ? ' (137: the kernel ended it, as it does where the memory that the engine gives is used up)'
    : ''
  return `${message}${kernel}${said.length === 0 ? '' : `; it said: ${said.join(' / ')}`}`
}

/** Keeps the last lines that steps printed, and not what the engine says of steps. */
const openLastWords = () => {
  let said: string[] = []
  return {
    hear: (text: string): void => {
      if (/^\[[^\]]*\] /.test(text)) said = []
      else if (!/^(ERROR|CACHED|WARNING): /.test(text))
        said = [...said, ...text.split(/[\r\n]+/).filter((line) => line.trim() !== '')].slice(-4)
    },
    before: (failure: string): string[] =>
      said
        .filter((line) => !failure.startsWith(line))
        .slice(-3)
        .map((line) => line.slice(0, 200)),
  }
}

/**
 * Records the images that a build takes, by the names that the builder gives them: with the digest of a
 * registry, or without one for an image that the engine has. Such a name is looked up at once, since it
 * can name another image later.
 */
const openBases = (buildEngine: string, journal: Journal) => {
  const known = new Map<string, Promise<void>>()
  const look = async (name: string): Promise<void> => {
    // The builder pulls into a store of its own, and an engine that does not answer fails no build.
    const found = await engineImage(buildEngine, name).catch(() => undefined)
    if (found !== undefined) journal.took(buildBaseOf(name, found))
    else if (name.includes('@')) journal.took(buildBaseOf(name, { id: '', repoDigests: [] }))
    else journal.say(`the engine does not give the digest of ${name}, which is not recorded`)
  }
  return {
    take: (name: string): void => {
      if (!known.has(name) && known.size < mostBases) known.set(name, look(name))
    },
    all: () => Promise.all(known.values()),
  }
}

/** Builds the image of a recipe under a tag. @throws BuildError with the reason; the signal's reason */
export const buildFromRecipe = async (
  { artifactStore, buildContextLimitBytes, buildEngine }: BuildWorkParts,
  work: BuildWork,
  tag: string,
  {
    journal,
    signal,
    bounds,
  }: {
    journal: Journal
    signal: AbortSignal
    bounds: Pick<DefinitionLimits, 'seconds' | 'logBytes'>
  },
): Promise<void> => {
  const noisy = new AbortController()
  const late = AbortSignal.timeout(bounds.seconds * 1_000)
  const last = openLastWords()
  const bases = openBases(buildEngine, journal)
  try {
    await buildImage(
      buildEngine,
      {
        context: judgedContext(artifactStore.read('contexts', work.contextDigest), buildContextLimitBytes),
        ...{ recipe: work.recipePath ?? 'Dockerfile', tag, network: work.network },
        arguments: argumentsOf(work.buildArguments) ?? {},
        ...{ platform: platformOf(work), fresh: work.fresh },
      },
      {
        signal: AbortSignal.any([signal, noisy.signal, late]),
        onImage: bases.take,
        onLine: (line) => {
          journal.say(line)
          last.hear(line)
          if (journal.said() > bounds.logBytes) noisy.abort(new Error('too much log'))
        },
      },
    )
  } catch (error) {
    if (noisy.signal.aborted)
      throw new BuildError(`the build wrote more than ${bounds.logBytes} bytes of log`)
    if (late.aborted && !signal.aborted) throw new BuildError(`the build took more than ${bounds.seconds} s`)
    if (error instanceof EngineRefusal) throw new BuildError(explained(error, last.before(error.message)))
    throw error
  } finally {
    await bases.all()
  }
}
