import { request, type ClientRequest } from 'node:http'

// Readers of one stream of server-sent events, in a process of their own. Each tenth one hangs up
// in the middle of the stream and goes on with `Last-Event-ID`. Prints JSON at the end of the
// stream: `ready` on a line of its own once all are connected.
const [url = '', countText = ''] = process.argv.slice(2)
const count = Number(countText)
const { hostname, port, pathname } = new URL(url)

/** Milliseconds from the time of an event to its arrival at a reader that was connected then. */
const delays: number[] = []
let bytes = 0
let lost = 0
let open = 0
/** When the last reader had connected; what happened before is old to some of them. */
let readySince = Infinity

/** Reads from an event on, and resolves with the last one at the end of the stream or at a break. */
const read = (after: number, breakAt: number | undefined): Promise<{ last: number; over: boolean }> =>
  new Promise((resolve, reject) => {
    let last = after
    let text = ''
    const asking: ClientRequest = request(
      {
        hostname,
        port,
        path: pathname,
        agent: false,
        headers: { accept: 'text/event-stream', ...(after === 0 ? {} : { 'last-event-id': String(after) }) },
      },
      (answer) => {
        if (answer.statusCode === 204) return resolve({ last, over: true })
        if (answer.statusCode !== 200)
          return reject(new Error(`a reader was answered ${String(answer.statusCode)}`))
        if (after === 0 && ++open === count) {
          readySince = Date.now()
          process.stdout.write('ready\n')
        }
        answer.setEncoding('utf8')
        answer.on('data', (chunk: string) => {
          bytes += chunk.length
          text += chunk
          const end = text.lastIndexOf('\n\n')
          if (end === -1) return
          const arrived = Date.now()
          for (const part of text.slice(0, end).split('\n\n')) {
            const id = /^id: (\d+)$/m.exec(part)?.[1]
            if (id === undefined) continue
            lost += Number(id) - last - 1
            last = Number(id)
            const at = /"occurredAt":"([^"]+)"/.exec(part)?.[1]
            if (at !== undefined && Date.parse(at) >= readySince) delays.push(arrived - Date.parse(at))
          }
          text = text.slice(end + 2)
          if (breakAt !== undefined && last >= breakAt) {
            asking.destroy()
            resolve({ last, over: false })
          }
        })
        answer.on('end', () => resolve({ last, over: true }))
      },
    )
    asking.on('error', (error) => {
      if (!asking.destroyed) reject(error)
    })
    asking.end()
  })

const reader = async (number: number): Promise<number> => {
  const first = await read(0, number % 10 === 0 ? 200 + number : undefined)
  return first.over ? first.last : (await read(first.last, undefined)).last
}

const lasts = await Promise.all(Array.from({ length: count }, (_, number) => reader(number)))
const sorted = delays.toSorted((a, b) => a - b)
process.stdout.write(
  `${JSON.stringify({
    events: sorted.length,
    lost: lost + lasts.reduce((sum, last) => sum + Math.max(...lasts) - last, 0),
    p50: sorted[Math.floor(sorted.length * 0.5)] ?? 0,
    p99: sorted[Math.floor(sorted.length * 0.99)] ?? 0,
    bytes,
  })}\n`,
)
