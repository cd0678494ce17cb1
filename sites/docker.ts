import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { get } from 'node:http'
import { basename, dirname, join } from 'node:path'
import { quote, quoteAll } from '../src/shell/quote.ts'
import { leash, type Leashed } from '../src/embedded/leash.ts'
import { freePort } from '../src/embedded/ports.ts'
import { identify, stillRuns } from '../src/embedded/processes.ts'
import { openGround, run, until } from './ground.ts'
import type { Host } from './hosts.ts'
import { systemFiles } from './image-files.ts'
import { startDaemon } from './kubernetes-daemon.ts'
import { openCgroups } from './kubernetes-node.ts'

export interface DockerEngine {
  /** Path of the Unix socket that it listens on. */
  readonly socket: string
  /** Folder with a `docker` that uses this engine, for a PATH. */
  readonly commands: string
  /**
   * Runs the client against this engine. @returns its standard output, trimmed
   * @throws Error with the end of both outputs when it fails
   */
  docker: (...args: string[]) => Promise<string>
  /** The cgroup of all its containers, also those of builds, below the root of each tree. */
  readonly cgroup: string
  /** Names of all containers, also of ended ones. */
  containers(): Promise<string[]>
  /** Removes the names of images that match these patterns; an image goes with its last name. */
  forget(...patterns: string[]): Promise<void>
  /** Kills the engine and its containerd; containers go on. */
  kill(): Promise<void>
  /**
   * Ends the engine like an operator's restart: it stops its containers, unless `liveRestore` is
   * set.
   */
  stop(): Promise<void>
  /**
   * After `kill` or `stop`; resolves when the engine answers. `liveRestore`: the containers keep
   * running when it stops, and the next engine takes them over.
   */
  start(options?: { liveRestore?: boolean }): Promise<void>
  /** Limits all its containers together, also those of builds; they get the limits at their start. */
  limit(limits: { processes: number; memoryBytes: number }): void
  [Symbol.asyncDispose](): Promise<void>
}

export interface DockerEngineOptions {
  /** Folder of the images. They stay, so that a second start is short. */
  data: string
  /** Engines of one kind take turns; those of different kinds run side by side. Default `image`. */
  kind?: keyof typeof bridges
  /** Builds with BuildKit unless a client chooses otherwise, like engines since Docker 23. */
  buildkit?: boolean
  /** The owner's name, for processes that wait for their turn. Default: this process. */
  owner?: string
  /** Called each second while another engine of the kind is up, with its owner. */
  onWait?: (owner: string) => void
}

/** Debian's own first: its client has a BuildKit without a plug-in, and fits the engine. */
const searchPath = '/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin'

/**
 * The engine's answer to a GET, as JSON; undefined while no engine answers. The client would cost
 * 50 ms of a processor each time.
 */
const ask = (socketPath: string, path: string): Promise<unknown> =>
  new Promise((resolve) => {
    const request = get({ socketPath, path, agent: false }, (response) => {
      const parts: Buffer[] = []
      response.on('data', (part: Buffer) => parts.push(part))
      response.once('close', () =>
        resolve(
          response.complete && response.statusCode === 200
            ? (JSON.parse(Buffer.concat(parts).toString()) as unknown)
            : undefined,
        ),
      )
    })
    request.once('error', () => resolve(undefined))
  })

/**
 * Own bridges with link-local addresses: an engine without a bridge removes the `docker0` of the
 * machine's engine.
 */
const bridges = {
  image: ['orrery-test0', '169.254.118.1/24'],
  tasks: ['orrery-test1', '169.254.119.1/24'],
  killed: ['orrery-test2', '169.254.120.1/24'],
  asked: ['orrery-test3', '169.254.121.1/24'],
} as const

const limiter = new URL('./runc-within-limits.py', import.meta.url)
/**
 * A runtime for Docker. It calls Python, which costs more than runc itself, only for a create, and
 * not for the other four calls of a container.
 */
const withinLimits = (limiterPath: string): string =>
  `#!/bin/sh\ncase " $* " in *' create '* | *' run '*) exec /usr/bin/python3 -IS ` +
  `${quote(limiterPath)} "$@" ;; *) exec runc "$@" ;; esac\n`
const gpuHook = 'nvidia-container-runtime-hook'

/**
 * Removes the engine's parts from this machine as soon as its standard input closes, at a stop or
 * at the death of this process: processes, found by their cgroup, cgroups, bridge and mounts. It
 * uses force; an orderly stop ends the engine first.
 */
const remover = `trap '' TERM INT HUP
cgroup=$1 bridge=$2 lock=$3
shift 3
read -r _
patiently() { n=0; until "$@" || [ $((n += 1)) -gt 600 ]; do sleep 0.05; done; }
ended() {
  pids=$(find /sys/fs/cgroup -path "*/$cgroup/*" -name cgroup.procs -exec cat {} + 2>/dev/null)
  [ -z "$pids" ] || { kill -KILL $pids 2>/dev/null; false; }; }
gone() { [ -z "$(find /sys/fs/cgroup -depth -type d -path "*/$cgroup*" ! -exec rmdir {} ';' -print 2>/dev/null)" ]; }
patiently ended
patiently gone
# Not when the next one has begun with it. Docker names the bridges of networks among containers by
# the beginning of the networks' ids.
flock --nonblock --conflict-exit-code 0 "$lock" /bin/sh -c 'ip link delete "$1"
shift
for folder; do
  for id in $(grep -aohE "network/v1\\.0/bridge/[0-9a-f]{12}" "$folder/data/network/files/local-kv.db" 2>/dev/null); do
    ip link delete "br-\${id##*/}" 2>/dev/null; done
done' remove-bridges "$bridge" "$@"
# Network namespaces stay mounted when it has ended; what was killed leaves the roots of its
# containers too.
for folder; do
  while read -r _ mount _; do case $mount in "$folder"/*) echo "$mount" ;; esac; done < /proc/mounts |
    tac | xargs -r umount --lazy
done`

/** The last line of a log without its time. It holds the reason why a server ended. */
const lastLine = (log: string): string =>
  log
    .trim()
    .split('\n')
    .at(-1)
    ?.replace(/^time="[^"]*" /, '') || 'it left no log; try sudo dockerd --debug'

/**
 * A Docker engine beside any engine of the machine, with its own socket, bridge and containerd
 * namespace. It does not change firewall or forwarding. It ends with this process, even when this
 * process is killed.
 */
export const openDockerEngine = async ({
  data,
  kind = 'image',
  buildkit = false,
  owner = `process ${process.pid} in ${process.cwd()}`,
  onWait,
}: DockerEngineOptions): Promise<DockerEngine> => {
  mkdirSync(data, { recursive: true, mode: 0o711 })
  const ground = openGround('engine')
  const at = (name: string): string => join(ground.folder, name)
  const [socket, logFile, settings, commands, begun] = [
    at('docker.sock'),
    at('dockerd.log'),
    at('daemon.json'),
    at('commands'),
    at('begun'),
  ]
  const cgroup = `orrery-test-${ground.token}`
  const [bridge, address] = bridges[kind]
  const lock = `/run/${bridge}.lock`
  const end = spawn('/bin/sh', ['-c', remover, 'engine-remover', cgroup, bridge, lock, ground.folder, data], {
    cwd: '/',
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  })
  const removed = new Promise<void>((resolve) => end.once('exit', () => resolve()))
  // All its processes are in its cgroup or in one beside it, so all of them can be found.
  const startScript = `
: > ${quote(begun)}
printf '%s' ${quote(owner)} > ${lock}
tree=/sys/fs/cgroup
[ -e "$tree/cgroup.controllers" ] || tree=$tree/pids
mkdir -p "$tree/${cgroup}/engine" && echo $$ > "$tree/${cgroup}/engine/cgroup.procs" || exit
ip link delete ${bridge} 2>/dev/null
ip link add name ${bridge} type bridge && ip address add ${address} dev ${bridge} &&
  ip link set ${bridge} up && exec dockerd "$@"
`
  mkdirSync(commands)
  writeFileSync(at('runc'), withinLimits(limiter.pathname), { mode: 0o755 })
  writeFileSync(
    join(commands, 'docker'),
    `#!/bin/sh\nDOCKER_HOST=unix://${quote(socket)} exec /usr/bin/docker "$@"\n`,
    { mode: 0o755 },
  )

  const docker = async (...args: string[]): Promise<string> => {
    const environment = {
      HOME: ground.folder,
      DOCKER_HOST: `unix://${socket}`,
      DOCKER_BUILDKIT: '1',
      BUILDKIT_PROGRESS: 'plain',
    }
    return (await run('docker', args, { environment, deadlineMs: 1_800_000 })).stdout.trim()
  }

  /**
   * Reports the owner of the turn while this process waits. The first second counts as its own
   * start.
   */
  const waitTeller = () => {
    let toldAt = performance.now()
    return (): void => {
      if (existsSync(begun) || performance.now() - toldAt < 1_000) return
      toldAt = performance.now()
      onWait?.(readFileSync(lock, 'utf8') || 'an engine that is just starting')
    }
  }

  let server: Leashed | undefined
  const start: DockerEngine['start'] = async ({ liveRestore = false } = {}) => {
    writeFileSync(
      settings,
      JSON.stringify({
        ...settingsOf(at('runc'), containersOf(cgroup)),
        features: { buildkit },
        'live-restore': liveRestore,
      }),
    )
    const launched = await leash({
      command: [
        ...([
          '/usr/bin/flock',
          '--exclusive',
          '--no-fork',
          lock,
          '/bin/sh',
          '-c',
          startScript,
          'dockerd',
        ] as const),
        ...[
          '--config-file',
          settings,
          '--data-root',
          join(data, 'data'),
          '--exec-root',
          at('exec'),
          '--pidfile',
          at('pid'),
        ],
        ...[
          '--containerd-namespace',
          `orrery-${kind}`,
          '--containerd-plugins-namespace',
          `orrery-${kind}-plugins`,
        ],
        ...['--host', `unix://${socket}`, '--storage-driver', 'overlay2', '--bridge', bridge],
        ...['--iptables=false', '--ip-forward=false', '--ip-masq=false'],
      ],
      // The engine's hooks and runc are short-lived Go programs, three per container. With this
      // setting the driver's tests take 86 s of a processor instead of 89.
      environment: { PATH: searchPath, TMPDIR: ground.folder, GOGC: '800' },
      directory: ground.folder,
      logFile,
      softSignal: 'TERM',
      patienceSeconds: 30,
    })
    server = launched
    let exitCode: number | undefined
    void launched.ended.then((code) => (exitCode = code))
    const words = (): string => readFileSync(logFile, 'utf8').slice(-3_000)
    // Ready in half a second, unless another engine has its turn.
    const tellWait = waitTeller()
    await until(
      'dockerd answers',
      async () => {
        tellWait()
        // Callers show only the first line, so it holds the reason.
        if (exitCode !== undefined)
          throw new Error(`dockerd ended with code ${exitCode}: ${lastLine(words())}\n${words()}`)
        return (await ask(socket, '/version')) !== undefined
      },
      words,
      900_000,
    )
  }
  const dispose = async (): Promise<void> => {
    await server?.release()
    end.stdin.end()
    await removed
    await ground.leave()
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
    cgroup: containersOf(cgroup),
    containers: async () => {
      const found = (await ask(socket, '/containers/json?all=1')) as { Names: string[] }[] | undefined
      if (found === undefined) throw new Error('the engine does not say which containers it has')
      return found.flatMap(({ Names }) => Names.map((name) => name.slice(1)))
    },
    forget: async (...patterns) => {
      for (const pattern of patterns) {
        const found = await docker('images', '--format', '{{.Repository}}:{{.Tag}}', pattern)
        for (const name of found.split('\n').filter((each) => each !== '' && !each.includes('<none>')))
          await docker('rmi', name)
      }
    },
    start,
    limit: (limits) => limitCgroup(containersOf(cgroup), limits),
    kill: async () => {
      server?.kill()
      await server?.ended
      rmSync(socket, { force: true })
      // Its own containerd ends with it. The process may stay unreaped for a while, and dockerd
      // would take it for alive.
      const pidFile = at('exec/containerd/containerd.pid')
      if (!existsSync(pidFile)) return
      const containerd = identify(Number(readFileSync(pidFile, 'utf8')))
      await until('containerd is gone', () =>
        Promise.resolve(containerd === undefined || !stillRuns(containerd)),
      )
      rmSync(pidFile)
    },
    stop: async () => server?.release(),
    [Symbol.asyncDispose]: dispose,
  }
}

/**
 * The limits of containers are lowered to those that this machine's root may set; `cgroup` is the
 * parent of theirs.
 */
const settingsOf = (runtimePath: string, cgroup: string) => ({
  'default-runtime': 'within-limits',
  runtimes: { 'within-limits': { path: runtimePath } },
  'cgroup-parent': `/${cgroup}`,
})

/** The cgroup of all containers, without the engine's own processes. */
const containersOf = (cgroup: string): string => `${cgroup}/containers`

const cgroups = '/sys/fs/cgroup'

/** Makes a cgroup with these limits, in either kind of tree. */
const limitCgroup = (
  name: string,
  { processes, memoryBytes }: { processes: number; memoryBytes: number },
): void => {
  const isOneTree = existsSync(join(cgroups, 'cgroup.controllers'))
  const [pids, memory] = isOneTree ? ['', ''] : ['pids', 'memory']
  for (const tree of [pids, memory]) mkdirSync(join(cgroups, tree, name), { recursive: true })
  if (isOneTree)
    for (const above of ['', dirname(name)])
      writeFileSync(join(cgroups, above, 'cgroup.subtree_control'), '+pids +memory')
  writeFileSync(join(cgroups, pids, name, 'pids.max'), String(processes))
  const limit = isOneTree ? 'memory.max' : 'memory.limit_in_bytes'
  writeFileSync(join(cgroups, memory, name, limit), String(memoryBytes))
}

/**
 * A Docker engine on a host of a site, at the default address. Accounts of the group `docker` may
 * use it.
 */
export interface HostEngine {
  /**
   * Runs the client on the host as root. @returns its standard output, trimmed
   * @throws Error with the end of its output when it fails
   */
  docker: (...args: string[]) => Promise<string>
  /** Allows or forbids the site's account to use it, from the next login on. */
  admit(allowed: boolean): void
  /** Removes the leftovers of the engine after the host's end. */
  leave(): Promise<void>
}

/**
 * Starts the engine with its own images, below the host's `/srv`, and with NVIDIA's hook for every
 * `/dev/nvidia…`. It ends with the host.
 */
export const startHostEngine = async (host: Host, account: string): Promise<HostEngine> => {
  const cgroup = `orrery-${basename(dirname(host.folder))}`
  const cgroups = openCgroups([cgroup])
  const docker: HostEngine['docker'] = async (...args) =>
    (await host.run(`/usr/bin/docker ${quoteAll(args)}`)).stdout.trim()
  const groups = join(host.folder, 'etc/group')
  const others = readFileSync(groups, 'utf8').replace(/^docker:.*\n/m, '')
  const admit = (allowed: boolean): void =>
    writeFileSync(groups, `${others}docker:x:999:${allowed ? account : ''}\n`)
  try {
    admit(true)
    for (const [program, text] of [
      ['runc', withinLimits('/run/engine/within-limits.py')],
      ['within-limits.py', readFileSync(limiter, 'utf8')],
      [gpuHook, readFileSync(new URL(`./${gpuHook}.py`, import.meta.url), 'utf8')],
    ] as const)
      await host.run(
        `mkdir -p /run/engine && cd /run/engine && cat > ${program} && chmod 755 ${program}`,
        'root',
        { input: text },
      )
    await host.run('cat > /run/docker.json', 'root', {
      input: JSON.stringify(settingsOf('/run/engine/runc', cgroup)),
    })
    const daemon = await startDaemon(host, '/srv/dockerd.log', [
      ...(['/usr/bin/env', `PATH=${searchPath}:/run/engine`, 'dockerd'] as const),
      ...['--config-file', '/run/docker.json', '--data-root', '/srv/docker', '--exec-root', '/run/docker'],
      ...[
        '--storage-driver',
        'overlay2',
        '--bridge=none',
        '--iptables=false',
        '--ip-forward=false',
        '--ip-masq=false',
      ],
    ])
    await daemon.ready(async () => (await ask(host.see('/run/docker.sock'), '/version')) !== undefined)
  } catch (error) {
    await cgroups.leave()
    const log = join(host.folder, 'srv/dockerd.log')
    throw new Error(
      `no Docker engine on ${host.name}: ${existsSync(log) ? readFileSync(log, 'utf8').slice(-3_000) : ''}`,
      { cause: error },
    )
  }
  return { docker, admit, leave: cgroups.leave }
}

/** Loads the image of `systemFiles` under this name into the engine, if it is missing. */
export const loadSystemImage = async ({ docker, commands }: DockerEngine): Promise<string> => {
  const { root, key } = await systemFiles()
  const name = `orrery-test/system:${key}`
  if ((await docker('images', '--quiet', name)) === '')
    await run(
      '/bin/sh',
      [
        '-c',
        `tar -C ${quote(root)} -c . | ${quote(join(commands, 'docker'))} import --change 'ENV PATH=/bin' - ${name}`,
      ],
      { deadlineMs: 600_000 },
    )
  return name
}

/**
 * An image registry on the loopback address, plain HTTP (which engines allow there). It can be
 * stopped and started again.
 */
export interface LoopbackRegistry {
  /** `127.0.0.1:<port>`, the first part of its images' names. */
  readonly address: string
  /**
   * Copies a docker archive there under a name such as `app/tool:1`. @returns the digest:
   * `sha256:…`
   */
  push(archive: string, name: string): Promise<string>
  stop(): Promise<void>
  start(): Promise<void>
}

/** `user:hash` as a registry checks it; Debian's C library makes the hash. */
const hashed = 'import crypt,sys;print(sys.argv[1]+":"+crypt.crypt(sys.argv[2],"$2b$05$"+"a"*21+"e"))'

/**
 * Stores its images in `folder`; ends with this process. The caller stops it. `login`: everybody
 * else is refused.
 */
export const startLoopbackRegistry = async (
  folder: string,
  login?: { username: string; password: string },
): Promise<LoopbackRegistry> => {
  const address = `127.0.0.1:${await freePort()}`
  mkdirSync(folder, { recursive: true })
  const users = join(folder, 'users')
  if (login !== undefined) {
    const { stdout } = await run('python3', ['-W', 'ignore', '-c', hashed, login.username, login.password])
    writeFileSync(users, stdout)
  }
  const settings = join(folder, 'config.yml')
  writeFileSync(
    settings,
    JSON.stringify({
      version: 0.1,
      log: { level: 'warn', accesslog: { disabled: true } },
      storage: { filesystem: { rootdirectory: join(folder, 'images') }, delete: { enabled: true } },
      http: { addr: address },
      ...(login === undefined ? {} : { auth: { htpasswd: { realm: 'images', path: users } } }),
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
        ({ status }) => status < 500,
        () => false,
      ),
    )
  }
  await start()
  return {
    address,
    push: async (archive, name) => {
      const digestFile = join(folder, 'digest')
      const plain = [
        '--insecure-policy',
        'copy',
        '--quiet',
        '--dest-tls-verify=false',
        '--digestfile',
        digestFile,
        ...(login === undefined ? [] : ['--dest-creds', `${login.username}:${login.password}`]),
      ]
      await run('skopeo', [...plain, `docker-archive:${archive}`, `docker://${address}/${name}`])
      return readFileSync(digestFile, 'utf8').trim()
    },
    stop: async () => server?.release(),
    start,
  }
}
