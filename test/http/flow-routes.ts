import { createHash } from 'node:crypto'
import type { Readable } from 'node:stream'
import { z } from 'zod'
import type { Peer } from '../../src/http/peer.ts'
import { route, socketRoute, type Route } from '../../src/http/route.ts'
import { missing, Refusal } from '../../src/refusal.ts'

/** What became of streamed bodies and WebSockets, and what the tests hold them back with. */
export interface Flows {
  /** Streamed bodies that were read to their end. */
  blobs: Map<string, { sizeBytes: number; sha256: string }>
  /** Errors with which streams failed. */
  failed: Error[]
  /** Bytes that handlers have read. */
  read: { bytes: number }
  /** While it is there, handlers that were asked to wait do so. */
  gate: Promise<void> | undefined
  /** WebSockets that a test holds by itself. */
  peers: Peer[]
}

export const newFlows = (): Flows => ({
  blobs: new Map(),
  failed: [],
  read: { bytes: 0 },
  gate: undefined,
  peers: [],
})

const Blob = z.strictObject({ sizeBytes: z.number(), sha256: z.string() })

export const megabyte = 1024 * 1024
export const blobLimit = 64 * megabyte

/** A route that takes streams, one that takes a stream beside a document, and WebSockets. */
export const flowRoutes = (flows: Flows): Route[] => {
  const take = async (stream: Readable): Promise<z.output<typeof Blob>> => {
    const sum = createHash('sha256')
    let sizeBytes = 0
    try {
      for await (const chunk of stream as AsyncIterable<Buffer>) {
        sizeBytes += chunk.length
        flows.read.bytes += chunk.length
        sum.update(chunk)
        await flows.gate
      }
    } catch (error) {
      flows.failed.push(error as Error)
      throw error
    }
    return { sizeBytes, sha256: sum.digest('hex') }
  }
  const admit = async ({ params }: { params: Record<string, string> }): Promise<void> => {
    if (params['blobId'] === 'strange') throw new Refusal('forbidden', 'this blob is not for you')
  }
  return [
    route('putBlobsBlobId', 'PUT /blobs/{blobId}/', {
      summary: 'Keep a blob',
      tag: 'blobs',
      upload: { types: ['*/*'], limitBytes: blobLimit },
      response: Blob,
      admit,
      refuses: [403, 409],
      handle: async ({ params, upload }) => {
        if (params.blobId === 'taken') throw new Refusal('conflict', 'the blob is there')
        if (params.blobId === 'known') return { sizeBytes: 0, sha256: '' }
        const blob = await take(upload.stream)
        flows.blobs.set(params.blobId, blob)
        return blob
      },
    }),
    route('postContexts', 'POST /contexts/', {
      summary: 'Keep a context, sent or described',
      tag: 'blobs',
      body: z.strictObject({ sizeBytes: z.number() }),
      upload: { types: ['application/gzip', 'multipart/form-data'], limitBytes: megabyte },
      response: z.strictObject({ sizeBytes: z.number(), type: z.string() }),
      status: 201,
      handle: async ({ body, upload }) => {
        if (upload === undefined) return { sizeBytes: body?.sizeBytes ?? -1, type: 'document' }
        const blob = await take(upload.stream)
        flows.blobs.set('context', blob)
        return { sizeBytes: blob.sizeBytes, type: upload.contentType }
      },
    }),
    socketRoute('getTalksTalkIdStream', 'GET /talks/{talkId}/stream/', {
      summary: 'Talk',
      query: z.strictObject({ loud: z.enum(['yes']).optional() }),
      refuses: [404],
      audit: { eventType: 'talk.opened', summary: () => 'talk opened' },
      limitBytes: 65_536,
      protocol: 'talk',
      redeem: async (secret, { talkId }) =>
        secret === `for-${String(talkId)}`
          ? { actor: { id: 'page', type: 'token' }, grant: 'quiet' }
          : undefined,
      open: ({ params, query, grant }) => {
        const { talkId } = params
        if (grant === 'quiet' && query.loud !== undefined)
          throw new Refusal('forbidden', 'the ticket allows no loud talk')
        if (talkId === 'nobody') throw missing('talk', talkId)
        return async (peer) => {
          if (talkId === 'fault') throw new Error('a fault with secrets')
          if (talkId === 'later') throw new Refusal('unavailable', 'connect again')
          if (talkId === 'refused') throw new Refusal('conflict', 'x'.repeat(500))
          if (talkId === 'short') return
          flows.peers.push(peer)
          if (talkId === 'held')
            return new Promise<void>((resolve) => peer.signal.addEventListener('abort', () => resolve()))
          for await (const message of peer.messages) {
            await flows.gate
            flows.read.bytes += message.length
            await peer.send(
              typeof message === 'string' && query.loud === 'yes' ? message.toUpperCase() : message,
            )
          }
        }
      },
    }),
  ]
}
