import { join } from 'node:path'
import type { Db } from '../../db/sql.ts'
import { BuildError } from '../../drivers/build/errors.ts'
import { writeSbom } from '../../drivers/build/sbom.ts'
import type { ArtifactStore } from '../../drivers/build/store.ts'
import { Reply } from '../../http/route.ts'
import { missing, Refusal } from '../../refusal.ts'
import type { Journal } from './journal.ts'
import type { BuildWork } from './runs.ts'
import { readVersion } from './versions.ts'
import type { BuildWorkParts } from './build-parts.ts'

/** Lists of the packages of images: SPDX 2.3, beside the image in the store. */

export const sbomType = 'application/spdx+json'

/** Makes the list of an output once; a build goes on without it and says so. */
export const addSbom = async (
  { artifactStore, sbomProgram }: Pick<BuildWorkParts, 'artifactStore' | 'sbomProgram'>,
  work: BuildWork,
  digest: string,
  { journal, signal }: { journal: Journal; signal: AbortSignal },
): Promise<void> => {
  if ((await artifactStore.sizeOf('sboms', digest)) !== undefined) return
  const program = await sbomProgram()
  if ('lack' in program) {
    journal.say(`without a list of packages: ${program.lack}`)
    return
  }
  const folder = await artifactStore.folder(work.runId)
  const path = join(folder, 'sbom.json')
  const image = { path: artifactStore.pathOf('images', digest), format: work.targetFormat, digest }
  try {
    await writeSbom(program.path, image, path, { folder, signal })
  } catch (error) {
    if (!(error instanceof BuildError)) throw error
    journal.say(`without a list of packages: ${error.message}`)
    return
  }
  await artifactStore.settle('sboms', path, digest)
  journal.say('listed the packages')
}

interface SbomParts {
  db: Db
  artifactStore: ArtifactStore
}

/** A version, whose variants say whether this host has their list of packages. */
export const versionWithSboms = async ({ db, artifactStore }: SbomParts, id: string) => {
  const version = await readVersion(db, id)
  const variants = await Promise.all(
    version.variants.map(async (variant) => ({
      ...variant,
      sbom: (await artifactStore.sizeOf('sboms', variant.digest)) !== undefined,
    })),
  )
  return { ...version, variants }
}

/** The list of one variant, or of the version's first that has one. @throws Refusal 404 */
export const readSbom = async (
  parts: SbomParts,
  id: string,
  variantId: string | undefined,
): Promise<Reply> => {
  const { variants } = await versionWithSboms(parts, id)
  const kept = variants.filter((variant) => variantId === undefined || variant.id === variantId)
  if (kept.length === 0) throw missing('artifact variant', variantId ?? `of ${id}`)
  const found = kept.find(({ sbom }) => sbom)
  if (found === undefined)
    throw new Refusal(
      'missing',
      'this host has no list of packages of it; the log of its build run says why, and ' +
        'a run with ?fresh=true makes one where syft is',
    )
  return new Reply({
    stream: parts.artifactStore.read('sboms', found.digest),
    status: 200,
    headers: {
      'content-type': sbomType,
      'content-length': String(await parts.artifactStore.sizeOf('sboms', found.digest)),
      etag: `"sbom:${found.digest}"`,
    },
  })
}
