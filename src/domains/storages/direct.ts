import type { Door } from '../../drivers/transfer/copy.ts'
import { choose, type TransferStrategy } from '../../drivers/transfer/strategy.ts'
import type { CopyWay } from './schemas.ts'

/**
 * A smaller file comes sooner through the open sessions, which several files share: a direct one
 * needs a login of its own (0.2 to 0.5 s) and is read once more for its digests. Files up to this
 * size also go in packs.
 */
const directBytes = 8 * 1024 * 1024

/** What a copy between two logins may use. */
export interface DirectFacts {
  /** Ways from the source's site to the destination's, and back. */
  push?: Door | undefined
  pull?: Door | undefined
  /** Why neither is used, whatever the connections allow. */
  obstacle?: string | undefined
}

/** A way from site to site. */
export interface DirectWay {
  by: 'source-push' | 'destination-pull'
  door: Door
}

/** The ways of the files of a copy between two logins, until the end of one activity. */
export interface Direct {
  /** The way of a file of this size now; undefined: through this process. */
  wayOf: (bytes: number) => DirectWay | undefined
  /** Its name, and why it is the best one. */
  routeOf: (bytes: number) => CopyWay
  /** A way does not work: it is not tried again. */
  fail: (way: DirectWay, reason: string) => void
}

export const openDirect = ({ push, pull, obstacle }: DirectFacts): Direct => {
  const doors = { 'source-push': push, 'destination-pull': pull }
  const names = ['source-push', 'destination-pull', 'gateway'] as const
  const failed = new Map<TransferStrategy, string>()
  if (obstacle !== undefined) for (const name of names) if (name !== 'gateway') failed.set(name, obstacle)
  const routeOf = (bytes: number): CopyWay =>
    choose(
      {
        ...{ shared: undefined, sameMachine: false, bytes, directFrom: directBytes },
        ...{ mayPush: push !== undefined, mayPull: pull !== undefined },
      },
      failed,
      names,
    )
  return {
    routeOf,
    wayOf: (bytes) => {
      const by = routeOf(bytes).strategy
      const door = by === 'gateway' ? undefined : doors[by]
      return by === 'gateway' || door === undefined ? undefined : { by, door }
    },
    fail: ({ by }, reason) => void failed.set(by, reason),
  }
}
