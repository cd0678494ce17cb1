import { spawn, type ChildProcess } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { homedir, userInfo } from 'node:os'
import type { Readable, Writable } from 'node:stream'
import { hasStreams, noStreamsText } from './has-streams.ts'
import { collectOutput, LastBytes } from './outputs.ts'
import { evaluated, withLastLine } from './program.ts'
import { LinkError, type ShellStream, type SiteShell } from './site-shell.ts'

/** Linux allows 128 KiB for one argument; a longer script comes through a descriptor of its own. */
const longestArgument = 100 * 1024
const readScript = evaluated('cat <&3')

/**
 * File descriptors above 9 that this process was started with, and that its children would inherit:
 * `sh` cannot close those (POSIX has one-digit numbers only).
 */
function inherited(): string[] {
  const closedOnExec = 0o2000000
  return readdirSync('/proc/self/fd').filter((file) => {
    try {
      const [, flags = ''] = /^flags:\s*(\d+)/m.exec(readFileSync(`/proc/self/fdinfo/${file}`, 'utf8')) ?? []
      return Number(file) > 9 && (parseInt(flags, 8) & closedOnExec) === 0
    } catch {
      // The folder's own descriptor, closed by now.
      return false
    }
  })
}

/**
 * A site that is this machine: each script is a child process `/bin/sh` in a session of its own,
 * which ends with its deadline or with `close`; processes that a script detaches go on. Nothing is
 * inherited from this process: the environment is PATH, HOME, USER and LOGNAME of the account, and
 * `environment`.
 */
export function openLocalShell(options: { environment?: Readonly<Record<string, string>> } = {}): SiteShell {
  const { username } = userInfo()
  const env = {
    PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
    HOME: homedir(),
    USER: username,
    LOGNAME: username,
    ...options.environment,
  }
  // A pipe of Node is a socket. bash takes a socket for a remote login and reads the account's
  // start files.
  const closing = inherited().map((file) => `exec ${file}>&-;`)
  const shell =
    closing.length === 0
      ? ['/bin/sh', '-c']
      : ['/bin/bash', '--norc', '-c', `${closing.join(' ')} exec /bin/sh -c "$0"`]
  const children = new Set<ChildProcess>()
  let closed = false

  const end = (child: ChildProcess): void => {
    if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return
    try {
      process.kill(-child.pid, 'SIGKILL')
    } catch {
      // It has ended by itself.
    }
  }

  const start = (
    script: string,
  ): { child: ChildProcess; stdin: Writable; stdout: Readable; stderr: Readable } => {
    if (closed) throw new LinkError('shell', 'the shell of this machine is closed')
    const long = Buffer.byteLength(script) > longestArgument
    const [program = '', ...words] = shell
    const child = spawn(program, [...words, long ? readScript : script], {
      stdio: long ? ['pipe', 'pipe', 'pipe', 'pipe'] : ['pipe', 'pipe', 'pipe'],
      env,
      cwd: '/',
      detached: true,
    })
    if (!hasStreams(child)) throw new LinkError('shell', `cannot run /bin/sh: ${noStreamsText}`)
    const { stdin, stdout, stderr } = child
    if (stdin === null || stdout === null || stderr === null)
      throw new LinkError('shell', 'no pipes to /bin/sh')
    children.add(child)
    child.on('close', () => children.delete(child))
    // A script need not read its input, nor live until it is written: its exit code decides.
    stdin.on('error', () => undefined)
    const source = child.stdio[3] as Writable | undefined
    source?.on('error', () => undefined)
    source?.end(withLastLine(`exec 3<&-; ${script}`))
    return { child, stdin, stdout, stderr }
  }

  const open = (script: string): ShellStream => {
    const { child, stdin, stdout, stderr } = start(script)
    const lastError = new LastBytes()
    stderr.on('data', (bytes: Buffer) => lastError.add(bytes))
    const done = new Promise<{ code: number | null; signal: string | null; stderr: string }>(
      (resolve, reject) => {
        child.on('error', (error) =>
          reject(new LinkError('shell', `cannot run /bin/sh: ${error.message}`, { cause: error })),
        )
        child.on('close', (code, signal) => {
          if (closed) reject(new LinkError('link', 'the shell of this machine was closed'))
          else resolve({ code, signal, stderr: lastError.toString() })
        })
      },
    )
    // The rejection must not end a caller that does not read the result.
    done.catch(() => undefined)
    return {
      stdin,
      stdout,
      done,
      kill() {
        end(child)
        // Its detached processes may hold the pipes.
        stdout.destroy()
        stderr.destroy()
      },
    }
  }

  return {
    run: async (script, options = {}) => collectOutput(open(script), options),
    open: async (script) => open(script),
    async close() {
      closed = true
      const ends = [...children].map((child) => new Promise((resolve) => child.once('close', resolve)))
      for (const child of children) {
        end(child)
        for (const pipe of child.stdio) pipe?.destroy()
      }
      await Promise.all(ends)
    },
  }
}
