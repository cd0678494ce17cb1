import { readFileSync } from 'node:fs'
import { isAbsolute } from 'node:path'

/**
 * Named places in the engine at which a fault test kills the process: `intended-not-started=3` ends
 * it with SIGKILL at the third pass. A setting that is an absolute path names a file, which is read
 * as soon as it exists, so that a test can set places in a running process. Without a setting a
 * place costs one look-up in an empty map.
 */
export const openFailpoints = (setting: string | undefined): ((name: string) => void) => {
  let left = setting !== undefined && isAbsolute(setting) ? undefined : timesOf(setting ?? '')
  return (name) => {
    left ??= timesIn(setting ?? '')
    const count = left?.get(name)
    if (left === undefined || count === undefined) return
    if (count <= 1) process.kill(process.pid, 'SIGKILL')
    left.set(name, count - 1)
  }
}

/** The remaining passes of each place. */
const timesOf = (setting: string): Map<string, number> =>
  new Map(
    setting
      .split(',')
      .filter((part) => part !== '')
      .map((part) => {
        const [name = '', count = '1'] = part.split('=')
        return [name, Number(count)] as const
      }),
  )

const timesIn = (file: string): Map<string, number> | undefined => {
  try {
    return timesOf(readFileSync(file, 'utf8').trim())
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
}
