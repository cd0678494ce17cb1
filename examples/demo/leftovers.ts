import { readdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { endProcesses, identify, type KnownProcess } from '../../src/embedded/processes.ts'

/**
 * Tasks of a service that ended without its executor. Their HOME is their work directory, and no
 * other process has that.
 */
export const tasksOf = (dataDir: string): KnownProcess[] => {
  const home = `\0HOME=${path.join(dataDir, 'work')}/`
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && environmentOf(name).includes(home))
    .map((name) => identify(Number(name)))
    .filter((found) => found !== undefined)
}

/**
 * Ends such tasks. The service ends the tasks of a cancelled run, so this serves only after a
 * service that was killed.
 */
export const endTasks = (dataDir: string): Promise<void> => endProcesses(() => tasksOf(dataDir), 'SIGTERM', 1)

/**
 * Processes end during the search, and those of other users are not readable. Both yield an empty
 * text.
 */
const environmentOf = (pid: string): string => {
  try {
    return `\0${readFileSync(`/proc/${pid}/environ`, 'latin1')}`
  } catch {
    return ''
  }
}
