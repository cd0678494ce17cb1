import { hash } from 'node:crypto'
import { createWriteStream } from 'node:fs'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { pack, type Pack } from 'tar-stream'
import { addContent, archiveBytes } from './packing.ts'
import { layerBytes, type ImageFolder } from './image.ts'

interface Blob {
  digest: string
  sizeBytes: number
  bytes: () => AsyncIterable<Buffer>
}

const blobOf = (bytes: Buffer): Blob => ({
  digest: `sha256:${hash('sha256', bytes)}`,
  sizeBytes: bytes.length,
  bytes: () => Readable.from([bytes]),
})

const addFile = (tar: Pack, name: string, { sizeBytes, bytes }: Omit<Blob, 'digest'>): Promise<void> =>
  addContent(tar, { name, size: sizeBytes, mode: 0o644, mtime: new Date(0) }, bytes())

const text = (value: unknown): Blob => blobOf(Buffer.from(JSON.stringify(value)))

const pathOf = ({ digest }: Pick<Blob, 'digest'>): string => `blobs/sha256/${digest.slice(7)}`

/**
 * Writes an OCI image layout as a tar archive, which engines load: the same image gives the same
 * bytes.
 */
export const writeOci = async (image: ImageFolder, path: string, signal: AbortSignal): Promise<void> => {
  const config = blobOf(image.config)
  const layers = image.layers.map((layer) => ({ ...layer, bytes: () => layerBytes(layer.path) }))
  const described = (mediaType: string, { digest, sizeBytes }: Omit<Blob, 'bytes'>) => ({
    ...{ mediaType, digest, size: sizeBytes },
  })
  const manifest = text({
    schemaVersion: 2,
    mediaType: 'application/vnd.oci.image.manifest.v1+json',
    config: described('application/vnd.oci.image.config.v1+json', config),
    layers: layers.map((layer) => described('application/vnd.oci.image.layer.v1.tar', layer)),
  })
  const index = text({
    schemaVersion: 2,
    mediaType: 'application/vnd.oci.image.index.v1+json',
    manifests: [
      {
        ...described('application/vnd.oci.image.manifest.v1+json', manifest),
        platform: { architecture: image.architecture, os: 'linux' },
      },
    ],
  })
  // For engines before Docker 25, which load archives of `docker save` only.
  const saved = text([
    { Config: pathOf(config), RepoTags: null, Layers: layers.map((layer) => pathOf(layer)) },
  ])
  const blobs = new Map([config, manifest, ...layers].map((blob) => [blob.digest, blob]))
  const tar = pack()
  const written = pipeline(archiveBytes(tar), createWriteStream(path, { mode: 0o600 }), { signal })
  written.catch(() => undefined)
  const filled = (async () => {
    await addFile(tar, 'oci-layout', text({ imageLayoutVersion: '1.0.0' }))
    await addFile(tar, 'index.json', index)
    await addFile(tar, 'manifest.json', saved)
    for (const [digest, blob] of [...blobs].toSorted(([a], [b]) => (a < b ? -1 : 1)))
      await addFile(tar, pathOf({ digest }), blob)
    tar.finalize()
  })()
  // A failure of either ends the other.
  filled.catch((error: unknown) => tar.destroy(error as Error))
  await Promise.all([written, filled])
}
