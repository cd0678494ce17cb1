import { createServer, type Server, type Socket } from 'node:net'
import { pipeline } from 'node:stream'
import { KeyAgent } from './agent.ts'
import { LoginProgress } from './login-progress.ts'
import { parsePrivateKey } from './login.ts'
import { openRoute } from './route.ts'
import type { SshTarget } from './target.ts'

/** Connections to one machine at once; OpenSSH takes 10 that have not logged in. */
const mostConnections = 32

const listening = async (path: string, serve: (socket: Socket) => void): Promise<Server> => {
  const server = createServer((socket) => {
    socket.on('error', () => undefined)
    serve(socket)
  })
  server.maxConnections = mostConnections
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(path, resolve)
  })
  return server
}

/** Two Unix sockets that lead out of a sandbox to one machine. */
export interface SandboxSockets {
  /** Each connection is one to the machine's SSH port, at an address that was judged. */
  way: string
  /** An SSH agent with the machine's key; the key itself stays in this process. */
  agent: string
  /** Ends both, with their connections. */
  close(): Promise<void>
}

/**
 * Opens the sockets of a target in a folder of the caller's, which only its account may enter. Both
 * paths may be removed once the sandbox has them: a mount keeps the socket.
 *
 * @throws LinkError where the target has no usable key
 */
export const openSandboxSockets = async (
  target: SshTarget,
  at: { folder: string; name: string; addressAllowed: (address: string) => true | string },
): Promise<SandboxSockets> => {
  const { privateKey = '' } = (await target.secret?.()) ?? {}
  const agent = new KeyAgent(parsePrivateKey(privateKey))
  const sockets = new Set<Socket>()
  const kept = (socket: Socket): void => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  }
  const paths = { way: `${at.folder}/${at.name}.way`, agent: `${at.folder}/${at.name}.agent` }
  const way = await listening(paths.way, (inner) => {
    kept(inner)
    openRoute(target, new LoginProgress(), at.addressAllowed).then(
      (outer) => {
        kept(outer)
        outer.on('error', () => undefined)
        pipeline(inner, outer, () => undefined)
        pipeline(outer, inner, () => undefined)
      },
      () => inner.destroy(),
    )
  })
  const keys = await listening(paths.agent, (socket) => {
    kept(socket)
    agent.getStream((_error, stream) => {
      if (stream === undefined) return
      pipeline(socket, stream, socket, () => undefined)
    })
  })
  let closing: Promise<unknown> | undefined
  return {
    ...paths,
    close: async () => {
      closing ??= Promise.all([way, keys].map((server) => new Promise((resolve) => server.close(resolve))))
      for (const socket of sockets) socket.destroy()
      await closing
    },
  }
}
