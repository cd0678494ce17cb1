import { connect } from 'node:net'

// Keep-alive load on one path from its own process: `connections` sockets, each with one request at
// a time. Plain sockets and a search for the end of the body take a tenth of the time of the
// measured server. Prints JSON.
const [url = '', connectionsText = '', secondsText = ''] = process.argv.slice(2)
const { hostname, port, pathname, host } = new URL(url)
const request = Buffer.from(`GET ${pathname} HTTP/1.1\r\nHost: ${host}\r\nAccept: application/json\r\n\r\n`)
const stopAt = performance.now() + Number(secondsText) * 1_000
let answers = 0
let bytes = 0

const client = (): Promise<void> =>
  new Promise((resolve, reject) => {
    const socket = connect(Number(port), hostname)
    socket.setNoDelay()
    /** Bytes of the answer that are still missing; undefined while its head is incomplete. */
    let missing: number | undefined
    let head = Buffer.alloc(0)
    const take = (chunk: Buffer): void => {
      let body = chunk
      if (missing === undefined) {
        head = Buffer.concat([head, chunk])
        const end = head.indexOf('\r\n\r\n')
        if (end === -1) return
        const text = head.toString('latin1', 0, end)
        const length = /\r\ncontent-length: (\d+)/i.exec(text)
        if (!text.startsWith('HTTP/1.1 200') || length === null) {
          reject(new Error(`${url} answered ${text.slice(0, 200)}`))
          socket.destroy()
          return
        }
        missing = Number(length[1])
        body = head.subarray(end + 4)
        head = Buffer.alloc(0)
      }
      missing -= body.length
      bytes += body.length
      if (missing > 0) return
      missing = undefined
      answers += 1
      if (performance.now() < stopAt) socket.write(request)
      else {
        socket.end()
        resolve()
      }
    }
    socket.on('data', take)
    socket.once('error', reject)
    socket.once('connect', () => socket.write(request))
  })

const started = performance.now()
await Promise.all(Array.from({ length: Number(connectionsText) }, client))
process.stdout.write(
  JSON.stringify({ answers, bytes, perSecond: (answers * 1_000) / (performance.now() - started) }),
)
