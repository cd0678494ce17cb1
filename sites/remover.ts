import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'

const script = readFileSync(new URL('./remover.sh', import.meta.url), 'utf8')

export interface RemoverOptions {
  /**
   * Where the owner was killed, ends what is left in the folder ten seconds later: processes that name the folder in their arguments
   * or their environment, or work below it.
   */
  processes?: boolean
  /** Of these processes, those with this text in their command line end at once, because they would start others. */
  spawner?: string
}

/**
 * Removes a folder, and what is mounted there, when `leave()` is called or when this process ends, however it ends: a shell that outlives
 * it does so. `leave()` resolves when the folder is gone; it may be called again.
 */
export const removeAtEnd = (folder: string, { processes = false, spawner = '' }: RemoverOptions = {}): { leave(): Promise<void> } => {
  const remover = spawn('/bin/sh', ['-c', script, 'orrery-remover', folder, ...(processes ? ['with-processes', spawner] : [])], {
    cwd: '/',
    detached: true,
    // Our own environment may name the folder of another remover, which would then end this one.
    env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' },
    stdio: ['pipe', 'ignore', 'ignore'],
  })
  const ended = new Promise<void>((resolve) => remover.once('exit', () => resolve()))
  remover.stdin.on('error', () => undefined)
  return {
    leave: async () => {
      if (!remover.stdin.writableEnded) remover.stdin.end('leave\n')
      await ended
    },
  }
}
