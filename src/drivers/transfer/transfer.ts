import { z } from 'zod'
import type { Traffic } from './carry.ts'
import {
  copy,
  differenceFromManifest,
  discard,
  listTree,
  NoWayError,
  prepare,
  type Door,
  type Place,
  type Prepared,
  type Route,
} from './copy.ts'
import { choose, sharedPath, transferStrategies, type EdgeFacts, type Mount, type TransferStrategy } from './strategy.ts'
import { contentBytes, differenceBetween, fileCount, type Tree } from './tree.ts'

/** One side of a transfer: how it is reached, and what is known about where it is. */
export interface End extends Place {
  /** The machine, where two sites may be one (`local@a` and a connection to `a`). */
  host?: string
  /** Storages that the runtime's binding names, with the absolute path under which the site sees them. */
  mounts: readonly Mount[]
  /** Other sites that this one may reach by itself, for copies that do not pass through us. */
  reach?: readonly Reach[]
}

export interface Reach extends Door {
  /** The other site. */
  site: string
}

export interface TransferRequest {
  /** Deterministic: the same files to the same place have the same name, in whatever process. For messages and logs. */
  name: string
  from: End
  to: End
  /** `directory` is absolute at `from`; `paths` are relative to it and bring whole trees; absent: everything below. */
  source: { directory: string; paths?: readonly string[] }
  /** Absolute at `to`. Built beside its place and renamed into it when every digest is right. */
  directory: string
  /** Who made the files, for messages. */
  label: string
  /** Whose transfer it is. What it moved is written down beside the files, so that whoever finds them whole later can say it (`movedFor`). */
  for?: string
  signal?: AbortSignal
  limits?: Partial<TransferLimits>
}

export interface TransferLimits {
  /** Streams at once in one transfer. */
  streams: number
  /** No byte for so long, and the link counts as lost. Default 60 s. */
  stallMs: number
}

export interface TransferOutcome {
  strategy: TransferStrategy
  /** Why this one, and why none of those before it. */
  reason: string
  /** Where the files are at the target: `directory`, or where they were already. */
  directory: string
  /** Content of all files. */
  bytes: number
  /** What left the source, with packing and with what was sent twice; of direct copies the content. */
  networkBytes: number
  /** Regular files and symbolic links. */
  files: number
  /** Seconds since epoch, by this machine's clock. */
  startedAt: number
  finishedAt: number
  /** Something of an earlier attempt was kept. */
  resumed: boolean
  /**
   * `for` of the transfer that moved the files, this one or an earlier one that found its end unheard: strategy, amounts and times are that
   * transfer's. Absent where nothing moved, or where nobody was named.
   */
  movedFor?: string
  verified: true
}

const defaults: TransferLimits = { streams: 4, stallMs: 60_000 }

/** What is kept beside the files about the transfer that brought them. */
const Note = z.object({
  movedFor: z.string(),
  strategy: z.enum(transferStrategies),
  reason: z.string(),
  bytes: z.number(),
  networkBytes: z.number(),
  files: z.number(),
  startedAt: z.number(),
  finishedAt: z.number(),
})

/** The files as the target sees them are those of the source, by names, kinds and sizes; else why not. */
const differenceThere = async (to: End, directory: string, tree: Tree, request: TransferRequest): Promise<string | undefined> => {
  try {
    return differenceBetween(tree, await listTree(to, directory, request.source.paths, request.label))
  } catch (error) {
    if (error instanceof Error && 'trouble' in error && error.trouble !== 'unknown') return error.message
    throw error
  }
}

/**
 * Brings files from one site to another, or finds that nothing has to move.
 *
 * Doing it again, in any process and after a cut at any point, goes on with what is at the target. Nothing is visible under
 * `directory` before every file there has the SHA-256 that it has at the source. Names, modes, times (whole seconds) and links are
 * kept; hard links become copies.
 *
 * @throws DriverError `unknown` when a site cannot be reached (ask again: it goes on), `user` for links to the outside and undelivered
 * paths, `refused` for a source that is not there, `infrastructure` with the site's words for a full or broken disk.
 */
export const transfer = async (request: TransferRequest): Promise<TransferOutcome> => {
  const { from, to, source, directory, label } = request
  const limits = { ...defaults, ...request.limits }
  const startedAt = Date.now() / 1000
  let networkBytes = 0
  const traffic: Traffic = { signal: request.signal, stallMs: limits.stallMs, moved: (bytes) => (networkBytes += bytes) }
  const failed = new Map<TransferStrategy, string>()
  let resumed = false
  let tried = false

  const outcome = (strategy: TransferStrategy, reason: string, tree: Tree, at: string): TransferOutcome => ({
    ...{ strategy, reason, directory: at, bytes: contentBytes(tree), networkBytes, files: fileCount(tree) },
    ...{ startedAt, finishedAt: Date.now() / 1000, resumed, verified: true },
  })

  const listing = listTree(from, source.directory, source.paths, label)
  // Files that are there already need no source.
  listing.catch(() => undefined)

  const mayGo = (end: End, other: End): Door | undefined => end.reach?.find(({ site }) => site === other.site)
  const [push, pull] = [mayGo(from, to), mayGo(to, from)]
  const shared = sharedPath(source.directory, from.mounts, to.mounts)
  const sameMachine = from.site === to.site || (from.host !== undefined && from.host === to.host)
  const facts = (bytes: number): EdgeFacts => ({ shared, sameMachine, mayPush: push !== undefined, mayPull: pull !== undefined, bytes })

  /** Asks once what is at the target. What is whole there is verified, and thrown away when it has changed. */
  let prepared: Prepared | undefined
  const existing = async (): Promise<TransferOutcome | undefined> => {
    prepared = await prepare(to, directory, label)
    if (prepared.state !== 'existing') {
      failed.set('use-existing', 'nothing whole is there')
      return undefined
    }
    const difference = await differenceFromManifest(to, directory, prepared, traffic)
    failed.delete('use-existing')
    const { strategy, reason } = choose(facts(0), failed)
    if (difference === undefined) {
      const note = Note.safeParse(prepared.note)
      return { ...outcome(strategy, reason, prepared.tree, directory), ...(note.success ? note.data : {}) }
    }
    failed.set('use-existing', `what was there had changed: ${difference}`)
    await discard(to, directory)
    prepared = undefined
    return undefined
  }

  // Where nothing has to move nothing is looked for, and nothing prepared.
  const found = shared === undefined && !sameMachine ? await existing() : void failed.set('use-existing', 'the files need not be brought')
  if (found !== undefined) return found

  const tree = await listing
  for (;;) {
    const { strategy, reason } = choose(facts(contentBytes(tree)), failed)
    if (strategy === 'shared-storage' || strategy === 'runtime-local') {
      const at = strategy === 'shared-storage' && shared !== undefined ? shared.path : source.directory
      const difference = await differenceThere(to, at, tree, request)
      if (difference === undefined) return outcome(strategy, reason, tree, at)
      failed.set(strategy, `the target does not see the same files at ${at}: ${difference}`)
    } else {
      const appeared = prepared === undefined ? await existing() : undefined
      if (appeared !== undefined) return appeared
      if (prepared === undefined || prepared.state === 'existing') continue
      const direct = (
        [
          ['source-push', push],
          ['destination-pull', pull],
        ] as const
      ).find(([by]) => by === strategy)
      const route: Route = direct?.[1] === undefined ? { by: 'gateway' } : { by: direct[0], door: direct[1] }
      const own = (): Partial<TransferOutcome> => (request.for === undefined ? {} : { movedFor: request.for })
      try {
        const done = await copy({
          from,
          to,
          source: source.directory,
          tree,
          directory,
          label,
          route,
          streams: limits.streams,
          traffic,
          prepared,
          note: () => (request.for === undefined ? undefined : { ...outcome(strategy, reason, tree, directory), ...own() }),
        })
        // What a direct way brought before it failed is of this very attempt.
        resumed = done.resumed && !tried
        return { ...outcome(strategy, reason, tree, directory), ...own() }
      } catch (error) {
        if (!(error instanceof NoWayError)) throw error
        failed.set(strategy, error.message)
        tried = true
        prepared = undefined
      }
    }
  }
}
