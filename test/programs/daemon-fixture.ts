import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { openDaemon } from '../../src/programs/daemon.ts'
import { runProgram } from '../../src/programs/program.ts'

// The daemon with a service of one answer, which never stops once /stick was asked for: what is
// tested through it is everything around the service.
await runProgram({ name: 'orrery', usage: 'daemon-fixture' }, (surroundings) =>
  openDaemon(surroundings, async ({ config }) => {
    let stuck = false
    const server = createServer((request, response) => {
      stuck ||= request.url === '/stick'
      response.end('ok')
    })
    await new Promise<void>((resolve) =>
      server.listen(config.listenAddress.port, config.listenAddress.host, resolve),
    )
    const { address, port } = server.address() as AddressInfo
    return {
      address: { host: address, port },
      checks: { service: () => Promise.resolve(true) },
      workers: () => [process.pid],
      stop: () =>
        new Promise((resolve) => {
          server.close(() => {
            if (!stuck) resolve()
          })
          server.closeAllConnections()
        }),
    }
  }),
)
