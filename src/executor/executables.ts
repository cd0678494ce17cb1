import { z } from 'zod'

/** What a task runs: the program of one executable at one site, as the run's snapshot pins it. */
export const PinnedExecutable = z.object({
  id: z.string(),
  /** The type of its source, and the reference, path or address that names it there. */
  source: z.string(),
  locator: z.string(),
  site: z.string(),
  resourceId: z.string(),
  format: z.enum(['oci', 'sif']),
  strategy: z.string(),
  /** Why this strategy, and why not a better one. */
  reason: z.string(),
  /**
   * `sha256:…` of the file, or of the image at its registry; absent: a build has not ended, or only
   * the site can resolve the name.
   */
  digest: z.string().optional(),
  expectedDigest: z.string().optional(),
  engine: z.string().optional(),
  /** The name under which the site's engine has or pulls it; absent: its bytes are brought. */
  image: z.string().optional(),
  /** The site has to have it: it is neither pulled nor brought. */
  inPlace: z.boolean().optional(),
  /** Of an archive of an image: the image's own id in engines. */
  imageId: z.string().optional(),
  buildId: z.string().optional(),
  variantId: z.string().optional(),
  sizeBytes: z.number().optional(),
  /** Where the bytes are; absent with a digest: in this host's store. */
  file: z.object({ at: z.string(), directory: z.string(), path: z.string() }).optional(),
})
export type PinnedExecutable = z.output<typeof PinnedExecutable>

/** `of`: by position of the activity, the number of its pin; -1: the command of its host. */
export const RunExecutables = z.object({ pins: z.array(PinnedExecutable), of: z.array(z.number()) })
export type RunExecutables = z.output<typeof RunExecutables>

/** The pin of the activity at a position; undefined: it runs its command on its host. */
export const pinOf = (
  executables: RunExecutables | undefined,
  position: number,
): PinnedExecutable | undefined => executables?.pins[executables.of[position] ?? -1]

/** What is brought, for the reason of a task that waits for it. */
export const labelOf = ({ buildId, digest, source, locator }: PinnedExecutable): string =>
  digest === undefined && buildId !== undefined
    ? `the build ${buildId} of its image`
    : `its image (${source} ${locator})`
