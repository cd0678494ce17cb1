import { isIP } from 'node:net'
import type { AddressJudge } from '../../clients/http.ts'
import { registryNamed } from '../../clients/registry.ts'

/** The reason why an image must not be pulled. The engine’s own network judges names of hosts. */
export const imageFault = (image: string, addressAllowed: AddressJudge): string | undefined => {
  const host = registryNamed(image)
    ?.replace(/:\d+$/, '')
    .replace(/^\[(.*)\]$/, '$1')
    .toLowerCase()
  if (host === undefined) return undefined
  if (/^metadata(\.|$)|^instance-data(\.|$)/.test(host))
    return `${host} is a metadata service; images of it are denied`
  const address = host === 'localhost' || host.endsWith('.localhost') ? '127.0.0.1' : host
  if (isIP(address) === 0)
    // Numbers that engines read as addresses: 127.1, 0x7f000001, 169.0xfe.43518.
    return /^(0x[\da-f]*|\d*)(\.(0x[\da-f]*|\d*))*$/.test(address)
      ? `${host} is neither a name nor an address`
      : undefined
  const verdict = addressAllowed(address)
  return verdict === true ? undefined : verdict
}
