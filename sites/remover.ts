import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'

const script = readFileSync(new URL('./remover.sh', import.meta.url), 'utf8')

export interface RemoverOptions {
  /**
   * `clear()` ends the remaining processes: those that name the folder in their arguments or their
   * environment, or work below it. After the owner was killed they end ten seconds later.
   */
  processes?: boolean
  /**
   * Of these processes, those with this text in their command line end at once, because they would
   * start others.
   */
  spawner?: string
}

/**
 * Removes a folder, and all mounts below it, when `leave()` is called or when this process ends, in
 * any way: a shell that outlives the process removes it. `clear()` does the same as `leave()`, and
 * ends the remaining processes of `processes` first. Both resolve when the folder is gone; they may
 * be called again.
 */
export const removeAtEnd = (
  folder: string,
  { processes = false, spawner = '' }: RemoverOptions = {},
): { leave(): Promise<void>; clear(): Promise<void> } => {
  const remover = spawn(
    '/bin/sh',
    ['-c', script, 'orrery-remover', folder, ...(processes ? ['with-processes', spawner] : [])],
    {
      cwd: '/',
      detached: true,
      // This process's own environment may name the folder of another remover, which would then end
      // this shell.
      env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' },
      stdio: ['pipe', 'ignore', 'ignore'],
    },
  )
  const ended = new Promise<void>((resolve) => remover.once('exit', () => resolve()))
  remover.stdin.on('error', () => undefined)
  const tell = async (line: 'leave' | 'clear'): Promise<void> => {
    if (!remover.stdin.writableEnded) remover.stdin.end(`${line}\n`)
    await ended
  }
  return { leave: () => tell('leave'), clear: () => tell('clear') }
}
