import { createServer, connect, type Server, type Socket } from 'node:net'

export interface TcpProxy {
  port: number
  /** Ends all connections and refuses new ones, as a server that is away. */
  cut(): Promise<void>
  restore(): Promise<void>
  /**
   * Called with what a client sends. True: the server gets it, its answer is thrown away, and the connection ends once it has answered,
   * as when the network fails at that moment.
   */
  loseAnswerOf: ((sent: Buffer) => boolean) | undefined
  close(): Promise<void>
}

/** A way to `target` on this machine that a test can interrupt. */
export const openProxy = async (target: number): Promise<TcpProxy> => {
  const sockets = new Set<Socket>()
  let server: Server | undefined
  const proxy: TcpProxy = { port: 0, cut, restore, loseAnswerOf: undefined, close: cut }

  const serve = (client: Socket): void => {
    const upstream = connect(target, '127.0.0.1')
    let losing = false
    for (const [socket, other] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      sockets.add(socket)
      // Either end may be torn away; the other then ends too.
      socket.on('error', () => other.destroy())
      socket.on('close', () => {
        sockets.delete(socket)
        other.destroy()
      })
    }
    client.on('data', (sent) => {
      losing ||= proxy.loseAnswerOf?.(sent) === true
      upstream.write(sent)
    })
    upstream.on('data', (answer) => {
      if (losing) client.destroy()
      else client.write(answer)
    })
  }
  async function cut(): Promise<void> {
    const closing = server
    server = undefined
    for (const socket of sockets) socket.destroy()
    if (closing !== undefined) await new Promise((resolve) => closing.close(resolve))
  }
  async function restore(): Promise<void> {
    const opening = createServer(serve)
    await new Promise<void>((resolve, reject) => {
      opening.once('error', reject)
      opening.listen(proxy.port, '127.0.0.1', resolve)
    })
    server = opening
    proxy.port = (opening.address() as { port: number }).port
  }
  await restore()
  return proxy
}
