import { z } from 'zod'
import { EpochTime, Id, MadeId, Name, ServerManaged, Timestamp } from '../../http/schema.ts'

export const artifactScopes = ['system', 'organization', 'project', 'workflow', 'run', 'environment'] as const

export const Digest = z
  .string()
  .regex(/^sha256:[0-9a-f]{64}$/, 'must be like sha256:… with 64 hexadecimal digits in lower case')

/** A version of an artifact; `id` is the artifact's, which its versions share. */
export const Artifact = z.strictObject({
  id: z.string(),
  name: z.string(),
  version: z.string(),
  artifactVersionId: z.string(),
  scope: z.enum(artifactScopes),
  scopeId: z.string().optional(),
  formats: z.array(z.string()),
})

/** A version with its variants and builds. */
export const ArtifactVersion = z.strictObject({
  id: z.string(),
  artifactId: z.string(),
  name: z.string(),
  version: z.string(),
  scope: z.enum(artifactScopes),
  scopeId: z.string().optional(),
  createdAt: Timestamp,
  variants: z.array(
    z.strictObject({
      id: z.string(),
      artifactId: z.string(),
      digest: z.string(),
      format: z.string(),
      architecture: z.string().optional(),
      sizeBytes: z.number().optional(),
      verification: z
        .enum(['executed', 'structural'])
        .optional()
        .describe('Of a build: whether a program of the image ran, or its parts alone were read'),
      sbom: z.boolean().optional().describe('whether this host has the list of its packages (…/sbom/)'),
      locations: z.array(
        z.strictObject({ id: z.string(), endpointId: z.string(), uri: z.string(), available: z.boolean() }),
      ),
    }),
  ),
  builds: z.array(z.string()).describe('Ids, the first 1,000'),
})

export const NewVersion = z.strictObject({
  artifactId: Id,
  name: Name.optional().describe('Default: the artifact’s id'),
  version: Id,
  scope: z.enum(artifactScopes).default('system').describe('whose it is; system by default'),
  scopeId: Id.optional().describe('of the scope; none by default'),
})

const component = String.raw`[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*`
/** `[registry[:port]/]name[/name…][:tag][@sha256:…]`, as the reference grammar of images has it. */
const imageForm = new RegExp(
  String.raw`^(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::\d{1,5})?\/)?${component}(?:\/${component})*` +
    String.raw`(?::\w[\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?$`,
)

/**
 * The name of an image as engines accept it. A name with a leading dash or with blanks is refused.
 */
export const ImageName = z
  .string()
  .max(512)
  .transform((text) => text.replace(/^docker:\/\//, ''))
  .refine(
    (text) => imageForm.test(text),
    'must be the name of an image like registry.example.org/tool:1 or tool@sha256:…, without blanks and credentials',
  )

const Architecture = z.string().regex(/^[a-z0-9]{1,20}$/, 'must be an architecture like amd64 or arm64')
const Arguments = z
  .string()
  .max(65_536)
  .refine(
    (text) => argumentsOf(text) !== undefined,
    'must be a JSON object of texts as text, like {"VERSION":"1"}',
  )

/** The build arguments in their JSON text; undefined where the text is not JSON of that form. */
export const argumentsOf = (text: string): Record<string, string> | undefined => {
  try {
    const parsed = z
      .record(z.string().regex(/^[A-Za-z_][A-Za-z0-9_]{0,200}$/), z.string().max(32_768))
      .safeParse(JSON.parse(text))
    return parsed.data
  } catch {
    return undefined
  }
}

/** The time that no file of the output is younger than, in seconds since 1970. */
export const epochOf = ({ buildArguments }: { buildArguments: string }): number | undefined => {
  const given = argumentsOf(buildArguments)?.['SOURCE_DATE_EPOCH'] ?? ''
  return /^\d{1,11}$/.test(given) ? Number(given) : undefined
}

export const targetFormats = ['sif', 'oci'] as const
export type ArtifactFormat = (typeof targetFormats)[number]

const CredentialRef = z
  .string()
  .regex(/^vault:registry-credential\/[a-z0-9][a-z0-9-]{0,62}$/, 'must be like vault:registry-credential/id')
  .describe('A login of /registry-credentials/, used for the pull of the image from its registry')

export const NewDockerArtifact = z.strictObject({
  artifactId: Id,
  version: Id,
  image: ImageName,
  architecture: Architecture.optional().describe('Default: amd64'),
  credentialRef: CredentialRef.optional(),
})

const buildTarget = {
  recipePath: z
    .string()
    .max(4_096)
    .optional()
    .describe('Below the context; default: Dockerfile, of a definition apptainer.def'),
  targetFormat: z
    .enum(targetFormats)
    .default('sif')
    .describe('sif (the default) for Apptainer, oci for container engines'),
  targetOs: z.enum(['linux']).default('linux').describe('linux'),
  targetArchitecture: Architecture.optional().describe('Default: amd64'),
  buildArguments: Arguments.optional().describe('A JSON object as text'),
  image: ImageName.optional().describe('Of sourceType docker-image'),
  network: z.boolean().optional().describe('Whether steps of the recipe have a network; default: none'),
  credentialRef: CredentialRef.optional(),
}

export const NewBuild = z.strictObject({
  id: Id,
  artifactVersionId: MadeId,
  sourceType: z
    .enum(['docker-image', 'dockerfile', 'definition'])
    .default('dockerfile')
    .describe('what is built; dockerfile by default'),
  contextDigest: Digest,
  recipeDigest: Digest,
  cacheKey: Id,
  ...buildTarget,
  createdAt: ServerManaged,
})

export const ArtifactBuild = z.strictObject({
  id: z.string(),
  artifactVersionId: z.string(),
  sourceType: z.string(),
  image: z.string().optional(),
  contextDigest: z.string(),
  recipePath: z.string().optional(),
  recipeDigest: z.string(),
  targetFormat: z.enum(targetFormats),
  targetOs: z.string(),
  targetArchitecture: z.string(),
  buildArguments: z.string(),
  network: z.boolean(),
  credentialRef: z.string().optional(),
  cacheKey: z.string(),
  createdAt: Timestamp,
})

export const DockerArtifact = z.strictObject({
  artifact: z.strictObject({
    id: z.string(),
    artifactId: z.string(),
    version: z.string(),
    scope: z.enum(artifactScopes),
  }),
  build: ArtifactBuild,
})

export const contextMediaType = 'application/vnd.akoflow.build-context+tar+gzip'
export const BuildContext = z.strictObject({
  digest: z.string(),
  storageUri: z.string(),
  sizeBytes: z.number(),
  mediaType: z.string(),
})
export const NewContext = z.strictObject({
  digest: Digest,
  storageUri: z
    .string()
    .regex(
      /^artifact:\/\/contexts\/[0-9a-f]{64}$/,
      'must be artifact://contexts/ and the digest in hexadecimal',
    ),
  sizeBytes: z.int().gt(0),
  mediaType: z.literal(contextMediaType).optional().describe('of the content'),
})

/** The step and progress that an open build run records. */
export const LiveBuild = z.strictObject({
  step: z.string(),
  bytes: z.number().optional(),
  line: z.string().optional(),
})
const buildStates = [
  'queued',
  'preparing',
  'building',
  'verifying',
  'publishing',
  'completed',
  'failed',
  'cancelled',
] as const
/** An image that a build began with. */
export const BuildBase = z.strictObject({
  image: z.string(),
  digest: z.string(),
  digestOf: z
    .enum(['registry', 'engine'])
    .describe('registry: the digest of its manifest there; engine: the id of an image that no registry gave'),
})
export type BuildBase = z.output<typeof BuildBase>

export const BuildRun = z.strictObject({
  id: z.string(),
  artifactBuildId: z.string(),
  status: z.enum(buildStates),
  outputVariantId: z.string().optional(),
  outputDigest: z.string().optional(),
  logs: z.string().optional(),
  error: z.string().optional(),
  startedAt: Timestamp.optional(),
  finishedAt: Timestamp.optional(),
  createdAt: Timestamp,
  bases: z.array(BuildBase).optional().describe('images that the build took, the first 100'),
  live: LiveBuild.optional(),
})

/** DSSE: the signature is of `DSSEv1 <length> <payloadType> <length> <payload>`. */
export const Attestation = z.strictObject({
  payloadType: z.string(),
  payload: z.string().describe('an in-toto statement in Base64'),
  signatures: z.array(z.strictObject({ keyid: z.string(), sig: z.string() })),
})

export const ArtifactLocation = z.strictObject({
  id: z.string(),
  variantId: z.string(),
  scope: z.string(),
  scopeId: z.string().optional(),
  endpointId: z.string(),
  uri: z.string(),
  digest: z.string(),
  available: z.boolean(),
})

const materialization = {
  id: z.string(),
  runId: z.string().optional(),
  activityId: z.string().optional(),
  variantId: z.string(),
  digest: z.string(),
  resourceId: z.string(),
  environmentId: z.string().optional(),
  destinationPath: z.string(),
  status: z.enum(['planned', 'reconciling', 'transferring', 'verifying', 'committed', 'failed']),
  verifiedDigest: z.string().optional(),
}
export const Materialization = z.strictObject(materialization)
/** The transfer that brought an executable to a place of a run. */
export const ArtifactTransferRun = z.strictObject({
  id: z.string(),
  materializationId: z.string(),
  executionRunId: z.string(),
  activityId: z.string().optional(),
  strategy: z.string(),
  reason: z.string(),
  status: z.enum(['running', 'completed', 'failed']),
  bytes: z.number().describe('content that moved'),
  networkBytes: z.number().describe('what left the source; 0 where the site’s engine pulled the image'),
  startedAt: EpochTime,
  finishedAt: EpochTime.optional(),
  failureReason: z.string().optional(),
})
export const NewMaterialization = z.strictObject({
  ...materialization,
  id: Id,
  runId: Id.optional().describe('of the run that the bytes are for'),
  activityId: Id.optional().describe('of the activity that the bytes are for'),
  variantId: Id,
  digest: Digest,
  resourceId: Id,
  environmentId: Id.optional().describe('Id of a version of an environment'),
  destinationPath: z.string().min(1).max(4_096),
  verifiedDigest: Digest.optional().describe('of the bytes at the destination, once it was looked at'),
})
