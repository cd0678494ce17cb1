import { existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { leash } from '../src/embedded/leash.ts'
import { goProgram } from './go-program.ts'
import { openGround, until } from './ground.ts'

const version = 'v0.34.2'

/** BuildKit's own daemon; no distribution package has it here. */
export interface Buildkit {
  /** Path of the Unix socket that it listens on. */
  readonly socket: string
  readonly version: string
  stop(): Promise<void>
}

/**
 * The program `buildkitd`, built from its Go module into the cache where it is missing: 2.5 minutes
 * on two idle cores.
 */
const buildkitProgram = (): Promise<string> =>
  goProgram({
    title: 'BuildKit',
    name: 'buildkitd',
    folder: 'buildkit',
    ...{ module: 'github.com/moby/buildkit', version, go: '1.26.8' },
    source: 'github.com/moby/buildkit/cmd/buildkitd',
    linkerFlags: `-X github.com/moby/buildkit/version.Version=${version}`,
  })

/**
 * Starts the daemon as root, with one worker that runs containers through runc. It ends with this
 * process.
 * @throws Error with the end of its log
 */
export const startBuildkit = async (): Promise<Buildkit> => {
  const program = await buildkitProgram()
  const ground = openGround('buildkit')
  const socket = join(ground.folder, 'buildkitd.sock')
  const root = join(ground.folder, 'root')
  mkdirSync(root)
  const server = await leash({
    command: [
      program,
      ...['--addr', `unix://${socket}`, '--root', root, '--containerd-worker=false'],
      ...['--oci-worker-net', 'host', '--oci-worker-snapshotter', 'native'],
    ],
    environment: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', HOME: ground.folder },
    directory: ground.folder,
    logFile: join(ground.folder, 'log'),
    softSignal: 'TERM',
    patienceSeconds: 10,
  })
  const stop = async (): Promise<void> => {
    await server.release()
    await ground.leave()
  }
  try {
    await until('buildkitd listens', () => Promise.resolve(existsSync(socket)))
    return { socket, version, stop }
  } catch (error) {
    await stop()
    throw error
  }
}
