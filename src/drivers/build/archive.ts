import { hash } from 'node:crypto'
import { BuildError } from './errors.ts'
import { tarEntries } from './tar.ts'

const largestDocument = 4 * 2 ** 20

/**
 * The id by which engines know the image in an archive of `docker save`, which our OCI archives are
 * too: the digest of its configuration. @throws BuildError for other archives
 */
export const archiveImageId = async (archive: AsyncIterable<Buffer>): Promise<string> => {
  const digests = new Map<string, string>()
  let manifest: string | undefined
  for await (const entry of tarEntries(archive)) {
    if (entry.type !== 'file' || entry.size > largestDocument) continue
    const pieces: Buffer[] = []
    for await (const piece of entry.content) pieces.push(piece)
    const bytes = Buffer.concat(pieces)
    digests.set(entry.path, `sha256:${hash('sha256', bytes)}`)
    if (entry.path === 'manifest.json') manifest = bytes.toString()
  }
  if (manifest === undefined) throw new BuildError('it has no manifest.json; make it with docker save')
  let images: unknown
  try {
    images = JSON.parse(manifest)
  } catch {
    throw new BuildError('its manifest.json is no JSON')
  }
  const [image] = Array.isArray(images) ? (images as { Config?: unknown }[]) : []
  const id = typeof image?.Config === 'string' ? digests.get(image.Config) : undefined
  if (id === undefined) throw new BuildError('its manifest.json names no configuration that it holds')
  return id
}
