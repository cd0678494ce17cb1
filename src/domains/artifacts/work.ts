import { hash } from 'node:crypto'
import { stat } from 'node:fs/promises'
import { join } from 'node:path'
import { inspectImage, removeImage, saveImage } from '../../clients/docker.ts'
import { readContext } from '../../drivers/build/context.ts'
import { BuildError } from '../../drivers/build/errors.ts'
import { emptyDefinition } from '../../drivers/build/apptainer.ts'
import { readImage, type ImageFolder } from '../../drivers/build/image.ts'
import { writeOci } from '../../drivers/build/oci.ts'
import { writeSif } from '../../drivers/build/sif.ts'
import { verifySif, type Verification } from '../../drivers/build/verify.ts'
import { registryDenied } from '../../clients/registry.ts'
import { NoAnswerError } from '../../clients/no-answer.ts'
import { openGate } from '../../pacing/gate.ts'
import { poll } from '../../pacing/poll.ts'
import type { BuildWorkParts } from './build-parts.ts'
import { buildFromDefinition, imageOfDefinition, pullBases } from './definition-work.ts'
import { openJournal, type Journal } from './journal.ts'
import { buildBaseOf, pull, pullPrivateBases } from './pulls.ts'
import { hostOf, pulledBy, recipeFault, sourcesOfRecipe } from './recipes.ts'
import { buildFromRecipe } from './recipe-work.ts'
import { addSbom } from './sboms.ts'
import { earlierOutput, publishOutput, reuseText, type BuildWork } from './runs.ts'
import { argumentsOf, epochOf } from './schemas.ts'
import { removeUnowned } from './versions.ts'

/** The limits of one build. */
const bounds = {
  ...{ seconds: 3_600, logBytes: 16 * 2 ** 20, imageBytes: 20 * 2 ** 30, freeBytes: 2 ** 30 },
} as const

/** For an engine that is started again. */
const removalPatienceMs = 15_000

/** The tag of a run's image in the engine. It is the same for every attempt. */
const tagOf = ({ runId, hostId }: BuildWork): string =>
  `orrery-build/${hash('sha256', `${hostId}\n${runId}`).slice(0, 40)}:latest`

/**
 * Checks that the context is here, that its recipe is that of the build, and that the recipe names
 * nothing of a denied host. @returns the recipe, and the images that the engine pulls for a Dockerfile
 */
const checkContext = async (
  { artifactStore, buildContextLimitBytes: limitBytes, addressAllowed, http }: BuildWorkParts,
  work: BuildWork,
): Promise<{ text: string; images: string[] }> => {
  const size = await artifactStore.sizeOf('contexts', work.contextDigest)
  if (size === undefined)
    throw new BuildError('the store of this host lost the context; upload it again and start the build again')
  const chunks: Buffer[] = []
  const { recipeDigest } = await readContext(
    artifactStore.read('contexts', work.contextDigest) as AsyncIterable<Buffer>,
    {
      limitBytes,
      recipe: {
        path: work.recipePath ?? '',
        sourceType: work.sourceType,
        onPiece: (piece) => chunks.push(piece),
      },
    },
  )
  if (recipeDigest !== work.recipeDigest)
    throw new BuildError(
      `${JSON.stringify(work.recipePath)} of the context has another digest than the build says`,
    )
  const text = Buffer.concat(chunks).toString()
  // The images of a definition are judged where they are pulled.
  if (work.sourceType === 'definition') return { text, images: [] }
  const sources = sourcesOfRecipe(text, argumentsOf(work.buildArguments) ?? {}, work.targetArchitecture)
  const fault = recipeFault(sources, work.network, addressAllowed)
  if (fault !== undefined) throw new BuildError(fault)
  const hosts = sources.addresses.map((address) => `${hostOf(address)}/`)
  for (const name of new Set([...sources.images, ...hosts])) {
    const denied = await registryDenied(http, name)
    if (denied !== undefined) throw new BuildError(`the recipe names ${JSON.stringify(name)}: ${denied}`)
  }
  return { text, images: pulledBy(sources) }
}

/** Verifies the file of an image, and says how in the log. */
const verified = async (
  work: BuildWork,
  name: string,
  path: string,
  { folder, journal, signal }: { folder: string; journal: Journal; signal: AbortSignal },
): Promise<Verification> => {
  const { verification, reason } =
    work.targetFormat === 'sif'
      ? await verifySif(folder, { path, architecture: work.targetArchitecture }, signal)
      : { verification: 'structural' as const, reason: 'Apptainer runs SIF files alone' }
  journal.say(
    `verified ${name}: ${(await stat(path)).size} bytes of ${work.targetFormat}, ${verification}` +
      (reason === undefined ? '' : ` (${reason})`),
  )
  return verification
}

/** Removes a name of an image, and those that the engine did not remove for this process before. */
const openNameRemoval = (buildEngine: string) => {
  const left = new Set<string>()
  const remove = async (name: string): Promise<true | undefined> => {
    try {
      await removeImage(buildEngine, name)
      left.delete(name)
      return true
    } catch (error) {
      if (!(error instanceof NoAnswerError)) throw error
      // Behind the others: an image that a container uses does not keep their names.
      left.delete(name)
      left.add(name)
      return undefined
    }
  }
  return async (name: string): Promise<void> => {
    const signal = AbortSignal.timeout(removalPatienceMs)
    if ((await poll(() => remove(name), { everyMs: 500, signal })) !== true) return
    for (const other of left) if ((await remove(other)) === undefined) return
  }
}

/** The steps of a run of a build, on the host that has the context and the engine. */
export const openBuildWork = (parts: BuildWorkParts) => {
  const { db, artifactStore, buildEngine } = parts
  const gate = openGate(parts.buildConcurrency)
  const removeName = openNameRemoval(buildEngine)

  /** The image of this work in the engine; undefined: not built yet. */
  const imageOf = async (work: BuildWork, signal: AbortSignal) => {
    const name = work.sourceType === 'docker-image' ? work.imageId : tagOf(work)
    return name == null ? undefined : inspectImage(buildEngine, name, signal)
  }

  const fetch = async (work: BuildWork, signal: AbortSignal): Promise<boolean> => {
    await using journal = await openJournal(parts, work.runId, 'preparing')
    const last = work.fresh ? undefined : await earlierOutput(db, work)
    const isStored = last !== undefined && (await artifactStore.sizeOf('images', last.digest)) !== undefined
    const earlier = isStored ? last : undefined
    if (work.sourceType === 'docker-image') {
      const { image, credentialRef } = work
      const found = await pull(parts, work, image ?? '', { journal, signal, credentialRef })
      journal.found(found.id)
      journal.took(buildBaseOf(image ?? '', found))
      if (earlier !== undefined && earlier.imageId !== found.id) return false
    } else if (earlier === undefined) {
      const { text, images } = await checkContext(parts, work)
      if (work.sourceType === 'definition') await pullBases(parts, work, text, { journal, signal })
      else await pullPrivateBases(parts, work, images, { journal, signal })
    }
    if (earlier === undefined) return false
    journal.say(reuseText(earlier.digest))
    await publishOutput(parts, work, earlier)
    return true
  }

  const build = async (work: BuildWork, signal: AbortSignal): Promise<void> => {
    if (work.sourceType === 'docker-image') return
    await using journal = await openJournal(parts, work.runId, 'building')
    if (work.sourceType === 'definition') {
      await gate.inTurn(async () => {
        const { text } = await checkContext(parts, work)
        await buildFromDefinition(parts, work, text, { journal, signal, bounds })
      }, signal)
      return
    }
    await gate.inTurn(async () => {
      const before = await imageOf(work, signal)
      if (before !== undefined) journal.say('the image of the attempt before is there')
      else await buildFromRecipe(parts, work, tagOf(work), { journal, signal, bounds })
      const found = before ?? (await imageOf(work, signal))
      if (found === undefined) throw new BuildError('the engine ended without an image', { passes: true })
      journal.found(found.id)
    }, signal)
  }

  const publish = async (work: BuildWork, signal: AbortSignal): Promise<void> =>
    gate.inTurn(async () => {
      const { path, ...made } = await convert(work, signal)
      await using journal = await openJournal(parts, work.runId, 'publishing')
      const { digest, sizeBytes } = await artifactStore.take('images', path)
      try {
        await addSbom(parts, work, digest, { journal, signal })
        await publishOutput(parts, work, { digest, sizeBytes, ...made })
      } catch (error) {
        await removeUnowned(parts, [digest])
        throw error
      }
      journal.say(`published ${digest}, ${sizeBytes} bytes`)
    }, signal)

  /** Gives the image that was built to `use`, as files below the run's folder. */
  const withImage = async (
    work: BuildWork,
    { folder, journal, signal }: { folder: string; journal: Journal; signal: AbortSignal },
    use: (image: ImageFolder) => Promise<void>,
  ): Promise<string> => {
    if (work.sourceType === 'definition') {
      await use(await imageOfDefinition(work, folder))
      return 'the file system of the definition'
    }
    const found = await imageOf(work, signal)
    if (found === undefined)
      throw new BuildError(
        'the engine lost the image between its build and its conversion; start the build again',
      )
    if (found.architecture !== work.targetArchitecture)
      throw new BuildError(
        `the image is for ${found.architecture}, and the build wants ${work.targetArchitecture}`,
      )
    if (found.sizeBytes > bounds.imageBytes)
      throw new BuildError(`the image has ${found.sizeBytes} bytes; builds may make ${bounds.imageBytes}`)
    await saveImage(buildEngine, found.id, signal, async (archive) =>
      use(await readImage(archive, join(folder, 'image'), journal.counted)),
    )
    return found.id
  }

  /** Makes the file of the target's format, and verifies it. */
  const convert = async (
    work: BuildWork,
    signal: AbortSignal,
  ): Promise<{ path: string; verification: Verification; packer: string | undefined }> => {
    await using journal = await openJournal(parts, work.runId, 'verifying')
    const folder = await artifactStore.folder(work.runId)
    const path = join(folder, 'output')
    let packer: string | undefined
    const name = await withImage(work, { folder, journal, signal }, async (image) => {
      const epoch = epochOf(work)
      if (work.targetFormat === 'oci') await writeOci(image, path, signal)
      else {
        packer = await writeSif(image, path, {
          folder,
          signal,
          ...(epoch === undefined ? {} : { epoch }),
        })
        journal.say(`packed by ${packer}`)
      }
    })
    return { path, packer, verification: await verified(work, name, path, { folder, journal, signal }) }
  }

  /**
   * Removes what a run has left. An engine that does not answer keeps no run open: what it then has
   * goes with the end of a later run.
   */
  const tidy = async (work: BuildWork): Promise<void> => {
    await emptyDefinition(await artifactStore.folder(work.runId))
    await artifactStore.removeFolder(work.runId)
    if (work.sourceType === 'dockerfile') await removeName(tagOf(work))
  }

  return { fetch, build, publish, tidy }
}
