import { present } from '../../../json-object.ts'
import { append } from '../../../lists.ts'
import { openBackoff } from '../../../pacing/backoff.ts'
import { poll } from '../../../pacing/poll.ts'
import type { SiteShell } from '../../../shell/site-shell.ts'
import {
  capabilitiesOf,
  DriverError,
  type RuntimeDriver,
  type SubmitOutcome,
  type TaskState,
} from '../contract/driver.ts'
import { buriedEnd, driverClosed, endedState, removedMeanwhile } from '../contract/results.ts'
import { endingUntil, openEnding, pauseUntil } from '../contract/ending.ts'
import type { RemoteOptions } from './context.ts'
import { claimedSeconds, isOverdue } from './record.ts'
import { openRemoteTasks, type ClaimedSight, type RemoteSight } from './tasks.ts'
import { openRemoteWatch } from './watch.ts'

export const sshCapabilities = capabilitiesOf(
  'batch',
  'interactive',
  'sharedStorage',
  'dataStaging',
  'cancellation',
  'logStreaming',
)

export interface SshDriverOptions extends Omit<RemoteOptions, 'elsewhere' | 'inImage'> {
  shell: SiteShell
  /**
   * Pause between two looks at all watched tasks, each in one round trip. Default 5,000: a stream
   * reports ends at once.
   */
  pollMilliseconds?: number
}

const endedSupervisor =
  'its supervisor was ended (the process that watches over it), maybe by the task itself'
const removedRecord =
  'its record was removed at the host (by a clean-up of old files?), and its processes still run: they are ' +
  'waited for'
const mayStart = 'it is not known whether it can still start: '

/** Why a task without a line in its record counts as running; undefined while that may still come. */
const claimCause = ({ marked, unwritten }: ClaimedSight): string | undefined => {
  if (marked === true) return unwritten === undefined ? removedRecord : `${removedRecord}; ${unwritten}`
  return unwritten === undefined ? undefined : `${mayStart}${unwritten}`
}

const stateOf = (sight: RemoteSight): TaskState => {
  if (sight.form === 'none') return { state: 'unknown' }
  if (sight.form === 'claimed') {
    const startedAt = Date.now() / 1000 - sight.ageSeconds
    const common = { externalId: 'none', startedAt }
    if (sight.marked !== true && sight.givenUp === true) return { state: 'lost', ...common }
    return { state: 'running', ...common, ...present({ cause: claimCause(sight) }) }
  }
  if (sight.form === 'buried') return buriedEnd(sight.at)
  const { startedAt } = sight
  const externalId = String(sight.pid)
  const lost = { state: 'lost', externalId, startedAt } as const
  if (sight.form === 'started') {
    const cause = sight.unknownHere
    if (sight.supervised !== false || sight.marked)
      return { state: 'running', externalId, startedAt, ...(cause === undefined ? {} : { cause }) }
    return sight.rebooted === false ? { ...lost, cause: endedSupervisor, suspect: true } : lost
  }
  // A machine that shuts down sends it to all.
  if (sight.reason === 'stopped') return { ...lost, cause: 'its supervisor received SIGTERM' }
  return endedState(sight, externalId, sight.reason)
}

/**
 * With the reasons why some cannot be given up, by name; processes of the `marked` ones run. Even one
 * without a record counts as claimed, because it must not start again.
 */
const withReasons = (
  sights: ReadonlyMap<string, RemoteSight>,
  reasons: ReadonlyMap<string, string>,
  marked: ReadonlySet<string>,
): [string, RemoteSight][] =>
  [...sights].map(([name, sight]) => {
    const unwritten = reasons.get(name)
    const isOpen = sight.form === 'none' || (sight.form === 'claimed' && sight.givenUp !== true)
    if (unwritten === undefined || !isOpen) return [name, sight]
    const ageSeconds = sight.form === 'claimed' ? sight.ageSeconds : 0
    return [name, { form: 'claimed', ageSeconds, unwritten, ...(marked.has(name) ? { marked: true } : {}) }]
  })

/**
 * Processes on a host that is reached through a shell, many per round trip; the supervisor there
 * (`wrapper.ts`) needs no other process. Tasks survive a restart of sshd, a link cut anywhere, the
 * end of this process, a restart of the host (then a task without a recorded end is `lost`). Where the
 * site's name leads to several hosts with one home, only the host that started a task can say that
 * it is gone.
 *
 * The host enforces time limits. Where the account may make cgroups below its own one or one above
 * it, of version 2 or 1, or lingers under systemd, a task has its own with `memoryBytes` and
 * `cores`; elsewhere RLIMIT_DATA of each process is twice `memoryBytes` and 256 MiB, and `cores` is
 * not enforced. Exit codes above 128 count as signals where the host has no GNU time. Processor
 * time is that of the task and the descendants that it waited for. It sets no limit on tasks at
 * once: the caller knows the host's cores.
 */
export function openSshDriver(options: SshDriverOptions): RuntimeDriver & { root(): Promise<string> } {
  const tasks = openRemoteTasks(options)
  let closed = false

  /**
   * What is known, after tasks whose record is missing or has no line were given up: those are lost
   * once no process of theirs runs, as none can start any more. A record is missing, and the task not
   * new, where this process has seen it, where processes of the task run, or where `isKnown`: the
   * caller has marked it.
   */
  async function see(names: readonly string[], isKnown = false): Promise<Map<string, RemoteSight>> {
    const sights = await tasks.look(names)
    const late: string[] = []
    const none: string[] = []
    for (const [name, sight] of sights) {
      if (isOverdue(sight)) late.push(name)
      if (sight.form !== 'none') continue
      if (isKnown || sight.vanished === true) late.push(name)
      else none.push(name)
    }
    if (none.length > 0) append(late, await tasks.signalMarked(none, undefined))
    if (late.length === 0) return sights
    const reasons = await tasks.giveUp(late)
    const again = await tasks.look(late)
    const marked = await tasks.signalMarked([...reasons.keys()], undefined)
    return new Map([...sights, ...withReasons(again, reasons, marked)])
  }

  const look = async (names: readonly string[]): Promise<string[]> => {
    const over: string[] = []
    const orphans: string[] = []
    for (const [name, sight] of await see(names)) {
      if (sight.form === 'started' && sight.supervised === false && sight.marked) orphans.push(name)
      else if (['ended', 'lost'].includes(stateOf(sight).state)) over.push(name)
    }
    // No process can record how these end; they must not run beside their next attempt. They count
    // as running until they are over.
    endOrphans(orphans)
    return over
  }
  const endOrphans = openEnding((names) => endMarked(names, 0))
  const watcher = openRemoteWatch({
    look,
    follow: tasks.onEnds,
    pollMilliseconds: options.pollMilliseconds ?? 5000,
  })

  /** Ends live processes of tasks whose supervisor is gone. */
  async function endMarked(names: readonly string[], graceSeconds: number): Promise<void> {
    const forcedAt = performance.now() + graceSeconds * 1000
    const until = endingUntil(graceSeconds)
    let left = await tasks.signalMarked(names, graceSeconds > 0 ? 'TERM' : 'KILL')
    for (const backoff = openBackoff({ firstMs: 20, longestMs: 500 }); left.size > 0;) {
      await pauseUntil(backoff, until)
      left = await tasks.signalMarked([...left], performance.now() >= forcedAt ? 'KILL' : undefined)
    }
  }

  /** Waits for records that are being written at this moment. */
  async function settled(names: readonly string[]): Promise<Map<string, RemoteSight>> {
    let seen = new Map<string, RemoteSight>()
    const areWritten = async (): Promise<true | undefined> => {
      seen = await tasks.look(names)
      const isClaimed = (sight: RemoteSight): boolean =>
        sight.form === 'claimed' && sight.givenUp !== true && !isOverdue(sight)
      return [...seen.values()].some(isClaimed) ? undefined : true
    }
    await poll(areWritten, { everyMs: 20, deadlineMs: claimedSeconds * 1000 })
    return seen
  }

  return {
    kind: 'ssh',
    capabilities: sshCapabilities,
    root: () => tasks.root(),
    async submit(intents) {
      if (closed) throw driverClosed('ssh')
      if (intents.length === 0) return []
      await watcher.ready()
      const answers = await tasks.submit(intents)
      watcher.expect([...answers].filter(([, { state }]) => state === 'started').map(([name]) => name))
      const known = [...answers].filter(([, { state }]) => state === 'known').map(([name]) => name)
      const sights = known.length === 0 ? new Map<string, RemoteSight>() : await settled(known)
      return intents.map(({ name }): SubmitOutcome => {
        const answer = answers.get(name)
        if (answer?.state === 'started') return { name, ok: true, externalId: String(answer.pid) }
        if (answer?.state === 'failed') return { name, ok: false, error: answer.error }
        const state = stateOf(sights.get(name) ?? { form: 'none' })
        if (state.state === 'unknown') return { name, ok: false, error: removedMeanwhile(name) }
        return { name, ok: true, externalId: state.externalId }
      })
    },
    async find(names) {
      if (names.length === 0) return new Map()
      return new Map([...(await see(names))].map(([name, sight]) => [name, stateOf(sight)]))
    },
    watch: (names, onEnd) => watcher.watch(names, onEnd),
    async cancel(names, graceSeconds) {
      const until = endingUntil(graceSeconds)
      let left = [...names]
      let unknown: string | undefined
      // A name without a record is buried, unless processes of it run.
      await see(left)
      for (const backoff = openBackoff({ firstMs: 20, longestMs: 250 }); left.length > 0;) {
        await tasks.markCancelled(left, graceSeconds)
        const orphans: string[] = []
        const alive: string[] = []
        // A mark is a record, or stands beside one.
        for (const [name, sight] of await see(left, true)) {
          const unwritten = sight.form === 'claimed' ? sight.unwritten : undefined
          if (unwritten !== undefined) unknown = `${name}: ${mayStart}${unwritten}`
          if (sight.form === 'claimed' && (sight.marked === true || unwritten !== undefined))
            orphans.push(name)
          else if (sight.form === 'claimed' && sight.givenUp !== true) alive.push(name)
          if (sight.form !== 'started') continue
          if (sight.unknownHere !== undefined) unknown = `${name}: ${sight.unknownHere}`
          else if (sight.supervised !== false) alive.push(name)
          else if (sight.marked) orphans.push(name)
        }
        if (orphans.length > 0) await endMarked(orphans, graceSeconds)
        left = alive
        if (left.length > 0) await pauseUntil(backoff, until)
      }
      // Only the host that started it can end it, and only a mark at the host keeps it from its start.
      if (unknown !== undefined) throw new DriverError('unknown', unknown)
    },
    async collect(name, onWait) {
      const { sight, ...collected } = await tasks.collect(name, onWait)
      return { state: stateOf(sight), ...collected }
    },
    logs: (name, stream, range) => tasks.logs(name, stream, range),
    async remove(name) {
      const sight = (await see([name])).get(name)
      if (sight !== undefined && stateOf(sight).state === 'running')
        throw new DriverError('refused', `${name} is running; cancel it before removing it`)
      await tasks.remove(name)
      watcher.forget(name)
    },
    async close() {
      closed = true
      tasks.close()
      watcher.close()
    },
  }
}
