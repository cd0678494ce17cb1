import { existsSync, mkdirSync, readdirSync, readFileSync, readlinkSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import type { ContainerRequest, Intent, RuntimeDriver } from '../../src/drivers/runtime/contract/driver.ts'

/** A driver that puts every task into a container, for suites that know of none. */
export const inContainers = (driver: RuntimeDriver, container: ContainerRequest): RuntimeDriver => ({
  ...driver,
  submit: (intents) => driver.submit(intents.map((intent): Intent => ({ ...intent, container }))),
})

/** Makes a folder with the programs of this machine but one, for a PATH. */
export const programsWithout = (missing: string, folder: string): string => {
  mkdirSync(folder)
  for (const place of ['/usr/sbin', '/usr/bin'])
    for (const name of readdirSync(place))
      if (name !== missing && !existsSync(join(folder, name)))
        symlinkSync(join(place, name), join(folder, name))
  return folder
}

/**
 * Whether a process lives that has this number in a container, and works below a folder of ours.
 */
export const livesInside = (pid: number, folder: string): boolean =>
  readdirSync('/proc').some((entry) => {
    try {
      if (!/^\d+$/.test(entry)) return false
      const status = readFileSync(`/proc/${entry}/status`, 'latin1')
      const numbers = /^NSpid:\t(.*)$/m.exec(status)?.[1]?.split('\t') ?? []
      return (
        numbers.length > 1 &&
        Number(numbers.at(-1)) === pid &&
        !/^State:\t[ZX]/m.test(status) &&
        readlinkSync(`/proc/${entry}/cwd`).startsWith(folder)
      )
    } catch {
      // It has ended.
      return false
    }
  })
