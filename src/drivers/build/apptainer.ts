import { spawn } from 'node:child_process'
import { createWriteStream } from 'node:fs'
import { chmod, chown, mkdir, rename, rm, stat, statfs, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable, Writable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { everyRound } from '../../pacing/every-round.ts'
import { hasStreams } from '../../shell/has-streams.ts'
import { startBubblewrap } from '../bubblewrap.ts'
import { hasProgram } from '../machine-programs.ts'
import { BuildError } from './errors.ts'
import type { ImageFolder } from './image.ts'
import { digestOfFile, synced } from './store.ts'

/**
 * Builds definitions by Apptainer. All of a definition runs in one sandbox, `%setup` and `%pre`
 * too: a read-only /usr, the context, one folder to write in, no network, no other processes, no
 * rights on this machine, no file or variable of the service.
 */

const programs: Readonly<Record<string, string>> = {
  apptainer: 'apptainer',
  bwrap: 'bubblewrap',
  unshare: 'util-linux',
  setpriv: 'util-linux',
  prlimit: 'util-linux',
}

/** Why definitions cannot be built on this machine, with the remedy; undefined where they can. */
export const apptainerLack = (): string | undefined => {
  const lacking = Object.keys(programs).find((name) => !hasProgram(name))
  return lacking === undefined
    ? undefined
    : `this host has no ${lacking}, which builds definitions: install ${programs[lacking] ?? lacking}`
}

/** The account of builds where the service runs as root, which must not be root anywhere. */
const nobody = 65_534
const isRoot = (): boolean => process.getuid?.() === 0

/** What Apptainer may do inside: its own mounts, and nothing that this machine's configuration adds. */
const configuration = [
  'allow setuid = no',
  ...['config passwd = no', 'config group = no', 'config resolv_conf = no', 'mount proc = yes'],
  ...['mount sys = no', 'mount dev = minimal', 'mount devpts = no', 'mount home = no', 'mount tmp = yes'],
  ...['mount hostfs = no', 'enable fusemount = no', 'enable overlay = no', 'enable underlay = yes'],
  ...['mount slave = yes', 'sessiondir max size = 64', 'allow container sif = yes'],
  ...['allow container squashfs = yes', 'allow container extfs = no', 'allow container dir = yes'],
  ...['systemd cgroups = no', ''],
].join('\n')

const files: readonly (readonly [path: string, content: string])[] = [
  ['/etc/apptainer/apptainer.conf', configuration],
  ['/etc/passwd', 'root:x:0:0:root:/tmp:/bin/sh\n'],
  ['/etc/group', 'root:x:0:\n'],
  ['/etc/hosts', '127.0.0.1 localhost\n'],
  ['/etc/resolv.conf', ''],
  ['/etc/localtime', ''],
]

const mebibyte = 1_048_576
/** Limits of each process of a build; the number is of all of them. */
const processLimits = ['--nproc=2048', `--data=${String(8_192 * mebibyte)}`, '--core=0']

interface Place {
  /** The folder that the build writes in, `/out` inside. */
  out: string
  /** Files of this machine by their path inside. */
  given: Readonly<Record<string, string>>
  epoch?: number | undefined
}

/**
 * The words that start a script in the sandbox. Without a namespace of accounts around the mounts,
 * root changes to an account without rights first; inside, that account is root of its own
 * namespace, as Apptainer needs.
 */
const sandboxWords = ({ out, given, epoch }: Place, script: string): string[] => {
  const time: Record<string, string> =
    epoch === undefined
      ? {}
      : {
          ...{ SOURCE_DATE_EPOCH: String(epoch), APPTAINERENV_SOURCE_DATE_EPOCH: String(epoch) },
          CLAMP: `--clamp-mtime --mtime=@${String(epoch)}`,
        }
  const namespaces = isRoot()
    ? ['--unshare-ipc', '--unshare-pid', '--unshare-net', '--unshare-uts', '--unshare-cgroup-try']
    : ['--unshare-all']
  const rights = isRoot() ? ['--cap-add', 'CAP_SETUID', '--cap-add', 'CAP_SETGID'] : []
  const account = isRoot()
    ? ['setpriv', '--reuid', String(nobody), '--regid', String(nobody), '--clear-groups', '--no-new-privs']
    : []
  return [
    ...namespaces,
    ...['--die-with-parent', '--clearenv', '--cap-drop', 'ALL', ...rights],
    ...['/etc', '/etc/apptainer', '/opt', '/sys', '/build', '/var'].flatMap((path) => ['--dir', path]),
    ...['--ro-bind', '/usr', '/usr', '--symlink', 'usr/bin', '/bin', '--symlink', 'usr/sbin', '/sbin'],
    ...['--symlink', 'usr/lib', '/lib', '--symlink', 'usr/lib64', '/lib64'],
    ...['--ro-bind-try', '/opt/apptainer', '/opt/apptainer', '--dir', '/var/lib/apptainer/mnt/session'],
    ...['--proc', '/proc', '--dev', '/dev', '--size', String(16 * mebibyte), '--tmpfs', '/dev/shm'],
    ...['--perms', '1777', '--size', String(256 * mebibyte), '--tmpfs', '/tmp'],
    ...['--perms', '1777', '--size', String(256 * mebibyte), '--tmpfs', '/var/tmp'],
    ...files.flatMap(([path], at) => ['--perms', '0644', '--ro-bind-data', String(3 + at), path]),
    ...Object.entries(given).flatMap(([inside, path]) => ['--ro-bind', path, inside]),
    ...['--bind', out, '/out', '--chdir', '/', '--hostname', 'build'],
    ...Object.entries({
      ...{ PATH: '/usr/local/bin:/usr/bin:/usr/sbin', HOME: '/tmp', LC_ALL: 'C.UTF-8', NO_COLOR: '1' },
      ...{ APPTAINER_TMPDIR: '/out', APPTAINER_CACHEDIR: '/tmp/cache' },
      ...time,
    }).flatMap(([name, value]) => ['--setenv', name, value]),
    ...['--remount-ro', '/', ...account, 'prlimit', ...processLimits],
    ...['unshare', '--user', '--map-root-user', '--mount', '/bin/sh', '-c', script],
  ]
}

/** Starts a script in the sandbox. */
export const startSandbox = (place: Place, script: string, { timeoutMs }: { timeoutMs?: number } = {}) => {
  const child = startBubblewrap(sandboxWords(place, script), {
    ...{ input: 'pipe', contents: files.map(([, content]) => content) },
    ...(timeoutMs === undefined ? {} : { timeoutMs }),
  })
  return { child, input: child.stdin as Writable, output: child.stdout, errors: child.stderr }
}

/**
 * The file system goes out as an archive: no path that the build has chosen is followed from
 * outside. The date of the build, which would be another one each time, leaves the labels.
 */
const buildScript = `exec 3>&1 1>&2
set -e
rm -rf /out/* /out/.[!.]*
mkdir /out/context
tar -xf - --no-same-owner -C /out/context
cd /out/context
apptainer build --sandbox /out/root /build/recipe.def 3>&-
labels=/out/root/.singularity.d/labels.json
if [ -f "$labels" ] && [ ! -L "$labels" ]; then
  touch -r "$labels" /out/time
  sed -i '/"org.label-schema.build-date"/d' "$labels"
  touch -r /out/time "$labels"
fi
exec tar -C /out/root --sort=name --format=gnu --numeric-owner --owner=0 --group=0 $CLAMP -c . >&3 3>&-
`
const emptyWithinMs = 10 * 60_000
const emptyScript = 'rm -rf /out/* /out/.[!.]*'

export interface DefinitionLimits {
  seconds: number
  logBytes: number
  imageBytes: number
  /** The build ends where its volume has less than this left. */
  freeBytes: number
}

const usedBytes = (folder: string): Promise<number> =>
  new Promise((resolve) => {
    const child = spawn('du', ['-sxB1', folder], { stdio: ['ignore', 'pipe', 'ignore'] })
    if (!hasStreams(child)) return resolve(0)
    let text = ''
    child.stdout.on('data', (piece: Buffer) => (text += piece.toString()))
    child.once('error', () => resolve(0))
    child.once('close', () => resolve(Number(text.split('\t')[0]) || 0))
  })

/** Watches the bytes that a build writes, until it is stopped. */
export const watchDisk = (
  out: string,
  limits: Pick<DefinitionLimits, 'freeBytes' | 'imageBytes'>,
  cut: (why: string) => void,
): { stop(): Promise<void> } => {
  const look = async (): Promise<void> => {
    const { bavail, bsize } = await statfs(out)
    if (bavail * bsize < limits.freeBytes)
      return cut(`the volume of the build has less than ${limits.freeBytes} bytes left`)
    if ((await usedBytes(out)) > limits.imageBytes)
      return cut(`the build wrote more than ${limits.imageBytes} bytes`)
  }
  return everyRound(1_000, look, () => undefined)
}

/** Passes on the lines of a stream, cut at 4,000 characters. */
const readLines = async (
  stream: Readable,
  limitBytes: number,
  onLine: (line: string) => void,
  cut: (why: string) => void,
): Promise<void> => {
  let size = 0
  stream.on('data', (piece: Buffer) => {
    if ((size += piece.length) > limitBytes) cut(`the build wrote more than ${limitBytes} bytes of log`)
  })
  for await (const line of createInterface({ input: stream, crlfDelay: Infinity }))
    if (size <= limitBytes) onLine(line.slice(0, 4_000))
}

/** Writes the archive of the file system. */
const takeArchive = async (
  output: Readable,
  path: string,
  limitBytes: number,
  cut: (why: string) => void,
): Promise<void> => {
  let size = 0
  await pipeline(
    output,
    async function* (pieces: AsyncIterable<Buffer>) {
      for await (const piece of pieces) {
        if ((size += piece.length) > limitBytes) return cut(`the image has more than ${limitBytes} bytes`)
        yield piece
      }
    },
    createWriteStream(path, { mode: 0o600 }),
  )
}

/** The folder that a sandbox writes in, below the folder of a run. */
export const outOf = async (folder: string): Promise<string> => {
  const out = join(folder, 'definition')
  await mkdir(out, { recursive: true, mode: 0o700 })
  if (isRoot()) await chown(out, nobody, nobody)
  return out
}

/** The archive of a file system that an attempt before has finished. */
export const rootArchiveOf = (folder: string): string => join(folder, 'root.tar')

export const runToEnd = async (
  child: ReturnType<typeof startSandbox>['child'],
): Promise<{ code: number | null; error?: Error }> =>
  new Promise((resolve) => {
    child.once('error', (error) => resolve({ code: null, error }))
    child.once('close', (code) => resolve({ code }))
  })

/**
 * Builds a definition into the archive `rootArchiveOf(folder)`. All its processes end with this process,
 * with the signal and with the limits.
 * @throws BuildError with the reason; the signal's reason
 */
export const buildDefinition = async (
  folder: string,
  given: {
    context: Readable
    text: string
    /** Archives of images by their path inside; they are below the folder. */
    archives: Readonly<Record<string, string>>
    epoch?: number | undefined
  },
  {
    limits,
    onLine,
    signal,
  }: { limits: DefinitionLimits; onLine: (line: string) => void; signal: AbortSignal },
): Promise<void> => {
  const [out, recipe] = [await outOf(folder), join(folder, 'recipe.def')]
  await writeFile(recipe, given.text, { mode: 0o644 })
  for (const path of [recipe, ...Object.values(given.archives)]) await chmod(path, 0o644)
  const place = { out, given: { '/build/recipe.def': recipe, ...given.archives }, epoch: given.epoch }
  signal.throwIfAborted()
  const { child, input, output, errors } = startSandbox(place, buildScript)
  let reason: string | undefined
  const cut = (why?: string): void => {
    reason ??= why
    child.kill('SIGKILL')
  }
  const abort = (): void => cut()
  signal.addEventListener('abort', abort, { once: true })
  const timer = setTimeout(() => cut(`the build took more than ${limits.seconds} s`), limits.seconds * 1_000)
  const watch = watchDisk(out, limits, cut)
  const partial = `${rootArchiveOf(folder)}.partial`
  let last = ''
  try {
    const [{ code, error }] = await Promise.all([
      runToEnd(child),
      readLines(errors, limits.logBytes, (line) => onLine((last = line)), cut),
      takeArchive(output, partial, limits.imageBytes, cut).catch(() =>
        cut('its file system could not be kept'),
      ),
      // A context that is cut off would look whole to tar. Errors of the pipe are the sandbox's own end.
      pipeline(given.context, input).catch((fault: unknown) => {
        const { code = '', message } = fault as NodeJS.ErrnoException
        if (!/^(EPIPE|ECONNRESET|ERR_STREAM_)/.test(code)) cut(`the context could not be read: ${message}`)
      }),
    ])
    signal.throwIfAborted()
    if (error !== undefined) throw new BuildError(`the sandbox does not start: ${error.message}`)
    if (reason !== undefined) throw new BuildError(reason)
    if (code !== 0) throw new BuildError(`Apptainer ended with ${String(code)}: ${last}`)
    await synced(partial)
    await rename(partial, rootArchiveOf(folder))
  } finally {
    clearTimeout(timer)
    await watch.stop()
    signal.removeEventListener('abort', abort)
    child.kill('SIGKILL')
    await rm(partial, { force: true })
    await emptyDefinition(folder)
  }
}

/**
 * Removes what a build has left in its folder. Inside the sandbox, since only there folders without
 * rights can be entered where the service is not root.
 */
export const emptyDefinition = async (folder: string): Promise<void> => {
  const out = join(folder, 'definition')
  if ((await stat(out).catch(() => undefined)) === undefined) return
  const { child, input, output, errors } = startSandbox({ out, given: {} }, emptyScript, {
    timeoutMs: emptyWithinMs,
  })
  input.on('error', () => undefined).end()
  output.resume()
  errors.resume()
  await runToEnd(child)
}

/** The one layer that a definition has become, as an image. */
export const definitionImage = async (
  folder: string,
  architecture: string,
  epoch: number | undefined,
): Promise<ImageFolder> => {
  const path = rootArchiveOf(folder)
  const { digest, sizeBytes } = await digestOfFile(path)
  const config = {
    ...{ architecture, os: 'linux', rootfs: { type: 'layers', diff_ids: [digest] } },
    created: new Date((epoch ?? 0) * 1_000).toISOString(),
    // What Apptainer starts for `run`: it reads the environment of the definition first.
    config: {
      Env: ['PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'],
      Entrypoint: ['/.singularity.d/actions/run'],
    },
  }
  return {
    ...{ config: Buffer.from(JSON.stringify(config)), architecture, created: epoch ?? 0 },
    ...{ environment: [], entrypoint: [], command: [], layers: [{ path, digest, sizeBytes }] },
  }
}
