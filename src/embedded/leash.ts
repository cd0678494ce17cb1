import { spawn } from 'node:child_process'
import { openSync, closeSync } from 'node:fs'
import { finished } from 'node:stream/promises'
import { poll } from '../pacing/poll.ts'
import { identify, stillRuns, signalKnown, type KnownProcess } from './processes.ts'

/**
 * A server that ends with this process, even when this process is killed: a small shell between
 * them holds a pipe. When the pipe closes, by a call or by the end of this process, the shell sends
 * the server the signal `soft` and, after `patience` seconds, SIGKILL.
 *
 * The kernel's signal at the end of a parent (PR_SET_PDEATHSIG) would need no shell. It is one
 * signal only, and the kernel clears it when the server changes its user.
 */
const script = `
soft=$1 patience=$2; shift 2
exec 4<&0 </dev/null
"$@" 3>&- 4<&- &
server=$!
echo "$server" >&3; exec 3>&-
(
  trap '' TERM INT HUP
  read -r _ <&4
  kill -s "$soft" "$server" 2>/dev/null
  tenths=$((patience * 10))
  while [ "$tenths" -gt 0 ] && kill -0 "$server" 2>/dev/null; do sleep 0.1; tenths=$((tenths - 1)); done
  kill -s KILL "$server" 2>/dev/null
) &
watcher=$!
exec 4<&-
wait "$server"; code=$?
kill -s KILL "$watcher"
exit "$code"
`

export interface LeashOptions {
  /** Absolute path of the program and its arguments. */
  command: readonly [string, ...string[]]
  /** The whole environment; nothing is inherited. */
  environment: Readonly<Record<string, string>>
  directory: string
  /**
   * The file for standard output and error, in append mode; this process opens it, so the server's
   * user needs no right to it.
   */
  logFile: string
  /** User of the server; this process' user when absent. */
  account?: { uid: number; gid: number } | undefined
  softSignal: 'INT' | 'TERM'
  patienceSeconds: number
}

export interface Leashed {
  /** The server itself, not the shell. */
  readonly process: KnownProcess
  /**
   * Resolves when the server has ended, with its exit code (128 + signal number when it was
   * killed). Never rejects.
   */
  readonly ended: Promise<number>
  /**
   * Asks the server to end, waits for it, ends it by force after the patience. No effect when it
   * has ended.
   */
  release(): Promise<void>
  /** Ends the server by force now. */
  kill(): void
}

/**
 * Starts a program that ends with this process. A program that cannot be executed ends with code 126
 * or 127. @throws Error when the shell cannot be started
 */
export const leash = async (options: LeashOptions): Promise<Leashed> => {
  const log = openSync(options.logFile, 'a', 0o600)
  const shell = spawn(
    '/bin/sh',
    ['-c', script, 'leash', options.softSignal, String(options.patienceSeconds), ...options.command],
    {
      cwd: options.directory,
      env: options.environment,
      // A session of its own: Ctrl-C in the terminal reaches only this process, which ends the
      // servers in order.
      detached: true,
      stdio: ['pipe', log, log, 'pipe'],
      ...options.account,
    },
  )
  closeSync(log)
  const exit = new Promise<number>((resolve, reject) => {
    shell.once('error', reject)
    shell.once('exit', (code) => {
      resolve(code ?? 137)
    })
  })
  const firstOutput = firstLine(shell.stdio[3] as NodeJS.ReadableStream)
  // The exit of a server that ends at once may be reported before the shell's output is read.
  const line = await Promise.race([firstOutput, exit.then(() => firstOutput)])
  if (line === '')
    throw new Error(`the shell around ${options.command[0]} ended before it started it: code ${await exit}`)
  // A server that has ended already leaves no identity; no process has these ticks.
  const server = identify(Number(line)) ?? { pid: Number(line), startTicks: -1 }
  // The shell may be killed alone; the server must not outlive the process that would report its
  // end.
  const ended = exit.then(async (code) => {
    signalKnown(server, 'SIGKILL')
    await poll(() => !stillRuns(server) || undefined, { everyMs: 10 })
    return code
  })
  const pipe = shell.stdin
  pipe?.on('error', () => {
    // The shell has ended first (EPIPE); its exit is reported.
  })
  return {
    process: server,
    ended,
    release: async () => {
      pipe?.end()
      await ended
    },
    kill: () => {
      signalKnown(server, 'SIGKILL')
    },
  }
}

const firstLine = async (stream: NodeJS.ReadableStream): Promise<string> => {
  let text = ''
  stream.on('data', (chunk: Buffer) => (text += chunk.toString()))
  await finished(stream)
  return text.trim()
}
