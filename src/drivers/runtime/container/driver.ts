import { hash, randomBytes } from 'node:crypto'
import { posix } from 'node:path'
import { RecentMap } from '../../../pacing/recent.ts'
import { assign, readProgram } from '../../../shell/program.ts'
import { quote, quoteAll } from '../../../shell/quote.ts'
import type { SiteShell } from '../../../shell/site-shell.ts'
import { launcher, sweepPodman } from './launcher.ts'
import { parseContainerRecord, type ContainerRecord } from './record.ts'
import {
  DriverError,
  type Collected,
  type Intent,
  type PlaceDetail,
  type RuntimeDriver,
  type TaskState,
} from '../contract/driver.ts'
import { gather } from '../contract/gather.ts'
import { checkIntent } from '../contract/intent.ts'
import { homeOf, imageLanguage, programOf } from '../contract/task-script.ts'
import { errorTextOf } from '../remote/error-text.ts'
import { asDriverError } from '../contract/results.ts'

export const containerEngines = ['docker', 'podman', 'apptainer', 'auto'] as const
/** `auto`: the first that works on the host where the task runs. */
export type ContainerEngine = (typeof containerEngines)[number]

export interface ContainerOptions {
  /** Reaches the files of the site; its tasks may run on other machines that see the same files. */
  shell: SiteShell
  /** Absolute path at the site. Records and images are below `<root>/containers`. */
  root: () => Promise<string>
  /** For intents that name no engine. */
  engine: ContainerEngine
  /** Environment variable that marks a task's processes with its name. */
  taskVariable: string
  /**
   * What containers can read besides the work directory: absolute paths of the host, with `:ro` for
   * read-only. Default none.
   */
  mounts?: readonly string[]
  /**
   * A container that is kept for tasks of its run ends after so many seconds without a task.
   * Default 60.
   */
  idleSeconds?: number
  /**
   * The site ends all descendants of a task, so a monitor of Podman cannot stay with a kept
   * container.
   */
  endsDescendants?: boolean
  /**
   * Queries an engine of this machine by its API for the digest of an image, undefined when it has
   * no such image; may reject. Without it, or without an answer, the digest that the engine's
   * program gave the launcher holds.
   */
  imageDigest?: (image: EngineImageQuestion) => Promise<string | undefined>
}

interface EngineImageQuestion {
  engine: 'docker' | 'podman'
  /** Absolute path, where the runtime names one. */
  socket?: string
  /** The engine's own name of the image in use. */
  id: string
  /** The activity's name for the image. */
  name: string
}

export interface ContainerDriver extends RuntimeDriver {
  /**
   * Ends the containers that are kept for a run, removes those whose engine was killed, and forgets
   * the run's resolved images; on the shell's machine. No effect when there are none.
   */
  closeScope: (scope: string) => Promise<void>
}

interface Contact {
  /** `<root>/containers`. */
  base: string
  home: string
  path: string
  /** `UID:GID`. */
  account: string
}

/** The launcher's own exit code when there was no container. */
const noContainerCode = 125
const missingCode = 92
/** One variable of an environment takes 128 KiB; a character at most four bytes. */
const partLength = 30_000
const largestImageName = 512
/** Tasks without a container whose names are kept, so that tasks of this process need no query. */
const namesKept = 20_000

const digestOf = (text: string): string => hash('sha256', text)
const launcherHash = digestOf(launcher).slice(0, 16)

const contactProgram = readProgram(import.meta.dirname, 'contact.sh')
const contactScript = (root: string): string =>
  `${assign({ ROOT: root, HASH: launcherHash, LAUNCHER: launcher, MISSING: missingCode })}${contactProgram}`

/** One field of the comma-separated value of `--mount`. */
const field = (word: string): string => (/[",\n\r]/.test(word) ? `"${word.replaceAll('"', '""')}"` : word)
const mountWord = (path: string, readOnly = false): string =>
  ['type=bind', field(`source=${path}`), field(`target=${path}`), ...(readOnly ? ['readonly'] : [])].join(',')

const mountOf = (entry: string): { path: string; word: string } => {
  const readOnly = entry.endsWith(':ro')
  const path = readOnly ? entry.slice(0, -3) : entry
  if (!posix.isAbsolute(path) || path.includes('\0') || posix.normalize(path) === '/')
    throw new DriverError(
      'refused',
      `containerMounts ${JSON.stringify(entry)} must be an absolute path below /, with or without :ro`,
    )
  return { path: posix.resolve(path), word: mountWord(path, readOnly) }
}

const nameForm = /^(docker:\/\/)?[a-zA-Z0-9][\w.\-/:]*(@sha256:[0-9a-f]{64})?$/
/** An archive that Docker and Podman load, with the id of its image. */
const archiveForm = /^archive:\/[^\0\n\r]+@sha256:[0-9a-f]{64}$/

/** @throws DriverError `refused` naming field, value and remedy. */
const checkContainer = (intent: Intent): void => {
  const { name, container } = intent
  if (container === undefined) return
  const refuse = (fieldName: string, value: unknown, remedy: string): never => {
    throw new DriverError('refused', `${name}: ${fieldName} ${JSON.stringify(value)} ${remedy}`)
  }
  const { image, scope, engine = 'auto', host, mounts = [] } = container
  for (const mount of mounts) mountOf(mount)
  if (host !== undefined && !/^unix:\/\/\/[^\0\n]+$/.test(host))
    refuse('host', host, 'must be unix:// and the absolute path of the engine’s socket')
  if (!(containerEngines as readonly string[]).includes(engine))
    refuse('engine', engine, `must be one of ${containerEngines.join(', ')}`)
  const isFile = image.startsWith('/')
  if (image.length > largestImageName)
    refuse('image', `${image.slice(0, 40)}…`, `must have at most ${largestImageName} characters`)
  const isArchive = archiveForm.test(image)
  const isWellFormed = isFile ? !/[\0\n\r]/.test(image) : isArchive || nameForm.test(image)
  if (!isWellFormed)
    refuse('image', image, 'must be name[:tag][@sha256:digest], or the absolute path of a SIF file')
  if (isFile && engine !== 'apptainer' && engine !== 'auto')
    refuse('image', image, `is a file, which ${engine} cannot run; set containerRuntime to apptainer`)
  if (isArchive && engine === 'apptainer')
    refuse('image', image, 'is an archive of an image, which apptainer cannot run; give a SIF file')
  if (!/^[a-z0-9]{1,40}$/.test(scope)) refuse('scope', scope, 'must be 1 to 40 of a-z and 0-9')
}

/**
 * The script for the shell of the container: the task's directory, its variables over the image's
 * own, its program.
 */
export const insideScript = (intent: Intent, taskVariable: string): string => {
  const { directory, workingDirectory, environment, name } = intent
  const place = workingDirectory === undefined ? directory : `${directory}/${workingDirectory}`
  const variables = Object.entries({ HOME: homeOf(directory), ...environment, [taskVariable]: name })
  // In a kept container each task has a folder of its own below /tmp.
  const usual = { TMPDIR: 'tmp', USER: 'user', LOGNAME: 'user' }
  const inside = Object.entries(usual).map(([key, of]) => (key in environment ? '' : ` "${key}=$${of}"`))
  return (
    `cd ${quote(place)} || exit 126\nunset OLDPWD\nexec env${inside.join('')} ${imageLanguage} ` +
    `${quoteAll([...variables.map(([key, value]) => `${key}=${value}`), ...programOf(intent)])}\n`
  )
}

const piecesOf = (text: string): string[] => {
  const pieces: string[] = []
  const characters = [...text]
  for (let from = 0; from < characters.length; from += partLength)
    pieces.push(characters.slice(from, from + partLength).join(''))
  return pieces
}

/** Turns an intent with a container into one whose program is the launcher; the rest stays. */
export const containerized = (
  intent: Intent,
  contact: Contact,
  options: Omit<ContainerOptions, 'shell' | 'root'>,
): Intent => {
  const { container, ...plain } = intent
  if (container === undefined) return intent
  const { name, directory, cores, memoryBytes, gpus = 0 } = plain
  const { taskVariable, idleSeconds = 60, endsDescendants = false } = options
  const {
    image,
    network,
    reuse,
    scope,
    engine = options.engine,
    host = '',
    mounts = options.mounts ?? [],
    inPlace = false,
  } = container
  const cpus = cores > 0 ? String(cores) : '0'
  const limits = [cpus, String(Math.ceil(memoryBytes)), String(Math.ceil(gpus)), network ? '1' : '0']
  const run = posix.dirname(posix.dirname(directory))
  const shared = mountWord(run)
  const own = [directory, homeOf(directory)]
  // Engines refuse the same mount point twice.
  const more = mounts
    .map(mountOf)
    .flatMap(({ path, word }) => (own.includes(path) || (reuse && path === run) ? [] : [word]))
  const imageKey = `${scope}-${digestOf(JSON.stringify([engine, host, image])).slice(0, 24)}`
  // A kept container goes on with the programs that it began with: those of another launcher are not shared.
  const kept = digestOf(
    JSON.stringify([launcherHash, engine, host, image, limits, shared, more, idleSeconds]),
  )
  const laneKey = `${scope}-${kept.slice(0, 16)}`
  const keepers = endsDescendants ? 'docker' : 'docker podman'
  const pieces = piecesOf(insideScript(plain, taskVariable))
  // The container's shell enters it, so that the error of a missing folder appears in the task's
  // output.
  const { workingDirectory: _entered, ...elsewhere } = plain
  return {
    ...elsewhere,
    argv: [
      ...['/bin/sh', `${contact.base}/${launcherHash}/launcher`, engine, image, imageKey, ...limits],
      ...[
        reuse ? String(idleSeconds) : '0',
        keepers,
        scope,
        name,
        taskVariable,
        contact.account,
        laneKey,
        shared,
        inPlace ? '0' : '1',
      ],
      ...[...own.map((path) => mountWord(path)), ...more],
    ],
    ownLimits: true,
    environment: {
      PATH: contact.path,
      HOME: contact.home,
      ...(host === '' ? {} : { DOCKER_HOST: host, CONTAINER_HOST: host }),
      ORRERY_PARTS: String(pieces.length),
      ...Object.fromEntries(pieces.map((piece, position) => [`ORRERY_PART_${position}`, piece])),
    },
  }
}

const isNoContainer = (state: TaskState): state is Extract<TaskState, { state: 'ended' }> =>
  state.state === 'ended' && state.exitCode === noContainerCode && state.reason === 'exited'

/** Its time was over while the image was still on its way: that is not the task's fault. */
const isUnbegun = (
  state: TaskState,
  { begun, detail }: ContainerRecord,
): state is Extract<TaskState, { state: 'ended' }> =>
  state.state === 'ended' && state.reason === 'timeout' && !begun && detail.image !== undefined
const unbegunText =
  'its time was over before its container had started: the image was still on its way, or the engine is slow'

const lostBy = (state: Extract<TaskState, { state: 'ended' }>, words: string): TaskState => ({
  state: 'lost',
  externalId: state.externalId,
  startedAt: state.startedAt,
  cause: words,
})

/** Times, use and end of a task without the cost of its container. */
const inItsPlace = (collected: Collected, { detail, run }: ContainerRecord): Collected => {
  if (run === undefined || collected.state.state !== 'ended') return { ...collected, detail }
  const { state } = collected
  const startedAt = Math.min(state.startedAt + run.beforeSeconds, state.finishedAt)
  return {
    ...collected,
    state: {
      ...state,
      startedAt,
      ...(run.outOfMemory && state.reason === 'exited' && state.exitCode !== 0
        ? { reason: 'memory' as const }
        : {}),
    },
    wallSeconds: run.wallSeconds,
    cpuSeconds: run.cpuSeconds ?? collected.cpuSeconds,
    // Without a cgroup of its own (Apptainer) the site's figure applies: the largest process for
    // which the launcher waited.
    ...(detail.engine === 'apptainer'
      ? {}
      : { peakMemoryBytes: run.peakMemoryBytes, measuredBy: 'cgroup' as const }),
    detail,
  }
}

/**
 * A driver whose intents with a `container` run in one: their program becomes a launcher
 * (`launcher.ts`) that is the same at every site, so time limits, logs, manifests and cancellation
 * stay the site's. Intents without one pass unchanged.
 *
 * - The task sees its image read-only, a `/tmp` of its own, its work directory and home under the
 *   same paths and `mounts`; it is the site's account, by name too, without capabilities, without
 *   network unless asked for, within the intent's processors, memory and GPUs.
 * - An image is resolved once per run and host, and brought there once; `detail` names it
 *   and what it cost.
 * - A failure of the engine or the registry is the site's trouble: `find` and `collect` report
 *   `lost` with its message, and the caller tries again under another name. A fault
 *   that lasts (no such image, another digest, no engine) rejects `collect` with class `refused`.
 * - Exit codes above 128 count as signals. No container outlives its launcher.
 *
 * @throws DriverError `refused` for a mount that is no absolute path.
 */
export function withContainers(driver: RuntimeDriver, options: ContainerOptions): ContainerDriver {
  const { shell, mounts = [] } = options
  for (const mount of mounts) mountOf(mount)
  let known: Promise<Contact> | undefined
  const without = new RecentMap<string, true>(namesKept)
  const note = ({ name, container }: Intent): void => {
    if (container === undefined) without.set(name, true)
  }
  const atSite = async (script: string): Promise<string> => {
    try {
      const base = `${await options.root()}/containers`
      return (await shell.run(`cd -- ${quote(base)} 2> /dev/null || exit 0\n${script}`)).stdout.toString()
    } catch (error) {
      throw asDriverError(error)
    }
  }

  const meet = async (): Promise<Contact> => {
    const root = await options.root()
    if (/[",\n\r]/.test(root))
      throw new DriverError(
        'refused',
        `the work directory ${JSON.stringify(root)} must be without quote, comma and newline where containers are used`,
      )
    const { code, stdout, stderr } = await shell.run(contactScript(root))
    const [base = '', home = '', path = '', account = ''] = stdout.toString().split('\n')
    if (code !== 0 || account === '')
      throw new DriverError(
        'infrastructure',
        `cannot prepare ${root}/containers at the site: ${errorTextOf(stderr)}`,
      )
    return { base, home, path, account }
  }
  const contact = (): Promise<Contact> => {
    if (known === undefined) {
      const asked = meet().catch((error: unknown) => Promise.reject(asDriverError(error)))
      known = asked
      asked.catch(() => (known = undefined))
    }
    return known
  }

  const recordOf = gather<string, ContainerRecord>(async (names) => {
    const boundary = randomBytes(16).toString('hex')
    const listing = await atSite(`cd records || exit 0
for each in ${quoteAll(names)}; do [ ! -e "$each" ] || { echo "${boundary} $each"; cat -- "$each"; }; done`)
    const texts = new Map(
      listing
        .split(`${boundary} `)
        .slice(1)
        .map((part) => [part.slice(0, part.indexOf('\n')), part.slice(part.indexOf('\n') + 1)]),
    )
    return new Map(names.map((name) => [name, parseContainerRecord(texts.get(name))]))
  })

  /** A record's detail, with the engine's own digest where the engine can be queried. */
  const detailOf = async ({ detail, imageId, engineSocket }: ContainerRecord): Promise<PlaceDetail> => {
    const { engine, image: name } = detail
    if (imageId === undefined || name === undefined || (engine !== 'docker' && engine !== 'podman'))
      return detail
    const socket = engineSocket === undefined ? {} : { socket: engineSocket }
    const digest = await options
      .imageDigest?.({ engine, ...socket, id: imageId, name })
      .catch(() => undefined)
    return digest === undefined ? detail : { ...detail, imageDigest: digest }
  }

  const removeRecord = gather<string, true>(async (names) => {
    await atSite(`for each in ${quoteAll(names)}; do rm -rf -- "records/$each" "tasks/$each"; done`)
    return new Map(names.map((name) => [name, true as const]))
  })

  return {
    ...driver,
    capabilities: { ...driver.capabilities, container: true },
    async submit(intents) {
      for (const intent of intents) note(intent)
      if (intents.every(({ container }) => container === undefined)) return driver.submit(intents)
      const site = await contact()
      const refusals = new Map<string, DriverError>()
      const sound: Intent[] = []
      for (const intent of intents) {
        try {
          checkIntent(intent)
          checkContainer(intent)
          sound.push(containerized(intent, site, options))
        } catch (error) {
          refusals.set(intent.name, asDriverError(error))
        }
      }
      const outcomes = new Map(
        (sound.length === 0 ? [] : await driver.submit(sound)).map((outcome) => [outcome.name, outcome]),
      )
      return intents.map(({ name }) => {
        const error = refusals.get(name) ?? new DriverError('unknown', `no answer for ${name}`)
        return outcomes.get(name) ?? { name, ok: false, error }
      })
    },
    async find(names) {
      const states = await driver.find(names)
      const isSuspect = (state: TaskState): state is Extract<TaskState, { state: 'ended' }> =>
        state.state === 'ended' && (state.reason === 'timeout' || isNoContainer(state))
      await Promise.all(
        [...states].map(async ([name, state]) => {
          if (!isSuspect(state) || without.has(name)) return
          const record = await recordOf(name)
          if (record.trouble?.trouble === 'infrastructure' && isNoContainer(state))
            states.set(name, lostBy(state, record.trouble.words))
          if (isUnbegun(state, record)) states.set(name, lostBy(state, unbegunText))
        }),
      )
      return states
    },
    async collect(name, onWait) {
      const collected = await driver.collect(name, onWait)
      if (without.has(name)) return collected
      const recorded = await recordOf(name)
      const record = { ...recorded, detail: await detailOf(recorded) }
      const { trouble } = record
      if (trouble !== undefined && isNoContainer(collected.state)) {
        if (trouble.trouble === 'refused') throw new DriverError('refused', trouble.words)
        return { ...collected, state: lostBy(collected.state, trouble.words), detail: record.detail }
      }
      if (isUnbegun(collected.state, record))
        return { ...collected, state: lostBy(collected.state, unbegunText), detail: record.detail }
      return Object.keys(record.detail).length === 0 ? collected : inItsPlace(collected, record)
    },
    async remove(name) {
      await driver.remove(name)
      if (!without.has(name)) await removeRecord(name)
    },
    async closeScope(scope) {
      // A kept container ends at an empty request. A pipe that is opened for reading and writing
      // never blocks.
      await atSite(`for each in lanes/${quote(scope)}-*; do
  [ -d "$each" ] || continue
  [ ! -p "$each/requests" ] || echo 1<> "$each/requests"
  rm -rf -- "$each"
done
${sweepPodman}
read -r node < /proc/sys/kernel/hostname
! grep -qs '^podman ' images/${quote(scope)}-*."$node" || sweep "$node"
rm -f -- images/${quote(scope)}-*`)
    },
  }
}
