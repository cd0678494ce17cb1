import { posix } from 'node:path'

/** How the files of one producer reach the site of a consumer; the earlier, the better. */
export const transferStrategies = [
  /**
   * The files are there already, with the same digests: brought for another consumer, or by an
   * attempt before a crash.
   */
  'use-existing',
  /** Both sites name a storage that holds the directory: the consumer reads it in place. */
  'shared-storage',
  /** One machine and one file system. */
  'runtime-local',
  /** The source's machine sends straight to the target's. */
  'source-push',
  /** The target's machine fetches straight from the source's. */
  'destination-pull',
  /** Streams through this process, never through its disk. */
  'gateway',
] as const
export type TransferStrategy = (typeof transferStrategies)[number]

export interface Mount {
  storageId: string
  /** Absolute, in the storage's mount at its site. */
  path: string
}

/** The facts about an edge before any try. */
export interface EdgeFacts {
  /**
   * The storage that holds the directory, if both sites name it, and the directory's path at the
   * target.
   */
  shared: { storageId: string; path: string } | undefined
  sameMachine: boolean
  /** Whether the source may reach the target by itself, and the other way round. */
  mayPush: boolean
  mayPull: boolean
  bytes: number
  /** Bytes from which on a direct way is the faster one; default `directFrom`. */
  directFrom?: number
}

export interface Choice<Strategy extends TransferStrategy = TransferStrategy> {
  strategy: Strategy
  /** Why this one was chosen, then why none of the better ones. */
  reason: string
}

/**
 * A smaller direct copy is slower than one through the open sessions: it has to log in first (0.2
 * to 0.5 s).
 */
export const directFrom = 32 * 1024 * 1024

const mebibytes = (bytes: number): string =>
  `${(bytes / 1024 / 1024).toFixed(bytes < 10 * 1024 * 1024 ? 1 : 0)} MiB`

/** Why a strategy is impossible; undefined: it may be tried. */
const obstacles: Record<TransferStrategy, (facts: EdgeFacts) => string | undefined> = {
  'use-existing': () => undefined,
  'shared-storage': ({ shared }) =>
    shared === undefined ? 'no storage that both sites name holds the directory' : undefined,
  'runtime-local': ({ sameMachine }) => (sameMachine ? undefined : 'the sites are different machines'),
  'source-push': ({ mayPush, ...facts }) => direct(mayPush, 'the source', facts),
  'destination-pull': ({ mayPull, ...facts }) => direct(mayPull, 'the target', facts),
  gateway: () => undefined,
}

const direct = (
  may: boolean,
  who: string,
  { bytes, directFrom: least = directFrom }: Pick<EdgeFacts, 'bytes' | 'directFrom'>,
): string | undefined => {
  if (!may) return `${who} may not reach the other site by itself`
  return bytes < least
    ? `${mebibytes(bytes)} come sooner through the open sessions than by a login of their own`
    : undefined
}

const reasons: Record<TransferStrategy, (facts: EdgeFacts) => string> = {
  'use-existing': () => 'the same files, with the same digests, are there',
  'shared-storage': ({ shared }) =>
    `both sites name storage ${shared?.storageId ?? ''}, which holds the directory`,
  'runtime-local': () => 'both sites are one machine',
  'source-push': () => 'the source may reach the target by itself',
  'destination-pull': () => 'the target may reach the source by itself',
  gateway: () => 'both sites can be reached from here',
}

/**
 * The best strategy, of those that come into question, that is possible and has not failed.
 * `failed` gives, for each that was tried, the reason of its failure.
 */
export const choose = <Strategy extends TransferStrategy = TransferStrategy>(
  facts: EdgeFacts,
  failed: ReadonlyMap<TransferStrategy, string>,
  strategies: readonly Strategy[] = transferStrategies as readonly TransferStrategy[] as readonly Strategy[],
): Choice<Strategy> => {
  const against: string[] = []
  for (const strategy of strategies) {
    const obstacle = failed.get(strategy) ?? obstacles[strategy](facts)
    if (obstacle === undefined || strategy === 'gateway')
      return {
        strategy,
        reason: [reasons[strategy](facts), ...against.map((reason) => `not ${reason}`)].join('; '),
      }
    against.push(`${strategy}: ${obstacle}`)
  }
  throw new RangeError('a list of strategies ends with gateway')
}

/** The path of `directory` at the target: by the longest path of a storage that both name. */
export const sharedPath = (
  directory: string,
  from: readonly Mount[],
  to: readonly Mount[],
): EdgeFacts['shared'] => {
  let best: { depth: number; storageId: string; path: string } | undefined
  for (const mount of from) {
    const inside = posix.relative(mount.path, directory)
    if (inside === '..' || inside.startsWith('../') || posix.isAbsolute(inside)) continue
    const other = to.find(({ storageId }) => storageId === mount.storageId)
    if (other === undefined || (best !== undefined && best.depth >= mount.path.length)) continue
    best = { depth: mount.path.length, storageId: mount.storageId, path: posix.join(other.path, inside) }
  }
  return best === undefined ? undefined : { storageId: best.storageId, path: best.path }
}
