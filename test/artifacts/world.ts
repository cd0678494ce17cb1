import { createHash, randomUUID } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { createServer, request as ask, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { pack, type Header } from 'tar-stream'
import type { TestService } from '../support/service.ts'

/** Contexts and builds of the tests. */

export const sha256 = (bytes: Buffer | string): string =>
  `sha256:${createHash('sha256').update(bytes).digest('hex')}`

export type Planted = Partial<Header> & { name: string; content?: string | Buffer }

/** A tar archive of these entries. */
export const tarOf = async (entries: readonly Planted[]): Promise<Buffer> => {
  const tar = pack()
  for (const { content, ...header } of entries) tar.entry({ mtime: new Date(0), ...header }, content ?? '')
  tar.finalize()
  const pieces: Buffer[] = []
  for await (const piece of tar) pieces.push(piece as Buffer)
  return Buffer.concat(pieces)
}

/** Layers of an image as files of this folder, the lowest first. */
export const storedLayers = (folder: string, layers: readonly (readonly Planted[])[]) =>
  Promise.all(
    layers.map(async (entries) => {
      const bytes = await tarOf(entries)
      const path = join(folder, `layer-${randomUUID()}`)
      writeFileSync(path, bytes)
      return { path, digest: sha256(bytes), sizeBytes: bytes.length }
    }),
  )

/** The bytes of an entry, with another flag, size and other texts in its head. */
export const retyped = (
  entry: Buffer,
  flag: string,
  size: number | string,
  texts: readonly (readonly [at: number, text: string])[] = [],
): Buffer => {
  const bytes = Buffer.from(entry)
  bytes.write(typeof size === 'string' ? size : `${size.toString(8).padStart(11, '0')}\0`, 124, 'latin1')
  bytes.write(flag, 156, 'latin1')
  for (const [at, text] of texts) bytes.write(text, at, 'latin1')
  bytes.fill(32, 148, 156)
  const sum = bytes.subarray(0, 512).reduce((all, byte) => all + byte, 0)
  bytes.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148, 'latin1')
  return bytes
}

export const contextOf = async (files: Readonly<Record<string, string | Buffer>>): Promise<Buffer> =>
  gzipSync(await tarOf(Object.entries(files).map(([name, content]) => ({ name, content }))))

export const send = async (service: Pick<TestService, 'baseUrl'>, bytes: Buffer, field = 'context') => {
  const form = new FormData()
  form.append(field, new Blob([Uint8Array.from(bytes)]), 'context.tar.gz')
  const answer = await fetch(`${service.baseUrl}/build-contexts/`, { method: 'POST', body: form })
  return { status: answer.status, body: (await answer.json()) as any }
}

/** A version, a context of these files, and the build of their Dockerfile. */
export const describedBuild = async (
  service: Pick<TestService, 'baseUrl' | 'post'>,
  id: string,
  files: Readonly<Record<string, string | Buffer>>,
  more: object = {},
): Promise<any> => {
  const { artifactVersionId } = await service.post('/artifacts/', { artifactId: id, version: '1' })
  const { body } = await send(service, await contextOf(files))
  return service.post('/artifact-builds/', {
    ...{ id, artifactVersionId, sourceType: 'dockerfile', contextDigest: body.digest },
    ...{
      recipeDigest: sha256(files['Dockerfile'] ?? ''),
      cacheKey: `key of ${id}`,
      targetFormat: 'oci',
      ...more,
    },
  })
}

/** A way to a registry on which what engines pull by digest waits. */
export interface HeldWay extends AsyncDisposable {
  /** `127.0.0.1:<port>`, the first part of the names of images. */
  readonly address: string
  /** Requests that wait now. */
  waiting: () => number
  /** Lets all of them through, and all that come. */
  letGo: () => void
}

export const openHeldWay = async (registry: string): Promise<HeldWay> => {
  const gone = Promise.withResolvers<undefined>()
  let waiting = 0
  const onward = ({ method, url = '', headers }: IncomingMessage, response: ServerResponse): void => {
    if (response.destroyed) return
    const asked = ask(`http://${registry}${url}`, { method, headers: { ...headers, host: registry } })
    asked.once('error', () => response.destroy())
    asked.once('response', (answer) =>
      answer.pipe(response.writeHead(answer.statusCode ?? 502, answer.headers)),
    )
    asked.end()
  }
  const server = createServer((request, response) => {
    if (request.method !== 'GET' || !/\/(blobs|manifests)\/sha256:/.test(request.url ?? ''))
      return onward(request, response)
    waiting += 1
    response.once('close', () => (waiting -= 1))
    void gone.promise.then(() => onward(request, response))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    address: `127.0.0.1:${String((server.address() as AddressInfo).port)}`,
    waiting: () => waiting,
    letGo: () => gone.resolve(undefined),
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}
