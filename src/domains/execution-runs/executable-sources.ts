import { posix } from 'node:path'
import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import type { PinnedExecutable } from '../../executor/executables.ts'
import type { ArtifactFormat } from '../artifacts/schemas.ts'
import { catalogEntry, ensureImageBuild, type CatalogEntry } from '../artifacts/resolution.ts'
import { newestRunOf } from '../artifacts/deliveries.ts'
import { isPinned } from '../artifacts/pulls.ts'
import { credentialProblems, readBuildOrNothing } from '../artifacts/builds.ts'
import type { Finding, Findings, OutsideQuestion } from './executable-findings.ts'

/** From an executable of a workflow to what its tasks run at a site. */

const Reference = z
  .union([z.string(), z.looseObject({ id: z.string(), version: z.string().optional() })])
  .transform((given) => (typeof given === 'string' ? { id: given } : given))
const Fields = z.looseObject({
  source: z.looseObject({
    type: z.string(),
    reference: z.string().optional(),
    path: z.string().optional(),
    uri: z.string().optional(),
    artifactRef: Reference.optional(),
    artifactBuildRef: Reference.optional(),
    environmentRef: Reference.optional(),
    resourceRef: Reference.optional(),
    expectedDigest: z.string().optional(),
    format: z.string().optional(),
    credentialRef: z.string().optional(),
  }),
  delivery: z
    .looseObject({ strategy: z.string().optional(), targetFormat: z.string().optional() })
    .optional(),
  expectedDigest: z.string().optional(),
  format: z.string().optional(),
  credentialRef: z.string().optional(),
})
export type Executable = z.output<typeof Fields>
export const parseExecutable = (given: unknown): Executable | undefined => Fields.safeParse(given).data

/** A site as an executable's target. */
export interface Target {
  site: string
  resourceId: string
  /** `kubernetes`, or that of the runtime; `auto`: whatever its hosts have. */
  engine: string
  /** The engine's own socket on this machine, where its runtime names one. */
  socket?: string
  architecture: string
  /** The tasks are processes of the machine that holds our store. */
  here: boolean
  hostId: string
  /** Sites of the run that hold the files of a resource or an environment. */
  holderOf: (reference: string) => string | undefined
}

/** The pin without its id, or why there is none, or what has to be found out first. */
export type Resolved = { pin: Pin } | { problem: string } | { question: OutsideQuestion } | { busy: string }

type Given = { executable: Executable; target: Target; findings: Findings; tx: Db }
type Pin = Omit<PinnedExecutable, 'id'>

/** Ends a resolution without a pin. */
class Unresolved extends Error {
  readonly resolved: Exclude<Resolved, { pin: Pin }>
  constructor(resolved: Exclude<Resolved, { pin: Pin }>) {
    super('the executable has no pin')
    this.resolved = resolved
  }
}
const unfit = (problem: string): Unresolved => new Unresolved({ problem })

/** @throws Unresolved where the question has no answer yet */
const found = ({ findings }: Given, question: OutsideQuestion): Finding => {
  const finding = findings.get(JSON.stringify(question))
  if (finding === undefined) throw new Unresolved({ question })
  return finding
}
/** @throws Unresolved where there is no answer yet, or a problem for one */
const foundWell = (given: Given, question: OutsideQuestion): Finding => {
  const finding = found(given, question)
  if (finding.problem !== undefined) throw unfit(finding.problem)
  return finding
}

const has = (
  executable: Executable,
  name: 'expectedDigest' | 'format' | 'credentialRef',
): string | undefined => executable[name] ?? executable.source[name]
const strategyOf = ({ delivery }: Executable): string => delivery?.strategy ?? 'auto'
const throughStore = new Set(['managed', 'build-and-transfer', 'gateway-transfer'])

/** The format that a site's engine runs; undefined: any. */
const formatOf = ({ engine }: Target): ArtifactFormat | undefined =>
  engine === 'apptainer' ? 'sif' : engine === 'auto' ? undefined : 'oci'

/**
 * The format of an executable at a site; undefined: any.
 * @throws Unresolved where the site cannot run it
 */
const wantedFormat = ({ executable, target }: Given): ArtifactFormat | undefined => {
  const asked = executable.delivery?.targetFormat
  if (asked !== undefined && asked !== 'sif' && asked !== 'oci')
    throw unfit(`delivery.targetFormat ${JSON.stringify(asked)} is neither sif nor oci`)
  const own = formatOf(target)
  if (asked !== undefined && own !== undefined && asked !== own)
    throw unfit(
      `delivery.targetFormat is ${asked}, and ${target.engine} at ${target.site} runs ${own}; leave it out`,
    )
  return asked ?? own
}

/** @throws Unresolved where the author expects another digest than a known one */
const compareDigest = (executable: Executable, digest: string | undefined): void => {
  const expected = has(executable, 'expectedDigest')
  if (expected !== undefined && digest !== undefined && expected !== digest)
    throw unfit(`expectedDigest is ${expected}, and the executable has ${digest}; correct one of them`)
}

/**
 * Compares a file with what the author asks for and what the site runs.
 * @throws Unresolved where it is another one, or the site cannot run it
 */
const checkFile = (given: Given, { digest, format }: { digest: string; format: ArtifactFormat }): void => {
  const { executable, target } = given
  const wanted = wantedFormat(given)
  const declared = has(executable, 'format')
  if (declared !== undefined && declared !== format)
    throw unfit(`format is ${declared}, and the file is ${format}`)
  if (wanted !== undefined && wanted !== format)
    throw unfit(
      executable.delivery?.targetFormat === undefined
        ? `the file is ${format}, and ${target.engine} at ${target.site} runs ${wanted}`
        : `delivery.targetFormat is ${wanted}, and the file is ${format}`,
    )
  compareDigest(executable, digest)
}

/**
 * The strategy for bytes that are in our store, or in a file of this machine.
 * @throws Unresolved where the site cannot have them so
 */
const storedStrategy = ({ executable, target }: Given): { strategy: string; reason: string } => {
  const strategy = strategyOf(executable)
  if (target.engine === 'kubernetes')
    throw unfit('pods take images of registries only; push the image to one, and give source.type oci')
  if (strategy === 'destination-pull')
    throw unfit(
      `delivery.strategy destination-pull: ${target.site} has no registry to pull it from; ` +
        'use managed or auto',
    )
  if (strategy === 'use-in-place' && !target.here)
    throw unfit(
      `delivery.strategy use-in-place: the bytes are not at ${target.site}; use gateway-transfer or auto`,
    )
  if (throughStore.has(strategy)) return { strategy, reason: `the author asks for ${strategy}` }
  return target.here
    ? { strategy: 'use-in-place', reason: 'its bytes are on the machine of the task' }
    : { strategy: 'gateway-transfer', reason: `use-in-place: its bytes are not at ${target.site}` }
}

const base = ({ executable, target }: Given, locator: string) => ({
  ...{ source: executable.source.type, locator: locator.slice(0, 500) },
  ...{ site: target.site, resourceId: target.resourceId },
  ...(has(executable, 'expectedDigest') === undefined
    ? {}
    : { expectedDigest: has(executable, 'expectedDigest') as string }),
})

/** `auto` of a runtime becomes an engine that takes the format. */
const engineFor = (target: Target, format: ArtifactFormat): { engine?: string } =>
  target.engine === 'auto' && format === 'sif' ? { engine: 'apptainer' } : {}

/** An executable that a build makes; one without a completed run is waited for. */
const ofBuild = async (given: Given, buildId: string): Promise<Pin> => {
  const { executable, target, tx } = given
  const build = await readBuildOrNothing(tx, buildId)
  const named = JSON.stringify(buildId)
  if (build === undefined) throw unfit(`names the build ${named}, which does not exist`)
  const wanted = wantedFormat(given)
  const { targetFormat: format, targetArchitecture: architecture } = build
  if (wanted !== undefined && wanted !== format)
    throw unfit(
      `the build ${named} makes ${format}, and ${target.site} needs ${wanted}; ` +
        `describe a build of targetFormat ${wanted}`,
    )
  if (architecture !== target.architecture)
    throw unfit(
      `the build ${named} is for ${architecture}, and resource ${target.resourceId} is ${target.architecture}`,
    )
  const pin = {
    ...base(given, buildId),
    ...{ format, buildId, ...storedStrategy(given), ...engineFor(target, format) },
  }
  const run = await newestRunOf(tx, buildId)
  if (run?.status !== 'completed' || run.digest == null) return pin
  if (run.hostId !== target.hostId)
    throw unfit(`the output of the build ${named} lies on the host ${run.hostId}`)
  compareDigest(executable, run.digest)
  return {
    ...pin,
    digest: run.digest,
    ...(run.sizeBytes == null ? {} : { sizeBytes: run.sizeBytes }),
    ...(run.imageId == null || format === 'sif' ? {} : { imageId: run.imageId }),
    ...(run.variantId == null ? {} : { variantId: run.variantId }),
  }
}

const fits = (
  { variants }: CatalogEntry,
  format: ArtifactFormat | undefined,
  { architecture }: Target,
): CatalogEntry['variants'] =>
  variants.filter(
    (variant) =>
      (format === undefined
        ? variant.format === 'sif' || variant.format === 'oci'
        : variant.format === format) && (variant.architecture ?? architecture) === architecture,
  )

/**
 * The variant of an artifact for the site's engine and architecture, or the build that makes one.
 */
const ofCatalog = async (given: Given): Promise<Pin> => {
  const { executable, target, tx } = given
  const { artifactRef } = executable.source
  const entry = await catalogEntry(tx, artifactRef?.id ?? '', artifactRef?.version)
  const named = JSON.stringify(
    artifactRef?.version === undefined ? artifactRef?.id : `${artifactRef.id}:${artifactRef.version}`,
  )
  if (entry === undefined) throw unfit(`names the artifact ${named}, which does not exist`)
  const wanted = wantedFormat(given)
  const how = storedStrategy(given)
  const locator = `${artifactRef?.id}:${entry.version}`
  const fitting = fits(entry, wanted, target)
  const stored = fitting.find(({ hosts }) => hosts.includes(target.hostId))
  if (stored !== undefined) {
    const { digest, variantId } = stored
    compareDigest(executable, digest)
    const format = stored.format === 'sif' ? 'sif' : 'oci'
    return {
      ...base(given, locator),
      ...{ format, digest, variantId, ...how, ...engineFor(target, format) },
      ...(stored.sizeBytes == null ? {} : { sizeBytes: stored.sizeBytes }),
      ...(stored.imageId == null || format === 'sif' ? {} : { imageId: stored.imageId }),
    }
  }
  const [promoted] = fitting.filter(({ places }) => places.length > 0)
  if (promoted !== undefined) return ofPromoted(given, promoted, locator)
  const build = entry.builds.find(
    ({ format, architecture }) => (wanted ?? format) === format && architecture === target.architecture,
  )
  if (build !== undefined) return ofBuild(given, build.id)
  const what = `${wanted ?? 'sif or oci'} variant for ${target.architecture}`
  throw unfit(
    fitting.length > 0
      ? `the ${what} of ${named} is not in the store of ${target.hostId}; build it there`
      : `artifact ${named} has no ${what}, and no build that makes one; describe it by POST /artifact-builds/`,
  )
}

/** A promoted variant: it is brought from its storage into our store first, once. */
const ofPromoted = (
  given: Given,
  { digest, variantId, places }: CatalogEntry['variants'][number],
  locator: string,
): Pin => {
  compareDigest(given.executable, digest)
  const [uri = ''] = places
  const pin = ofFile(given, { kind: 'address', uri, expectedDigest: digest }, locator)
  if (pin.digest !== digest)
    throw unfit(
      `${locator} was promoted with ${digest}, and ${uri} has ${pin.digest ?? 'other bytes'}; promote it again`,
    )
  return { ...pin, variantId }
}

const imageForm = /^(?:docker:\/\/)?[a-zA-Z0-9][\w.\-/:]*(@sha256:[0-9a-f]{64})?$/

/** An image that the site's engine has or pulls. */
const pulled = (given: Given, image: string, finding: Finding, why?: string): Pin => {
  const { executable, target } = given
  const inPlace = strategyOf(executable) === 'use-in-place'
  const digest = image.includes('@') ? image.slice(image.indexOf('@') + 1) : finding.digest
  compareDigest(executable, digest)
  const pinned = digest ?? has(executable, 'expectedDigest')
  const usual = target.engine === 'kubernetes' ? 'nodes pull images' : 'the engine there has it or pulls it'
  const unresolved =
    digest !== undefined
      ? ''
      : finding.reason === undefined
        ? '; the site resolves its name once for the run'
        : `; the site resolves its name once for the run, because here ${finding.reason}`
  return {
    ...base(given, image),
    format: 'oci',
    strategy: inPlace || finding.strategy === 'use-in-place' ? 'use-in-place' : 'destination-pull',
    reason: `${inPlace ? 'the author asks that the site has it' : (why ?? usual)}${unresolved}`,
    ...(inPlace ? { inPlace } : {}),
    image: image.includes('@') || pinned === undefined ? image : `${image}@${pinned}`,
    ...(digest === undefined ? {} : { digest }),
  }
}

/** A SIF file at the site, as older workflows name them; the site compares its digest. */
const ofSiteFile = (given: Given, image: string): Pin => {
  const { executable, target } = given
  if (target.engine === 'kubernetes')
    throw unfit(`${JSON.stringify(image)} is a file, which pods cannot run; give an image of a registry`)
  if (wantedFormat(given) === 'oci')
    throw unfit(
      `${JSON.stringify(image)} is a file, which ${target.engine} at ${target.site} cannot run; ` +
        'set containerRuntime to apptainer, or give an image of a registry',
    )
  const digest = isPinned(image) ? image.slice(image.lastIndexOf('@') + 1) : has(executable, 'expectedDigest')
  compareDigest(executable, digest)
  return {
    ...base(given, image),
    ...{ format: 'sif', strategy: 'use-in-place', reason: 'it is a file of the site', inPlace: true },
    image: isPinned(image) || digest === undefined ? image : `${image}@${digest}`,
    ...(digest === undefined ? {} : { digest }),
  }
}

const ofImage = async (given: Given): Promise<Pin> => {
  const { executable, target, tx } = given
  const image = (executable.source.reference ?? '').replace(/^docker:\/\//, '')
  const local = executable.source.type === 'local-container-image'
  if (image.startsWith('/')) return ofSiteFile(given, image)
  if (!imageForm.test(image))
    throw unfit(`${JSON.stringify(image.slice(0, 200))} is no name of an image; give name[:tag][@sha256:…]`)
  if (local && target.engine === 'kubernetes')
    throw unfit('nodes take images of registries only; push it to one, and give source.type oci')
  const wanted = wantedFormat(given)
  const strategy = strategyOf(executable)
  const credentialRef = has(executable, 'credentialRef')
  const [refused] = await credentialProblems(tx, [image], credentialRef)
  if (refused !== undefined) throw unfit(`credentialRef ${refused.message}`)
  const inPlace = strategy === 'use-in-place'
  // A login is used here, for its own registry; no site gets it.
  const isHeldHere = throughStore.has(strategy) || (credentialRef !== undefined && !inPlace)
  if (isHeldHere && target.engine === 'kubernetes')
    throw unfit(
      `delivery.strategy ${strategy}: nodes pull images of registries; use destination-pull or auto`,
    )
  if (inPlace && wanted === 'sif')
    throw unfit(
      `delivery.strategy use-in-place: apptainer at ${target.site} would have to make a SIF file of ` +
        `${JSON.stringify(image)}; give the SIF file there as remote-file, or use auto`,
    )
  const mustConvert =
    isHeldHere || (executable.delivery?.targetFormat === 'sif' && strategy !== 'destination-pull')
  const question: OutsideQuestion = {
    ...{ kind: 'image', image, engine: target.here ? target.engine : '' },
    ...(target.here && target.socket !== undefined ? { socket: target.socket } : {}),
    ...(mustConvert ? { isConverted: true } : {}),
    ...(credentialRef === undefined ? {} : { credentialRef }),
  }
  const finding = foundWell(given, question)
  const digest = isPinned(image) ? image.slice(image.indexOf('@') + 1) : finding.digest
  // A build by a tag would give its first output to all later runs.
  if (mustConvert && digest === undefined)
    throw unfit(
      `${JSON.stringify(image)} could not be resolved to a digest (${finding.reason ?? 'no answer'}); ` +
        'name it by name@sha256:…, or try again once its registry answers',
    )
  if (inPlace && target.here && finding.strategy === undefined)
    throw unfit(
      `delivery.strategy use-in-place: the ${target.engine} engine of ${target.site} does not have ` +
        `${JSON.stringify(image)}; load it there, or use destination-pull or auto`,
    )
  if (!mustConvert && wanted !== 'sif') return pulled(given, image, finding)
  const answers = found(given, { kind: 'builder' })
  if (mustConvert && answers.problem !== undefined) throw new Unresolved({ busy: answers.problem })
  if (!mustConvert && (strategy !== 'auto' || local || digest === undefined || answers.problem !== undefined))
    return pulled(
      given,
      image,
      finding,
      answers.problem === undefined
        ? 'apptainer there makes its SIF file of it'
        : 'apptainer there makes its SIF file of it, because no engine here can convert it',
    )
  compareDigest(executable, digest)
  const named = isPinned(image) || digest === undefined ? image : `${image}@${digest}`
  const buildId = await ensureImageBuild(tx, {
    ...{ image: named, architecture: target.architecture },
    format: wanted ?? 'oci',
    credentialRef,
  })
  const { expectedDigest: _own, ...others } = executable
  const { expectedDigest: _sources, ...source } = executable.source
  return ofBuild({ ...given, executable: { ...others, source } }, buildId)
}

/** A file of this machine, or one that was fetched into our store. */
const ofFile = (given: Given, question: OutsideQuestion, locator: string): Pin => {
  const { target } = given
  const how = storedStrategy(given)
  const { digest, format = 'oci', file, sizeBytes, imageId } = foundWell(given, question)
  if (digest === undefined || sizeBytes === undefined) throw unfit('could not be read')
  checkFile(given, { digest, format })
  return {
    ...base(given, locator),
    ...{ format, digest, sizeBytes, ...how, ...engineFor(target, format) },
    ...(imageId === undefined ? {} : { imageId }),
    ...(file === undefined ? {} : { file }),
  }
}

/** A file at a site: used there in place, brought elsewhere. */
const ofRemoteFile = (given: Given): Pin => {
  const { executable, target } = given
  const { path = '', resourceRef, environmentRef } = executable.source
  if (!path.startsWith('/') || path.split('/').includes('..'))
    throw unfit(`source.path ${JSON.stringify(path.slice(0, 200))} must be an absolute path at its site`)
  if (target.engine === 'kubernetes')
    throw unfit('is a file, which pods cannot run; give an image of a registry')
  const reference = resourceRef?.id ?? environmentRef?.id ?? ''
  const holder = target.holderOf(reference)
  if (holder === undefined)
    throw unfit(
      `${JSON.stringify(reference)} is no resource and no environment whose runtime this run uses; ` +
        'plan an activity there, or give the file as local-file',
    )
  const question: OutsideQuestion = { kind: 'remote', site: holder, path }
  if (holder === target.site && strategyOf(executable) !== 'managed') {
    const { digest = '', format = 'sif', imageId, file } = foundWell(given, question)
    checkFile(given, { digest, format })
    // The path with its links resolved is the one that was read.
    const real = file === undefined ? path : posix.join(file.directory, file.path)
    return {
      ...base(given, path),
      ...{ format, strategy: 'use-in-place', reason: 'it is a file of the site', inPlace: true },
      ...{ image: format === 'sif' ? `${real}@${digest}` : `archive:${real}@${imageId ?? digest}`, digest },
      ...engineFor(target, format),
    }
  }
  return ofFile({ ...given, target: { ...target, here: false } }, question, path)
}

/** Resolves one executable at one site. */
export const resolveExecutable = async (given: Given): Promise<Resolved> => {
  try {
    return { pin: await pinOfSource(given) }
  } catch (error) {
    if (error instanceof Unresolved) return error.resolved
    throw error
  }
}

/** @throws Unresolved where there is no pin, or none yet */
const pinOfSource = async (given: Given): Promise<Pin> => {
  const { source } = given.executable
  const expectedDigest = has(given.executable, 'expectedDigest')
  if (expectedDigest !== undefined && !/^sha256:[0-9a-f]{64}$/.test(expectedDigest))
    throw unfit(`expectedDigest ${JSON.stringify(expectedDigest)} must be like sha256:… with 64 digits`)
  switch (source.type) {
    case 'oci':
    case 'local-container-image':
      return ofImage(given)
    case 'build':
      return ofBuild(given, source.artifactBuildRef?.id ?? '')
    case 'catalog':
      return ofCatalog(given)
    case 'local-file':
      return ofFile(given, { kind: 'file', path: source.path ?? '' }, source.path ?? '')
    case 'remote-file':
      return ofRemoteFile(given)
    default: {
      const uri = source.uri ?? ''
      const credentialRef = has(given.executable, 'credentialRef')
      return ofFile(
        given,
        {
          ...{ kind: 'address', uri },
          ...(credentialRef === undefined ? {} : { credentialRef }),
          ...(expectedDigest === undefined ? {} : { expectedDigest }),
        },
        uri.replace(/\?.*/, ''),
      )
    }
  }
}
