import { spawn, type ChildProcess } from 'node:child_process'
import { createInterface } from 'node:readline'
import { roomScript, type MemoryLimit } from '../contract/cgroups.ts'
import { reasonText } from '../../../outside-text.ts'
import { hasStreams, noStreamsText } from '../../../shell/has-streams.ts'
import { DriverError } from '../contract/driver.ts'
import { wakeStopped } from './processes.ts'

/**
 * A runner's request for a task. Paths are absolute; `timeoutSeconds` 0 means none; `facts` is one
 * line that opens the record.
 */
export interface RunnerTask {
  name: string
  directory: string
  workingDirectory: string
  timeoutSeconds: number
  timeoutGraceSeconds: number
  /** 0 means none. */
  memoryBytes: number
  /** How the memory limit is to be enforced; absent: the best available way. */
  memoryLimit?: MemoryLimit
  facts: string
  argv: readonly string[]
  environment: Readonly<Record<string, string>>
}

/**
 * `started`: by this call. `known`: this name was started before. `failed`: the site could not;
 * nothing was started. `refused`: it never could.
 */
export type RunnerAnswer =
  | { answer: 'started'; pid: number }
  | { answer: 'known' }
  | { answer: 'failed' | 'refused'; message: string }

/**
 * Called in this order, both before a later answer arrives; `ended` after the record is complete.
 */
export interface RunnerCallbacks {
  started: () => void
  ended: () => void
}

export interface Runner {
  /** Resolves once the process runs, or has been refused. One task at a time. */
  start(task: RunnerTask, callbacks: RunnerCallbacks): Promise<RunnerAnswer>
  /**
   * Ends the requests: an idle runner exits now, another one after its task, which goes on
   * undisturbed.
   */
  release(): void
  /** Lets it go on where a signal has stopped it: its task may send it any signal. */
  wake(): void
}

/** A task in the runner's format: 32-bit length, then fields joined by NUL. */
export function runnerRequest(task: RunnerTask): Buffer {
  const environment = Object.entries(task.environment).map(([key, value]) => `${key}=${value}`)
  const numbers = [task.timeoutSeconds, task.timeoutGraceSeconds].map((seconds) => seconds.toFixed(6))
  const fields = [
    task.name,
    task.directory,
    task.workingDirectory,
    ...numbers,
    String(Math.ceil(task.memoryBytes)),
    task.memoryLimit ?? '',
    task.facts,
    String(task.argv.length),
    ...task.argv,
    ...environment,
  ]
  const payload = Buffer.from(fields.join('\0'))
  const head = Buffer.alloc(4)
  head.writeUInt32BE(payload.length)
  return Buffer.concat([head, payload])
}

function parseAnswer(line: string): RunnerAnswer {
  const [word = '', ...rest] = line.split(' ')
  if (word === 'started') return { answer: 'started', pid: Number(rest[0]) }
  if (word === 'known') return { answer: 'known' }
  return { answer: word === 'refused' ? 'refused' : 'failed', message: rest.join(' ') }
}

export interface RunnerOptions {
  /** The compiled `runner.go`. */
  program: string
  /** Folder of the records. */
  control: string
  /** The file in which the kernel counts the processes that it killed for memory (`oom_kill`). */
  vmstatFile: string
}

/**
 * Starts a runner. `onGone` is called when its process has ended, whatever the cause; the caller
 * then looks up a task without `ended` by its records.
 */
export function startRunner({
  program,
  control,
  vmstatFile,
  onGone,
}: RunnerOptions & { onGone: () => void }): Runner {
  const child: ChildProcess = spawn(program, [control, vmstatFile, roomScript], {
    stdio: ['pipe', 'pipe', 'pipe'],
    env: {},
    cwd: '/',
    detached: true,
  })
  if (!hasStreams(child)) throw new DriverError('infrastructure', `cannot run ${program}: ${noStreamsText}`)
  const { stdin, stdout, stderr } = child
  if (stdin === null || stdout === null || stderr === null)
    throw new DriverError('infrastructure', `no pipes to ${program}`)

  let pending: { settle: (answer: RunnerAnswer) => void; callbacks: RunnerCallbacks } | undefined
  let ended: (() => void) | undefined
  let gone: string | undefined

  const fail = (message: string): void => {
    if (gone !== undefined) return
    gone = message
    pending?.settle({ answer: 'failed', message })
    pending = undefined
    onGone()
  }
  child.on('error', (error) => fail(`cannot run ${program}: ${error.message}`))
  let complaint = ''
  stderr.on('data', (bytes: Buffer) => (complaint = `: ${reasonText(bytes, { characters: 500 })}`))
  child.on('close', (code, signal) =>
    fail(`the runner of local tasks ended by ${signal ?? `code ${code}`}${complaint}`),
  )
  // A runner that does not listen is of no use; its end, reported above, gives the reason.
  stdin.on('error', () => child.kill('SIGKILL'))
  createInterface({ input: stdout }).on('line', (line) => {
    const waiting = pending
    pending = undefined
    if (line === 'ended') {
      const callback = ended
      ended = undefined
      callback?.()
      // Its process ended before it reported the start; its record holds the rest.
      waiting?.settle({ answer: 'known' })
      return
    }
    const answer = parseAnswer(line)
    if (answer.answer === 'started') {
      ended = waiting?.callbacks.ended
      waiting?.callbacks.started()
    }
    waiting?.settle(answer)
  })

  return {
    start: (task, callbacks) =>
      new Promise((settle) => {
        if (gone !== undefined) {
          settle({ answer: 'failed', message: gone })
          return
        }
        pending = { settle, callbacks }
        stdin.write(runnerRequest(task))
      }),
    wake() {
      if (child.pid !== undefined && gone === undefined) wakeStopped(child.pid)
    },
    release() {
      stdin.end()
      stdout.destroy()
      stderr.destroy()
      child.unref()
    },
  }
}
