import { existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { configFromEnvironment } from '../src/config.ts'
import { buildWithGo, makeOnce } from '../src/embedded/go-build.ts'
import { leash } from '../src/embedded/leash.ts'
import { openLog } from '../src/observability/log.ts'
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
const buildkitProgram = (): Promise<string> => {
  const { cacheDir, childEnvironment: environment } = configFromEnvironment()
  const target = join(cacheDir, 'buildkit', version, 'buildkitd')
  const say = (words: string): void => void process.stderr.write(`${words}\n`)
  return makeOnce(
    target,
    () => say('another process builds BuildKit; waiting for it'),
    () =>
      buildWithGo({
        title: 'BuildKit',
        source: 'github.com/moby/buildkit/cmd/buildkitd',
        module: `module build\n\ngo 1.26.8\n\nrequire github.com/moby/buildkit ${version}\n`,
        flags: ['-mod=mod'],
        linkerFlags: `-X github.com/moby/buildkit/version.Version=${version}`,
        settings: { CGO_ENABLED: '0' },
        target,
        cacheDir,
        anotherFollows: false,
        environment,
        log: openLog('warn'),
        onProgress: (seconds) => {
          if (seconds % 30 === 0) say(`building BuildKit, needed once: ${seconds} s`)
        },
        remedy: 'Install Go 1.26.8 or newer.',
      }),
  )
}

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
