import { Agent, type IncomingMessage } from 'node:http'
import type Docker from 'dockerode'
import type { DockerOptions } from 'dockerode'
import { z } from 'zod'
import { NoAnswerError, withinDeadline } from './no-answer.ts'

/** Where the engines of this machine listen: absolute paths of Unix sockets. */
export interface EngineSockets {
  docker: string
  podman: string
}

/** Words for what the system says about a socket. */
const socketReasons: Readonly<Record<string, string>> = {
  ENOENT: 'it is not installed, or not started',
  ENOTDIR: 'it is not installed, or not started',
  ECONNREFUSED: 'it is not started',
  EACCES: 'this account may not use its socket',
  EPERM: 'this account may not use its socket',
  ECONNRESET: 'it ended the connection without an answer',
  EPIPE: 'it ended the connection without an answer',
}

const asNoAnswer = (error: unknown): NoAnswerError => {
  if (error instanceof NoAnswerError) return error
  const { code = '', statusCode } = error as { code?: string; statusCode?: number }
  const answered = statusCode === undefined ? 'what answers is no container engine' : 'it answers with an error'
  return new NoAnswerError(socketReasons[code] ?? answered, { cause: error })
}

/** Milliseconds that a question may take unless the caller says otherwise. */
const usualDeadlineMs = 3_000

/**
 * Puts questions to the engine at a socket and ends its connections afterwards, at the deadline too.
 * @throws NoAnswerError
 */
const asked = async <T>(socketPath: string, deadlineMs: number, ask: (engine: Docker) => Promise<T>): Promise<T> => {
  // Loaded at the first question: 15 MB and 40 ms or more that no start of a program has to wait for.
  const { default: Client } = await import('dockerode')
  const agent = new Agent()
  try {
    // An empty host: else the client prefers what DOCKER_HOST names to the socket that it is given.
    const options: DockerOptions & { agent: Agent } = { socketPath, host: '', protocol: 'http', agent }
    return await withinDeadline(deadlineMs, ask(new Client(options)))
  } catch (error) {
    throw asNoAnswer(error)
  } finally {
    agent.destroy()
  }
}

/**
 * Pings an engine. `builderVersion` is `2` where it builds with BuildKit, `1` where it has the classic builder only, else empty.
 * https://docs.docker.com/reference/api/engine/version/v1.41/#tag/System/operation/SystemPing
 * @throws NoAnswerError
 */
export const pingEngine = (socketPath: string, deadlineMs = usualDeadlineMs): Promise<{ apiVersion: string; builderVersion: string }> =>
  asked(socketPath, deadlineMs, async ({ modem }) => {
    // `ping()` of the client drops the headers.
    const { headers } = await new Promise<IncomingMessage>((resolve, reject) => {
      modem.dial({ path: '/_ping', method: 'GET', isStream: true, statusCodes: { 200: true } }, (error, answer) => {
        if (error === null) resolve(answer as IncomingMessage)
        else reject(error)
      })
    })
    const header = (name: string): string => String(headers[name] ?? '')
    return { apiVersion: header('api-version'), builderVersion: header('builder-version') }
  })

/** An image that an engine has. */
export interface EngineImage {
  /** `repository:tag`. */
  name: string
  /** `sha256:…`: the registry's digest where there is one, else the id of what was built or loaded here. */
  digest: string
}

/** An engine as it describes itself. */
export interface EngineFacts {
  product: 'docker' | 'podman'
  version: string
  apiVersion: string
  /** By name. */
  images: EngineImage[]
}

const Version = z.object({
  Version: z.string(),
  ApiVersion: z.string(),
  Components: z.array(z.object({ Name: z.string() })).nullish(),
})
const Listed = z.array(z.object({ Id: z.string(), RepoTags: z.array(z.string()).nullish(), RepoDigests: z.array(z.string()).nullish() }))
const Inspected = z.object({ Id: z.string(), RepoDigests: z.array(z.string()).nullish() })

/** To say its version, Podman starts four programs, which takes seconds on a busy machine. */
const describeDeadlineMs = 10_000

/** Asks an engine what it is and which images it has; images without a name are left out. @throws NoAnswerError */
export const describeEngine = (socketPath: string, deadlineMs = describeDeadlineMs): Promise<EngineFacts> =>
  asked(socketPath, deadlineMs, async (engine) => {
    const [described, listed] = await Promise.all([engine.version(), engine.listImages()])
    const version = Version.parse(described)
    const isPodman = version.Components?.some(({ Name }) => Name.startsWith('Podman')) === true
    return {
      product: isPodman ? 'podman' : 'docker',
      version: version.Version,
      apiVersion: version.ApiVersion,
      images: Listed.parse(listed)
        .flatMap(namedImages)
        .toSorted((one, other) => (one.name < other.name ? -1 : 1)),
    }
  })

const namedImages = ({ Id, RepoTags, RepoDigests }: z.output<typeof Listed>[number]): EngineImage[] =>
  (RepoTags ?? [])
    .filter((name) => !name.includes('<none>'))
    .map((name) => {
      const repository = name.slice(0, name.lastIndexOf(':'))
      const pulled = RepoDigests?.find((digest) => digest.startsWith(`${repository}@sha256:`))
      return { name, digest: pulled === undefined ? digestOf(Id) : digestOf(pulled) }
    })

/** Of `repository@sha256:…` and of an id, which Podman gives without its algorithm. */
const digestOf = (text: string): string => `sha256:${text.slice(text.indexOf('@') + 1).replace(/^sha256:/, '')}`

/**
 * The digest of an image that the engine has under an id: the one that `name` asks for where it is one of the image's, else the
 * registry's, else its id. Undefined when the engine has no such image.
 * @throws NoAnswerError
 */
export const imageDigest = (socketPath: string, id: string, name: string, deadlineMs = usualDeadlineMs): Promise<string | undefined> =>
  asked(socketPath, deadlineMs, async (engine) => {
    try {
      const { Id, RepoDigests } = Inspected.parse(await engine.getImage(digestOf(id)).inspect())
      const digests = [...(RepoDigests ?? []), Id].map(digestOf)
      return digests.find((digest) => name.endsWith(`@${digest}`)) ?? digests[0]
    } catch (error) {
      if ((error as { statusCode?: number }).statusCode === 404) return undefined
      throw error
    }
  })
