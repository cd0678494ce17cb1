import { createServer, connect, type Server, type Socket } from 'node:net'

export interface TcpProxy {
  port: number
  /** Ends all connections and refuses new ones, like an unreachable server. */
  cut(): Promise<void>
  restore(): Promise<void>
  /**
   * Called with the bytes of a client. After a true result the server gets them, its answer is
   * discarded, and the connection ends once the server has answered, like a network failure at that
   * moment.
   */
  loseAnswerOf: ((sent: Buffer) => boolean) | undefined
  close(): Promise<void>
}

/** A route to `target` on this machine that a test can interrupt. */
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
      // Either end may be cut; the other then ends too.
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
