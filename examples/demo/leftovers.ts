import { readdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { endProcesses, identify, type ProcessIdentity } from '../../src/embedded/processes.ts'

/** Tasks of a service that ended without its executor: their home is their work directory, which nothing else has. */
export const tasksOf = (dataDir: string): ProcessIdentity[] => {
  const home = `\0HOME=${path.join(dataDir, 'work')}/`
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && environmentOf(name).includes(home))
    .map((name) => identify(Number(name)))
    .filter((found) => found !== undefined)
}

/** Ends them: a task whose run is cancelled is ended by the service, so this is for a service that was ended by force. */
export const endTasks = (dataDir: string): Promise<void> => endProcesses(() => tasksOf(dataDir), 'SIGTERM', 1)

/** Processes come and go while they are looked at, and those of other users are closed to us: both read as nothing. */
const environmentOf = (pid: string): string => {
  try {
    return `\0${readFileSync(`/proc/${pid}/environ`, 'latin1')}`
  } catch {
    return ''
  }
}
