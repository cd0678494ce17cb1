import {
  runPlay,
  type Play,
  type PlayEnd,
  type PlayEvent,
  type PlayMachine,
} from '../../drivers/ansible/play.ts'
import { openGate } from '../../pacing/gate.ts'

/** What is run on a machine. Equal wishes of several machines share a run. */
export interface PlayWish {
  versionId: string
  playbook: string
  variables: Readonly<Record<string, unknown>>
  machine: PlayMachine
  /** Of these variables. */
  mask: Play['mask']
  onEvent: (event: PlayEvent) => Promise<void>
  signal: AbortSignal
}

export interface Plays {
  /** Runs a playbook on a machine. @throws the signal's reason */
  run(wish: PlayWish): Promise<PlayEnd>
}

/** A playbook that looks at the other machines of its run has a run for each machine. */
const looksAtOthers = new RegExp(
  '\\b(run_once|any_errors_fatal|max_fail_percentage|serial|hostvars|groups|group_names|throttle|' +
    'ansible_play\\w*|play_hosts|inventory_\\w+)\\b',
)

interface Group {
  wishes: PlayWish[]
  /** Whether its processes run. */
  isBegun: boolean
  ends: Promise<Map<string, PlayEnd>>
}

const mostMachines = 50

/**
 * The end of a wish's machine. A cancel waits until every process has ended; where others go on
 * with the run, it does not wait for them, because the machine is cut off.
 */
const ownEnd = (wish: PlayWish, group: Group): Promise<PlayEnd> =>
  new Promise((resolve, reject) => {
    const { signal, machine } = wish
    const cancelled = (): void => reject(signal.reason as Error)
    group.ends.then(
      (found) => {
        if (signal.aborted) cancelled()
        else resolve(found.get(machine.name) ?? { state: 'failed' })
      },
      (error: unknown) => (signal.aborted ? cancelled() : reject(error as Error)),
    )
    const stop = (): void => {
      if (!group.isBegun || group.wishes.some((other) => !other.signal.aborted)) cancelled()
    }
    signal.addEventListener('abort', stop, { once: true })
  })

/** Limit for playbooks that run on this worker: each takes a processor. */
const atOnce = 4
/** A run waits this long for other machines. */
const gatherMs = 300

/**
 * The playbooks that run on this worker. What waits for its turn waits together: machines that want
 * the same version with the same variables share a run.
 */
export const openPlays = ({ addressAllowed }: Pick<Play, 'addressAllowed'>): Plays => {
  const gate = openGate(atOnce)
  const open = new Map<string, Group>()

  const begin = (key: string, group: Pick<Group, 'wishes' | 'isBegun'>): Promise<Map<string, PlayEnd>> =>
    gate.inTurn(async () => {
      await new Promise((resolve) => setTimeout(resolve, gatherMs))
      if (open.get(key)?.wishes === group.wishes) open.delete(key)
      group.isBegun = true
      const left = group.wishes.filter(({ signal }) => !signal.aborted)
      const [first] = left
      if (first === undefined) return new Map<string, PlayEnd>()
      const all = new AbortController()
      const check = (): void => {
        if (left.every(({ signal }) => signal.aborted)) all.abort(new Error('every machine was cut off'))
      }
      for (const { signal } of left) signal.addEventListener('abort', check, { once: true })
      return runPlay({
        ...{ playbook: first.playbook, variables: first.variables, mask: first.mask },
        ...{ addressAllowed, signal: all.signal },
        machines: left.map(({ machine, signal }) => ({ ...machine, signal })),
        onEvent: async (event) => {
          const of = left.find(({ machine }) => machine.name === event.machine)
          if (of !== undefined && !of.signal.aborted) await of.onEvent(event)
        },
      })
    })

  return {
    async run(wish) {
      wish.signal.throwIfAborted()
      const key = JSON.stringify([wish.versionId, wish.variables])
      const known = open.get(key)
      const isFull = (known?.wishes.length ?? 0) >= mostMachines
      let group = known
      if (group === undefined || isFull || looksAtOthers.test(wish.playbook)) {
        const fresh = { wishes: [wish], isBegun: false }
        group = Object.assign(fresh, { ends: begin(key, fresh) })
        group.ends.catch(() => undefined)
        open.set(key, group)
      } else group.wishes.push(wish)
      return ownEnd(wish, group)
    },
  }
}
