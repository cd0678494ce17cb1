import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { createReadStream, mkdtempSync, readFileSync } from 'node:fs'
import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import type { Socket } from 'node:net'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { gzipSync, zstdCompressSync } from 'node:zlib'
import { loadSync, type ServiceDefinition } from '@grpc/proto-loader'
import { extract, pack } from 'tar-stream'
import { buildImage, inspectImage } from '../../src/clients/docker.ts'
import { buildBaseOf, pull } from '../../src/domains/artifacts/pulls.ts'
import { BuildError } from '../../src/drivers/build/errors.ts'
import { readImage } from '../../src/drivers/build/image.ts'
import { addLayers, mergeLayers } from '../../src/drivers/build/layers.ts'
import { pacedArchive } from '../../src/drivers/build/packing.ts'
import { packingLack } from '../../src/drivers/build/sif.ts'
import { runFolder } from '../support/run-folder.ts'
import { sha256, storedLayers, tarOf, type Planted } from './world.ts'

/** Images as engines give them. */

const folder = mkdtempSync(join(runFolder(), 'images-'))

describe('the session of a build', () => {
  test.each(['refuses the build', 'never answers it', 'breaks it off'])(
    'ends with it where the engine %s',
    async (how) => {
      const ends: Promise<unknown>[] = []
      const cancelled = new AbortController()
      const engine = createServer(({ url = '' }, response) => {
        if (!url.includes('/build')) response.writeHead(404).end()
        else if (how === 'refuses the build') response.writeHead(500).end('{"message":"no"}')
        else if (how === 'breaks it off') {
          response.write('{"stream":"begun"}\n')
          setTimeout(() => response.destroy(), 50)
        } else cancelled.abort(new Error('cancelled'))
      })
      engine.on('upgrade', (_, session: Socket) => {
        ends.push(once(session, 'end'))
        session.on('error', () => undefined).resume()
        session.write('HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n')
      })
      const socket = join(folder, `session-${String(how.length)}.sock`)
      await new Promise<void>((resolve) => engine.listen(socket, resolve))
      const build = {
        ...{ context: Readable.from([Buffer.alloc(1_024)]), recipe: 'Dockerfile', tag: 'a:1', arguments: {} },
        ...{ network: false, platform: 'linux/amd64', fresh: false },
      }
      const work = { signal: cancelled.signal, onLine: () => undefined }
      await expect(buildImage(socket, build, work)).rejects.toThrow(/no|cancelled|connection/)
      expect(ends).toHaveLength(1)
      await Promise.all(ends)
      engine.closeAllConnections()
      engine.close()
    },
  )
})

test('a look for an image that the engine never answers ends where it is cancelled', async () => {
  const cancelled = new AbortController()
  const engine = createServer(() => cancelled.abort(new Error('cancelled')))
  const socket = join(folder, 'silent.sock')
  await new Promise<void>((resolve) => engine.listen(socket, resolve))
  await expect(inspectImage(socket, 'a:1', cancelled.signal)).rejects.toThrow('cancelled')
  engine.closeAllConnections()
  engine.close()
})

test('a build tells the images that its steps take, and takes what they print for none', async () => {
  const control = loadSync(join(import.meta.dirname, '../../src/clients/buildkit.proto'))
  const { responseSerialize } = (control['moby.buildkit.v1.Control'] as ServiceDefinition)['Status']!
  const pinned = `docker.io/library/tool:1@${sha256('tool')}`
  const names = [
    '[internal] load metadata for docker.io/local/bb:1',
    `docker-image://docker.io/docker/dockerfile:1@${sha256('frontend')}`,
    ` [1/1] FROM docker.io/not/this:1`,
    '[linux/amd64 tools  1/12] FROM docker.io/local/bb:1',
    `[stage-1 1/2] FROM ${pinned}`,
    `FROM 127.0.0.1:5000/copied/from:1`,
    '[stage-1 2/2] RUN echo FROM docker.io/a/step:1',
  ]
  const message = responseSerialize({
    vertexes: names.map((name) => ({ digest: sha256(name), name })),
    logs: [{ msg: Buffer.from('[1/1] FROM docker.io/printed/by:1\n') }],
  })
  const engine = createServer((request, response) => {
    request.resume()
    response.end(`${JSON.stringify({ id: 'moby.buildkit.trace', aux: message.toString('base64') })}\n`)
  })
  engine.on('upgrade', (_, session: Socket) => {
    session.on('error', () => undefined).resume()
    session.write('HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n')
  })
  const socket = join(folder, 'progress.sock')
  await new Promise<void>((resolve) => engine.listen(socket, resolve))
  const build = {
    ...{ context: Readable.from([Buffer.alloc(1_024)]), recipe: 'Dockerfile', tag: 'a:1', arguments: {} },
    ...{ network: false, platform: 'linux/amd64', fresh: false },
  }
  const [images, lines]: [string[], string[]] = [[], []]
  await buildImage(socket, build, {
    signal: new AbortController().signal,
    onLine: (line) => lines.push(line),
    onImage: (name) => images.push(name),
  })
  expect(images).toEqual([
    `docker.io/docker/dockerfile:1@${sha256('frontend')}`,
    'docker.io/local/bb:1',
    pinned,
    '127.0.0.1:5000/copied/from:1',
  ])
  expect(lines).toContain('[1/1] FROM docker.io/printed/by:1')
  engine.closeAllConnections()
  engine.close()
})

test('the record of a base has the digest of its own registry, else the engine’s id', () => {
  const [id, here, there] = ['id', 'here', 'there'].map(sha256)
  const repoDigests = [`other/tool@${there}`, `tool@${here}`]
  const of = (image: string, digests: readonly string[] = repoDigests) =>
    buildBaseOf(image, { id: id!, repoDigests: digests })
  const engine = { digest: id, digestOf: 'engine' }
  const registry = { digest: here, digestOf: 'registry' }
  expect(of('docker.io/library/tool:1')).toEqual({ image: 'docker.io/library/tool:1', ...registry })
  expect(of('tool')).toEqual({ image: 'tool', ...registry })
  expect(of('registry.example.org/tool:1')).toEqual({ image: 'registry.example.org/tool:1', ...engine })
  expect(of(`tool@${there}`)).toEqual({ image: 'tool', ...registry, digest: there })
  expect(of(`tool@${id}`)).toEqual({ image: 'tool', ...engine })
  // Some engines have the digest of the manifest as the id.
  expect(of('tool', [`tool@${id}`])).toEqual({ image: 'tool', ...registry, digest: id })
  expect(of(`tool@${id}`, [`tool@${id}`])).toEqual({ image: 'tool', ...registry, digest: id })
})

test('a context that cannot be read ends its build alone', async () => {
  const engine = createServer()
  // It takes the session and says nothing, so the client does not look at the context yet.
  engine.on('upgrade', (_, session: Socket) => session.on('error', () => undefined).resume())
  const socket = join(folder, 'lost-context.sock')
  await new Promise<void>((resolve) => engine.listen(socket, resolve))
  const context = createReadStream(join(folder, 'no-such-context'))
  const build = {
    ...{ context, recipe: 'Dockerfile', tag: 'a:1', arguments: {} },
    ...{ network: false, platform: 'linux/amd64', fresh: false },
  }
  const work = { signal: new AbortController().signal, onLine: () => undefined }
  await expect(buildImage(socket, build, work)).rejects.toThrow('ENOENT')
  expect(context.destroyed).toBe(true)
  engine.closeAllConnections()
  engine.close()
})

describe('an image of many architectures', () => {
  const socket = join(folder, 'engine.sock')
  /** What the engine has, and what its registry gives. */
  let has = 'amd64'
  let gives: string | undefined
  /** What the engine answers where its registry gives nothing. */
  let refusal = { status: 200, text: 'no such manifest' }
  let engine: Server
  beforeAll(async () => {
    engine = createServer(({ url = '' }, response) => {
      const [, platform] = /\/images\/create\?.*platform=linux%2F(\w+)/.exec(url) ?? []
      if (platform !== undefined) {
        if (platform === gives) has = platform
        const { status, text } = refusal
        response.setHeader('content-type', 'application/json')
        if (platform === gives) response.end('{"status":"pulled"}')
        else response.writeHead(status).end(JSON.stringify({ [status === 200 ? 'error' : 'message']: text }))
      } else response.end(JSON.stringify({ Id: sha256(has), Architecture: has, Os: 'linux', Size: 1 }))
    })
    await new Promise<void>((resolve) => engine.listen(socket, resolve))
  })
  afterAll(() => {
    engine.close()
  })
  const pulled = (targetArchitecture: string) =>
    pull(
      { buildEngine: socket, addressAllowed: () => true } as unknown as Parameters<typeof pull>[0],
      { id: 'b', targetOs: 'linux', targetArchitecture } as Parameters<typeof pull>[1],
      `tools/a@${sha256('list')}`,
      {
        journal: { say: () => undefined } as unknown as Parameters<typeof pull>[3]['journal'],
        ...{ signal: new AbortController().signal, credentialRef: undefined },
      },
    )

  test('that is here for another one is pulled, pinned or not, and never taken for the other', async () => {
    await expect(pulled('arm64')).rejects.toThrow('no such manifest')
    expect(await pulled('amd64')).toMatchObject({ id: sha256('amd64') })
    gives = 'arm64'
    expect(await pulled('arm64')).toMatchObject({ id: sha256('arm64') })
  })

  test.each([
    [true, 500, 'Get "https://r.example/v2/": dial tcp 192.0.2.1:443: i/o timeout'],
    [true, 500, 'Get "https://r.example/v2/": net/http: TLS handshake timeout'],
    [true, 500, 'Head "https://r.example/v2/a/manifests/1": read: connection reset by peer'],
    [true, 503, 'unavailable'],
    [true, 200, 'toomanyrequests: You have reached your pull rate limit'],
    [true, 200, 'unexpected status from HEAD request to https://r.example/v2/a/manifests/1: 503 Service'],
    [true, 200, 'received unexpected HTTP status: 502 Bad Gateway'],
    [false, 500, 'Get "https://r.example/v2/": x509: certificate signed by unknown authority'],
    [false, 500, 'manifest for r.example/timeout:503 not found: manifest unknown'],
    [false, 404, 'pull access denied for tools/timeout'],
  ])('is asked for again: %s, where the engine answers %i %s', async (again, status, text) => {
    refusal = { status, text }
    const error = await pulled('riscv64').catch((thrown: unknown) => thrown)
    expect([(error as Error).message, error instanceof BuildError && error.passes]).toEqual([
      expect.stringContaining(text),
      again,
    ])
  })
})

describe('an archive of an engine', () => {
  const layers = ['a', 'b', 'c'].map((name) => tarOf([{ name, content: name.repeat(5_000) }]))
  const archive = async (stored: readonly Buffer[], named = stored) => {
    const plain = await Promise.all(layers)
    const config = JSON.stringify({ architecture: 'amd64', rootfs: { diff_ids: plain.map(sha256) } })
    const place = (bytes: Buffer | string) => `blobs/sha256/${sha256(bytes).slice(7)}`
    const manifest = JSON.stringify([{ Config: place(config), Layers: named.map(place) }])
    return Readable.from([
      await tarOf([
        { name: 'manifest.json', content: manifest },
        ...[config, ...stored].map((content, at) => ({
          ...{ name: at === 0 ? place(config) : place(named[at - 1] ?? ''), content },
        })),
      ]),
    ]) as AsyncIterable<Buffer>
  }

  test('may hold its layers compressed: they are compared and read expanded', async () => {
    const [a, b, c] = (await Promise.all(layers)) as [Buffer, Buffer, Buffer]
    const image = await readImage(
      await archive([gzipSync(a), zstdCompressSync(b), c]),
      join(folder, 'compressed'),
      () => undefined,
    )
    expect(image.layers.map(({ digest, sizeBytes }) => [digest, sizeBytes])).toEqual(
      [a, b, c].map((bytes) => [sha256(bytes), bytes.length]),
    )
    expect(image.layers.map(({ path }) => readFileSync(path))).toEqual([a, b, c])
  })

  test('with a layer of other bytes, or one that is cut, is refused', async () => {
    const [a, b, c] = (await Promise.all(layers)) as [Buffer, Buffer, Buffer]
    for (const wrong of [b, gzipSync(b), gzipSync(a).subarray(0, 40)])
      await expect(
        readImage(await archive([wrong, b, c], [a, b, c]), join(folder, 'wrong'), () => undefined),
      ).rejects.toThrow('a layer of another digest')
  })
})

describe('layers', () => {
  /** The paths of the one archive that the layers become. */
  const mergedPaths = async (...layers: readonly Planted[][]): Promise<string[]> => {
    const files = await storedLayers(folder, layers)
    const merged = await mergeLayers(files)
    const tar = pack()
    const { bytes, room } = pacedArchive(tar)
    const filled = addLayers(tar, files, merged, { epoch: undefined, room }).then(() => tar.finalize())
    const paths: string[] = []
    for await (const entry of bytes.pipe(extract())) {
      paths.push(entry.header.name)
      entry.resume()
    }
    await filled
    return paths
  }
  const named = (...names: string[]): Planted[] => names.map((name) => ({ name }))

  test('become one archive without what upper ones delete, replace or make opaque', async () => {
    const lower = named('a/b/c', 'a/bb', 'd/e/f', 'g/h', 'i')
    expect(await mergedPaths(lower, named('a/.wh.b', 'd', 'g/.wh..wh..opq', 'g/j/k'))).toEqual(
      // The lower layer first, and the folders that only paths name before what is in them.
      ['a/', 'a/bb', 'i', 'd', 'g/', 'g/j/', 'g/j/k'],
    )
    expect(await mergedPaths(lower, named('.wh..wh..opq', 'i/l'))).toEqual(['i/', 'i/l'])
  })

  test('with a path that no system takes are refused', async () => {
    const [kept, long] = ['a/'.repeat(2_047) + 'b', 'a/'.repeat(2_048) + 'b']
    expect((await mergedPaths(named(kept))).length).toBe(2_048)
    await expect(mergedPaths(named(long))).rejects.toThrow('a path of more than 4096 bytes: "a/a/')
    await expect(mergedPaths([{ name: 'link', type: 'link', linkname: long }])).rejects.toThrow(
      'a path of more than 4096 bytes',
    )
  })
})

test('a host that cannot pack SIF files names the package', () => {
  expect(packingLack(folder)).toMatch(/install squashfs-tools/)
})
