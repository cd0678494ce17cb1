import { z } from 'zod'
import type { Traffic } from './carry.ts'
import {
  copy,
  differenceFromManifest,
  discard,
  listTree,
  NoWayError,
  prepareTarget,
  type Door,
  type CopySite,
  type PreparedTarget,
  type CopyRoute,
} from './copy.ts'
import {
  choose,
  sharedPath,
  transferStrategies,
  type EdgeFacts,
  type Mount,
  type TransferStrategy,
} from './strategy.ts'
import type { Left } from '../runtime/contract/driver.ts'
import { contentBytes, differenceBetween, fileCount, type Brought, type Tree } from './tree.ts'

/** One side of a transfer: how it is reached, and its known places. */
export interface TransferSide extends CopySite {
  /** The machine, where two sites may be the same one (`local@a` and a connection to `a`). */
  host?: string
  /** Storages that the runtime's binding names, with their absolute mount paths at the site. */
  mounts: readonly Mount[]
  /**
   * Other sites that this one may reach by itself, for copies that do not pass through this
   * process.
   */
  reach?: readonly Reach[]
}

export interface Reach extends Door {
  /** The other site. */
  site: string
}

export interface TransferRequest {
  from: TransferSide
  to: TransferSide
  /**
   * `directory` is absolute at `from`; `paths` are relative to it and name whole trees; absent: all
   * files below.
   */
  source: { directory: string; paths?: readonly string[] }
  /** Absolute at `to`. Built beside its place and renamed into it when every digest is right. */
  directory: string
  /** The producer of the files, for messages. */
  label: string
  /**
   * The consumer that caused the transfer. The moved amounts are recorded beside the files, so that
   * a later finder of the whole can report them (`movedFor`).
   */
  for?: string
  signal?: AbortSignal
  limits?: Partial<TransferLimits>
}

export interface TransferLimits {
  /** Streams at once in one transfer. */
  streams: number
  /** A link without a byte for this long counts as lost. Default 60 s. */
  stallMs: number
}

export interface TransferOutcome {
  strategy: TransferStrategy
  /** Why this one was chosen, and why none of those before it. */
  reason: string
  /** Where the files are at the target: `directory`, or their place before. */
  directory: string
  /** Content of all files. */
  bytes: number
  /** Bytes that left the source, with packing and repeats; for direct copies the content. */
  networkBytes: number
  /** Regular files and symbolic links. */
  files: number
  /** Seconds since epoch, by this machine's clock. */
  startedAt: number
  finishedAt: number
  /** Links that led away, and were not copied; of many the first. */
  left?: readonly Left[] | undefined
  /** The transfer reused files of an earlier attempt. */
  resumed: boolean
  /**
   * `for` of the transfer that moved the files, this one or an earlier one whose end was not
   * reported: strategy, amounts and times are that transfer's. Absent where nothing moved, or where
   * no consumer was named.
   */
  movedFor?: string
  verified: true
}

const defaults: TransferLimits = { streams: 4, stallMs: 60_000 }

/** The record, beside the files, of the transfer that brought them. */
const Note = z.object({
  movedFor: z.string(),
  strategy: z.enum(transferStrategies),
  reason: z.string(),
  bytes: z.number(),
  networkBytes: z.number(),
  files: z.number(),
  startedAt: z.number(),
  finishedAt: z.number(),
  left: z.array(z.object({ path: z.string(), why: z.string() })).optional(),
})

/** Further ones are not named. */
const mostLeft = 100

/** The files of a request where they are at `from`. */
const stageOf = ({ directory, paths }: TransferRequest['source'], label: string, from: string) => ({
  ...{ from, madeAt: directory, label },
  ...(paths === undefined ? {} : { paths }),
})

/**
 * Whether the target's files are those of the source, by names, kinds and sizes; otherwise the
 * difference.
 */
const differenceThere = async (
  to: TransferSide,
  directory: string,
  tree: Tree,
  request: TransferRequest,
): Promise<string | undefined> => {
  try {
    const { source, label } = request
    const there = await listTree(to, stageOf(source, label, directory))
    return differenceBetween(tree, there.tree)
  } catch (error) {
    if (error instanceof Error && 'trouble' in error && error.trouble !== 'unknown') return error.message
    throw error
  }
}

/**
 * Brings files from one site to another, or finds that nothing has to move.
 *
 * A repeat, in any process and after a cut at any point, resumes from the files at the target.
 * Nothing is visible under `directory` before every file there has the source's SHA-256. Names,
 * modes, times (whole seconds) and links that lead inside are kept; hard links become copies.
 *
 * @throws DriverError `unknown` when a site cannot be reached (a repeat resumes), `user` for
 *   undelivered paths, `refused` for a missing source,
 *   `infrastructure` with the site's message for a full or broken disk.
 */
export const transfer = async (request: TransferRequest): Promise<TransferOutcome> => {
  const { from, to, source, directory, label } = request
  const limits = { ...defaults, ...request.limits }
  const startedAt = Date.now() / 1000
  let networkBytes = 0
  const traffic: Traffic = {
    signal: request.signal,
    stallMs: limits.stallMs,
    moved: (bytes) => (networkBytes += bytes),
  }
  const failed = new Map<TransferStrategy, string>()
  let resumed = false
  let tried = false

  const outcome = (strategy: TransferStrategy, reason: string, tree: Tree, at: string): TransferOutcome => ({
    ...{ strategy, reason, directory: at, bytes: contentBytes(tree), networkBytes, files: fileCount(tree) },
    ...{ startedAt, finishedAt: Date.now() / 1000, resumed, verified: true },
  })

  const listing = listTree(from, stageOf(source, label, source.directory))
  // Files that are there already need no source.
  listing.catch(() => undefined)

  const mayGo = (end: TransferSide, other: TransferSide): Door | undefined =>
    end.reach?.find(({ site }) => site === other.site)
  const [push, pull] = [mayGo(from, to), mayGo(to, from)]
  const shared = sharedPath(source.directory, from.mounts, to.mounts)
  const sameMachine = from.site === to.site || (from.host !== undefined && from.host === to.host)
  const facts = (bytes: number): EdgeFacts => ({
    shared,
    sameMachine,
    mayPush: push !== undefined,
    mayPull: pull !== undefined,
    bytes,
  })

  /**
   * Reads the state of the target once. Complete files are verified, and removed when they have
   * changed.
   */
  let prepared: PreparedTarget | undefined
  const existing = async (): Promise<TransferOutcome | undefined> => {
    prepared = await prepareTarget(to, directory, label)
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

  // Where nothing has to move, nothing is looked up or prepared.
  const found =
    shared === undefined && !sameMachine
      ? await existing()
      : void failed.set('use-existing', 'the files need not be brought')
  if (found !== undefined) return found

  const { tree, left }: Brought = await listing
  const copied = left.length === 0 ? {} : { left: left.slice(0, mostLeft) }
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
      const door = strategy === 'source-push' ? push : strategy === 'destination-pull' ? pull : undefined
      const route: CopyRoute =
        strategy === 'use-existing' || strategy === 'gateway' || door === undefined
          ? { by: 'gateway' }
          : { by: strategy, door }
      const done = (): TransferOutcome => ({
        ...{ ...outcome(strategy, reason, tree, directory), ...copied },
        ...(request.for === undefined ? {} : { movedFor: request.for }),
      })
      try {
        const copying = await copy({
          ...{ from, to, source: source.directory, tree, directory, label, route, traffic, prepared },
          streams: limits.streams,
          note: () => (request.for === undefined ? undefined : done()),
        })
        // Files that a direct way brought before it failed belong to this attempt.
        resumed = copying.resumed && !tried
        return done()
      } catch (error) {
        if (!(error instanceof NoWayError)) throw error
        failed.set(strategy, error.message)
        tried = true
        prepared = undefined
      }
    }
  }
}
