import { EventEmitter } from 'node:events'
import { PassThrough, type Readable } from 'node:stream'
import { leftOf, orAfter } from '../pacing/within.ts'
import { collectOutput, LastBytes } from '../shell/outputs.ts'
import { evaluated, withLastLine } from '../shell/program.ts'
import {
  LinkError,
  runDefaults,
  type RunOptions,
  type ShellResult,
  type ShellStream,
  type SiteShell,
} from '../shell/site-shell.ts'
import type { ExecChannel } from './kubernetes-exec.ts'
import { KubernetesError } from './kubernetes.ts'
import { fedInput, Resident, type ResidentChannel } from './ssh/resident.ts'

export interface PodShellOptions {
  /** Runs a command in the container of the shell, in whichever pod that is now. */
  exec: (command: readonly string[], deadlineMs: number) => Promise<ExecChannel>
}

const residentShells = 3
/** bash reads its input byte by byte, 1 µs each. */
const longestForResident = { bash: 64 * 1024, other: 512 * 1024 }
const longestHeader = 64

/**
 * Prints its process id, reads a script of so many bytes from its input, and leaves the rest of the
 * input to the script. `dd` takes exactly those bytes; `head` of busybox would take more.
 */
const readScript = `echo "$$"; IFS= read -r n; ${evaluated('dd bs="$n" count=1 iflag=fullblock 2>/dev/null')}`

/** An error of the cluster as the error of a link; others as they are. */
export const linkErrorOf = (error: unknown): Error => {
  if (!(error instanceof KubernetesError)) return error instanceof Error ? error : new Error(String(error))
  const permanent = error.permanent || error.status === 401 || error.status === 403
  return new LinkError(
    error.stage === 'login' && error.status === undefined ? 'link' : error.stage,
    error.message,
    {
      cause: error,
      permanent,
    },
  )
}

/** The part of a channel that a resident shell needs. */
const channelOf = (exec: ExecChannel): ResidentChannel => {
  const channel = Object.assign(new EventEmitter(), {
    stderr: exec.stderr,
    write: (text: string) => exec.stdin.write(text),
    signal: () => undefined,
    close: () => exec.close(),
  })
  exec.stdout.on('data', (bytes: Buffer) => channel.emit('data', bytes))
  exec.done.then(
    (code) => channel.emit('close', code),
    () => channel.emit('close'),
  )
  return channel
}

/** Takes one line off a stream of bytes; the rest goes on in the stream that is returned. */
const firstLine = (
  stream: Readable,
  deadlineMs: number,
  done: Promise<number>,
): Promise<{ line: string; rest: PassThrough }> =>
  new Promise((resolve, reject) => {
    let head = Buffer.alloc(0)
    const fail = (error: unknown): void => {
      clearTimeout(timer)
      reject(linkErrorOf(error))
    }
    const timer = setTimeout(
      () => fail(new LinkError('shell', `no shell in the Pod within ${deadlineMs / 1000} s`)),
      deadlineMs,
    )
    const take = (bytes: Buffer): void => {
      head = Buffer.concat([head, bytes])
      const end = head.indexOf(10)
      if (end < 0) {
        if (head.length > longestHeader)
          fail(
            new LinkError('shell', `the shell in the Pod answers ${JSON.stringify(head.toString('latin1'))}`),
          )
        return
      }
      clearTimeout(timer)
      stream.off('data', take)
      const rest = new PassThrough({ highWaterMark: 1024 * 1024 })
      if (end + 1 < head.length) rest.write(head.subarray(end + 1))
      stream.pipe(rest)
      resolve({ line: head.toString('latin1', 0, end), rest })
    }
    stream.on('data', take)
    done.then(
      (code) => fail(new LinkError('shell', `the shell in the Pod ended at once (exit code ${code})`)),
      (error: unknown) => fail(error),
    )
  })

/**
 * A `SiteShell` in a container. Scripts run in up to three resident shells, each with a WebSocket
 * that stays open: 2 ms a script, against 40 for a WebSocket of its own. Scripts with large input,
 * and streams, have a WebSocket of their own.
 */
export function openPodShell({ exec }: PodShellOptions): SiteShell {
  let residents: Resident[] = []
  let opening = 0
  let bash = false
  let closed = false
  const waiting: (() => void)[] = []
  const streams = new Set<ExecChannel>()

  const next = (): void => waiting.shift()?.()
  const open = async (command: readonly string[], until: number): Promise<ExecChannel> => {
    if (closed) throw new LinkError('link', 'the shell was closed')
    return exec(command, Math.max(1000, until - performance.now())).catch((error: unknown) => {
      throw linkErrorOf(error)
    })
  }
  const endGroup = (pid: string): void => {
    if (pid === '' || closed) return
    run(`kill -s KILL -- -${pid} 2>/dev/null || kill -s KILL ${pid} 2>/dev/null`, {
      deadlineMs: 20_000,
    }).catch(() => undefined)
  }

  const openResident = async (until: number): Promise<void> => {
    opening++
    try {
      const resident = new Resident(channelOf(await open(['/bin/sh'], until)))
      try {
        await resident.greet(Math.max(1000, until - performance.now()))
      } catch (error) {
        resident.close()
        throw error
      }
      bash ||= resident.bash
      resident.onEnd = () => {
        residents = residents.filter((one) => one !== resident)
        next()
      }
      resident.onLeft = () => endGroup(resident.pid)
      residents.push(resident)
    } finally {
      opening--
    }
  }

  /** Gives work to a resident shell in the same turn in which it was found idle. */
  const onResident = async <T>(until: number, use: (resident: Resident) => Promise<T>): Promise<T> => {
    for (;;) {
      const idle = residents.find((resident) => resident.idle)
      if (idle !== undefined) return use(idle).finally(next)
      if (residents.length + opening < residentShells) {
        await openResident(until)
        continue
      }
      const left = until - performance.now()
      if (left <= 0) throw new LinkError('link', 'no shell in the Pod was free before the deadline')
      const freed = new Promise<void>((resolve) => waiting.push(resolve))
      await orAfter(freed, Math.min(left, 1000), undefined)
    }
  }

  async function run(script: string, options: RunOptions = {}): Promise<ShellResult> {
    const { deadlineMs = runDefaults.deadlineMs, maxBytes = runDefaults.maxBytes } = options
    const until = performance.now() + deadlineMs
    const input = fedInput(options.input)
    if (input !== false && script.length <= (bash ? longestForResident.bash : longestForResident.other))
      return onResident(until, (resident) => resident.run(script, input, leftOf(until), maxBytes))
    const stream = await openStream(script, until)
    return collectOutput(stream, { ...options, deadlineMs: leftOf(until) })
  }

  const openStream = async (script: string, until: number): Promise<ShellStream> => {
    const channel = await open(['/bin/sh', '-c', readScript], until)
    streams.add(channel)
    const lastError = new LastBytes()
    channel.stderr.on('data', (bytes: Buffer) => lastError.add(bytes))
    void channel.done.catch(() => undefined).then(() => streams.delete(channel))
    try {
      const text = Buffer.from(withLastLine(script))
      channel.stdin.write(`${text.length}\n`)
      channel.stdin.write(text)
      const { line: pid, rest } = await firstLine(
        channel.stdout,
        Math.max(1000, until - performance.now()),
        channel.done,
      )
      const ended = new Promise<void>((resolve) => rest.once('close', resolve).once('end', resolve))
      const done = channel.done.then(
        async (code) => {
          if (!rest.readableFlowing && rest.readableLength > 0) await ended
          return { code, signal: null, stderr: lastError.toString() }
        },
        (error: unknown) => {
          rest.destroy()
          throw linkErrorOf(error)
        },
      )
      done.catch(() => undefined)
      let killed = false
      return {
        stdin: channel.stdin,
        stdout: rest,
        done,
        kill() {
          if (killed) return
          killed = true
          rest.destroy()
          channel.close()
          endGroup(/^\d+$/.test(pid) ? pid : '')
        },
      }
    } catch (error) {
      channel.close()
      throw error
    }
  }

  return {
    run,
    open: (script) => openStream(script, performance.now() + runDefaults.deadlineMs),
    async close() {
      closed = true
      for (const resident of residents) resident.close()
      for (const stream of streams) stream.close()
    },
  }
}
