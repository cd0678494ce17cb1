import { createServer, type AddressInfo, type Server } from 'node:net'
import { formatAddress, StartError, type Address } from './config.ts'

/** Reasons why the kernel refuses an address, with the remedy. */
const refusals: Readonly<Record<string, string>> = {
  EADDRINUSE: 'another program listens there: stop it or give another port',
  EACCES: 'this account may not listen there: give a port from 1024',
  EADDRNOTAVAIL: 'this machine has no such address: give one of its own, or 0.0.0.0 for all of them',
  ENOTFOUND: 'no address is known under this name: give an address of this machine',
}

/**
 * Listens on the address that a variable of the configuration names.
 * @returns the address of the server, with the port that the kernel chose for port 0
 * @throws StartError that names the variable, its value, the reason and the remedy
 */
export const listen = async (server: Server, variable: string, address: Address): Promise<Address> => {
  await new Promise<void>((resolve, reject) => {
    const refused = (error: NodeJS.ErrnoException): void => {
      const reason = refusals[error.code ?? ''] ?? `${error.message}: give another address`
      reject(
        new StartError(`${variable}=${formatAddress(address)} cannot be listened on: ${reason}`, {
          cause: error,
        }),
      )
    }
    server.once('error', refused)
    server.listen(address.port, address.host, () => {
      server.off('error', refused)
      resolve()
    })
  })
  const { address: host, port } = server.address() as AddressInfo
  return { host, port }
}

/**
 * Checks that an address can be listened on, before any slow part starts.
 * @throws StartError as {@link listen}
 */
export const probeAddress = async (variable: string, address: Address): Promise<void> => {
  const probe = createServer()
  await listen(probe, variable, address)
  await new Promise((resolve) => probe.close(resolve))
}
