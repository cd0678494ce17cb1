import { z } from 'zod'
import { EngineRefusal, inspectImage, pullImage, type InspectedImage } from '../../clients/docker.ts'
import { partsOfImage, registryDenied, type RegistryLogin } from '../../clients/registry.ts'
import { sql, type Db } from '../../db/sql.ts'
import { BuildError } from '../../drivers/build/errors.ts'
import type { SecretOpener } from '../../vault/secret.ts'
import { imageFault } from './images.ts'
import type { Journal } from './journal.ts'
import type { BuildWork } from './runs.ts'
import type { BuildWorkParts } from './build-parts.ts'
import type { BuildBase } from './schemas.ts'

export const platformOf = ({ targetOs, targetArchitecture }: BuildWork): string =>
  `${targetOs}/${targetArchitecture}`
/** A pinned image needs no resolution of its tag. */
export const isPinned = (image: string): boolean => image.includes('@sha256:')

/** The registry of a login; undefined where there is no such login. */
export const registryOfLogin = (db: Db, credentialRef: string): Promise<string | undefined> =>
  db.value(
    z.string(),
    sql`select shown ->> 'registry' as registry from credentials where kind = 'registry-credential'
        and 'vault:registry-credential/' || id = ${credentialRef}`,
  )

/**
 * The login for the registry of an image alone; undefined without a reference. @throws BuildError
 * for a login of another registry; Refusal where the vault does not have it
 */
export const loginOf = async (
  vault: SecretOpener,
  {
    credentialRef,
    image,
    purpose,
  }: { credentialRef: string | null | undefined; image: string; purpose: string },
): Promise<RegistryLogin | undefined> => {
  if (credentialRef == null) return undefined
  const secret = await vault.open(credentialRef, { actor: 'service', purpose })
  const { registry } = partsOfImage(image)
  if (secret.kind !== 'registry-credential' || secret.registry !== registry)
    throw new BuildError(`${credentialRef} is no login of ${registry}; refer to one`)
  return { username: secret.username, password: secret.password }
}

/** The engine's image of a name; one that no registry gave is pinned by its id. */
export const engineImage = async (
  buildEngine: string,
  image: string,
  signal?: AbortSignal,
): Promise<InspectedImage | undefined> =>
  (await inspectImage(buildEngine, image, signal)) ??
  (isPinned(image) ? inspectImage(buildEngine, image.slice(image.indexOf('@') + 1), signal) : undefined)

/**
 * The record of an image that a build took: with the digest of the registry that its name names
 * where the engine knows that, else with the engine's id.
 */
export const buildBaseOf = (
  image: string,
  { id, repoDigests }: Pick<InspectedImage, 'id' | 'repoDigests'>,
): BuildBase => {
  const { registry, repository, digest: pinned } = partsOfImage(image)
  const digests = repoDigests.flatMap((each) => {
    const given = partsOfImage(each)
    return given.registry === registry && given.repository === repository ? (given.digest ?? []) : []
  })
  const isId = pinned === id && !digests.includes(id)
  const digest = isId ? undefined : (pinned ?? digests[0])
  const [name = image] = image.split('@')
  return { image: name, digest: digest ?? id, digestOf: digest === undefined ? 'engine' : 'registry' }
}

/** The login of a build for each image: of its own registry; a build from an image has no other. */
export const loginsOf = async (
  db: Db,
  { credentialRef, sourceType }: BuildWork,
): Promise<(image: string) => string | undefined> => {
  if (credentialRef == null) return () => undefined
  if (sourceType === 'docker-image') return () => credentialRef
  const registry = await registryOfLogin(db, credentialRef)
  return (image) => (partsOfImage(image).registry === registry ? credentialRef : undefined)
}

interface Pull {
  journal: Journal
  signal: AbortSignal
}

/**
 * Has the engine pull the images of a recipe that the build has a login for. The build takes them
 * from the engine: its session gets no login, because it would show that to every registry.
 */
export const pullPrivateBases = async (
  parts: BuildWorkParts,
  work: BuildWork,
  images: readonly string[],
  { journal, signal }: Pull,
): Promise<void> => {
  const loginFor = await loginsOf(parts.db, work)
  for (const image of images) {
    const credentialRef = loginFor(image)
    if (credentialRef === undefined) continue
    try {
      await pull(parts, work, image, { journal, signal, credentialRef })
    } catch (error) {
      // The reading finds more names than the recipe has; the build knows those that it needs.
      if (!(error instanceof EngineRefusal)) throw error
      journal.say(`${image} is not pulled with the login: ${error.message}`)
    }
  }
}

/** What a registry answers for good, whatever status the engine gives it: Docker's is often 500. */
const final = /not found|denied|unauthorized|(?:manifest|name|blob) unknown/i
const ofTheWay = /time(?:d )?out|deadline exceeded|connection reset|unexpected EOF/i
const ofTheRegistry = /too ?many ?requests|(?:status.*:|HTTP) ?(?:429|5\d\d)\b/i

/** The engine's refusal of a pull; one by passing trouble of the registry or of the way to it passes. */
const refusedPull = (refusal: EngineRefusal): Error => {
  const { statusCode = 0 } = (refusal.cause ?? {}) as { statusCode?: number }
  const trouble = statusCode === 429 || statusCode > 500
  const passes = trouble || ofTheWay.test(refusal.message) || ofTheRegistry.test(refusal.message)
  return passes && !final.test(refusal.message)
    ? new BuildError(refusal.message, { passes, cause: refusal })
    : refusal
}

/**
 * Pulls an image of a build, with the login of its registry. @returns the engine's image
 * @throws EngineRefusal; BuildError that passes where waiting may help
 */
export const pull = async (
  { buildEngine, addressAllowed, vault, http }: BuildWorkParts,
  work: BuildWork,
  image: string,
  { journal, signal, credentialRef }: Pull & { credentialRef: string | null | undefined },
): Promise<InspectedImage> => {
  const fault = imageFault(image, addressAllowed) ?? (await registryDenied(http, image))
  if (fault !== undefined) throw new BuildError(`the image must not be pulled: ${fault}`)
  const purpose = `pull the image of the build ${work.id}`
  const login = await loginOf(vault, { credentialRef, image, purpose })
  const before = await engineImage(buildEngine, image, signal)
  // An image of many architectures may be here for another one.
  const fits = before?.architecture === work.targetArchitecture
  if (!fits || !isPinned(image))
    try {
      await pullImage(buildEngine, image, platformOf(work), { signal, onLine: journal.say }, login)
    } catch (error) {
      if (!(error instanceof EngineRefusal)) throw error
      if (!fits) throw refusedPull(error)
      journal.say(`the registry does not give ${image} (${error.message}); the engine's own is taken`)
    }
  const found = await engineImage(buildEngine, image, signal)
  if (found === undefined)
    throw new BuildError(`the engine has no image ${image} after it was pulled`, { passes: true })
  return found
}
