import { accessSync, constants } from 'node:fs'
import { join } from 'node:path'

/** Where programs of this machine are looked for. */
export const programPath = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

/** Whether a file is there and may be started. */
export const isProgram = (path: string): boolean => {
  try {
    accessSync(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}

/** Whether a folder of a search path has the program. */
export const hasProgram = (name: string, path: string = programPath): boolean =>
  path.split(':').some((folder) => isProgram(join(folder, name)))
