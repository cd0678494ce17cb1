import { posix } from 'node:path'
import { LinkError } from '../../../shell/site-shell.ts'
import type { Intent, RuntimeDriver } from './driver.ts'
import { asDriverError } from './results.ts'

/** A driver that knows the absolute path of its files at its site, from the first contact on. */
export interface RootedDriver extends RuntimeDriver {
  readonly root: () => Promise<string>
}

/**
 * A driver whose intents hold paths below the site's root (which only the site knows): the paths
 * become absolute at the submit. `rootOf` gives the root of another site, for files that are staged
 * from there. A site that does not answer rejects the submit with class `unknown`.
 */
export const withRoots = (
  driver: RuntimeDriver,
  ownRoot: () => Promise<string>,
  rootOf: (site: string) => Promise<string>,
): RuntimeDriver => {
  const absolute = (root: string, path: string): string =>
    posix.isAbsolute(path) ? path : posix.join(root, path)
  const resolve = async (intent: Intent, own: string): Promise<Intent> => {
    const directory = absolute(own, intent.directory)
    const stage = await Promise.all(
      intent.stage.map(async (entry) => ({
        ...entry,
        from: absolute(
          entry.at === undefined || posix.isAbsolute(entry.from) ? own : await rootOf(entry.at),
          entry.from,
        ),
      })),
    )
    const paths = Object.entries(intent.pathVariables ?? {}).map(
      ([name, path]) => [name, posix.join(directory, path)] as const,
    )
    return {
      ...intent,
      directory,
      stage,
      environment: { ...intent.environment, ...Object.fromEntries(paths) },
      pathVariables: {},
    }
  }
  return {
    ...driver,
    async submit(intents) {
      try {
        const own = await ownRoot()
        return await driver.submit(await Promise.all(intents.map((intent) => resolve(intent, own))))
      } catch (error) {
        throw error instanceof LinkError ? asDriverError(error) : error
      }
    },
  }
}
