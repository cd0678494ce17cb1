import { createWriteStream } from 'node:fs'
import { stat } from 'node:fs/promises'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { saveImage } from '../../clients/docker.ts'
import {
  apptainerLack,
  buildDefinition,
  definitionImage,
  rootArchiveOf,
  type DefinitionLimits,
} from '../../drivers/build/apptainer.ts'
import { ownArchitecture } from '../../drivers/build/architecture.ts'
import { judgedContext } from '../../drivers/build/context.ts'
import { readDefinition } from '../../drivers/build/definition.ts'
import { BuildError } from '../../drivers/build/errors.ts'
import type { ImageFolder } from '../../drivers/build/image.ts'
import type { Journal } from './journal.ts'
import { buildBaseOf, engineImage, loginsOf, pull } from './pulls.ts'
import type { BuildWork } from './runs.ts'
import { argumentsOf, epochOf, ImageName } from './schemas.ts'
import type { BuildWorkParts } from './build-parts.ts'

/** The steps of a build from a definition of Apptainer. */

interface Step {
  journal: Journal
  signal: AbortSignal
}

const definitionOf = (work: BuildWork, text: string) => readDefinition(text, argumentsOf(work.buildArguments))

/** Images that the engine has to pull for a definition. @throws BuildError */
export const definitionImages = (text: string, buildArguments: string): readonly string[] =>
  readDefinition(text, argumentsOf(buildArguments)).images

/** The problems of a definition that are seen without its images. @throws BuildError */
export const judgeDefinition = (
  text: string,
  buildArguments: string,
  faultOf: (image: string) => string | undefined,
): void => {
  for (const image of definitionImages(text, buildArguments)) {
    const name = ImageName.safeParse(image)
    const fault = name.success ? faultOf(name.data) : name.error.issues[0]?.message
    if (fault !== undefined) throw new BuildError(`the definition names ${JSON.stringify(image)}: ${fault}`)
  }
}

/** Has the engine pull the images that the stages begin with: the build itself has no network. */
export const pullBases = async (
  parts: BuildWorkParts,
  work: BuildWork,
  text: string,
  { journal, signal }: Step,
): Promise<void> => {
  const lack = apptainerLack()
  if (lack !== undefined) throw new BuildError(lack)
  if (work.targetArchitecture !== ownArchitecture())
    throw new BuildError(
      `Apptainer builds for ${ownArchitecture()} on this host, and the build wants ${work.targetArchitecture}`,
    )
  judgeDefinition(text, work.buildArguments, () => undefined)
  const loginFor = await loginsOf(parts.db, work)
  for (const image of definitionOf(work, text).images)
    await pull(parts, work, image, { journal, signal, credentialRef: loginFor(image) })
}

/** Archives of the images of a definition, by the path that the build has for them. */
const archivesOf = async (
  { buildEngine }: BuildWorkParts,
  work: BuildWork,
  folder: string,
  images: readonly string[],
  { journal, signal }: Step,
): Promise<Record<string, string>> => {
  const archives: Record<string, string> = {}
  for (const [at, image] of images.entries()) {
    const found = await engineImage(buildEngine, image, signal)
    if (found === undefined)
      throw new BuildError(`the engine lost ${image} after it was pulled; start the build again`)
    if (found.architecture !== work.targetArchitecture)
      throw new BuildError(
        `${image} is for ${found.architecture}, and the build wants ${work.targetArchitecture}`,
      )
    const path = join(folder, `base-${String(at)}.tar`)
    await saveImage(buildEngine, found.id, signal, (archive) =>
      pipeline(archive, createWriteStream(path, { mode: 0o644 }), { signal }),
    )
    journal.took(buildBaseOf(image, found))
    journal.say(`begins with ${image}, ${found.id}`)
    archives[`/build/base-${String(at)}.tar`] = path
  }
  return archives
}

/** Builds the file system of a definition, or finds the one of the attempt before. */
export const buildFromDefinition = async (
  parts: BuildWorkParts,
  work: BuildWork,
  text: string,
  { journal, signal, bounds }: Step & { bounds: DefinitionLimits },
): Promise<void> => {
  const folder = await parts.artifactStore.folder(work.runId)
  if ((await stat(rootArchiveOf(folder)).catch(() => undefined)) !== undefined) {
    journal.say('the file system of the attempt before is there')
    return
  }
  const definition = definitionOf(work, text)
  const archives = await archivesOf(parts, work, folder, definition.images, { journal, signal })
  await buildDefinition(
    folder,
    {
      context: judgedContext(
        parts.artifactStore.read('contexts', work.contextDigest),
        parts.buildContextLimitBytes,
      ),
      text: definition.textFor((image) => `/build/base-${String(definition.images.indexOf(image))}.tar`),
      archives,
      epoch: epochOf(work),
    },
    { limits: bounds, onLine: journal.say, signal },
  )
}

export const imageOfDefinition = (work: BuildWork, folder: string): Promise<ImageFolder> =>
  definitionImage(folder, work.targetArchitecture, epochOf(work))
