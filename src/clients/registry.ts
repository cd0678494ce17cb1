import { z } from 'zod'
import { HttpError } from './http-error.ts'
import type { Http } from './http.ts'

/**
 * Registries of images, as far as names are resolved to digests.
 * https://distribution.github.io/distribution/spec/api/
 */

export interface RegistryLogin {
  username: string
  password: string
}

/** The registry in the name of an image without its scheme; undefined: the default registry. */
export const registryNamed = (name: string): string | undefined => {
  const [first = '', ...rest] = name.split('/')
  return rest.length > 0 && /[.:]|^localhost$/.test(first) ? first : undefined
}

/** The parts of an image's name; the default registry is Docker Hub. */
export const partsOfImage = (
  image: string,
): { registry: string; repository: string; tag: string; digest: string | undefined } => {
  const [named = '', digest] = image.replace(/^docker:\/\//, '').split('@')
  const registry = registryNamed(named)
  const path = registry === undefined ? named : named.slice(registry.length + 1)
  const last = path.slice(path.lastIndexOf('/') + 1)
  const tag = last.includes(':') ? last.slice(last.indexOf(':') + 1) : 'latest'
  const repository = last.includes(':') ? path.slice(0, path.lastIndexOf(':')) : path
  return {
    registry: registry ?? 'docker.io',
    repository: registry !== undefined || repository.includes('/') ? repository : `library/${repository}`,
    tag,
    digest,
  }
}

const manifestTypes = [
  'application/vnd.oci.image.index.v1+json',
  'application/vnd.docker.distribution.manifest.list.v2+json',
  'application/vnd.oci.image.manifest.v1+json',
  'application/vnd.docker.distribution.manifest.v2+json',
].join(', ')

const Token = z.object({ token: z.string().optional(), access_token: z.string().optional() })
const basic = ({ username, password }: RegistryLogin): string =>
  `Basic ${Buffer.from(`${username}:${password}`).toString('base64')}`

/** Only a registry of this machine speaks plain HTTP. */
const isHere = (registry: string): boolean => /^(127\.[\d.]+|localhost|\[::1\])(:\d+)?$/.test(registry)

const limits = { deadlineMs: 3_000, limitBytes: 1_048_576 }

/**
 * Whether a realm gets the login of a registry: it has the same host, or one below or above it, as
 * gitlab.com is above registry.gitlab.com. A domain of one label has many owners, so it never counts.
 */
const isOfRegistry = ({ protocol, hostname }: URL, registry: string): boolean => {
  const own = registry.replace(/:\d+$/, '').toLowerCase()
  const isAbove = protocol === 'https:' && hostname.includes('.') && own.endsWith(`.${hostname}`)
  return hostname === own || hostname.endsWith(`.${own}`) || isAbove
}

/** The address of a path of a registry. @throws HttpError `denied` where its name is no host */
const addressOf = (registry: string, path: string): string => {
  const url = `${isHere(registry) ? 'http' : 'https'}://${registry}${path}`
  if (URL.canParse(url)) return url
  throw new HttpError('denied', `${JSON.stringify(registry)} is no host with a port from 1 to 65535`, {
    stage: 'route',
  })
}

/** The token that a registry's challenge asks for; undefined: it asks for none that we can get. */
const tokenFor = async (
  http: Pick<Http, 'request'>,
  challenge: string,
  login: RegistryLogin | undefined,
  registry: string,
): Promise<string | undefined> => {
  if (/^basic /i.test(challenge)) return login && basic(login)
  const fields = new Map(
    [...challenge.matchAll(/(\w+)="([^"]*)"/g)].map(([, key = '', value = '']) => [key, value]),
  )
  const realm = fields.get('realm') ?? ''
  if (!/^bearer /i.test(challenge) || !URL.canParse(realm)) return undefined
  const url = new URL(realm)
  // A registry elsewhere gets no login over plain HTTP.
  if (url.protocol !== 'https:' && !isHere(url.host)) return undefined
  for (const key of ['service', 'scope']) {
    const value = fields.get(key)
    if (value !== undefined) url.searchParams.set(key, value)
  }
  const headers = login !== undefined && isOfRegistry(url, registry) ? { authorization: basic(login) } : {}
  const answer = await http.request(url, { ...limits, headers })
  if (answer.status !== 200) {
    answer.body.destroy()
    return undefined
  }
  const given = Token.safeParse(JSON.parse((await answer.bytes()).toString())).data
  const token = given?.token ?? given?.access_token
  return token === undefined ? undefined : `Bearer ${token}`
}

/**
 * Why the registry of an image must not be reached: its name leads to denied addresses alone, or is
 * no host. It is asked from here, so that the addresses that are judged are those that are connected
 * to; what the registry answers, and whether it does, has no meaning here. The default registry is
 * not asked.
 */
export const registryDenied = async (
  http: Pick<Http, 'request'>,
  image: string,
): Promise<string | undefined> => {
  const { registry } = partsOfImage(image)
  if (registry === 'docker.io') return undefined
  try {
    const answer = await http.request(addressOf(registry, '/v2/'), { ...limits, method: 'HEAD' })
    answer.body.destroy()
  } catch (error) {
    if (!(error instanceof HttpError)) throw error
    if (error.fault === 'denied') return error.message
  }
  return undefined
}

/**
 * The digest of an image's manifest, or of its list of manifests, at its registry; `missing`: the
 * registry answers and does not have it.
 * @throws HttpError where the registry cannot be asked
 */
export const resolveImage = async (
  http: Pick<Http, 'request'>,
  image: string,
  login?: RegistryLogin,
): Promise<{ digest: string } | { missing: string }> => {
  const { registry, repository, tag, digest } = partsOfImage(image)
  if (digest !== undefined) return { digest }
  const host = registry === 'docker.io' ? 'registry-1.docker.io' : registry
  const url = addressOf(host, `/v2/${repository}/manifests/${tag}`)
  const ask = (authorization?: string) =>
    http.request(url, {
      ...limits,
      method: 'HEAD',
      headers: { accept: manifestTypes, ...(authorization === undefined ? {} : { authorization }) },
    })
  let answer = await ask()
  answer.body.destroy()
  const challenge = answer.headers['www-authenticate']
  if (answer.status === 401 && challenge !== undefined) {
    const token = await tokenFor(http, challenge, login, registry)
    if (token !== undefined) {
      answer = await ask(token)
      answer.body.destroy()
    }
  }
  if (answer.status === 404) return { missing: `${registry} has no ${repository}:${tag}` }
  const found = String(answer.headers['docker-content-digest'] ?? '')
  if (answer.status === 200 && /^sha256:[0-9a-f]{64}$/.test(found)) return { digest: found }
  throw new HttpError('lost', `${registry} answers ${answer.status} for ${repository}:${tag}`, {
    stage: 'answer',
    status: answer.status,
  })
}
