import { execFile } from 'node:child_process'
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { quote } from '../../src/drivers/quote.ts'
import { leash, type Leashed } from '../../src/embedded/leash.ts'
import { identify, isAlive } from '../../src/embedded/processes.ts'
import { until } from './ground.ts'
import { systemFiles } from './image-files.ts'

const run = promisify(execFile)

export interface Engine {
  /** Path of the Unix socket that it listens on. */
  readonly socket: string
  /** Holds a `docker` that speaks with this engine, for a PATH. */
  readonly commands: string
  /** Runs the client against this engine and gives what it prints, trimmed. @throws Error with the end of both outputs when it fails */
  docker: (...args: string[]) => Promise<string>
  /** Kills the engine and its containerd; containers go on. */
  kill(): Promise<void>
  /** Ends the engine as an operator's restart does: it stops its containers, but with `liveRestore`. */
  stop(): Promise<void>
  /** After `kill` or `stop`: resolves when it answers. */
  start(): Promise<void>
  [Symbol.asyncDispose](): Promise<void>
}

export interface EngineOptions {
  /** Where images stay, so that a second start is short. */
  data: string
  /** Engines of one kind take turns, those of different kinds stand beside each other. Default `image`. */
  kind?: 'image' | 'tasks'
  liveRestore?: boolean
}

/** Programs that are needed, and the Debian packages that hold them. */
const programs = {
  dockerd: 'docker.io',
  docker: 'docker.io',
  runc: 'runc',
  debootstrap: 'debootstrap',
  ip: 'iproute2',
  flock: 'util-linux',
  python3: 'python3-minimal',
}

/** Debian's own first: its client has a BuildKit that needs no plug-in, and fits the engine. */
const searchPath = '/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin'
const lacking = (): [program: string, debianPackage: string][] =>
  Object.entries(programs).filter(([program]) => !searchPath.split(':').some((folder) => existsSync(join(folder, program))))

/** Whether a machine without an engine is a fault: on CI it is, and there what is missing is installed. */
export const demanded = process.env['CI'] === 'true' || process.env['REQUIRE_SHARED'] === '1'

/**
 * What stands in the way of an engine of our own on this machine, undefined when nothing does.
 * @throws Error with the same words where an engine is demanded
 */
export const engineMissing = async (): Promise<string | undefined> => {
  const isRoot = process.getuid?.() === 0
  if (isRoot && demanded && lacking().length > 0) {
    const apt = (...args: string[]) => run('apt-get', ['-qq', ...args], { env: { PATH: searchPath, DEBIAN_FRONTEND: 'noninteractive' } })
    await apt('update')
    await apt('install', '-y', '--no-install-recommends', ...new Set(lacking().map(([, debianPackage]) => debianPackage)))
  }
  const wanting = lacking()
  const reason = !isRoot
    ? 'only root can start a container engine of its own'
    : wanting.length > 0
      ? `${wanting.map(([program]) => program).join(', ')} not found; install ${[...new Set(wanting.map(([, debianPackage]) => debianPackage))].join(' ')}`
      : undefined
  if (reason !== undefined && demanded) throw new Error(`no container engine can be started, and CI demands one: ${reason}`)
  return reason
}

/** Own bridges with link-local addresses: an engine told to have none removes the `docker0` of the engine that is already there. */
const bridges = { image: ['orrery-test0', '169.254.118.1/24'], tasks: ['orrery-test1', '169.254.119.1/24'] } as const

const killAll = async (cgroup: string): Promise<void> => {
  const folders = readdirSync('/sys/fs/cgroup')
    .map((controller) => join('/sys/fs/cgroup', controller, cgroup))
    .filter((folder) => existsSync(folder))
  const below = (folder: string): string[] => [
    ...readdirSync(folder, { withFileTypes: true })
      .filter((entry) => entry.isDirectory())
      .flatMap(({ name }) => below(join(folder, name))),
    folder,
  ]
  await until('the containers of the engine are gone', async () => {
    for (const folder of folders.flatMap((root) => (existsSync(root) ? below(root) : []))) {
      for (const pid of readFileSync(join(folder, 'cgroup.procs'), 'utf8').split('\n').filter(Boolean)) {
        try {
          process.kill(Number(pid), 'SIGKILL')
        } catch {
          // It has ended.
        }
      }
      try {
        rmdirSync(folder)
      } catch {
        // Its processes are not gone yet.
      }
    }
    return !folders.some((folder) => existsSync(folder))
  })
}

/**
 * A Docker engine beside whatever engine the machine has: own socket, bridge, containerd namespace; no change to firewall or forwarding.
 * It ends with us, even when we are killed.
 */
export const openEngine = async ({ data, kind = 'image', liveRestore = false }: EngineOptions): Promise<Engine> => {
  mkdirSync(data, { recursive: true, mode: 0o711 })
  const runtime = mkdtempSync(join(tmpdir(), 'orrery-engine-'))
  const token = runtime.slice(-6).toLowerCase()
  const socket = join(runtime, 'docker.sock')
  const logFile = join(runtime, 'dockerd.log')
  const settings = join(runtime, 'daemon.json')
  const commands = join(runtime, 'commands')
  const cgroup = `orrery-test-${token}`
  const [bridge, address] = bridges[kind]
  const lock = `/run/${bridge}.lock`
  const startScript = `
ip link delete ${bridge} 2>/dev/null
ip link add name ${bridge} type bridge && ip address add ${address} dev ${bridge} && ip link set ${bridge} up && exec dockerd "$@"
`
  const shim = new URL('./runc-within-limits.py', import.meta.url).pathname
  writeFileSync(
    settings,
    JSON.stringify({
      'default-runtime': 'within-limits',
      runtimes: { 'within-limits': { path: shim } },
      'live-restore': liveRestore,
      'cgroup-parent': `/${cgroup}`,
    }),
  )
  mkdirSync(commands)
  chmodSync(runtime, 0o755)
  writeFileSync(join(commands, 'docker'), `#!/bin/sh\nDOCKER_HOST=unix://${quote(socket)} exec /usr/bin/docker "$@"\n`, { mode: 0o755 })

  const docker = async (...args: string[]): Promise<string> => {
    try {
      const env = { PATH: searchPath, HOME: runtime, DOCKER_HOST: `unix://${socket}`, DOCKER_BUILDKIT: '1', BUILDKIT_PROGRESS: 'plain' }
      return (await run('docker', args, { env, maxBuffer: 2 ** 28 })).stdout.trim()
    } catch (error) {
      const { stdout = '', stderr = '' } = error as { stdout?: string; stderr?: string }
      throw new Error(`docker ${args.join(' ')} failed:\n${stdout.slice(-8_000)}\n${stderr.slice(-4_000)}`, { cause: error })
    }
  }

  let server: Leashed | undefined
  const start = async (): Promise<void> => {
    const launched = await leash({
      command: [
        ...(['/usr/bin/flock', '--exclusive', '--no-fork', lock, '/bin/sh', '-c', startScript, 'dockerd'] as const),
        ...['--config-file', settings, '--data-root', join(data, 'data'), '--exec-root', join(runtime, 'exec')],
        ...[
          '--pidfile',
          join(runtime, 'pid'),
          '--containerd-namespace',
          `orrery-${kind}`,
          '--containerd-plugins-namespace',
          `orrery-${kind}-plugins`,
        ],
        ...['--host', `unix://${socket}`, '--storage-driver', 'overlay2', '--bridge', bridge],
        ...['--iptables=false', '--ip-forward=false', '--ip-masq=false'],
      ],
      environment: { PATH: searchPath },
      directory: runtime,
      logFile,
      softSignal: 'TERM',
      patienceSeconds: 30,
    })
    server = launched
    let exitCode: number | undefined
    void launched.ended.then((code) => (exitCode = code))
    const words = (): string => readFileSync(logFile, 'utf8').slice(-3_000)
    // Ready in half a second, unless another test run has its turn.
    await until(
      'dockerd answers',
      async () => {
        if (exitCode !== undefined) throw new Error(`dockerd ended with code ${exitCode}:\n${words()}`)
        return (
          existsSync(socket) &&
          (await docker('version').then(
            () => true,
            () => false,
          ))
        )
      },
      words,
      900_000,
    )
  }
  const dispose = async (): Promise<void> => {
    await server?.release()
    await killAll(cgroup)
    // Not when the next one has begun with it.
    await run('flock', ['--nonblock', '--conflict-exit-code', '0', lock, 'ip', 'link', 'delete', bridge], {
      env: { PATH: searchPath },
    }).catch(() => undefined)
    // Network namespaces stay mounted when it has ended; what was killed leaves the roots of its containers too.
    for (const [, mount = ''] of [...readFileSync('/proc/self/mounts', 'utf8').matchAll(/^\S+ (\S+)/gm)].reverse())
      if (mount.startsWith(`${runtime}/`) || mount.startsWith(`${data}/`)) await run('umount', ['--lazy', mount])
    rmSync(runtime, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 })
  }
  try {
    await start()
  } catch (error) {
    await dispose()
    throw error
  }
  return {
    socket,
    commands,
    docker,
    start,
    kill: async () => {
      server?.kill()
      await server?.ended
      rmSync(socket, { force: true })
      // Its own containerd ends with it. Nobody may reap that for a while, and then dockerd would take it for alive.
      const pidFile = join(runtime, 'exec/containerd/containerd.pid')
      if (!existsSync(pidFile)) return
      const containerd = identify(Number(readFileSync(pidFile, 'utf8')))
      await until('containerd is gone', () => Promise.resolve(containerd === undefined || !isAlive(containerd)))
      rmSync(pidFile)
    },
    stop: async () => server?.release(),
    [Symbol.asyncDispose]: dispose,
  }
}

/** Gives the engine the image of `systemFiles` under this name, if it has not got it. */
export const loadSystemImage = async ({ docker, commands }: Engine): Promise<string> => {
  const { root, key } = await systemFiles()
  const name = `orrery-test/system:${key}`
  if ((await docker('images', '--quiet', name)) === '')
    await run(
      '/bin/sh',
      ['-c', `tar -C ${quote(root)} -c . | ${quote(join(commands, 'docker'))} import --change 'ENV PATH=/bin' - ${name}`],
      { maxBuffer: 2 ** 20 },
    )
  return name
}

/** An image registry on the loopback address, plain HTTP (which engines allow there), that can go away and come back. */
export interface LoopbackRegistry {
  /** `127.0.0.1:<port>`, the first part of its images' names. */
  readonly address: string
  stop(): Promise<void>
  start(): Promise<void>
}

/** Keeps its images in `folder`; ends with us. The caller stops it. */
export const startLoopbackRegistry = async (folder: string, port: number): Promise<LoopbackRegistry> => {
  const address = `127.0.0.1:${port}`
  mkdirSync(folder, { recursive: true })
  const settings = join(folder, 'config.yml')
  writeFileSync(
    settings,
    JSON.stringify({
      version: 0.1,
      log: { level: 'warn', accesslog: { disabled: true } },
      storage: { filesystem: { rootdirectory: join(folder, 'images') }, delete: { enabled: true } },
      http: { addr: address },
    }),
  )
  let server: Leashed | undefined
  const start = async (): Promise<void> => {
    server = await leash({
      command: ['/usr/bin/docker-registry', 'serve', settings],
      environment: { PATH: searchPath },
      directory: folder,
      logFile: join(folder, 'log'),
      softSignal: 'TERM',
      patienceSeconds: 5,
    })
    await until('the registry answers', () =>
      fetch(`http://${address}/v2/`).then(
        ({ ok }) => ok,
        () => false,
      ),
    )
  }
  await start()
  return { address, start, stop: async () => server?.release() }
}
