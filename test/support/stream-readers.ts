import { expect } from '@jest/globals'
import { once } from 'node:events'
import { connect } from 'node:net'
import type { TestService } from './service.ts'

/** Reads server-sent events until `stop`, or the stream ends. */
export const listenTo = (url: string, headers: Record<string, string> = {}) => {
  const abort = new AbortController()
  const events: { id: string; type: string; data: any; at: number }[] = []
  const done = (async () => {
    const answer = await fetch(url, {
      headers: { accept: 'text/event-stream', ...headers },
      signal: abort.signal,
    })
    expect(answer.status).toBe(200)
    let text = ''
    for await (const chunk of answer.body!.pipeThrough(new TextDecoderStream())) {
      text += chunk
      const blocks = text.split('\n\n')
      text = blocks.pop() ?? ''
      for (const block of blocks) {
        const [, id = '', type = '', data = 'null'] = /^id: (.*)\nevent: (.*)\ndata: (.*)$/.exec(block) ?? []
        if (id !== '') events.push({ id, type, data: JSON.parse(data), at: Date.now() })
      }
    }
  })().catch((error: unknown) => {
    if (!abort.signal.aborted) throw error
  })
  return {
    events,
    stop: async () => {
      abort.abort()
      await done
    },
  }
}

/** The bytes of a chunked body as far as they came, and whether its last chunk did. */
const unchunked = (raw: Buffer): { body: Buffer; whole: boolean } => {
  const parts: Buffer[] = []
  for (let at = 0; ;) {
    const line = raw.indexOf('\r\n', at)
    const size = line === -1 ? undefined : Number.parseInt(raw.toString('latin1', at, line), 16)
    if (size === undefined || size === 0) return { body: Buffer.concat(parts), whole: size === 0 }
    parts.push(raw.subarray(line + 2, line + 2 + size))
    at = line + 2 + size + 2
  }
}

/** Reads a stream over a connection of its own, and takes nothing after its head until `wake`. */
export const openSleeping = async (url: string, headers: Record<string, string> = {}) => {
  const { hostname, port, pathname, search } = new URL(url)
  const socket = connect(Number(port), hostname)
  const over = new Promise<void>((resolve) => socket.once('close', () => resolve()))
  socket.on('error', () => undefined)
  const lines = Object.entries({ Host: hostname, ...headers }).map(([name, value]) => `${name}: ${value}`)
  socket.write([`GET ${pathname}${search} HTTP/1.1`, ...lines, '', ''].join('\r\n'))
  const [first] = (await once(socket, 'data')) as [Buffer]
  socket.pause()
  const chunks = [first]
  const headEnd = first.indexOf('\r\n\r\n')
  const head = first.toString('latin1', 0, headEnd)
  expect(head).toMatch(/^HTTP\/1.1 200 /)
  return {
    head,
    /** What came until the service ended the connection, or for a whole body its end. */
    wake: async (): Promise<{ body: Buffer; whole: boolean }> => {
      socket.on('data', (chunk: Buffer) => chunks.push(chunk))
      socket.resume()
      await over
      return unchunked(Buffer.concat(chunks).subarray(headEnd + 4))
    },
  }
}

/** The ids of all events that came whole. */
export const eventIds = (body: Buffer): string[] =>
  body
    .toString()
    .split('\n\n')
    .slice(0, -1)
    .flatMap((block) => /^id: (.*)$/m.exec(block)?.[1] ?? [])

/** How many streams the service has cut because their readers were slow. */
export const cutStreams = async ({ metrics }: TestService): Promise<number> =>
  Number(/^orrery_event_streams_cut_total (\d+)/m.exec(await metrics.text())?.[1])
