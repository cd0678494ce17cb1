import { hostname } from 'node:os'
import { RecentMap } from '../../../pacing/recent.ts'
import { capabilitiesOf, DriverError, type RuntimeDriver, type TaskState } from '../contract/driver.ts'
import { emptyResult, endedState } from '../contract/results.ts'

export const noneCapabilities = capabilitiesOf('batch', 'sharedStorage', 'cancellation', 'logStreaming')

type Ended = Extract<TaskState, { state: 'ended' }>

/**
 * A forgotten name is `unknown`, hence submitted again; that does no harm, because nothing runs.
 */
const namesRemembered = 100_000

/**
 * `launch: none`: every task ends with exit 0 the moment it is submitted, without process,
 * directory or file. All else (records, intents, commits) is as for a real runtime, so it serves
 * rehearsals and measurements of the engine itself.
 */
export function openNoneDriver(options: { runtime?: string } = {}): RuntimeDriver {
  const tasks = new RecentMap<string, Ended>(namesRemembered)
  const watches = new Set<{ names: Set<string>; onEnd: (name: string) => void }>()

  const remember = (name: string, reason: Ended['reason']): Ended => {
    const known = tasks.get(name)
    if (known !== undefined) return known
    const now = Date.now() / 1000
    const exitCode = reason === 'exited' ? 0 : null
    const task = endedState({ startedAt: now, finishedAt: now, exitCode, signal: null }, 'none', reason)
    tasks.set(name, task)
    return task
  }
  const announce = (): void => {
    for (const watch of watches) {
      for (const name of watch.names) {
        if (!tasks.has(name)) continue
        watch.names.delete(name)
        watch.onEnd(name)
      }
      if (watch.names.size === 0) watches.delete(watch)
    }
  }

  return {
    kind: 'none',
    capabilities: noneCapabilities,
    async submit(intents) {
      for (const { name } of intents) remember(name, 'exited')
      if (watches.size > 0) setImmediate(announce)
      return intents.map(({ name }) => ({ name, ok: true, externalId: 'none' }))
    },
    find: async (names) => new Map(names.map((name) => [name, tasks.get(name) ?? { state: 'unknown' }])),
    watch(names, onEnd) {
      const watch = { names: new Set(names), onEnd }
      watches.add(watch)
      setImmediate(announce)
      return () => watches.delete(watch)
    },
    async cancel(names) {
      for (const name of names) remember(name, 'cancelled')
      setImmediate(announce)
    },
    async collect(name) {
      const state = tasks.get(name)
      if (state === undefined) throw new DriverError('unknown', `${name} was never submitted`)
      const { runtime = 'none' } = options
      return emptyResult(state, { at: state.startedAt, runtime, hostname: hostname() })
    },
    logs: async () => ({ bytes: Buffer.alloc(0), offset: 0, totalBytes: 0 }),
    remove: async (name) => void tasks.delete(name),
    close: async () => watches.clear(),
  }
}
