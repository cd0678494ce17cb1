import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'

/** A command in a terminal of its own. */
export interface Terminal {
  child: ChildProcess
  /** What stood on the screen so far. */
  screen: () => string
  type: (keys: string) => void
  /** As when a window is closed: the kernel hangs up on the session. */
  close: () => void
  ended: Promise<unknown>
}

export const ctrlC = '\u0003'

/** Starts a command of the shell in a terminal, by util-linux's `script`. */
export const openTerminal = (
  command: string,
  environment: Record<string, string>,
  folder = '/',
): Terminal => {
  const child = spawn('script', ['--quiet', '--flush', '--return', '--command', command, '/dev/null'], {
    cwd: folder,
    env: { TERM: 'dumb', SHELL: '/bin/sh', ...environment },
    stdio: ['pipe', 'pipe', 'pipe'],
  })
  let text = ''
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (chunk: Buffer) => (text += chunk.toString()))
  child.stdin.on('error', () => undefined)
  return {
    child,
    screen: () => text,
    type: (keys) => child.stdin.write(keys),
    close: () => child.kill('SIGKILL'),
    ended: new Promise((resolve) => child.once('exit', resolve)),
  }
}
