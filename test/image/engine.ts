import { execFile } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { leash } from '../../src/embedded/leash.ts'

const run = promisify(execFile)

export interface Engine {
  /** Path of the Unix socket that it listens on. */
  readonly socket: string
  /** Runs the client against this engine and gives what it prints, trimmed. @throws Error with the end of both outputs when it fails */
  docker: (...args: string[]) => Promise<string>
  [Symbol.asyncDispose](): Promise<void>
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

/** Own bridge with a link-local address: an engine told to have none removes the `docker0` of the engine that is already there. */
const bridge = 'orrery-test0'
/** One engine of ours at a time, since they have the bridge and the folder of images in common. */
const lock = '/run/orrery-test-engine.lock'
const startScript = `
ip link delete ${bridge} 2>/dev/null
ip link add name ${bridge} type bridge && ip address add 169.254.118.1/24 dev ${bridge} && ip link set ${bridge} up && exec dockerd "$@"
`

/**
 * A Docker engine beside whatever engine the machine has: own socket, bridge, containerd namespace; no change to firewall or forwarding.
 * It ends with us, even when we are killed. Its images stay in `folder`, so that a second build is short; test runs take turns.
 */
export const openEngine = async (folder: string): Promise<Engine> => {
  mkdirSync(folder, { recursive: true, mode: 0o711 })
  const runtime = mkdtempSync(join(tmpdir(), 'orrery-engine-'))
  const socket = join(runtime, 'docker.sock')
  const logFile = join(runtime, 'dockerd.log')
  const settings = join(runtime, 'daemon.json')
  const shim = new URL('./runc-within-limits.py', import.meta.url).pathname
  writeFileSync(settings, JSON.stringify({ 'default-runtime': 'within-limits', runtimes: { 'within-limits': { path: shim } } }))

  const server = await leash({
    command: [
      ...(['/usr/bin/flock', '--exclusive', '--no-fork', lock, '/bin/sh', '-c', startScript, 'dockerd'] as const),
      ...[
        '--config-file',
        settings,
        '--data-root',
        join(folder, 'data'),
        '--exec-root',
        join(runtime, 'exec'),
        '--pidfile',
        join(runtime, 'pid'),
      ],
      ...['--containerd-namespace', 'orrery-test', '--containerd-plugins-namespace', 'orrery-test-plugins', '--host', `unix://${socket}`],
      ...['--storage-driver', 'overlay2', '--bridge', bridge, '--iptables=false', '--ip-forward=false', '--ip-masq=false'],
    ],
    environment: { PATH: searchPath },
    directory: runtime,
    logFile,
    softSignal: 'TERM',
    patienceSeconds: 30,
  })

  const docker = async (...args: string[]): Promise<string> => {
    try {
      const env = { PATH: searchPath, HOME: runtime, DOCKER_HOST: `unix://${socket}`, DOCKER_BUILDKIT: '1', BUILDKIT_PROGRESS: 'plain' }
      return (await run('docker', args, { env, maxBuffer: 2 ** 28 })).stdout.trim()
    } catch (error) {
      const { stdout = '', stderr = '' } = error as { stdout?: string; stderr?: string }
      throw new Error(`docker ${args.join(' ')} failed:\n${stdout.slice(-8_000)}\n${stderr.slice(-4_000)}`, { cause: error })
    }
  }
  const dispose = async (): Promise<void> => {
    await server.release()
    // Not when the next one has begun with it.
    await run('flock', ['--nonblock', '--conflict-exit-code', '0', lock, 'ip', 'link', 'delete', bridge], { env: { PATH: searchPath } })
    // Its network namespace stays mounted when it has ended.
    for (const [, mount = ''] of readFileSync('/proc/self/mounts', 'utf8').matchAll(/^\S+ (\S+)/gm))
      if (mount.startsWith(`${runtime}/`)) await run('umount', [mount])
    rmSync(runtime, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 })
  }

  let exitCode: number | undefined
  void server.ended.then((code) => (exitCode = code))
  // Ready in half a second, unless another test run has its turn.
  const deadline = Date.now() + 900_000
  for (;;) {
    if (
      existsSync(socket) &&
      (await docker('version').then(
        () => true,
        () => false,
      ))
    )
      break
    if (exitCode !== undefined || Date.now() > deadline) {
      const said = readFileSync(logFile, 'utf8').slice(-3_000)
      await dispose()
      throw new Error(`dockerd is not ready${exitCode === undefined ? '' : `, it ended with code ${String(exitCode)}`}:\n${said}`)
    }
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
  return { socket, docker, [Symbol.asyncDispose]: dispose }
}
