import type { ChildProcess } from 'node:child_process'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Readable } from 'node:stream'
import { z } from 'zod'
import { openSandboxSockets, type SandboxSockets } from '../../clients/ssh/sandbox-sockets.ts'
import type { SshTarget } from '../../clients/ssh/target.ts'
import { reasonText } from '../../outside-text.ts'
import { startBubblewrap } from '../bubblewrap.ts'
import { ansiblePlaybook, sandbox } from './sandbox.ts'

/**
 * A task on a machine, at its beginning or its end. All text comes from foreign code; it is masked and of at most
 * 2,000 characters.
 */
export interface PlayEvent {
  event: 'started' | 'ok' | 'changed' | 'skipped' | 'failed' | 'unreachable'
  /** The name of a machine of the play. */
  machine: string
  task?: string | undefined
  message?: string | undefined
  seconds?: number | undefined
  /** The play goes on after the failure. */
  ignored?: boolean | undefined
}

export interface PlayMachine {
  /** For events and the end. */
  name: string
  target: SshTarget
  /** Type and key, as in known_hosts. */
  hostKey: string
  /** Cuts this machine off; the play goes on at the others. */
  signal?: AbortSignal | undefined
}

/** At which sides a text was cut: it may begin or end within a secret there. */
export interface CutSides {
  before?: boolean
  after?: boolean
}

/** Masks the secrets of a text, and the parts of secrets at its cuts. */
export type Mask = (text: string, cut?: CutSides) => string

export interface Play {
  playbook: string
  /** Text in them is taken as it is: braces are no templates. */
  variables: Readonly<Record<string, unknown>>
  machines: readonly PlayMachine[]
  mask: Mask
  onEvent: (event: PlayEvent) => Promise<void>
  signal: AbortSignal
  addressAllowed: (address: string) => true | string
  limits?: Partial<PlayLimits>
}

export interface PlayLimits {
  milliseconds: number
  /** Of all output of the play. */
  bytes: number
  /** Events that are passed on; the play's end does not depend on them. */
  events: number
}

const usualLimits: PlayLimits = { milliseconds: 30 * 60_000, bytes: 32 * 1_048_576, events: 5_000 }
const longestLine = 1_048_576

/**
 * How a play ended on a machine. `unreachable`: SSH got no answer; `killed`: SIGKILL or SIGTERM ended
 * ansible-playbook on this worker's machine, as for want of memory. A later play may succeed after both.
 */
export interface PlayEnd {
  state: 'ok' | 'failed' | 'unreachable' | 'killed'
  /** Present unless ok. */
  reason?: string | undefined
}

/** A text of `events.py`: as a whole, or its beginning and its end. */
const Parts = z.union([z.tuple([z.string()]), z.tuple([z.string(), z.string()])])

/** Of each part at its cut: what has the form of a secret may go on behind it. It is shorter. */
const unsafe = 8_000

/** The masked end of a text that was cut before it. */
const maskedEnd = (text: string, mask: Mask): string => mask(text, { before: true }).slice(unsafe)

/** A whole text as a terminal shows it. */
const clean = (text: string): string => reasonText(text, { lines: Infinity, characters: Infinity })

/** A text for people, of at most 2,000 characters. It is masked before it is cut: half a secret is no secret. */
export const shownText = ([begin, end]: z.output<typeof Parts>, mask: Mask): string => {
  const head = mask(begin, { after: end !== undefined })
  const whole = end === undefined ? clean(head) : undefined
  if (whole !== undefined && whole.length <= 2_000) return whole
  const first = whole ?? clean(head.slice(0, -unsafe))
  const last = whole ?? clean(maskedEnd(end ?? '', mask))
  return `${first.slice(0, 500)} … ${last.slice(-1_497)}`.toWellFormed()
}

const Line = z.object({
  event: z.enum(['started', 'ok', 'changed', 'skipped', 'failed', 'unreachable']),
  host: z.string(),
  task: Parts.optional(),
  message: Parts.optional(),
  seconds: z.number().optional(),
  ignored: z.boolean().optional(),
})
const Stats = z.object({
  event: z.literal('stats'),
  hosts: z.record(z.string(), z.object({ failures: z.number(), unreachable: z.number() })),
})

/** Text that Ansible takes as it is (`AnsibleJSONDecoder`). */
const untemplated = (value: unknown): unknown => {
  if (typeof value === 'string') return { __ansible_unsafe: value }
  if (Array.isArray(value)) return value.map(untemplated)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, untemplated(item)]))
}

const inside = '/run/machines'
const aliasOf = (place: number): string => `machine-${String(place)}`

const sshConfig = (place: number): string =>
  [
    'Host *',
    `  ProxyCommand /usr/bin/python3 -I /play/way.py ${inside}/${aliasOf(place)}.way`,
    '  ProxyUseFdpass yes',
    `  IdentityAgent ${inside}/${aliasOf(place)}.agent`,
    '  IdentityFile none',
    '  UserKnownHostsFile /play/known_hosts',
    '  GlobalKnownHostsFile none',
    `  HostKeyAlias ${aliasOf(place)}`,
    '  StrictHostKeyChecking yes',
    '  PreferredAuthentications publickey',
    '  ServerAliveInterval 15',
    '  ServerAliveCountMax 4',
    '',
  ].join('\n')

const inventory = ({ machines }: Play): string =>
  JSON.stringify({
    all: {
      hosts: Object.fromEntries(
        machines.map(({ target }, place) => [
          aliasOf(place),
          {
            ansible_host: aliasOf(place),
            ansible_user: target.username,
            ansible_port: target.port,
            ansible_python_interpreter: 'auto_silent',
            ansible_ssh_common_args: `-F /play/${aliasOf(place)}.ssh`,
          },
        ]),
      ),
    },
  })

const programOf = (name: string): Promise<string> => readFile(join(import.meta.dirname, name), 'utf8')

const filesOf = async (play: Play): Promise<[path: string, content: string][]> => {
  const uid = String(process.getuid?.() ?? 0)
  return [
    ['/etc/passwd', `ansible:x:${uid}:${uid}::/home/ansible:/bin/sh\n`],
    ['/play/start.py', await programOf('start.py')],
    ['/play/way.py', await programOf('way.py')],
    ['/play/callback/orrery_events.py', await programOf('events.py')],
    ['/play/playbook.yml', play.playbook],
    ['/play/inventory.json', inventory(play)],
    ['/play/variables.json', JSON.stringify(untemplated(play.variables))],
    [
      '/play/known_hosts',
      play.machines.map(({ hostKey }, place) => `${aliasOf(place)} ${hostKey}\n`).join(''),
    ],
    ...play.machines.map((_, place): [string, string] => [`/play/${aliasOf(place)}.ssh`, sshConfig(place)]),
  ]
}

const settings: Readonly<Record<string, string>> = {
  ANSIBLE_STDOUT_CALLBACK: 'orrery_events',
  ANSIBLE_CALLBACK_PLUGINS: '/play/callback',
  ANSIBLE_PIPELINING: '1',
  ANSIBLE_SSH_RETRIES: '2',
  ANSIBLE_TIMEOUT: '15',
  ANSIBLE_FORKS: '20',
  ANSIBLE_DEPRECATION_WARNINGS: 'false',
  ANSIBLE_SSH_CONTROL_PATH_DIR: '/tmp/cp',
}

/** A child in the sandbox. Files reach it through pipes: none is on this machine's disk. */
const startPlay = (
  files: readonly (readonly [string, string])[],
  sockets: readonly string[],
  more: Readonly<Record<string, string>>,
) => {
  const words = [
    ...sandbox.slice(1),
    ...files.flatMap(([path], place) => ['--ro-bind-data', String(3 + place), path]),
    ...sockets.flatMap((path) => ['--ro-bind', path, `${inside}/${path.slice(path.lastIndexOf('/') + 1)}`]),
    ...Object.entries({ ...settings, ...more }).flatMap(([name, value]) => ['--setenv', name, value]),
    ...['--remount-ro', '/', '/usr/bin/python3', '-I', '/play/start.py', ansiblePlaybook],
    ...['-i', '/play/inventory.json', '-e', '@/play/variables.json', '/play/playbook.yml'],
  ]
  return startBubblewrap(words, { contents: files.map(([, content]) => content) })
}

/** Lines of a stream; longer ones are left out. Ends the child beyond `bytes`. */
async function* linesOf(stream: Readable, bytes: number, cut: () => void): AsyncGenerator<string> {
  let held = ''
  let isTooLong = false
  let size = 0
  for await (const chunk of stream.setEncoding('utf8') as AsyncIterable<string>) {
    size += chunk.length
    if (size > bytes) return cut()
    const lines = (held + chunk).split('\n')
    held = lines.pop() ?? ''
    for (const line of lines) {
      if (!isTooLong && line.length <= longestLine) yield line
      isTooLong = false
    }
    if (held.length > longestLine) {
      held = ''
      isTooLong = true
    }
  }
}

const parsed = (line: string): unknown => {
  try {
    return JSON.parse(line)
  } catch {
    // Code of the playbook may print as well.
    return undefined
  }
}

const stderrKept = 16_384

/** What the output of a play says, machine by machine. */
const readOutput = async (
  child: ChildProcess,
  play: Play,
  limits: PlayLimits,
  { cut, up }: { cut: (reason: string) => void; up: () => void },
): Promise<{ failures: Map<string, string>; stats: z.output<typeof Stats>['hosts'] | undefined }> => {
  const failures = new Map<string, string>()
  let stats: z.output<typeof Stats>['hosts'] | undefined
  let passedOn = 0
  const tooLong = (): void => cut(`it wrote more than ${String(limits.bytes)} bytes`)
  for await (const line of linesOf(child.stdout!, limits.bytes, tooLong)) {
    up()
    const value = parsed(line)
    const end = Stats.safeParse(value)
    if (end.success) stats = end.data.hosts
    const task = Line.safeParse(value)
    if (!task.success) continue
    const { host, task: name, message, ...facts } = task.data
    const machine = play.machines[Number(host.slice(aliasOf(0).length - 1))]
    if (machine === undefined) continue
    const shown = (parts: typeof name): string | undefined => parts && shownText(parts, play.mask)
    const event = { ...facts, task: shown(name), message: shown(message) }
    if ((event.event === 'failed' && event.ignored !== true) || event.event === 'unreachable')
      failures.set(
        machine.name,
        `the task ${JSON.stringify(event.task ?? '')} ` +
          `${event.event === 'failed' ? 'failed' : 'got no answer'}: ${event.message ?? ''}`,
      )
    if (++passedOn <= limits.events) await play.onEvent({ ...event, machine: machine.name })
  }
  return { failures, stats }
}

/** The last part of a stream, as it comes, masked. */
const lastOf = (stream: Readable, mask: Mask): (() => string) => {
  let kept = ''
  let isCut = false
  stream.setEncoding('utf8').on('data', (text: string) => {
    isCut ||= kept.length + text.length > stderrKept
    kept = (kept + text).slice(-stderrKept)
  })
  return () => (isCut ? maskedEnd(kept, mask) : mask(kept))
}

/** What Ansible says of its own error, else the last of what it wrote; `output` is masked. */
const errorIn = (output: string): string => {
  const [, error] = /ERROR! ([\s\S]*)/.exec(output) ?? []
  return error === undefined ? reasonText(output, { characters: 1_000 }) : clean(error).slice(0, 1_000)
}

/** Exit codes of a program in a sandbox that was ended by SIGKILL or SIGTERM. */
const killedCodes: readonly (number | null)[] = [137, 143]
/** The one of SIGXCPU, by the limit of `start.py`. */
const processorTimeCode = 152

/** `killed`: the sandbox or the program in it ended by a signal that this process did not send. */
const endOf = (
  name: string,
  place: number,
  { failures, stats }: Awaited<ReturnType<typeof readOutput>>,
  { error, killed }: { error: string; killed: boolean },
): PlayEnd => {
  const own = stats?.[aliasOf(place)]
  if (own === undefined && killed)
    return {
      state: 'killed',
      reason: 'ansible-playbook was killed on the machine of the worker, which may lack memory',
    }
  if (own === undefined)
    return {
      state: 'failed',
      reason: failures.get(name) ?? (error || 'no play has the machine in its hosts'),
    }
  if (own.unreachable > 0) return { state: 'unreachable', reason: failures.get(name) ?? 'SSH got no answer' }
  if (own.failures > 0) return { state: 'failed', reason: failures.get(name) ?? 'a task failed' }
  return { state: 'ok' }
}

const openSockets = async (play: Play, folder: string): Promise<SandboxSockets[]> => {
  const sockets: SandboxSockets[] = []
  try {
    for (const [place, { target }] of play.machines.entries())
      sockets.push(
        await openSandboxSockets(target, {
          ...{ folder, name: aliasOf(place), addressAllowed: play.addressAllowed },
        }),
      )
    return sockets
  } catch (error) {
    await Promise.all(sockets.map((socket) => socket.close()))
    throw error
  }
}

/**
 * Runs a playbook on machines: `ansible-playbook` in the sandbox, whose only ways out are one
 * socket to each machine's judged address and one to an agent with its key. The process group ends
 * with this process, with the signal, and with the limits.
 *
 * @returns how it ended, by the names of machines
 * @throws the signal's reason; Error where the sandbox does not start
 */
export const runPlay = async (play: Play): Promise<Map<string, PlayEnd>> => {
  const limits = { ...usualLimits, ...play.limits }
  const folder = await mkdtemp(join(tmpdir(), 'orrery-play-'))
  let sockets: SandboxSockets[] = []
  let child: ChildProcess | undefined
  let reason: string | undefined
  const cut = (why: string): void => {
    reason ??= why
    child?.kill('SIGKILL')
  }
  const abort = (): void => cut('it was cancelled')
  const timer = setTimeout(
    () => cut(`it took longer than ${String(limits.milliseconds / 60_000)} minutes`),
    limits.milliseconds,
  )
  play.signal.addEventListener('abort', abort, { once: true })
  try {
    sockets = await openSockets(play, folder)
    for (const [place, { signal }] of play.machines.entries())
      signal?.addEventListener('abort', () => void sockets[place]?.close(), { once: true })
    play.signal.throwIfAborted()
    const files = await filesOf(play)
    const started = startPlay(
      files,
      sockets.flatMap(({ way, agent }) => [way, agent]),
      // A slow machine does not hold the others up.
      play.machines.length > 1 ? { ANSIBLE_STRATEGY: 'free' } : {},
    )
    child = started
    const ended = new Promise<void>((resolve, reject) => {
      started.once('error', reject)
      started.once('close', () => resolve())
    })
    ended.catch(() => undefined)
    const errorOutput = lastOf(started.stderr, play.mask)
    let isUp = false
    const up = (): void => {
      if (isUp) return
      isUp = true
      // The sandbox holds the sockets by its mounts: a killed worker leaves no file.
      rm(folder, { recursive: true, force: true }).catch(() => undefined)
    }
    const output = await readOutput(started, play, limits, { cut, up })
    await ended
    play.signal.throwIfAborted()
    const why = reason
    const error =
      started.exitCode === processorTimeCode
        ? 'it used more than 1,200 s of processor time'
        : errorIn(errorOutput())
    const killed = started.signalCode !== null || killedCodes.includes(started.exitCode)
    return new Map(
      play.machines.map(({ name }, place) => [
        name,
        why === undefined
          ? endOf(name, place, output, { error, killed })
          : { state: 'failed', reason: `the playbook was ended: ${why}` },
      ]),
    )
  } finally {
    clearTimeout(timer)
    play.signal.removeEventListener('abort', abort)
    child?.kill('SIGKILL')
    await Promise.all(sockets.map((socket) => socket.close()))
    await rm(folder, { recursive: true, force: true })
  }
}
