import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { quote } from '../src/shell/quote.ts'
import { leash, type Leashed } from '../src/embedded/leash.ts'
import { openGround, run, until } from './ground.ts'
import { systemFiles } from './image-files.ts'

/** Podman with a store of its own; it has no daemon. */
export interface Podman {
  /** Folder with a `podman` that uses this store, for a PATH. */
  readonly commands: string
  /** The name of `systemFiles`' image in it. */
  readonly image: string
  /**
   * Runs `podman`. @returns its standard output, trimmed @throws Error with the end of its output
   * when it fails
   */
  podman(...args: string[]): Promise<string>
  /** The mount points below the store. */
  mounts(): string[]
  /**
   * Starts its API service, which ends with the store or with this process. @returns the path of
   * its Unix socket
   */
  serve(): Promise<string>
  /** Removes every container and the store. */
  stop(): Promise<void>
}

/**
 * A device specification (CDI) of GPUs 0 to `count` - 1 that behave like /dev/null, for a file
 * below `/run/cdi`. Podman prefers that folder to the machine's `/etc/cdi`.
 */
export const gpuSpecification = (count: number): string =>
  JSON.stringify({
    cdiVersion: '0.5.0',
    kind: 'nvidia.com/gpu',
    devices: Array.from({ length: count }, (_, index) => ({
      name: String(index),
      containerEdits: { deviceNodes: [{ path: `/dev/nvidia${index}`, type: 'c', major: 1, minor: 3 }] },
    })),
  })

/** The lacks of this machine for Podman, as text; undefined where there is none. */
const podmanMissing = (): string | undefined =>
  process.getuid?.() !== 0
    ? 'only root can have a store of its own here'
    : existsSync('/usr/bin/podman') && existsSync('/usr/sbin/runc')
      ? undefined
      : 'the program podman is missing (Debian: apt-get install podman runc)'

/**
 * The limits are explicit because a root without CAP_SYS_RESOURCE may not raise those that Podman
 * requests. The runtime is runc because crun refuses hybrid cgroups.
 */
const settings = `[engine]
runtime="runc"
cgroup_manager="cgroupfs"
[containers]
default_ulimits=["nofile=1024:4096","nproc=4096:8192"]
`

/** @throws Error naming what the machine lacks */
export const startPodman = async (): Promise<Podman> => {
  const missing = podmanMissing()
  if (missing !== undefined) throw new Error(`Podman cannot be had: ${missing}`)
  const ground = openGround('podman')
  const commands = join(ground.folder, 'commands')
  const store = join(ground.folder, 'store')
  mkdirSync(commands)
  writeFileSync(join(ground.folder, 'containers.conf'), settings)
  writeFileSync(
    join(commands, 'podman'),
    `#!/bin/sh
CONTAINERS_CONF=${quote(join(ground.folder, 'containers.conf'))} exec /usr/bin/podman \\
  --root ${quote(store)} --runroot ${quote(join(ground.folder, 'run'))} "$@"
`,
    { mode: 0o755 },
  )
  const podman = async (...args: string[]): Promise<string> =>
    (await run(join(commands, 'podman'), args)).stdout.trim()
  const mounts = (): string[] =>
    [...readFileSync('/proc/self/mounts', 'utf8').matchAll(/^\S+ (\S+)/gm)]
      .map(([, mount = '']) => mount)
      .filter((mount) => mount.startsWith(`${ground.folder}/`))
  let service: Leashed | undefined
  const serve = async (): Promise<string> => {
    const socket = join(ground.folder, 'podman.sock')
    service = await leash({
      command: [join(commands, 'podman'), 'system', 'service', '--time', '0', `unix://${socket}`],
      environment: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', HOME: ground.folder },
      directory: ground.folder,
      logFile: join(ground.folder, 'service.log'),
      softSignal: 'TERM',
      patienceSeconds: 5,
    })
    await until('the API service of Podman', () => Promise.resolve(existsSync(socket)))
    return socket
  }
  const stop = async (): Promise<void> => {
    await service?.release()
    await run(join(commands, 'podman'), ['rm', '--all', '--force', '--time', '0'], { mayFail: true })
    for (const mount of mounts().reverse()) await run('umount', ['--lazy', mount], { mayFail: true })
    rmSync(ground.folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 })
    await ground.leave()
  }
  try {
    const { root } = await systemFiles()
    const image = 'localhost/orrery-test/system:1'
    await run(
      '/bin/sh',
      [
        '-c',
        `tar -C ${quote(root)} -c . | ${quote(join(commands, 'podman'))} import --quiet --change ` +
          `'ENV PATH=/bin' - ${image}`,
      ],
      { deadlineMs: 600_000 },
    )
    return { commands, image, podman, mounts, serve, stop }
  } catch (error) {
    await stop()
    throw error
  }
}
