import { isIP } from 'node:net'
import type { AddressJudge } from '../../clients/http.ts'

/** The registry in the name of an image; undefined: the engine's default registry. */
const registryOf = (image: string): string | undefined => {
  const first = image.split('/')[0] ?? ''
  return image.includes('/') && /[.:]|^localhost$/.test(first) ? first : undefined
}

/** The reason why an image must not be pulled. The engine’s own network judges names of hosts. */
export const imageFault = (image: string, addressAllowed: AddressJudge): string | undefined => {
  const host = registryOf(image)?.replace(/:\d+$/, '')
  if (host === undefined) return undefined
  if (/^metadata(\.|$)|^instance-data(\.|$)/.test(host))
    return `${host} is a metadata service; images of it are denied`
  const address = host === 'localhost' || host.endsWith('.localhost') ? '127.0.0.1' : host
  if (isIP(address) === 0)
    // Numbers that engines read as addresses: 127.1, 0x7f000001.
    return /^[\d.]+$|^0x/i.test(address) ? `${host} is neither a name nor an address` : undefined
  const verdict = addressAllowed(address)
  return verdict === true ? undefined : verdict
}

/** Images that a recipe makes the engine pull: its bases, its syntax, the sources of its copies. */
export const imagesOfRecipe = (text: string, given: Readonly<Record<string, string>> = {}): string[] => {
  // Before the first stage ARG gives the variables that names of images may hold.
  const defaults = [...text.matchAll(/^\s*ARG\s+(\w+)=("[^"]*"|'[^']*'|\S*)/gim)].map(
    ([, name = '', value = '']) => [name, value.replace(/^(["'])(.*)\1$/, '$2')] as const,
  )
  const values = new Map([...defaults, ...Object.entries(given)])
  const expanded = (image: string): string =>
    image.replaceAll(
      /\$(?:(\w+)|\{(\w+)(?::?[-+]([^}]*))?\})/g,
      (whole, plain?: string, braced?: string, other?: string) =>
        values.get(plain ?? braced ?? '') ?? other ?? whole,
    )
  const found = [
    ...text.matchAll(/^\s*FROM\s+(?:--platform=\S+\s+)?(\S+)/gim),
    ...text.matchAll(/^\s*#\s*syntax\s*=\s*(\S+)/gim),
    ...text.matchAll(/--(?:from)=(\S+)/gi),
    ...text.matchAll(/[, ]from=([^,\s]+)/gi),
  ].map(([, image = '']) => expanded(image.replace(/^["']|["']$/g, '')).replace(/^docker:\/\//, ''))
  return [...new Set(found)]
}
