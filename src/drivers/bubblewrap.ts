import { spawn, type ChildProcess } from 'node:child_process'
import type { Readable, Writable } from 'node:stream'
import { hasStreams, noStreamsText } from '../shell/has-streams.ts'
import { programPath } from './machine-programs.ts'

interface Options {
  /** Texts for the file descriptors from 3 on, in their order: none of them is on this machine's disk. */
  contents?: readonly string[]
  input?: 'ignore' | 'pipe'
  /** Where `bwrap` is looked for. */
  path?: string
  signal?: AbortSignal
  /** The sandbox is ended after this long. */
  timeoutMs?: number
}

/**
 * Starts bubblewrap with these words. A kill of the child ends every process in the sandbox.
 *
 * It has a process group of its own: `--die-with-parent` is in force once the sandbox is up, and a
 * process that waits for a bubblewrap that was killed before would stay, with the output open.
 */
export const startBubblewrap = (
  words: readonly string[],
  { contents = [], input = 'ignore', path = programPath, signal, timeoutMs }: Options = {},
): ChildProcess & { stdout: Readable; stderr: Readable } => {
  const child = spawn('bwrap', words, {
    stdio: [input, 'pipe', 'pipe', ...contents.map(() => 'pipe' as const)],
    ...{ cwd: '/', env: { PATH: path }, detached: true, killSignal: 'SIGKILL' },
    ...(signal === undefined ? {} : { signal }),
    ...(timeoutMs === undefined ? {} : { timeout: timeoutMs }),
  }) as ChildProcess & { stdout: Readable; stderr: Readable }
  if (!hasStreams(child)) throw new Error(`bwrap cannot be started: ${noStreamsText}`)
  child.once('exit', () => {
    try {
      process.kill(-(child.pid as number), 'SIGKILL')
    } catch {
      // The group is empty.
    }
  })
  contents.forEach((content, at) => {
    const pipe = child.stdio[3 + at] as Writable
    // Where the sandbox does not come up, its end says why.
    pipe.on('error', () => undefined)
    pipe.end(content)
  })
  return child
}
