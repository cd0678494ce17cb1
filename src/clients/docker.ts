import { Agent, type ClientRequestArgs, type IncomingMessage } from 'node:http'
import type { Duplex, Readable } from 'node:stream'
import type Docker from 'dockerode'
import type { DockerOptions } from 'dockerode'
import { StringDecoder } from 'node:string_decoder'
import { z } from 'zod'
import { readBuildProgress } from './buildkit.ts'
import { NoAnswerError, withinDeadline } from './no-answer.ts'

/** Where the engines of this machine listen: absolute paths of Unix sockets. */
export interface EngineSockets {
  docker: string
  podman: string
}

/** Messages for the system's errors about a socket. */
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
  const answered =
    statusCode === undefined ? 'what answers is no container engine' : 'it answers with an error'
  return new NoAnswerError(socketReasons[code] ?? answered, { cause: error })
}

/** Milliseconds that a request may take unless the caller gives another limit. */
const usualDeadlineMs = 3_000

/**
 * Sends requests to the engine at a socket and closes the connections afterwards, at the deadline
 * too.
 * @throws NoAnswerError
 */
const asked = async <T>(
  socketPath: string,
  deadlineMs: number,
  ask: (engine: Docker) => Promise<T>,
  signal?: AbortSignal,
): Promise<T> => {
  // Loaded at the first request: 15 MB and 40 ms or more, which no start of a program has to wait
  // for.
  const { default: Client } = await import('dockerode')
  const agent = new Agent()
  const end = (): void => agent.destroy()
  signal?.throwIfAborted()
  signal?.addEventListener('abort', end, { once: true })
  try {
    // An empty host: otherwise the client prefers the value of DOCKER_HOST to the socket that it is
    // given.
    const options: DockerOptions & { agent: Agent } = { socketPath, host: '', protocol: 'http', agent }
    return await withinDeadline(deadlineMs, ask(new Client(options)))
  } catch (error) {
    signal?.throwIfAborted()
    throw asNoAnswer(error)
  } finally {
    signal?.removeEventListener('abort', end)
    agent.destroy()
  }
}

/**
 * Pings an engine. `builderVersion` is `2` where it builds with BuildKit, `1` where it has the
 * classic builder only, else empty.
 * https://docs.docker.com/reference/api/engine/version/v1.41/#tag/System/operation/SystemPing
 * @throws NoAnswerError
 */
export const pingEngine = (
  socketPath: string,
  deadlineMs = usualDeadlineMs,
): Promise<{ apiVersion: string; builderVersion: string }> =>
  asked(socketPath, deadlineMs, async ({ modem }) => {
    // `ping()` of the client drops the headers.
    const { headers } = await new Promise<IncomingMessage>((resolve, reject) => {
      modem.dial(
        { path: '/_ping', method: 'GET', isStream: true, statusCodes: { 200: true } },
        (error, answer) => {
          if (error === null) resolve(answer as IncomingMessage)
          else reject(error)
        },
      )
    })
    const header = (name: string): string => String(headers[name] ?? '')
    return { apiVersion: header('api-version'), builderVersion: header('builder-version') }
  })

/** An image that an engine has. */
export interface EngineImage {
  /** `repository:tag`. */
  name: string
  /**
   * `sha256:…`: the registry's digest where there is one, else the id of the image that was built
   * or loaded here.
   */
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
const Listed = z.array(
  z.object({
    Id: z.string(),
    RepoTags: z.array(z.string()).nullish(),
    RepoDigests: z.array(z.string()).nullish(),
  }),
)
const Inspected = z.object({ Id: z.string(), RepoDigests: z.array(z.string()).nullish() })

/** Podman starts four programs to report its version; this takes seconds on a busy machine. */
const describeDeadlineMs = 10_000

/**
 * Reads what an engine is and which images it has; images without a name are left out. @throws
 * NoAnswerError
 */
export const describeEngine = (socketPath: string): Promise<EngineFacts> =>
  asked(socketPath, describeDeadlineMs, async (engine) => {
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

/** The digest in `repository@sha256:…` or in an id; Podman gives ids without the algorithm. */
const digestOf = (text: string): string =>
  `sha256:${text.slice(text.indexOf('@') + 1).replace(/^sha256:/, '')}`

/**
 * What `read` makes of an image of an engine; undefined when the engine has no such image.
 * @throws NoAnswerError
 */
const ofImage = <T>(
  socketPath: string,
  name: string,
  deadlineMs: number,
  read: (document: unknown) => T,
  signal?: AbortSignal,
): Promise<T | undefined> =>
  asked(
    socketPath,
    deadlineMs,
    async (engine) => {
      try {
        return read(await engine.getImage(name).inspect())
      } catch (error) {
        if ((error as { statusCode?: number }).statusCode === 404) return undefined
        throw error
      }
    },
    signal,
  )

/**
 * The digest of an image that the engine has under an id: the one in `name` where it is one of the
 * image's, else the registry's, else its id. Undefined when the engine has no such image.
 * @throws NoAnswerError
 */
export const imageDigest = (socketPath: string, id: string, name: string): Promise<string | undefined> =>
  ofImage(socketPath, digestOf(id), usualDeadlineMs, (document) => {
    const { Id, RepoDigests } = Inspected.parse(document)
    const digests = [...(RepoDigests ?? []), Id].map(digestOf)
    return digests.find((digest) => name.endsWith(`@${digest}`)) ?? digests[0]
  })

/**
 * The digest of the image that an engine has under a name: the registry's where there is one, else
 * its id. Undefined when the engine has no such image. @throws NoAnswerError
 */
export const imageNamed = (socketPath: string, name: string): Promise<string | undefined> =>
  ofImage(socketPath, name, usualDeadlineMs, (document) => {
    const { Id, RepoDigests } = Inspected.parse(document)
    return digestOf(RepoDigests?.[0] ?? Id)
  })

/** Long work of an engine; it ends with its signal. */
interface LongWork {
  signal: AbortSignal
  /** Called with each line of the engine's progress. */
  onLine: (line: string) => void
  /** Called with the name of each image that a step of a build takes, which may be named again. */
  onImage?: (name: string) => void
}

/** An engine ended a pull or a build; the message is the engine's text. */
export class EngineRefusal extends Error {
  override readonly name = 'EngineRefusal'
}

/**
 * An agent whose `destroy` closes every connection that it opened. Node's agent drops a connection
 * after an upgrade, as the session of a build needs. The library closes that one only after a build
 * that succeeded.
 */
class EngineAgent extends Agent {
  readonly #made = new Set<Duplex>()

  override createConnection(options: ClientRequestArgs): Duplex | null | undefined {
    const made = super.createConnection(options)
    if (made != null) {
      this.#made.add(made)
      made.once('close', () => this.#made.delete(made))
    }
    return made
  }

  override destroy(): void {
    super.destroy()
    for (const made of this.#made) made.destroy()
  }
}

const during = async <T>(
  socketPath: string,
  signal: AbortSignal,
  work: (engine: Docker) => Promise<T>,
): Promise<T> => {
  const { default: Client } = await import('dockerode')
  signal.throwIfAborted()
  const agent = new EngineAgent()
  const end = (): void => agent.destroy()
  signal.addEventListener('abort', end, { once: true })
  try {
    const options: DockerOptions & { agent: Agent } = { socketPath, host: '', protocol: 'http', agent }
    return await work(new Client(options))
  } catch (error) {
    signal.throwIfAborted()
    const { statusCode, json } = error as { statusCode?: number; json?: { message?: string } }
    if (statusCode !== undefined)
      throw new EngineRefusal(json?.message ?? (error as Error).message, { cause: error })
    if (error instanceof EngineRefusal) throw error
    throw asNoAnswer(error)
  } finally {
    signal.removeEventListener('abort', end)
    agent.destroy()
  }
}

const Entry = z.object({
  stream: z.string().optional(),
  status: z.string().optional(),
  id: z.string().optional(),
  error: z.string().optional(),
  aux: z.unknown().optional(),
})

/** The lines of text and the images in one line of an engine's answer, and its error. */
const readEvent = (line: string): { lines: string[]; images?: string[]; failure?: string | undefined } => {
  let event: unknown
  try {
    event = JSON.parse(line)
  } catch {
    return { lines: [] }
  }
  const { data: entry } = Entry.safeParse(event)
  // The client's own reader shows what BuildKit's steps print in base64.
  if (entry?.id === 'moby.buildkit.trace' && typeof entry.aux === 'string')
    return readBuildProgress(Buffer.from(entry.aux, 'base64'))
  return { lines: [entry?.error ?? entry?.stream ?? entry?.status ?? ''], failure: entry?.error }
}

/**
 * Passes on the engine's progress until the work has ended. @throws EngineRefusal with the engine's
 * error
 */
const followed = async (
  stream: NodeJS.ReadableStream,
  { onLine, onImage, signal }: LongWork,
): Promise<void> => {
  const incoming = stream as IncomingMessage
  const stop = (): void => {
    incoming.destroy(signal.reason as Error)
  }
  signal.addEventListener('abort', stop, { once: true })
  const decoder = new StringDecoder()
  let failure: string | undefined
  let rest = ''
  const take = (line: string): void => {
    const { lines, images = [], failure: error } = readEvent(line)
    failure = error ?? failure
    for (const text of lines) if (text.trim() !== '') onLine(text.trimEnd())
    for (const name of images) onImage?.(name)
  }
  try {
    for await (const chunk of incoming) {
      const lines = (rest + decoder.write(chunk as Buffer)).split('\n')
      rest = lines.pop() ?? ''
      for (const line of lines) take(line)
    }
    take(rest)
  } finally {
    signal.removeEventListener('abort', stop)
  }
  signal.throwIfAborted()
  if (failure !== undefined) throw new EngineRefusal(failure)
  if (!incoming.complete) throw new NoAnswerError('it ended the connection before its answer was complete')
}

/** Pulls an image from its registry. @throws EngineRefusal @throws NoAnswerError */
export const pullImage = (
  socketPath: string,
  name: string,
  platform: string,
  work: LongWork,
  login?: { username: string; password: string },
): Promise<void> =>
  during(socketPath, work.signal, async (engine) => {
    const stream = await engine.pull(name, {
      ...{ platform, abortSignal: work.signal },
      ...(login === undefined ? {} : { authconfig: { ...login, serveraddress: name.split('/')[0] ?? '' } }),
    })
    await followed(stream, work)
  })

export interface ImageBuild {
  context: Readable
  /** Path below the context. */
  recipe: string
  /** The name of the built image. */
  tag: string
  arguments: Readonly<Record<string, string>>
  network: boolean
  platform: string
  /** The build uses nothing of the engine's cache. */
  fresh: boolean
}

/** Builds an image with BuildKit. @throws EngineRefusal @throws NoAnswerError */
export const buildImage = async (socketPath: string, build: ImageBuild, work: LongWork): Promise<void> => {
  // The client listens to the context once its session is open, and never closes it.
  const lost = new AbortController()
  build.context.once('error', (error) => lost.abort(error))
  const signal = AbortSignal.any([work.signal, lost.signal])
  try {
    await during(socketPath, signal, async (engine) => {
      const stream = await engine.buildImage(build.context, {
        // The client provides the session that BuildKit asks for; without one the build fails with
        // "no active sessions".
        version: '2',
        t: build.tag,
        dockerfile: build.recipe,
        buildargs: { ...build.arguments },
        networkmode: build.network ? 'default' : 'none',
        platform: build.platform,
        nocache: build.fresh,
        abortSignal: signal,
      })
      await followed(stream, { ...work, signal })
    })
  } finally {
    build.context.on('error', () => undefined).destroy()
  }
}

const Whole = Inspected.extend({ Architecture: z.string(), Os: z.string(), Size: z.number() })

export interface InspectedImage {
  /** `sha256:…` */
  id: string
  architecture: string
  sizeBytes: number
  /** `repository@sha256:…` of each registry that the engine had it from. */
  repoDigests: readonly string[]
}

/**
 * The image that an engine has under a name; undefined: none.
 * @throws NoAnswerError; the signal's reason
 */
export const inspectImage = (
  socketPath: string,
  name: string,
  signal?: AbortSignal,
): Promise<InspectedImage | undefined> => {
  const read = (document: unknown): InspectedImage => {
    const { Id, Architecture, Size, RepoDigests } = Whole.parse(document)
    return { id: digestOf(Id), architecture: Architecture, sizeBytes: Size, repoDigests: RepoDigests ?? [] }
  }
  return ofImage(socketPath, name, describeDeadlineMs, read, signal)
}

/**
 * Passes an image as an archive to `take`.
 * @throws NoAnswerError; what `take` throws while the engine answers, as it is
 */
export const saveImage = async (
  socketPath: string,
  name: string,
  signal: AbortSignal,
  take: (archive: AsyncIterable<Buffer>) => Promise<void>,
): Promise<void> => {
  let failed: { error: unknown } | undefined
  await during(socketPath, signal, async (engine) => {
    const stream = (await engine.getImage(name).get()) as IncomingMessage
    const stop = (): void => {
      stream.destroy(signal.reason as Error)
    }
    signal.addEventListener('abort', stop, { once: true })
    try {
      await take(stream as AsyncIterable<Buffer>)
    } catch (error) {
      if (stream.errored !== null) throw error
      failed = { error }
    } finally {
      signal.removeEventListener('abort', stop)
      stream.destroy()
    }
  })
  if (failed !== undefined) throw failed.error
}

/** The caller waits this long for a removal; the engine completes it afterwards. */
const removalMs = 20_000

/**
 * Removes a name of an image, and the image where that was its last name; an absent name is no
 * error.
 */
export const removeImage = (socketPath: string, name: string): Promise<void> =>
  asked(socketPath, removalMs, async (engine) => {
    try {
      await engine.getImage(name).remove()
    } catch (error) {
      if ((error as { statusCode?: number }).statusCode !== 404) throw error
    }
  })
