import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { z } from 'zod'
import { createApp } from '../../src/http/app.ts'
import { route } from '../../src/http/route.ts'
import { createHttpServer } from '../../src/http/server.ts'

/**
 * A service that takes streams and nothing else, in a process of its own: its answer tells how much
 * memory the body took.
 */

const none = (): void => undefined
const app = createApp({
  config: {
    apiPrefix: '',
    apiToken: undefined,
    allowedHosts: [],
    allowedOrigins: [],
    listenHost: '127.0.0.1',
    bodyLimitBytes: 1_000,
  },
  routes: [
    route('putBlobsBlobId', 'PUT /blobs/{blobId}/', {
      summary: 'Count bytes',
      tag: 'blobs',
      upload: { types: ['*/*'], limitBytes: 2 ** 40 },
      response: z.strictObject({ sizeBytes: z.number(), mostBytes: z.number() }),
      handle: async ({ upload }) => {
        let mostBytes = process.memoryUsage.rss()
        let sizeBytes = 0
        for await (const chunk of upload.stream as AsyncIterable<Buffer>) {
          // Every 16 MiB: reading the size costs more than reading the bytes.
          if (Math.floor(sizeBytes / 2 ** 24) !== Math.floor((sizeBytes + chunk.length) / 2 ** 24))
            mostBytes = Math.max(mostBytes, process.memoryUsage.rss())
          sizeBytes += chunk.length
        }
        return { sizeBytes, mostBytes }
      },
    }),
  ],
  log: { debug: none, info: none, warn: none, error: none },
  version: '1',
  activated: () => false,
})
const server = createHttpServer(app, { tokenNeeded: false, version: '1' })
server.listen(0, '127.0.0.1')
await once(server, 'listening')
process.stdout.write(`${(server.address() as AddressInfo).port}\n`)
