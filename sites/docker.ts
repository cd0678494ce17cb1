import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { get } from 'node:http'
import { basename, dirname, join } from 'node:path'
import { quote, quoteAll } from '../src/drivers/quote.ts'
import { leash, type Leashed } from '../src/embedded/leash.ts'
import { freePort } from '../src/embedded/ports.ts'
import { identify, isAlive } from '../src/embedded/processes.ts'
import { openGround, run, until } from './ground.ts'
import type { Host } from './hosts.ts'
import { systemFiles } from './image-files.ts'
import { startDaemon } from './kubernetes-daemon.ts'
import { openCgroups } from './kubernetes-node.ts'

export interface Engine {
  /** Path of the Unix socket that it listens on. */
  readonly socket: string
  /** Holds a `docker` that speaks with this engine, for a PATH. */
  readonly commands: string
  /** Runs the client against this engine and gives what it prints, trimmed. @throws Error with the end of both outputs when it fails */
  docker: (...args: string[]) => Promise<string>
  /** Names of all containers, also of those that have ended. */
  containers(): Promise<string[]>
  /** Kills the engine and its containerd; containers go on. */
  kill(): Promise<void>
  /** Ends the engine as an operator's restart does: it stops its containers, but with `liveRestore`. */
  stop(): Promise<void>
  /** After `kill` or `stop`: resolves when it answers. `liveRestore`: it leaves its containers alone when it is stopped, and the next one takes them up. */
  start(options?: { liveRestore?: boolean }): Promise<void>
  [Symbol.asyncDispose](): Promise<void>
}

export interface EngineOptions {
  /** Where images stay, so that a second start is short. */
  data: string
  /** Engines of one kind take turns, those of different kinds stand beside each other. Default `image`. */
  kind?: keyof typeof bridges
  /** Builds with BuildKit unless a client wants otherwise, as engines do since Docker 23. */
  buildkit?: boolean
  /** Who starts it, for those who wait for their turn. Default: this process. */
  owner?: string
  /** Called each second while another engine of the kind is up, with its owner. */
  onWait?: (owner: string) => void
}

/** Debian's own first: its client has a BuildKit that needs no plug-in, and fits the engine. */
const searchPath = '/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin'

/** What an engine answers to a GET, as JSON; undefined while nobody answers. The client would cost 50 ms of a processor each time. */
const ask = (socketPath: string, path: string): Promise<unknown> =>
  new Promise((resolve) => {
    const request = get({ socketPath, path, agent: false }, (response) => {
      const parts: Buffer[] = []
      response.on('data', (part: Buffer) => parts.push(part))
      response.once('close', () =>
        resolve(response.complete && response.statusCode === 200 ? (JSON.parse(Buffer.concat(parts).toString()) as unknown) : undefined),
      )
    })
    request.once('error', () => resolve(undefined))
  })

/** Own bridges with link-local addresses: an engine told to have none removes the `docker0` of the engine that is already there. */
const bridges = {
  image: ['orrery-test0', '169.254.118.1/24'],
  tasks: ['orrery-test1', '169.254.119.1/24'],
  killed: ['orrery-test2', '169.254.120.1/24'],
  asked: ['orrery-test3', '169.254.121.1/24'],
} as const

const limiter = new URL('./runc-within-limits.py', import.meta.url)
/** A runtime for Docker: Python, which costs more than runc itself, is asked for what is created only, and not at the other four calls of a container. */
const withinLimits = (limiterPath: string): string =>
  `#!/bin/sh\ncase " $* " in *' create '* | *' run '*) exec /usr/bin/python3 -IS ${quote(limiterPath)} "$@" ;; *) exec runc "$@" ;; esac\n`
const gpuHook = 'nvidia-container-runtime-hook'

/**
 * Takes away what an engine has on this machine as soon as its standard input closes, by our will or by our death: processes, found by
 * their cgroup, cgroups, bridge and mounts. By force; who has time ends the engine before.
 */
const remover = `trap '' TERM INT HUP
cgroup=$1 bridge=$2 lock=$3
shift 3
read -r _
patiently() { n=0; until "$@" || [ $((n += 1)) -gt 600 ]; do sleep 0.05; done; }
ended() { pids=$(find /sys/fs/cgroup -path "*/$cgroup/*" -name cgroup.procs -exec cat {} + 2>/dev/null); [ -z "$pids" ] || { kill -KILL $pids 2>/dev/null; false; }; }
gone() { [ -z "$(find /sys/fs/cgroup -depth -type d -path "*/$cgroup*" ! -exec rmdir {} ';' -print 2>/dev/null)" ]; }
patiently ended
patiently gone
# Not when the next one has begun with it. Docker names the bridges of networks among containers by the beginning of the networks' ids.
flock --nonblock --conflict-exit-code 0 "$lock" /bin/sh -c 'ip link delete "$1"
shift
for folder; do
  for id in $(grep -aohE "network/v1\\.0/bridge/[0-9a-f]{12}" "$folder/data/network/files/local-kv.db" 2>/dev/null); do ip link delete "br-\${id##*/}" 2>/dev/null; done
done' remove-bridges "$bridge" "$@"
# Network namespaces stay mounted when it has ended; what was killed leaves the roots of its containers too.
for folder; do
  while read -r _ mount _; do case $mount in "$folder"/*) echo "$mount" ;; esac; done < /proc/mounts | tac | xargs -r umount --lazy
done`

/** The last line of a log, which says why a server ended, without the time before it. */
const lastLine = (log: string): string =>
  log
    .trim()
    .split('\n')
    .at(-1)
    ?.replace(/^time="[^"]*" /, '') || 'it left no log; try sudo dockerd --debug'

/**
 * A Docker engine beside whatever engine the machine has: own socket, bridge, containerd namespace; no change to firewall or forwarding.
 * It ends with us, even when we are killed.
 */
export const openEngine = async ({
  data,
  kind = 'image',
  buildkit = false,
  owner = `process ${process.pid} in ${process.cwd()}`,
  onWait,
}: EngineOptions): Promise<Engine> => {
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
  // What it starts is in its cgroup or in one beside it, so all of it can be found.
  const startScript = `
: > ${quote(begun)}
printf '%s' ${quote(owner)} > ${lock}
tree=/sys/fs/cgroup
[ -e "$tree/cgroup.controllers" ] || tree=$tree/pids
mkdir -p "$tree/${cgroup}/engine" && echo $$ > "$tree/${cgroup}/engine/cgroup.procs" || exit
ip link delete ${bridge} 2>/dev/null
ip link add name ${bridge} type bridge && ip address add ${address} dev ${bridge} && ip link set ${bridge} up && exec dockerd "$@"
`
  mkdirSync(commands)
  writeFileSync(at('runc'), withinLimits(limiter.pathname), { mode: 0o755 })
  writeFileSync(join(commands, 'docker'), `#!/bin/sh\nDOCKER_HOST=unix://${quote(socket)} exec /usr/bin/docker "$@"\n`, { mode: 0o755 })

  const docker = async (...args: string[]): Promise<string> => {
    const environment = { HOME: ground.folder, DOCKER_HOST: `unix://${socket}`, DOCKER_BUILDKIT: '1', BUILDKIT_PROGRESS: 'plain' }
    return (await run('docker', args, { environment, deadlineMs: 1_800_000 })).stdout.trim()
  }

  /** Tells who has the turn while it is not ours; the first second is our own start. */
  const waitTeller = () => {
    let toldAt = performance.now()
    return (): void => {
      if (existsSync(begun) || performance.now() - toldAt < 1_000) return
      toldAt = performance.now()
      onWait?.(readFileSync(lock, 'utf8') || 'an engine that is just starting')
    }
  }

  let server: Leashed | undefined
  const start: Engine['start'] = async ({ liveRestore = false } = {}) => {
    writeFileSync(settings, JSON.stringify({ ...settingsOf(at('runc'), cgroup), features: { buildkit }, 'live-restore': liveRestore }))
    const launched = await leash({
      command: [
        ...(['/usr/bin/flock', '--exclusive', '--no-fork', lock, '/bin/sh', '-c', startScript, 'dockerd'] as const),
        ...['--config-file', settings, '--data-root', join(data, 'data'), '--exec-root', at('exec'), '--pidfile', at('pid')],
        ...['--containerd-namespace', `orrery-${kind}`, '--containerd-plugins-namespace', `orrery-${kind}-plugins`],
        ...['--host', `unix://${socket}`, '--storage-driver', 'overlay2', '--bridge', bridge],
        ...['--iptables=false', '--ip-forward=false', '--ip-masq=false'],
      ],
      // Its hooks and runc are short-lived programs in Go, three to a container: 86 s of a processor for the tests of the driver instead of 89.
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
        // The first line says why: callers show no more than that.
        if (exitCode !== undefined) throw new Error(`dockerd ended with code ${exitCode}: ${lastLine(words())}\n${words()}`)
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
    containers: async () => {
      const found = (await ask(socket, '/containers/json?all=1')) as { Names: string[] }[] | undefined
      if (found === undefined) throw new Error('the engine does not say which containers it has')
      return found.flatMap(({ Names }) => Names.map((name) => name.slice(1)))
    },
    start,
    kill: async () => {
      server?.kill()
      await server?.ended
      rmSync(socket, { force: true })
      // Its own containerd ends with it. Nobody may reap that for a while, and then dockerd would take it for alive.
      const pidFile = at('exec/containerd/containerd.pid')
      if (!existsSync(pidFile)) return
      const containerd = identify(Number(readFileSync(pidFile, 'utf8')))
      await until('containerd is gone', () => Promise.resolve(containerd === undefined || !isAlive(containerd)))
      rmSync(pidFile)
    },
    stop: async () => server?.release(),
    [Symbol.asyncDispose]: dispose,
  }
}

/** Programs of containers are lowered to what this machine lets its root give; `cgroup` is the parent of theirs. */
const settingsOf = (runtimePath: string, cgroup: string) => ({
  'default-runtime': 'within-limits',
  runtimes: { 'within-limits': { path: runtimePath } },
  'cgroup-parent': `/${cgroup}`,
})

/** A Docker engine on a host of a site, where every account looks for one; those of the group `docker` may use it. */
export interface HostEngine {
  /** Runs the client on the host as root and gives what it prints, trimmed. @throws Error with its last words when it fails */
  docker: (...args: string[]) => Promise<string>
  /** Lets the account of the site use it, or no longer: true of logins from now on. */
  admit(allowed: boolean): void
  /** Takes away what the host's end leaves of it; after that. */
  leave(): Promise<void>
}

/** Starts it with images of its own, which are below the host's `/srv`, and with NVIDIA's hook for whatever `/dev/nvidia…` there is. It ends with the host. */
export const startHostEngine = async (host: Host, account: string): Promise<HostEngine> => {
  const cgroup = `orrery-${basename(dirname(host.folder))}`
  const cgroups = openCgroups([cgroup])
  const docker: HostEngine['docker'] = async (...args) => (await host.run(`/usr/bin/docker ${quoteAll(args)}`)).stdout.trim()
  const groups = join(host.folder, 'etc/group')
  const others = readFileSync(groups, 'utf8').replace(/^docker:.*\n/m, '')
  const admit = (allowed: boolean): void => writeFileSync(groups, `${others}docker:x:999:${allowed ? account : ''}\n`)
  try {
    admit(true)
    for (const [program, text] of [
      ['runc', withinLimits('/run/engine/within-limits.py')],
      ['within-limits.py', readFileSync(limiter, 'utf8')],
      [gpuHook, readFileSync(new URL(`./${gpuHook}.py`, import.meta.url), 'utf8')],
    ] as const)
      await host.run(`mkdir -p /run/engine && cd /run/engine && cat > ${program} && chmod 755 ${program}`, 'root', { input: text })
    await host.run('cat > /run/docker.json', 'root', { input: JSON.stringify(settingsOf('/run/engine/runc', cgroup)) })
    const daemon = await startDaemon(host, '/srv/dockerd.log', [
      ...(['/usr/bin/env', `PATH=${searchPath}:/run/engine`, 'dockerd'] as const),
      ...['--config-file', '/run/docker.json', '--data-root', '/srv/docker', '--exec-root', '/run/docker'],
      ...['--storage-driver', 'overlay2', '--bridge=none', '--iptables=false', '--ip-forward=false', '--ip-masq=false'],
    ])
    await daemon.ready(async () => (await ask(host.see('/run/docker.sock'), '/version')) !== undefined)
  } catch (error) {
    await cgroups.leave()
    const log = join(host.folder, 'srv/dockerd.log')
    throw new Error(`no Docker engine on ${host.name}: ${existsSync(log) ? readFileSync(log, 'utf8').slice(-3_000) : ''}`, { cause: error })
  }
  return { docker, admit, leave: cgroups.leave }
}

/** Gives the engine the image of `systemFiles` under this name, if it has not got it. */
export const loadSystemImage = async ({ docker, commands }: Engine): Promise<string> => {
  const { root, key } = await systemFiles()
  const name = `orrery-test/system:${key}`
  if ((await docker('images', '--quiet', name)) === '')
    await run(
      '/bin/sh',
      ['-c', `tar -C ${quote(root)} -c . | ${quote(join(commands, 'docker'))} import --change 'ENV PATH=/bin' - ${name}`],
      { deadlineMs: 600_000 },
    )
  return name
}

/** An image registry on the loopback address, plain HTTP (which engines allow there), that can go away and come back. */
export interface LoopbackRegistry {
  /** `127.0.0.1:<port>`, the first part of its images' names. */
  readonly address: string
  /** Copies a docker archive there under a name such as `app/tool:1`. Gives the digest: `sha256:…`. */
  push(archive: string, name: string): Promise<string>
  stop(): Promise<void>
  start(): Promise<void>
}

/** Keeps its images in `folder`; ends with us. The caller stops it. */
export const startLoopbackRegistry = async (folder: string): Promise<LoopbackRegistry> => {
  const address = `127.0.0.1:${await freePort()}`
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
  return {
    address,
    push: async (archive, name) => {
      const digestFile = join(folder, 'digest')
      const plain = ['--insecure-policy', 'copy', '--quiet', '--dest-tls-verify=false', '--digestfile', digestFile]
      await run('skopeo', [...plain, `docker-archive:${archive}`, `docker://${address}/${name}`])
      return readFileSync(digestFile, 'utf8').trim()
    },
    stop: async () => server?.release(),
    start,
  }
}
