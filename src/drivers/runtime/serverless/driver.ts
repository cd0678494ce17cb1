import { isAbsolute } from 'node:path'
import { openBackoff } from '../../../pacing/backoff.ts'
import {
  capabilitiesOf,
  DriverError,
  type Intent,
  type SubmitOutcome,
  type TaskState,
} from '../contract/driver.ts'
import { messageOf } from '../contract/errno.ts'
import { openGate } from '../../../pacing/gate.ts'
import { orAfter } from '../../../pacing/within.ts'
import { asDriverError, buriedEnd, driverClosed, endedState } from '../contract/results.ts'
import type { RootedDriver } from '../contract/rooted.ts'
import { openFileReads } from '../local/file-reads.ts'
import { removeTree } from '../local/remove-tree.ts'
import { removeStagingRemains } from '../local/staging.ts'
import { openWatcher } from '../local/watch.ts'
import { acceptCall } from './accepting.ts'
import { openAsking, type Ask } from './asking.ts'
import type { CallFacts } from './calls.ts'
import { cancelCall } from './cancelling.ts'
import { collectCall } from './collecting.ts'
import { runCall, type OwnedCall } from './call-run.ts'
import { openFunctionSite, type FunctionSite, type ServerlessDriverOptions } from './site.ts'

export type { ServerlessDriverOptions } from './site.ts'

export const serverlessCapabilities = capabilitiesOf('batch', 'serverless', 'dataStaging', 'cancellation')

/** Cancels under way at once; each may take its grace. */
const cancelsAtOnce = 64
/** Pauses for a call whose records cannot be written. */
const pauses = { firstMs: 500, longestMs: 30_000 }
/** `find` waits this long for a function's answer about a call that lost its driver. */
const adoptionSeconds = 2

/** The state from a call's records; `cause`: why it waits. */
function stateOf({ calls }: FunctionSite, name: string, cause: string | undefined): TaskState {
  const record = calls.record(name)
  if (record === undefined) return { state: 'unknown' }
  if (record.form === 'buried') return buriedEnd(record.at)
  const id = { externalId: name }
  const end = calls.end(name)
  if (end?.form === 'failed') return { state: 'lost', ...id, startedAt: end.startedAt, cause: end.message }
  if (end !== undefined) return endedState(end, name, end.reason)
  const sentAt = calls.sentAt(name)
  if (sentAt !== undefined) return { state: 'running', ...id, startedAt: sentAt }
  return {
    state: 'queued',
    ...id,
    submittedAt: record.facts.submittedAt,
    ...(cause === undefined ? {} : { cause }),
  }
}

/** The calls of this driver. */
interface OwnedCalls {
  of(name: string): OwnedCall | undefined
  /** Takes a call without an owner; undefined: it is over, or another driver's. */
  own(name: string): OwnedCall | undefined
  count(): number
  close(): Promise<void>
}

function openOwnedCalls(site: FunctionSite, ask: Ask, ended: (name: string) => void): OwnedCalls {
  const { calls, owner } = site
  const byName = new Map<string, OwnedCall>()
  let closed = false

  /** A full disk proves nothing about the call: the function keeps its answer. */
  const runOwned = async (name: string, facts: CallFacts, owned: OwnedCall): Promise<void> => {
    const { signal } = owned.controller
    for (const backoff = openBackoff(pauses); !signal.aborted;) {
      try {
        await runCall(site, ask, name, facts, owned)
        break
      } catch (error) {
        if (calls.record(name) === undefined) break
        owned.cause = messageOf(error)
        await backoff.pause(signal)
      }
    }
    byName.delete(name)
    if (calls.end(name) !== undefined) ended(name)
  }

  return {
    of: (name) => byName.get(name),
    own(name) {
      const known = byName.get(name)
      if (known !== undefined) return known
      const record = calls.record(name)
      if (closed || record?.form !== 'accepted' || calls.end(name) !== undefined || !calls.claim(name, owner))
        return undefined
      const owned: OwnedCall = {
        controller: new AbortController(),
        cause: undefined,
        done: Promise.resolve(),
      }
      byName.set(name, owned)
      owned.done = runOwned(name, record.facts, owned)
      return owned
    },
    count: () => byName.size,
    async close() {
      closed = true
      const open = [...byName.entries()]
      for (const [, { controller }] of open) controller.abort()
      await Promise.all(open.map(([, { done }]) => done))
      for (const [name] of open) calls.release(name, owner)
    },
  }
}

/**
 * Commands as calls of a function over HTTP: the files of a task are on this machine, travel with
 * the request and come back with the answer.
 *
 * At-least-once is made exactly-once by the attempt's name: a call is recorded before it is made,
 * and one driver of this machine owns it. After its death another driver makes the call again
 * under the same name, and the function answers from its own ledger. The first complete answer is
 * kept and later ones change nothing. A function that is not idempotent is called once: without an
 * answer within its time limit the attempt is lost.
 *
 * Before it is sent a call waits in our queue. Time in the platform's queue, on the network and in
 * a cold start is overhead. The function's own clock measures how long it ran.
 */
export function openServerlessDriver(options: ServerlessDriverOptions): RootedDriver {
  const site = openFunctionSite(options)
  const { calls } = site
  const ask = openAsking(site)
  const cancelling = openGate(cancelsAtOnce)
  const reads = openFileReads()
  let closed = false
  const ownedCalls = openOwnedCalls(site, ask, (name) => watcher.ended(name))
  const state = (name: string): TaskState => stateOf(site, name, ownedCalls.of(name)?.cause)
  const isOver = (name: string): boolean => ['ended', 'lost'].includes(state(name).state)

  const look = async (names: string[]): Promise<string[]> =>
    names.filter((name) => {
      if (isOver(name)) return true
      ownedCalls.own(name)
      return false
    })
  const watcher = openWatcher(look, (name) => ownedCalls.of(name) !== undefined, site.pollSeconds * 1000)

  const submitOne = async (intent: Intent): Promise<SubmitOutcome> => {
    const { name } = intent
    try {
      if (closed) throw driverClosed('serverless')
      await acceptCall(site, intent)
      ownedCalls.own(name)
      return { name, ok: true, externalId: name }
    } catch (error) {
      return { name, ok: false, error: asDriverError(error) }
    }
  }
  const cancelOne = async (name: string, grace: number): Promise<void> => {
    await cancelling.inTurn(() => cancelCall(site, ask, name, grace))
    ownedCalls.of(name)?.controller.abort()
    await ownedCalls.of(name)?.done
    watcher.ended(name)
  }
  /**
   * Waits a little for the answers about calls that lost their driver: only the function has them.
   */
  const adopt = async (names: readonly string[]): Promise<void> => {
    const orphans = names.filter(
      (name) => ownedCalls.of(name) === undefined && calls.record(name)?.form === 'accepted' && !isOver(name),
    )
    const adopted = orphans.flatMap((name) => ownedCalls.own(name)?.done ?? [])
    if (adopted.length > 0) await orAfter(Promise.all(adopted), adoptionSeconds * 1000, undefined)
  }

  return {
    kind: 'serverless',
    capabilities: serverlessCapabilities,
    root: async () => {
      if (!isAbsolute(options.root))
        throw new DriverError('refused', `root ${JSON.stringify(options.root)} must be an absolute path`)
      return options.root
    },
    submit: (intents) => Promise.all(intents.map(submitOne)),
    async find(names) {
      await adopt(names)
      return new Map(names.map((name) => [name, state(name)]))
    },
    watch: watcher.watch,
    async cancel(names, grace) {
      reads.end(names)
      const settled = await Promise.allSettled(names.map((name) => cancelOne(name, grace)))
      const troubles = settled.flatMap((result) =>
        result.status === 'rejected' ? [result.reason as unknown] : [],
      )
      if (troubles.length > 0) throw asDriverError(troubles[0])
    },
    collect: (name) => reads.during(name, (signal) => collectCall(site, name, state(name), signal)),
    logs: async (name, stream, range) => calls.readLog(name, stream === 'stdout' ? 'out' : 'err', range),
    async remove(name) {
      const record = calls.record(name)
      const now = state(name)
      if (now.state === 'running' || now.state === 'queued')
        throw new DriverError('refused', `${name} is ${now.state}; cancel it before removing it`)
      if (record?.form === 'accepted') {
        await removeStagingRemains(record.facts.directory)
        await removeTree(record.facts.directory)
      }
      calls.forget(name)
    },
    isBusy: () => ownedCalls.count() > 0,
    async close() {
      closed = true
      reads.close()
      site.closing.abort()
      await ownedCalls.close()
      await watcher.close()
    },
  }
}
