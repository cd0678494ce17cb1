import { randomBytes } from 'node:crypto'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { Readable } from 'node:stream'
import { openHttp } from '../../src/clients/http.ts'

/**
 * A program for itself, so that its memory is that of the client. `serve`: a server that counts
 * what it gets and gives as many bytes as its path says; it prints its port. `put`, `get`: a stream
 * of so many bytes one way, and `both`: both ways in one request; it prints the most memory (KiB)
 * that it had before the stream and in the end.
 *
 * V8 leaves up to 64 MiB of buffers that nobody needs before it collects them, whoever reads from a
 * socket. What the client needs is seen without them, so they are collected every 2 MiB.
 */
const [what = '', port = '', long = ''] = process.argv.slice(2)
const collectBytes = 2 * 1024 * 1024
const piece = randomBytes(256 * 1024)

const streamOf = (bytes: number): Readable => {
  let left = bytes
  return new Readable({
    highWaterMark: 64 * 1024,
    read() {
      const size = Math.min(left, piece.length)
      left -= size
      this.push(size === 0 ? null : piece.subarray(0, size))
    },
  })
}

if (what === 'serve') {
  const server = createServer((request, response) => {
    const wanted = Number(request.url?.slice(1))
    let got = 0
    request.on('data', (chunk: Buffer) => (got += chunk.length))
    if (wanted > 0) streamOf(wanted).pipe(response)
    else request.on('end', () => response.end(String(got)))
  })
  server.listen(0, '127.0.0.1', () => process.stdout.write(`${(server.address() as AddressInfo).port}\n`))
} else {
  const http = openHttp({ addressAllowed: () => true })
  const most = (): number => process.resourceUsage().maxRSS
  const { gc: collect = () => undefined } = globalThis as { gc?: () => void }
  const stream = async (bytes: number): Promise<void> => {
    const down = what !== 'put'
    const answer = await http.request(`http://127.0.0.1:${port}/${down ? bytes : 0}`, {
      method: what === 'get' ? 'GET' : 'PUT',
      ...(what === 'get' ? {} : { body: streamOf(bytes), headers: { 'content-length': String(bytes) } }),
      deadlineMs: 300_000,
      idleMs: 30_000,
      limitBytes: bytes,
    })
    let got = 0
    let collected = 0
    if (down)
      for await (const chunk of answer.body as AsyncIterable<Buffer>) {
        got += chunk.length
        if (got - collected < collectBytes) continue
        collected = got
        collect()
      }
    else got = Number(String(await answer.bytes()))
    if (got !== bytes) throw new Error(`${got} of ${bytes} bytes came`)
  }
  await stream(1024)
  const before = most()
  await stream(Number(long))
  process.stdout.write(`${before} ${most()}\n`)
  http.close()
}
