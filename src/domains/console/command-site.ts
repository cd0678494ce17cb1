import type { RuntimeDriver } from '../../drivers/runtime/contract/driver.ts'
import { withRoots } from '../../drivers/runtime/contract/rooted.ts'
import type { SiteDrivers } from '../../executor/drivers.ts'
import type { Place } from '../../executor/sites.ts'

export interface CommandSiteParts {
  sites: Pick<SiteDrivers, 'at'>
  hostId: string
}

/** Seconds between the request to end and the end by force. */
export const cancelGraceSeconds = 5

/** The name of a command at its site. */
export const commandName = (id: string): string => `console-${id}`

export const commandDriver = ({ sites, hostId }: CommandSiteParts, place: Place): RuntimeDriver => {
  const { driver, root } = sites.at(place, { hostId, runtimes: [], resources: [], runtimeBindings: [] })
  return withRoots(driver, root, root)
}

/**
 * Ends a command where it still runs, and removes its folder. May be repeated. @throws Error where
 * the site cannot be reached, or the command still runs
 */
export const clearLeftCommand = async (
  parts: CommandSiteParts,
  { id, place }: { id: string; place: Place },
): Promise<void> => {
  const driver = commandDriver(parts, place)
  const name = commandName(id)
  await driver.cancel([name], cancelGraceSeconds)
  const state = (await driver.find([name])).get(name)
  if (state?.state === 'running' || state?.state === 'queued')
    throw new Error(`console command ${id} still runs at its site`)
  await driver.remove(name)
}
