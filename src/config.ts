import { accessSync, constants, readFileSync, statSync } from 'node:fs'
import { isIP } from 'node:net'
import { homedir, hostname } from 'node:os'
import { join, resolve } from 'node:path'
import leven from 'leven'
import { z } from 'zod'
import { append } from './lists.ts'

/**
 * Facts of the machine that defaults and checks of the configuration need. They are an argument, so
 * that both can be tested and documented.
 */
export interface HostFacts {
  uid: number
  home: string
  hostname: string
  /** Base folders of the XDG convention where they are set. */
  xdgDataHome: string | undefined
  xdgCacheHome: string | undefined
  workingDirectory: string
  isDirectory: (path: string) => boolean
  isExecutable: (path: string) => boolean
  /** The text of a file. @throws Error of the file system with its code */
  readFile: (path: string) => string
}

export interface Address {
  host: string
  port: number
}

/** All settings of the programs; read once, frozen. Paths are absolute. */
export type Config = Readonly<
  Omit<z.output<z.ZodObject<Fields>>, 'readyFile' | 'allowLoopbackConnections'>
> & {
  readonly readyFile: string
  readonly allowLoopbackConnections: boolean
  /** The variables that `SERVICE_CREDENTIAL_ENVIRONMENT` names, and no others. */
  readonly credentialVariables: CredentialVariables
  /**
   * The part of the environment that child programs get: search path, home, proxies, Go. It never
   * holds a `SERVICE_` variable.
   */
  readonly childEnvironment: Readonly<Record<string, string>>
  /** Base URL of an OpenTelemetry collector (OTLP over HTTP); traces are off without it. */
  readonly tracesEndpoint: string | undefined
  /**
   * Places at which a failure test kills the process (`ORRERY_FAILPOINTS`, e.g.
   * `intended-not-started=3`). It is never set in production.
   */
  readonly failpoints: string | undefined
}

type Fields = ReturnType<typeof fieldsFor>

/**
 * Values of environment variables that references `env:NAME` may read. The class keeps them out of
 * any print of the configuration.
 */
export class CredentialVariables {
  readonly #values: ReadonlyMap<string, string>
  constructor(values: Iterable<readonly [name: string, value: string]>) {
    this.#values = new Map(values)
  }
  read(name: string): string | undefined {
    return this.#values.get(name)
  }
  /** All values that may be secret. */
  values(): string[] {
    return [...this.#values.values()]
  }
}

/**
 * A configuration that cannot be used; `problems` holds one line per variable, all found at once.
 */
export class ConfigError extends Error {
  readonly problems: readonly string[]
  constructor(problems: readonly string[]) {
    super(`the configuration cannot be used:\n${problems.map((line) => `  ${line}`).join('\n')}`)
    this.name = 'ConfigError'
    this.problems = problems
  }
}

/**
 * A condition that prevents a program from starting and that its user can change. The message names
 * the variable, its value, the reason and the remedy.
 */
export class StartError extends Error {
  override readonly name = 'StartError'
}

const prefix = 'SERVICE_'
const hidden = '(hidden)'

/** Field `listenAddress` is the variable `SERVICE_LISTEN_ADDRESS`. */
export const variableName = (field: string): string =>
  prefix + field.replace(/[A-Z]/g, (letter) => `_${letter}`).toUpperCase()

interface Notes {
  description: string
  /** The documented default, where it depends on the machine. */
  fallback?: string
  /** The values that the variable takes, where its description does not say it. */
  values?: string
  secret?: boolean
}
const notes = z.registry<Notes>()

const controlFree = /^[^\p{Cc}]+$/u

const postgresUrl = (text: string): URL | undefined => {
  const url = URL.canParse(text) ? new URL(text) : undefined
  return url !== undefined && /^postgres(?:ql)?:$/.test(url.protocol) && url.pathname.length > 1
    ? url
    : undefined
}

const isDecodable = (text: string): boolean => {
  try {
    decodeURIComponent(text)
    return true
  } catch {
    return false
  }
}

const parseAddress = (text: string): Address | undefined => {
  const match = /^(?:\[([0-9a-fA-F:.]+)\]|([^:[\]\s/]*)):(\d{1,5})$/.exec(text)
  const port = Number(match?.[3])
  return match === null || port > 65_535
    ? undefined
    : { host: match[1] ?? (match[2] === '' || match[2] === undefined ? '127.0.0.1' : match[2]), port }
}

const address = (lowestPort: 0 | 1, example: string) =>
  z.string().transform((text, context): Address => {
    const parsed = parseAddress(text)
    if (parsed !== undefined && parsed.port >= lowestPort) return parsed
    context.addIssue({
      code: 'custom',
      message: `is not HOST:PORT with a port from ${lowestPort} to 65535. Give for example ${example}`,
    })
    return z.NEVER
  })

const listOf = (what: string, example: string, normalise: (item: string) => string | undefined) =>
  z.string().transform((text, context): readonly string[] => {
    const items = text.split(',').map((item) => item.trim())
    const normalised = items.map(normalise)
    const wrong = items.filter((_, i) => normalised[i] === undefined)
    if (wrong.length > 0)
      context.addIssue({
        code: 'custom',
        message:
          `holds ${wrong.map((item) => JSON.stringify(item)).join(', ')}, which is not ${what}. Give ` +
          `them separated by commas, for example ${example}`,
      })
    return Object.freeze(normalised.filter((item) => item !== undefined))
  })

const origin = (item: string): string | undefined => {
  const url = URL.canParse(item) ? new URL(item) : undefined
  return url !== undefined && /^https?:$/.test(url.protocol) && url.origin === item ? item : undefined
}

const hostName = (item: string): string | undefined =>
  /^(?:[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::\d{1,5})?$/i.test(item)
    ? item.toLowerCase()
    : undefined

const variable = (item: string): string | undefined =>
  /^(?!SERVICE_)[A-Za-z_][A-Za-z0-9_]{0,254}$/.test(item) ? item : undefined

/** `10.0.0.0/8`, `fd00::/8`, or a single address. */
const network = (item: string): string | undefined => {
  const [, host = '', bits] = /^([0-9a-fA-F.:]+)(?:\/(\d{1,3}))?$/.exec(item) ?? []
  const version = isIP(host)
  return version === 0 || Number(bits ?? 0) > (version === 4 ? 32 : 128) ? undefined : item.toLowerCase()
}

const wholeNumber = (lowest: number, highest: number, unit: string, usual: number, description: string) =>
  z
    .string()
    .refine((text) => /^\d{1,15}$/.test(text) && Number(text) >= lowest && Number(text) <= highest, {
      error: `is not a whole number of ${unit} from ${lowest} to ${highest}. Give for example ${usual}`,
    })
    .transform(Number)
    .prefault(String(usual))
    .register(notes, { description, values: `${lowest} to ${highest}` })

const inWords = (words: readonly string[]): string => `${words.slice(0, -1).join(', ')} or ${words.at(-1)}`

const flag = (description: string) =>
  z
    .enum(['true', 'false'], { error: 'is not true or false' })
    .transform((text) => text === 'true')
    .prefault('false')
    .register(notes, { description, values: '`true`, `false`' })

const oneOf = <const Word extends string>(
  words: readonly [Word, ...Word[]],
  usual: NoInfer<Word>,
  note: Notes,
) =>
  z
    .enum(words, { error: `is not ${inWords(words)}` })
    .prefault(usual)
    .register(notes, { ...note, values: words.map((word) => `\`${word}\``).join(', ') })

/**
 * Fields of the console. Any text but `true` leaves it disabled, so that a typing error cannot
 * enable it.
 */
const consoleFields = () => ({
  consoleEnabled: z
    .string()
    .transform((text) => text === 'true')
    .prefault('false')
    .register(notes, {
      description:
        'Whether commands and terminals may be opened on resources: `true`, exactly. Anything else ' +
        'leaves the console off, and its requests answer 503.',
    }),
  consoleSessions: wholeNumber(1, 1_000, 'sessions', 50, 'Terminals that may be open at once.'),
  consoleIdleSeconds: wholeNumber(
    10,
    604_800,
    'seconds',
    1_800,
    'A terminal without input and output for this long is closed.',
  ),
  consoleRetentionDays: wholeNumber(
    1,
    36_500,
    'days',
    90,
    'How long sessions that are over, and their recordings, are kept.',
  ),
})

const pathOf = (host: HostFacts) => z.string().transform((text) => resolve(host.workingDirectory, text))
const directoryOf = (host: HostFacts) =>
  pathOf(host).refine(host.isDirectory, { error: 'is not an existing directory. Create it or name another' })

/** The address of the service, and the callers that it admits. */
const apiFields = () => {
  return {
    listenAddress: address(0, '127.0.0.1:8080')
      .prefault('127.0.0.1:8080')
      .register(notes, {
        description:
          'Address of the API. An empty host is 127.0.0.1, port 0 any free port. Without ' +
          '`SERVICE_API_TOKEN` the service answers loopback peers only.',
      }),
    apiPrefix: z
      .string()
      .regex(/^(?:\/|(?:\/[A-Za-z0-9._~-]+)+)$/, {
        error:
          'is not a path that begins with / and does not end with one. Give for example /api, or / for none',
      })
      .transform((text) => (text === '/' ? '' : text))
      .prefault('/api')
      .register(notes, { description: 'Path before every endpoint; `/` for none.' }),
    apiToken: z
      .string()
      .regex(/^[\x21-\x7e]{1,1024}$/, {
        error:
          'must be 1 to 1024 printable ASCII characters without spaces. Make one with: openssl rand -hex 32',
      })
      .optional()
      .register(notes, {
        description:
          'Bearer token that requests must carry. Without it the service answers loopback peers only.',
        values: '1 to 1024 printable ASCII characters without spaces',
        secret: true,
      }),
    allowedOrigins: listOf('an origin', 'https://lab.example.org', origin)
      .default(Object.freeze([]))
      .register(notes, {
        description: 'Browser origins that may read answers, comma separated, compared exactly.',
        fallback: 'none',
      }),
    allowedHosts: listOf('a host name', 'orrery.example.org,10.0.0.5:8080', hostName)
      .default(Object.freeze([]))
      .register(notes, {
        description:
          'Further values of the `Host` header that the service accepts, comma separated. It always ' +
          'accepts loopback names and the listen address.',
        fallback: 'none',
      }),
    adminAddress: address(0, '127.0.0.1:9090')
      .prefault('127.0.0.1:0')
      .register(notes, {
        description:
          'Address of `/livez`, `/readyz` and `/metrics`. These pages need no token: keep the address ' +
          'on loopback or a private network.',
      }),
    relayAddress: address(0, 'worker-1.example.org:7300')
      .refine(({ host }) => host !== '0.0.0.0' && !/^[0:]+$/.test(host), {
        error: 'names no address that others can reach. Give for example worker-1.example.org:7300',
      })
      .prefault('127.0.0.1:0')
      .register(notes, {
        description:
          'Address under which the other processes of the fleet reach this one while it holds an ' +
          "SSH login that a person made. They all use that login. A secret derived from the vault's key " +
          'protects the address. Port 0 takes a free port.',
      }),
  }
}

/** The folders of the service. */
const folderFields = (host: HostFacts) => {
  const path = pathOf(host)
  const directory = directoryOf(host)
  const root = host.uid === 0
  const dataDir = root
    ? '/var/lib/orrery'
    : join(host.xdgDataHome ?? join(host.home, '.local', 'share'), 'orrery')
  const cacheDir = root ? '/var/cache/orrery' : join(host.xdgCacheHome ?? join(host.home, '.cache'), 'orrery')
  return {
    dataDir: path.prefault(dataDir).register(notes, {
      description: 'Folder of the data to keep: embedded databases, passwords, work directories, ready file.',
      fallback:
        '`/var/lib/orrery` as root, else `$XDG_DATA_HOME/orrery`, without that variable `~/.local/share/orrery`',
    }),
    cacheDir: path.prefault(cacheDir).register(notes, {
      description:
        'Folder of programs that the service can make again: the Temporal development server, the ' +
        'runner of local tasks, copies of the PostgreSQL programs.',
      fallback:
        '`/var/cache/orrery` as root, else `$XDG_CACHE_HOME/orrery`, without that variable `~/.cache/orrery`',
    }),
    artifactRoot: path.optional().register(notes, {
      description: 'Folder of build contexts and of the images that builds make, as files by their digest.',
      fallback: '`artifacts` in the data folder',
    }),
    localStorageRoot: directory.optional().register(notes, {
      description:
        'Existing directory of this machine. Storages of type local, and others that are mounted here, lie below it.',
    }),
  }
}

/** The databases of the service. */
const databaseFields = () => {
  return {
    databaseUrl: z
      .string()
      .refine((text) => postgresUrl(text) !== undefined, {
        error:
          'is not a PostgreSQL URL with a database name. Give for example ' +
          'postgres://user@host:5432/orrery, and the password as it is in SERVICE_DATABASE_PASSWORD',
        abort: true,
      })
      .refine((text) => isDecodable(`${new URL(text).username}:${new URL(text).password}`), {
        error:
          'holds a % in its user or password that begins no percent-encoding. Give the password as ' +
          'it is in SERVICE_DATABASE_PASSWORD',
      })
      .optional()
      .register(notes, { description: 'PostgreSQL to use instead of the embedded one.', secret: true }),
    databasePassword: z
      .string()
      .regex(controlFree, { error: 'must not hold control characters' })
      .max(1024, { error: 'is longer than 1024 characters' })
      .optional()
      .register(notes, {
        description:
          'Password for `SERVICE_DATABASE_URL`, as it is. A URL would need `/`, `@`, `:` and `%` percent-encoded.',
        secret: true,
      }),
    provenanceDatabaseUrl: z
      .string()
      .refine((text) => postgresUrl(text) !== undefined, {
        error:
          'is not a PostgreSQL URL with a database name. Give for example postgres://reader:password@host:5432/orrery',
        abort: true,
      })
      .refine((text) => isDecodable(`${new URL(text).username}:${new URL(text).password}`), {
        error: 'holds a % in its user or password that begins no percent-encoding. Write it as %25',
      })
      .optional()
      .register(notes, {
        description:
          'Login that reads the views of schema `provenance` for statements of clients. The service ' +
          'makes such a role itself where its own login may.',
        fallback: 'a role of its own making',
        secret: true,
      }),
  }
}

/** Fields of Temporal. */
const temporalFields = (host: HostFacts) => {
  const path = pathOf(host)
  return {
    temporalAddress: address(1, 'temporal.example.org:7233').optional().register(notes, {
      description: 'Temporal frontend (gRPC) to use instead of the embedded development server.',
    }),
    temporalNamespace: z
      .string()
      .regex(/^[A-Za-z0-9][A-Za-z0-9._-]{1,254}$/, {
        error:
          'is not a namespace: 2 to 255 letters, digits, dots, underscores and hyphens. Give for example default',
      })
      .prefault('default')
      .register(notes, {
        description: 'Temporal namespace of all workflows.',
        values: '2 to 255 letters, digits, `.`, `_` and `-`',
      }),
    temporalTaskQueue: z
      .string()
      .regex(controlFree, { error: 'must not hold control characters' })
      .max(200, { error: 'is longer than 200 characters' })
      .prefault('orrery')
      .register(notes, {
        description:
          'Temporal task queue that all workers share. The names of the queues of single hosts begin with it.',
      }),
    temporalBinary: path
      .refine(host.isExecutable, {
        error: 'is not an executable file. Name the `temporal` command line program or unset the variable',
      })
      .optional()
      .register(notes, {
        description:
          'The `temporal` command line program of the embedded development server. Without it the ' +
          'service looks on the search path and in the cache, then downloads the program, then ' +
          'builds it from its Go module.',
      }),
    temporalCodecKey: z
      .string()
      .regex(/^[\w-]{32,128}$/, {
        error:
          'is not 32 to 128 letters, digits, underscores and hyphens. Make one with: openssl rand -hex 32',
      })
      .optional()
      .register(notes, {
        description:
          "Key in the address under which Temporal's page has payloads decoded " +
          '(`/temporal-codec/<key>` below `SERVICE_ADMIN_ADDRESS`). Who knows the key may read payloads ' +
          'of workflows. Without a vault there is nothing to decode, and no such address.',
        fallback:
          'with the embedded Temporal `temporal-codec.key` in the data folder, made at need; else none',
        values: '32 to 128 letters, digits, `_` and `-`',
        secret: true,
      }),
    temporalPageOrigins: listOf('an origin', 'http://localhost:8233,http://127.0.0.1:8233', origin)
      .default(Object.freeze([]))
      .register(notes, {
        description:
          "Origins of Temporal's page from which browsers may have payloads decoded, comma " +
          'separated, compared exactly. Those of the embedded page on this machine always may.',
        fallback: 'none',
      }),
  }
}

/** The resources of this machine that the service uses. */
const machineFields = (host: HostFacts) => {
  const path = pathOf(host)
  const root = host.uid === 0
  return {
    hostId: z
      .string()
      .regex(controlFree, { error: 'must not hold control characters' })
      .max(255, { error: 'is longer than 255 characters' })
      .prefault(host.hostname)
      .register(notes, {
        description:
          'Name of this machine among workers. Tasks of the local driver return to the machine that holds their files.',
        fallback: 'the host name',
      }),
    seedRoot: directoryOf(host).optional().register(notes, {
      description: "Existing directory that holds the folders of the runtimes' `workspaceSeedPath`.",
    }),
    simgridPython: path.prefault('/usr/bin/python3').register(notes, {
      description: 'Python with the module SimGrid, for runs that name this simulator. Nothing reads it yet.',
    }),
    dockerSocket: path.prefault('/var/run/docker.sock').register(notes, {
      description:
        'Unix socket of Docker on this machine. The service reads there whether Docker answers, its ' +
        'version and its images. The `docker` program starts the tasks; a runtime names another socket ' +
        'for it as `containerHost`.',
    }),
    podmanSocket: path
      .prefault(root ? '/run/podman/podman.sock' : `/run/user/${host.uid}/podman/podman.sock`)
      .register(notes, {
        description:
          'Unix socket of the API service of Podman (`podman system service`). The service reads the same there.',
        fallback: '`/run/podman/podman.sock` as root, else `/run/user/<uid>/podman/podman.sock`',
      }),
    containerEngine: path.optional().register(notes, {
      description:
        'Unix socket of the Docker engine that builds images and pulls what is converted. An engine for ' +
        'builds alone, with limits of its own, keeps builds away from tasks.',
      fallback: 'that of `SERVICE_DOCKER_SOCKET`',
    }),
    sbom: oneOf(['found', 'make', 'off'], 'found', {
      description:
        'Whether builds list the packages of their output (SPDX 2.3, by syft): `found` where syft is on the ' +
        'search path or in the cache, `make` builds it once with Go (two minutes), `off` never.',
    }),
    buildkitSocket: path.prefault('/run/buildkit/buildkitd.sock').register(notes, {
      description:
        'Unix socket of the BuildKit daemon of this machine. `GET /preflight/` reads its workers there.',
    }),
  }
}

/** The sources of secrets. */
const secretFields = (host: HostFacts) => {
  const path = pathOf(host)
  return {
    vaultKeyFile: path.optional().register(notes, {
      description:
        'File (0600) with the keys of the vault, 32 bytes in base64 a line. The service seals new ' +
        'credentials with the first key. Without the file an external database keeps no credentials.',
      fallback: 'with the embedded database `vault.key` in the data folder, made at need; else none',
    }),
    credentialEnvironment: listOf('a variable name (SERVICE_ excluded)', 'LAB_TOKEN,CLUSTER_KEY', variable)
      .default(Object.freeze([]))
      .register(notes, {
        description: 'Environment variables that credential references `env:NAME` may read, comma separated.',
        fallback: 'none',
      }),
    credentialFolders: listOf('an existing directory', '/etc/orrery/credentials', (item) => {
      const folder = resolve(host.workingDirectory, item)
      return item !== '' && host.isDirectory(folder) ? folder : undefined
    })
      .default(Object.freeze([]))
      .register(notes, {
        description:
          'Folders whose files credential references `file:PATH` and `cloud-file:PATH` may read, comma separated.',
        fallback: 'none',
      }),
  }
}

/** Permissions and time limits of connections to sites. */
const connectionFields = () => {
  return {
    deniedNetworks: listOf('a network', '10.0.0.0/8,fd00::/8', network)
      .default(Object.freeze([]))
      .register(notes, {
        description:
          'Networks that connections must not reach, comma separated. Link-local addresses and ' +
          'metadata services are always refused.',
        fallback: 'none',
      }),
    allowLoopbackConnections: oneOf(['auto', 'true', 'false'], 'auto', {
      description:
        'Whether connections may reach this machine itself. `auto`: only with the embedded database.',
      fallback: '`auto`',
    }),
    allowProxyCommand: flag(
      'Whether connections may name a `proxyCommand`, a command that this machine runs.',
    ),
    sshTrustOnFirstUse: flag(
      'Whether an SSH connection without host key and `hostKeyPolicy` accepts the first key that ' +
        'its host shows. The service records that key and refuses a changed one.',
    ),
    cloudSshSourceRanges: listOf('a network', '192.0.2.0/24', network)
      .default(Object.freeze([]))
      .register(notes, {
        description:
          'Networks from which SSH reaches cloud machines, where their capacity target names none, ' +
          'separated by commas.',
        fallback: 'none',
      }),
    cloudSweepSeconds: wholeNumber(
      0,
      86_400,
      'seconds',
      600,
      'Pause between two searches for cloud machines with the tags of this service and no living ' +
        'record, which are ended. 0: only on request.',
    ),
    kubernetesHelperImage: z
      .string()
      .regex(/^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,500}$/, {
        error: 'is not the name of an image. Give for example debian:12-slim',
      })
      .prefault('debian:12-slim')
      .register(notes, {
        description:
          'Image with a shell and the usual tools (find with -printf, tar, setsid, sha256sum; ' +
          'without a volume also flock and mkfifo) for Kubernetes runtimes that name no `helperImage`.',
      }),
    ...consoleFields(),
    discoveryWaitSeconds: wholeNumber(
      0,
      300,
      'seconds',
      20,
      'How long a request for discovery waits for its end before it answers 202.',
    ),
    sitePatienceSeconds: wholeNumber(
      1,
      31_536_000,
      'seconds',
      86_400,
      'How long tasks wait for a site that cannot be reached before they count as failed.',
    ),
    monitorIntervalSeconds: wholeNumber(
      1,
      86_400,
      'seconds',
      60,
      'Least time between two checks of a connection by its monitor. The time grows while the checks succeed.',
    ),
  }
}

/** Limits, names and output. */
const serviceFields = (host: HostFacts) => {
  const path = pathOf(host)
  return {
    bodyLimitBytes: wholeNumber(
      1024,
      1_073_741_824,
      'bytes',
      33_554_432,
      'Largest request document in bytes, of which a JSON document may hold a value for each 8 (4,000,000 ' +
        'below 32 MB). Streamed uploads have their own limits.',
    ),
    buildContextLimitBytes: wholeNumber(
      1,
      1_099_511_627_776,
      'bytes',
      536_870_912,
      'Largest build context in bytes, as it is packed. It may expand to 16 times this limit; one that ' +
        'expands to more than 16 MiB, to 200 times its own size. The request may have 1048576 bytes ' +
        'more, for the form around it.',
    ),
    buildConcurrency: wholeNumber(1, 64, 'builds', 1, 'Builds that one host works for at once; others wait.'),
    taskVariablePrefix: z
      .string()
      .regex(/^(?!SERVICE_)[A-Z][A-Z0-9_]{0,62}_$/, {
        error:
          'is not capital letters, digits and underscores that end with an underscore (SERVICE_ ' +
          'excluded). Give for example AKOFLOW_',
      })
      .prefault('AKOFLOW_')
      .register(notes, {
        description:
          'Prefix of the [variables in the environment of tasks](operations.md#the-environment-of-a-task) ' +
          '(`<prefix>RUN_ID` …).',
        values: 'capital letters, digits and `_`, with `_` at the end',
      }),
    currency: z
      .string()
      .regex(/^[A-Z]{3}$/, {
        error: 'is not a currency code of three capital letters (ISO 4217). Give for example EUR',
      })
      .optional()
      .register(notes, {
        description:
          'Currency of every price and cost. The timeline page and the demo show it beside costs; ' +
          'the service converts nothing.',
        values: 'three capital letters (ISO 4217)',
      }),
    logLevel: oneOf(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'], 'info', {
      description: 'Least level of log lines.',
    }),
    readyFile: path.optional().register(notes, {
      description:
        'File with the addresses and process ids as JSON. The service writes it when all servers ' +
        'listen and removes it at the stop.',
      fallback: '`ready.json` in the data folder',
    }),
  }
}

/** Every variable, in the order of the documentation. */
const fieldsFor = (host: HostFacts) => ({
  ...apiFields(),
  ...folderFields(host),
  ...databaseFields(),
  ...temporalFields(host),
  ...machineFields(host),
  ...secretFields(host),
  ...connectionFields(),
  ...serviceFields(host),
})

/** A near name is only a hint. */
const nearest = (name: string, known: readonly string[]): string | undefined => {
  const best = known
    .map((other) => ({ other, apart: leven(name, other) }))
    .sort((a, b) => a.apart - b.apart)[0]
  return best !== undefined && best.apart <= Math.max(3, Math.floor((name.length - prefix.length) / 2))
    ? best.other
    : undefined
}

/**
 * Only variables that installers and compilers need. Task environments are made elsewhere and hold
 * none of them.
 */
const inherited = new RegExp(
  `^(?:${[
    'PATH|HOME|USER|LOGNAME|TMPDIR|LANG|LC_[A-Z]+|TZ|SSL_CERT_FILE|SSL_CERT_DIR',
    'GO(?:PATH|PROXY|MODCACHE|CACHE|TOOLCHAIN|SUMDB|PRIVATE|NOSUMDB|NOPROXY|ROOT|INSECURE|MAXPROCS)',
    '(?:https?|no|all)_proxy',
  ].join('|')})$`,
  'i',
)

const isSecret = (fields: Fields, field: keyof Fields): boolean => notes.get(fields[field])?.secret === true

/**
 * The given value of each field. A secret comes from its variable, or from the file that
 * `<variable>_FILE` names, without trailing line breaks.
 */
const readValues = (
  given: readonly (readonly [name: string, value: string])[],
  fields: Fields,
  host: HostFacts,
) => {
  const names = Object.keys(fields) as (keyof Fields)[]
  const fieldOf = new Map(names.map((field) => [variableName(field), field]))
  const fileOf = new Map(
    names.filter((field) => isSecret(fields, field)).map((field) => [`${variableName(field)}_FILE`, field]),
  )
  const values: Partial<Record<keyof Fields, string>> = {}
  const files = new Map<keyof Fields, string>()
  const problems: string[] = []
  for (const [name, value] of given) {
    const field = fieldOf.get(name)
    const fileField = fileOf.get(name)
    if (field !== undefined) values[field] = value
    else if (fileField !== undefined) files.set(fileField, resolve(host.workingDirectory, value))
    else if (name.startsWith(prefix)) {
      const hint = nearest(name, [...fieldOf.keys(), ...fileOf.keys()])
      problems.push(
        `${name} is not a variable of this program. ` +
          (hint === undefined
            ? 'Unset it; docs/configuration.md lists the variables'
            : `Did you mean ${hint}?`),
      )
    }
  }
  for (const [field, file] of files) {
    const name = `${variableName(field)}_FILE`
    const refuse = (why: string): number => problems.push(`${name}=${JSON.stringify(file)} ${why}`)
    if (values[field] !== undefined) refuse(`is given beside ${variableName(field)}. Give one of them`)
    else
      try {
        const text = host.readFile(file).replace(/[\r\n]+$/, '')
        if (text === '') refuse('names an empty file. Write the value into it')
        else values[field] = text
      } catch (error) {
        refuse(
          'names a file that cannot be read ' +
            `(${(error as NodeJS.ErrnoException).code ?? 'unknown error'}). Create it, readable by this account`,
        )
      }
  }
  return { values, files, problems }
}

const passwordProblems = ({
  databaseUrl,
  databasePassword,
}: {
  databaseUrl?: string | undefined
  databasePassword?: string | undefined
}): string[] => {
  if (databasePassword === undefined) return []
  const name = `${variableName('databasePassword')}=${hidden}`
  if (databaseUrl === undefined)
    return [
      `${name} is given without SERVICE_DATABASE_URL. Give the URL of that database, or unset the password`,
    ]
  const url = new URL(databaseUrl)
  return url.password !== '' || url.searchParams.has('password')
    ? [`${name} is given, and SERVICE_DATABASE_URL holds a password as well. Remove it from the URL`]
    : []
}

/** The URL with the password in it, percent-encoded as `pg` decodes it. */
const databaseUrlWith = (databaseUrl: string, password: string): string => {
  const url = new URL(databaseUrl)
  url.password = encodeURIComponent(password)
  return url.href
}

/**
 * The configuration of an environment. An empty value counts as absent, because compose files and
 * shells produce it.
 * @throws ConfigError with every problem: unknown `SERVICE_` names (with the nearest known one),
 *   bad values and unreadable files, without showing secrets
 */
export const parseConfig = (
  environment: Readonly<Record<string, string | undefined>>,
  host: HostFacts,
): Config => {
  const given = Object.entries(environment).filter(
    (entry): entry is [string, string] => entry[1] !== undefined && entry[1] !== '',
  )
  const fields = fieldsFor(host)
  const { values, files, problems } = readValues(given, fields, host)
  const parsed = z.object(fields).safeParse(values)
  for (const issue of parsed.error?.issues ?? []) {
    const field = String(issue.path[0]) as keyof Fields
    const file = files.get(field)
    const value = isSecret(fields, field) ? hidden : JSON.stringify(values[field])
    problems.push(
      `${
        file === undefined
          ? `${variableName(field)}=${value}`
          : `${variableName(field)}_FILE=${JSON.stringify(file)}, its content,`
      } ${issue.message}`,
    )
  }
  if (parsed.data !== undefined) append(problems, passwordProblems(parsed.data))
  const all = Object.fromEntries(given)
  const tracesEndpoint = all.OTEL_EXPORTER_OTLP_ENDPOINT
  if (
    tracesEndpoint !== undefined &&
    !(URL.canParse(tracesEndpoint) && /^https?:$/.test(new URL(tracesEndpoint).protocol))
  )
    problems.push(
      `OTEL_EXPORTER_OTLP_ENDPOINT=${JSON.stringify(tracesEndpoint)} is not an http URL. Give for ` +
        'example http://127.0.0.1:4318',
    )
  if (parsed.data === undefined || problems.length > 0) throw new ConfigError(problems)
  const childEnvironment = Object.freeze(Object.fromEntries(given.filter(([name]) => inherited.test(name))))
  const { databaseUrl, databasePassword } = parsed.data
  return Object.freeze({
    ...parsed.data,
    databaseUrl:
      databaseUrl === undefined || databasePassword === undefined
        ? databaseUrl
        : databaseUrlWith(databaseUrl, databasePassword),
    allowLoopbackConnections:
      parsed.data.allowLoopbackConnections === 'auto'
        ? databaseUrl === undefined
        : parsed.data.allowLoopbackConnections === 'true',
    credentialVariables: new CredentialVariables(
      parsed.data.credentialEnvironment.flatMap((name) =>
        all[name] === undefined ? [] : [[name, all[name]] as const],
      ),
    ),
    readyFile: parsed.data.readyFile ?? join(parsed.data.dataDir, 'ready.json'),
    childEnvironment,
    tracesEndpoint,
    failpoints: all.ORRERY_FAILPOINTS,
  })
}

const hostFacts = (environment: Readonly<Record<string, string | undefined>>): HostFacts => ({
  uid: process.getuid?.() ?? -1,
  home: homedir(),
  hostname: hostname(),
  xdgDataHome: environment.XDG_DATA_HOME === '' ? undefined : environment.XDG_DATA_HOME,
  xdgCacheHome: environment.XDG_CACHE_HOME === '' ? undefined : environment.XDG_CACHE_HOME,
  workingDirectory: process.cwd(),
  isDirectory: (path) => statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false,
  isExecutable: (path) => {
    try {
      accessSync(path, constants.X_OK)
      return statSync(path).isFile()
    } catch {
      return false
    }
  },
  readFile: (path) => readFileSync(path, 'utf8'),
})

/** The configuration of this process. @throws ConfigError */
export const configFromEnvironment = (overrides: Readonly<Record<string, string>> = {}): Config =>
  parseConfig({ ...process.env, ...overrides }, hostFacts(process.env))

/**
 * `NAME=value` lines that would set the variables, with secrets masked (in URLs only the password).
 */
export const printConfig = (config: Config): string =>
  (Object.keys(documentedFields) as (keyof Fields)[])
    .map((field) => {
      const value = config[field]
      const text =
        value === undefined
          ? ''
          : (field === 'databaseUrl' || field === 'provenanceDatabaseUrl') && typeof value === 'string'
            ? withoutPassword(value)
            : isSecret(documentedFields, field)
              ? hidden
              : field === 'apiPrefix' && value === ''
                ? '/'
                : asText(value)
      return `${variableName(field)}=${text}`
    })
    .join('\n')

const asText = (value: string | number | boolean | Address | readonly string[]): string =>
  typeof value !== 'object' ? String(value) : 'port' in value ? formatAddress(value) : value.join(',')

/** `host:port`, IPv6 hosts in brackets. */
export const formatAddress = ({ host, port }: Address): string =>
  `${host.includes(':') ? `[${host}]` : host}:${port}`

/**
 * `host:port` for programs of this machine: a server that listens on all addresses listens on
 * loopback, too.
 */
export const reachedHere = ({ host, port }: Address): string =>
  formatAddress({ host: host === '0.0.0.0' ? '127.0.0.1' : /^[0:]+$/.test(host) ? '::1' : host, port })

/** A URL whose password is replaced by `****`, also where it is a query parameter. */
export const withoutPassword = (text: string): string => {
  const url = new URL(text)
  if (url.password !== '') url.password = '****'
  for (const name of [...url.searchParams.keys()])
    if (/password/i.test(name)) url.searchParams.set(name, '****')
  return url.href
}

/** The passwords in a URL: before its host, and among its query parameters. */
export const passwordsOf = (text: string): string[] => {
  const { password, searchParams } = new URL(text)
  const parameters = [...searchParams].flatMap(([name, value]) => (/password/i.test(name) ? [value] : []))
  return [decodeURIComponent(password), ...parameters]
}

const documentedHost: HostFacts = {
  uid: 1000,
  home: '/home/user',
  hostname: 'host',
  xdgDataHome: undefined,
  xdgCacheHome: undefined,
  workingDirectory: '/',
  isDirectory: () => true,
  isExecutable: () => true,
  readFile: () => '',
}
const documentedFields = fieldsFor(documentedHost)

/** The text of docs/configuration.md, from the schema. */
export const documentConfig = (): string => {
  const fields = documentedFields
  const defaults = parseConfig({}, documentedHost)
  const rows = (Object.keys(fields) as (keyof Fields)[]).map((field) => {
    const note = notes.get(fields[field])
    const value = defaults[field]
    const fallback =
      note?.fallback ??
      (value === undefined ? 'none' : `\`${field === 'apiPrefix' && value === '' ? '/' : asText(value)}\``)
    return (
      `| \`${variableName(field)}\` | ${fallback} | ${note?.values ?? ''} | ` +
      `${note?.description ?? ''}${
        note?.secret === true
          ? ` Secret: masked wherever it is printed; or \`${variableName(field)}_FILE\`.`
          : ''
      } |`
    )
  })
  return `# Configuration

Generated from \`src/config.ts\` by \`npm run docs:configuration\`; a test checks that the two agree.

Environment variables are the only configuration. An empty value counts as not given. An unknown
\`SERVICE_\` name or an unusable value stops the program at its start. The program then names every
such variable with its value and the remedy. \`npm start -- --print-config\` and
\`npm run worker -- --print-config\` print the values in force, with secrets masked, and exit.
Relative paths are relative to the working directory.

Each secret has a second variable whose name ends with \`_FILE\`. It names a file that holds the
value, as Docker and Kubernetes mount their secrets. The service ignores line breaks at the end of
the file. Give only one of the two variables.

| Variable | Default | Values | Meaning |
|---|---|---|---|
${rows.join('\n')}

The service also reads the standard variables of OpenTelemetry. It sends traces when
\`OTEL_EXPORTER_OTLP_ENDPOINT\` is set (OTLP over HTTP, e.g. \`http://127.0.0.1:4318\`).
\`OTEL_EXPORTER_OTLP_HEADERS\`, \`OTEL_SERVICE_NAME\` and \`OTEL_RESOURCE_ATTRIBUTES\` have their usual
meaning. \`ORRERY_FAILPOINTS\` makes the process kill itself at named places. It is for failure
tests only.
`
}
