import { hash } from 'node:crypto'
import { z } from 'zod'
import { readPage } from '../../db/rows.ts'
import { sql, type Db } from '../../db/sql.ts'
import { plainPath, pathFault, readContext } from '../../drivers/build/context.ts'
import { BuildError } from '../../drivers/build/errors.ts'
import type { AddressJudge } from '../../clients/http.ts'
import { Refusal, unacceptable, type Problem, existing, unacceptableAt } from '../../refusal.ts'
import type { Page } from '../../http/paging.ts'
import type { ContextParts } from './contexts.ts'
import { partsOfImage } from '../../clients/registry.ts'
import { definitionImages, judgeDefinition } from './definition-work.ts'
import { imageFault } from './images.ts'
import { registryOfLogin } from './pulls.ts'
import { pulledBy, recipeFault, sourcesOfRecipe } from './recipes.ts'
import { argumentsOf, ArtifactBuild, type NewBuild, type NewDockerArtifact } from './schemas.ts'
import { addVersion } from './store.ts'

export interface BuildParts extends ContextParts {
  addressAllowed: AddressJudge
}
type Build = z.output<typeof ArtifactBuild>

const columns = sql`id, artifact_version_id, source_type, image, context_digest, recipe_path, recipe_digest,
  target_format, target_os, target_architecture, build_arguments, network, credential_ref,
  cache_key, created_at`

/** The digest that stands for an image as context and as recipe. */
export const imageTextDigest = (image: string): string => `sha256:${hash('sha256', `docker://${image}\n`)}`

export const readBuildOrNothing = (db: Db, id: string): Promise<Build | undefined> =>
  db.maybe(ArtifactBuild, sql`select ${columns} from artifact_builds where id = ${id}`)

export const readBuild = async (db: Db, id: string): Promise<Build> =>
  existing(await readBuildOrNothing(db, id), 'build', id)

/** Of all versions of an artifact, newest first. */
export const buildsOf = (db: Db, artifactId: string, page: Page) =>
  readPage(db, ArtifactBuild, {
    select: columns,
    from: sql`artifact_builds where artifact_version_id in
      (select id from artifact_versions where artifact_id = ${artifactId})`,
    order: sql`created_at desc, id desc`,
    page,
  })

/** @throws Refusal 404 */
export const existingArtifact = async (db: Db, id: string): Promise<void> => {
  existing(
    await db.value(
      z.string(),
      sql`select artifact_id as id from artifact_versions where artifact_id = ${id} limit 1`,
    ),
    'artifact',
    id,
  )
}

const insert = (db: Db, build: Omit<Build, 'createdAt'>): Promise<Build | undefined> =>
  db.maybe(
    ArtifactBuild,
    sql`insert into artifact_builds (id, artifact_version_id, source_type, image, context_digest, recipe_path,
        recipe_digest, target_format, target_os, target_architecture, build_arguments, network, credential_ref,
        cache_key)
      values (${build.id}, ${build.artifactVersionId}, ${build.sourceType}, ${build.image ?? null},
        ${build.contextDigest}, ${build.recipePath ?? null}, ${build.recipeDigest}, ${build.targetFormat},
        ${build.targetOs}, ${build.targetArchitecture}, ${build.buildArguments}, ${build.network},
        ${build.credentialRef ?? null}, ${build.cacheKey})
      on conflict on constraint artifact_builds_cache_key do nothing returning ${columns}`,
  )

/** Records an image as a version of an artifact, with the build that makes a SIF file of it. */
export const addDockerArtifact = async (
  { db, addressAllowed }: Pick<BuildParts, 'db' | 'addressAllowed'>,
  given: z.output<typeof NewDockerArtifact>,
): Promise<{
  artifact: { id: string; artifactId: string; version: string; scope: 'system' }
  build: Build
}> => {
  const fault = imageFault(given.image, addressAllowed)
  const problems = await credentialProblems(db, [given.image], given.credentialRef)
  if (fault !== undefined) problems.unshift({ path: 'image', message: fault })
  if (problems.length > 0) throw unacceptable(problems)
  const { artifactId, version, image, architecture = 'amd64', credentialRef } = given
  const digest = imageTextDigest(image)
  const key = hash(
    'sha256',
    JSON.stringify(['docker-image', artifactId, version, image, architecture, credentialRef]),
  )
  return db.transaction(async (tx) => {
    const id = await addVersion(tx, { artifactId, name: artifactId, version, scope: 'system', scopeId: '' })
    const build = await insert(tx, {
      ...{ id: `build-${key.slice(0, 40)}`, artifactVersionId: id, sourceType: 'docker-image', image },
      ...{ contextDigest: digest, recipeDigest: digest, targetFormat: 'sif', targetOs: 'linux' },
      ...{ targetArchitecture: architecture, buildArguments: '{}', network: false },
      ...(credentialRef === undefined ? {} : { credentialRef }),
      cacheKey: `docker-image:${key}`,
    })
    if (build === undefined) throw unacceptableAt('image', 'is registered for this version already')
    return { artifact: { id, artifactId, version, scope: 'system' }, build }
  })
}

/**
 * Why a login must not be used for images: it is unknown, or of another registry than each of them.
 * Without images only the first is known.
 */
export const credentialProblems = async (
  db: Db,
  images: readonly string[] | undefined,
  credentialRef: string | undefined,
): Promise<Problem[]> => {
  if (credentialRef === undefined) return []
  const problem = (message: string): Problem[] => [{ path: 'credentialRef', message }]
  const registry = await registryOfLogin(db, credentialRef)
  if (registry === undefined)
    return problem(`${JSON.stringify(credentialRef)} does not exist; store it by POST /registry-credentials/`)
  const registries = new Set(images?.map((image) => partsOfImage(image).registry))
  if (images === undefined || registries.has(registry)) return []
  const others = registries.size === 0 ? 'no image is pulled' : `images are of ${[...registries].join(', ')}`
  return problem(
    `is a login of ${registry}, and ${others.slice(0, 300)}; a login is used for its own registry alone`,
  )
}

const FoundRow = z.object({ version: z.boolean(), hostId: z.string().nullish() })

/** All problems of the records that a build refers to. */
const buildProblems = async (
  { db, addressAllowed }: BuildParts,
  given: z.output<typeof NewBuild>,
): Promise<{ problems: Problem[]; hostId: string | undefined }> => {
  const { image, credentialRef } = given
  const problems = await credentialProblems(db, image === undefined ? undefined : [image], credentialRef)
  const found = await db.one(
    FoundRow,
    sql`select exists (select from artifact_versions where id = ${given.artifactVersionId}) as version,
      (select host_id from build_contexts where digest = ${given.contextDigest}) as host_id`,
  )
  if (!found.version)
    problems.push({
      path: 'artifactVersionId',
      message: `${JSON.stringify(given.artifactVersionId)} is unknown; add it by POST /artifacts/`,
    })
  if (given.sourceType === 'docker-image') {
    const fault = image === undefined ? 'is missing: name the image' : imageFault(image, addressAllowed)
    if (fault !== undefined) problems.push({ path: 'image', message: fault })
    if (given.recipePath !== undefined)
      problems.push({ path: 'recipePath', message: 'an image has no recipe; leave it out' })
    for (const path of ['contextDigest', 'recipeDigest'] as const)
      if (image !== undefined && given[path] !== imageTextDigest(image))
        problems.push({ path, message: `must be ${imageTextDigest(image)}, the digest of the image’s name` })
    return { problems, hostId: undefined }
  }
  if (image !== undefined)
    problems.push({ path: 'image', message: 'only the source type docker-image has an image; leave it out' })
  if (given.sourceType === 'definition' && given.network === true)
    problems.push({
      path: 'network',
      message:
        'the sections of a definition have no network: put what they need into the context, or use a dockerfile',
    })
  if (found.hostId == null)
    problems.push({
      path: 'contextDigest',
      message: 'no build context has this digest; upload it by POST /build-contexts/',
    })
  const fault = pathFault(given.recipePath ?? '')
  if (fault !== undefined) problems.push({ path: 'recipePath', message: fault })
  return { problems, hostId: found.hostId ?? undefined }
}

/** @throws Refusal 422 where the definition needs more than its context and images */
const checkDefinition = (
  text: string,
  { buildArguments }: Pick<Build, 'buildArguments'>,
  addressAllowed: AddressJudge,
): void => {
  try {
    judgeDefinition(text, buildArguments, (image) => imageFault(image, addressAllowed))
  } catch (error) {
    if (!(error instanceof BuildError)) throw error
    throw unacceptableAt('recipePath', error.message)
  }
}

/**
 * The recipe in a context of this host. @throws Refusal 422 where it is missing or differs, 503 where
 * the context was lost
 */
const readRecipe = async (
  { artifactStore, buildContextLimitBytes: limitBytes }: BuildParts,
  build: Pick<Build, 'sourceType' | 'contextDigest' | 'recipeDigest' | 'recipePath'>,
): Promise<string> => {
  const recipe = build.recipePath ?? ''
  const chunks: Buffer[] = []
  try {
    const { recipeDigest } = await readContext(
      artifactStore.read('contexts', build.contextDigest) as AsyncIterable<Buffer>,
      {
        limitBytes,
        recipe: { path: recipe, sourceType: build.sourceType, onPiece: (piece) => chunks.push(piece) },
      },
    )
    if (recipeDigest === undefined)
      throw unacceptableAt('recipePath', `the context has no file ${JSON.stringify(recipe)}`)
    if (recipeDigest !== build.recipeDigest)
      throw unacceptableAt('recipeDigest', `${JSON.stringify(recipe)} of the context has ${recipeDigest}`)
    return Buffer.concat(chunks).toString()
  } catch (error) {
    if (error instanceof BuildError)
      throw unacceptableAt('contextDigest', `the context cannot be read: ${error.message}`)
    if ((error as NodeJS.ErrnoException).code === 'ENOENT')
      throw new Refusal('unavailable', 'the store of this host lost the context; upload it again')
    throw error
  }
}

/** @throws Refusal 422 where the recipe needs what a build must not fetch */
const checkRecipe = async (parts: BuildParts, build: Omit<Build, 'createdAt'>): Promise<void> => {
  const { addressAllowed } = parts
  const text = await readRecipe(parts, build)
  let images: readonly string[]
  if (build.sourceType === 'definition') {
    checkDefinition(text, build, addressAllowed)
    images = definitionImages(text, build.buildArguments)
  } else {
    const sources = sourcesOfRecipe(text, argumentsOf(build.buildArguments) ?? {}, build.targetArchitecture)
    const fault = recipeFault(sources, build.network, addressAllowed)
    if (fault !== undefined) throw unacceptableAt('recipePath', fault)
    images = pulledBy(sources)
  }
  const problems = await credentialProblems(parts.db, images, build.credentialRef ?? undefined)
  if (problems.length > 0) throw unacceptable(problems)
}

/** Whether a build needs the engine; the host of its context alone knows that of a definition. */
export const needsEngine = async (parts: BuildParts, build: Build): Promise<boolean> => {
  if (build.sourceType !== 'definition') return true
  if ((await parts.artifactStore.sizeOf('contexts', build.contextDigest)) === undefined) return false
  return definitionImages(await readRecipe(parts, build), build.buildArguments).length > 0
}

const buildOfKey = (db: Db, cacheKey: string): Promise<Build | undefined> =>
  db.maybe(ArtifactBuild, sql`select ${columns} from artifact_builds where cache_key = ${cacheKey}`)

/** Records a build once for its key. Where the key has a build, that one is the answer as it is stored. */
export const addBuild = async (
  parts: BuildParts,
  given: z.output<typeof NewBuild>,
): Promise<{ build: Build; isNew: boolean }> => {
  const { sourceType } = given
  const usual = sourceType === 'definition' ? 'apptainer.def' : 'Dockerfile'
  const recipePath = sourceType === 'docker-image' ? undefined : plainPath(given.recipePath ?? usual)
  const wanted = {
    ...{ id: given.id, artifactVersionId: given.artifactVersionId, sourceType, image: given.image },
    ...{ contextDigest: given.contextDigest, recipePath, recipeDigest: given.recipeDigest },
    ...{ targetFormat: given.targetFormat, targetOs: given.targetOs },
    targetArchitecture: given.targetArchitecture ?? 'amd64',
    ...{ buildArguments: given.buildArguments ?? '{}', network: given.network ?? false },
    ...(given.credentialRef === undefined ? {} : { credentialRef: given.credentialRef }),
    cacheKey: given.cacheKey,
  }
  const stored = await buildOfKey(parts.db, given.cacheKey)
  if (stored !== undefined) return { build: stored, isNew: false }
  const { problems, hostId } = await buildProblems(parts, given)
  if (problems.length > 0) throw unacceptable(problems)
  // A context on another host is compared there, before the build begins.
  if (hostId === parts.hostId) await checkRecipe(parts, wanted)
  const build = await insert(parts.db, wanted)
  if (build !== undefined) return { build, isNew: true }
  // Another request recorded the build first.
  const first = await buildOfKey(parts.db, given.cacheKey)
  if (first === undefined) throw new Refusal('unavailable', 'the build changed meanwhile; try again')
  return { build: first, isNew: false }
}
