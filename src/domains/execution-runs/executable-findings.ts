import { createReadStream } from 'node:fs'
import { open, realpath, stat } from 'node:fs/promises'
import { basename, dirname, isAbsolute, join, posix } from 'node:path'
import { imageNamed, inspectImage, pingEngine, type EngineSockets } from '../../clients/docker.ts'
import { HttpError } from '../../clients/http-error.ts'
import type { AddressJudge, Http } from '../../clients/http.ts'
import { registryDenied, resolveImage } from '../../clients/registry.ts'
import { archiveImageId } from '../../drivers/build/archive.ts'
import { BuildError, fullStore, isFull } from '../../drivers/build/errors.ts'
import { digestOfFile } from '../../drivers/build/store.ts'
import { DriverError } from '../../drivers/runtime/contract/driver.ts'
import { asDriverError } from '../../drivers/runtime/contract/results.ts'
import type { SiteDrivers } from '../../executor/drivers.ts'
import { isOwnMachine, placesOf, type SiteFacts } from '../../executor/sites.ts'
import { liesIn } from '../../outside-path.ts'
import { quote } from '../../shell/quote.ts'
import { LinkError } from '../../shell/site-shell.ts'
import { Refusal } from '../../refusal.ts'
import type { SecretOpener } from '../../vault/secret.ts'
import { imageFault } from '../artifacts/images.ts'
import { isPinned, loginOf } from '../artifacts/pulls.ts'
import type { ArtifactFormat } from '../artifacts/schemas.ts'
import { fetchStored, isStored, type StoredParts } from './stored-executables.ts'

/** What admission asks outside of the database before it pins executables. */
export type OutsideQuestion =
  /**
   * The digest of a name; `engine`: of this machine, empty for other sites; `isConverted`: the engine
   * that builds pulls it, whatever the site.
   */
  | {
      kind: 'image'
      image: string
      engine: string
      socket?: string
      isConverted?: true
      credentialRef?: string
    }
  /** Whether an engine builds here. */
  | { kind: 'builder' }
  /** A file below the approved folders of this machine. */
  | { kind: 'file'; path: string }
  | { kind: 'remote'; site: string; path: string }
  | { kind: 'address'; uri: string; credentialRef?: string; expectedDigest?: string }

export interface Finding {
  digest?: string
  sizeBytes?: number
  format?: ArtifactFormat
  imageId?: string
  /** Where the file is; absent: in our store. */
  file?: { at: string; directory: string; path: string }
  strategy?: string
  /** Why a name could not be resolved here; the site resolves it. */
  reason?: string
  /** Why there is no executable. */
  problem?: string
}
/** By the JSON of the question. */
export type Findings = ReadonlyMap<string, Finding>

export interface FindingParts extends StoredParts {
  http: Pick<Http, 'request'>
  addressAllowed: AddressJudge
  vault: SecretOpener
  engineSockets: EngineSockets
  /** Socket of the engine that builds. */
  buildEngine: string
  seedRoot: string | undefined
  localStorageRoot: string | undefined
  sites: Pick<SiteDrivers, 'at'>
  hostId: string
}

const messageOf = (error: unknown): string => (error as Error).message
const limitBytes = 20 * 2 ** 30
/** The request that creates the run waits for it. */
const fetchDeadlineMs = 110_000
const mostHops = 5

const loopbackRegistry = /^(127\.[\d.]+|localhost|\[::1\])(:\d+)?\//

/** As `resolvedImage`; what goes through our store may also be the own image of the engine that builds. */
const findImage = async (
  parts: FindingParts,
  question: Extract<OutsideQuestion, { kind: 'image' }>,
): Promise<Finding> => {
  const finding = await resolvedImage(parts, question)
  const { image, isConverted, credentialRef } = question
  if (finding.reason === undefined || isConverted !== true || credentialRef !== undefined) return finding
  // No registry needs to have what the engine that builds has made itself.
  const own = await inspectImage(parts.buildEngine, image).catch(() => undefined)
  return own === undefined ? finding : { digest: own.id }
}

/**
 * Resolves a name by the engine of this machine, else by the image's registry. An image that an
 * engine would have to pull from a denied network is a problem.
 */
const resolvedImage = async (
  { http, vault, addressAllowed, engineSockets }: FindingParts,
  { image, engine, socket, isConverted, credentialRef }: Extract<OutsideQuestion, { kind: 'image' }>,
): Promise<Finding> => {
  const own =
    socket ??
    (engine === 'podman'
      ? engineSockets.podman
      : engine === '' || engine === 'apptainer'
        ? ''
        : engineSockets.docker)
  if (own !== '' && isConverted !== true) {
    const digest = await imageNamed(own, image).catch(() => undefined)
    if (digest !== undefined) return { digest, strategy: 'use-in-place' }
  }
  if (engine === '' && isConverted !== true && loopbackRegistry.test(image))
    return { reason: 'its registry is on the machine of the site' }
  const fault =
    imageFault(image, addressAllowed) ?? (isPinned(image) ? await registryDenied(http, image) : undefined)
  if (fault !== undefined) return { problem: `the image must not be pulled: ${fault}` }
  try {
    const login = await loginOf(vault, { credentialRef, image, purpose: 'resolve the name of an image' })
    const found = await resolveImage(http, image, login)
    return 'digest' in found ? found : { reason: found.missing }
  } catch (error) {
    if (error instanceof BuildError) return { problem: error.message }
    if (!(error instanceof HttpError)) return { reason: 'its registry gives no usable answer' }
    return error.fault === 'denied'
      ? { problem: `the image must not be pulled: ${error.message}` }
      : { reason: error.message }
  }
}

/** SIF files have a mark in their head; everything else has to be an archive of an image. */
const formatOf = async (path: string): Promise<ArtifactFormat> => {
  await using file = await open(path, 'r')
  const { buffer } = await file.read(Buffer.alloc(9), 0, 9, 32)
  return buffer.toString('latin1') === 'SIF_MAGIC' ? 'sif' : 'oci'
}

/** Reads a file once for its facts. */
const factsOf = async (path: string): Promise<Finding> => {
  const format = await formatOf(path)
  const { digest, sizeBytes } = await digestOfFile(path)
  if (sizeBytes === 0) return { problem: 'the file is empty' }
  if (format === 'sif') return { digest, sizeBytes, format }
  try {
    const imageId = await archiveImageId(createReadStream(path) as AsyncIterable<Buffer>)
    return { digest, sizeBytes, format, imageId }
  } catch (error) {
    if (!(error instanceof BuildError)) throw error
    return { problem: `the file is neither a SIF file nor an archive of an image: ${error.message}` }
  }
}

/** A file below SERVICE_SEED_ROOT or SERVICE_LOCAL_STORAGE_ROOT, with links resolved. */
const findFile = async (
  { seedRoot, localStorageRoot, hostId }: FindingParts,
  { path }: Extract<OutsideQuestion, { kind: 'file' }>,
): Promise<Finding> => {
  const roots = [seedRoot, localStorageRoot].filter((root) => root !== undefined)
  if (roots.length === 0)
    return { problem: 'no folder of this machine is approved; start the service with SERVICE_SEED_ROOT' }
  if (/\0/.test(path)) return { problem: 'source.path holds a NUL' }
  for (const root of roots) {
    const base = await realpath(root).catch(() => undefined)
    const real = await realpath(isAbsolute(path) ? path : join(root, path)).catch(() => undefined)
    if (base === undefined || real === undefined || !liesIn(base, real)) continue
    if (!(await stat(real)).isFile()) return { problem: `${JSON.stringify(path)} is no regular file` }
    const facts = await factsOf(real)
    return {
      ...facts,
      file: { at: `local@${hostId}`, directory: dirname(real), path: basename(real) },
    }
  }
  return {
    problem:
      `${JSON.stringify(path.slice(0, 200))} is no file below SERVICE_SEED_ROOT or SERVICE_LOCAL_STORAGE_ROOT ` +
      'of this machine; put it there',
  }
}

/** A file at a site: its size, its digest and its head, read there. */
const findRemote = async (
  parts: FindingParts,
  { site, path }: Extract<OutsideQuestion, { kind: 'remote' }>,
  facts: SiteFacts,
  pairs: readonly { runtimeId: string; resourceId: string }[],
): Promise<Finding> => {
  const place = placesOf(facts, pairs).get(site)
  if (place === undefined) return { problem: `no runtime of the run is at ${site}` }
  // A machine of the service gives files below its approved folders alone.
  if (isOwnMachine(place))
    return place.host === parts.hostId
      ? findFile(parts, { kind: 'file', path })
      : { problem: `${site} is the machine of another host of the service; ask the service there` }
  try {
    const { shell } = parts.sites.at(place, facts)
    const file = quote(path)
    const { code, stdout, stderr } = await shell.run(
      `[ -f ${file} ] && wc -c < ${file} && dd if=${file} bs=1 skip=32 count=9 2>/dev/null && echo && ` +
        `sha256sum < ${file}`,
      { deadlineMs: fetchDeadlineMs },
    )
    const [size = '', mark = '', sum = ''] = stdout.toString().split('\n')
    if (code !== 0)
      return {
        problem: `${site} has no file ${JSON.stringify(path)}${stderr.trim() === '' ? '' : `: ${stderr.trim()}`}`,
      }
    if (mark !== 'SIF_MAGIC')
      return {
        problem: `${JSON.stringify(path)} at ${site} is no SIF file; give an archive of an image as local-file`,
      }
    return {
      ...{ format: 'sif', digest: `sha256:${sum.split(' ')[0] ?? ''}`, sizeBytes: Number(size) },
      file: { at: site, directory: posix.dirname(path), path: posix.basename(path) },
    }
  } catch (error) {
    if (!(error instanceof LinkError || error instanceof DriverError)) throw error
    const { trouble, message } = asDriverError(error)
    const problem = `${site} could not be asked for ${JSON.stringify(path)}: ${message}`
    if (trouble !== 'unknown') return { problem }
    throw new Refusal('unavailable', problem, { retryAfterSeconds: 5, cause: error })
  }
}

/** Credentials travel over TLS, or within this machine. */
const isHere = (host: string): boolean => /^(127\.[\d.]+|localhost|\[::1\])$/.test(host)

const authorizationOf = async (
  vault: SecretOpener,
  reference: string | undefined,
): Promise<string | undefined> => {
  if (reference === undefined) return undefined
  const secret = await vault.open(reference, { actor: 'service', purpose: 'fetch an executable' })
  if (secret.kind === 'kubernetes-token') return `Bearer ${secret.token}`
  throw new DriverError(
    'refused',
    `credentialRef ${JSON.stringify(reference)} is not a token; store one as Kubernetes token`,
  )
}

/** Fetches the bytes at an address into our store; every hop is judged, and all share one deadline. */
const findAddress = async (
  { http, vault, artifactStore }: FindingParts,
  { uri, credentialRef, expectedDigest }: Extract<OutsideQuestion, { kind: 'address' }>,
): Promise<Finding> => {
  if (!URL.canParse(uri)) return { problem: `source.uri ${JSON.stringify(uri.slice(0, 200))} is no address` }
  if (expectedDigest !== undefined && (await artifactStore.renew('images', expectedDigest)))
    return factsOf(artifactStore.pathOf('images', expectedDigest))
  let url = new URL(uri)
  const first = url.host
  const authorization = await authorizationOf(vault, credentialRef)
  const until = performance.now() + fetchDeadlineMs
  for (let hop = 0; hop <= mostHops; hop += 1) {
    if (url.protocol !== 'https:' && !(url.protocol === 'http:' && isHere(url.hostname)))
      return { problem: `${url.protocol}//${url.host} must be https, or an address of this machine` }
    const headers = authorization === undefined || url.host !== first ? {} : { authorization }
    try {
      const answer = await http.request(url, {
        headers,
        deadlineMs: Math.max(1, Math.ceil(until - performance.now())),
        idleMs: 30_000,
        limitBytes,
      })
      if (answer.status !== 200) {
        answer.body.destroy()
        return { problem: `${url.host} answers ${answer.status} for ${url.pathname}` }
      }
      await using aside = await artifactStore.aside()
      for await (const piece of answer.body) await aside.write(piece as Buffer)
      const digest = await aside.keep('images')
      return await factsOf(artifactStore.pathOf('images', digest))
    } catch (error) {
      if (!(error instanceof HttpError)) throw error
      if (error.fault !== 'redirect' || error.location === undefined) return { problem: error.message }
      url = new URL(error.location, url)
    }
  }
  return { problem: `${first} redirects more than ${mostHops} times` }
}

/** Fetches a file of a storage into our store. */
const findStored = async (
  parts: FindingParts,
  { uri, credentialRef, expectedDigest }: Extract<OutsideQuestion, { kind: 'address' }>,
): Promise<Finding> => {
  const { artifactStore } = parts
  if (credentialRef !== undefined)
    return { problem: 'credentialRef: a storage has its own credential; leave it out' }
  const known = expectedDigest !== undefined && (await artifactStore.renew('images', expectedDigest))
  const found = known
    ? { digest: expectedDigest }
    : await fetchStored(parts, uri, { limitBytes, deadlineMs: fetchDeadlineMs })
  return 'problem' in found ? found : factsOf(artifactStore.pathOf('images', found.digest))
}

const findBuilder = async ({ buildEngine }: FindingParts): Promise<Finding> => {
  try {
    await pingEngine(buildEngine)
    return {}
  } catch (error) {
    return {
      problem:
        `the container engine that converts images does not answer (${messageOf(error)}); start Docker, or ` +
        'name its socket in SERVICE_CONTAINER_ENGINE',
    }
  }
}

/** Answers the questions of an admission. */
export const findExecutables = async (
  parts: FindingParts,
  questions: readonly OutsideQuestion[],
  facts: SiteFacts,
  pairs: readonly { runtimeId: string; resourceId: string }[],
): Promise<Findings> => {
  const answer = async (question: OutsideQuestion): Promise<Finding> => {
    if (question.kind === 'image') return findImage(parts, question)
    if (question.kind === 'builder') return findBuilder(parts)
    if (question.kind === 'file') return findFile(parts, question)
    if (question.kind === 'remote') return findRemote(parts, question, facts, pairs)
    if (isStored(question.uri)) return findStored(parts, question)
    return findAddress(parts, question)
  }
  const found = await Promise.all(
    questions.map(async (question) => {
      try {
        return [JSON.stringify(question), await answer(question)] as const
      } catch (error) {
        if (error instanceof Refusal && error.code !== 'unacceptable') throw error
        if (error instanceof Refusal || error instanceof DriverError)
          return [JSON.stringify(question), { problem: error.message }] as const
        throw isFull(error) ? new Refusal('unavailable', fullStore, { cause: error }) : error
      }
    }),
  )
  return new Map(found)
}
