import { poll } from '../../../pacing/poll.ts'
import { quote, quoteAll } from '../../../shell/quote.ts'
import type { QueuedElement } from '../batch/scheduler.ts'
import type { BatchSite } from '../batch/site.ts'
import type { PlaceDetail } from '../contract/driver.ts'
import { gather } from '../contract/gather.ts'
import { RecentMap } from '../../../pacing/recent.ts'
import { containerName } from './job.ts'
import { keeperName } from './keeper.ts'
import { kept } from '../../../pacing/kept.ts'
import type { Namespace } from './namespace.ts'
import type { TaskPod } from './pods.ts'
import type { ApiEvent, PodWatch } from './pod-watch.ts'

/** Where a task ran. */
export interface TaskLocation {
  node?: string
  detail: PlaceDetail
}

export interface Details {
  /**
   * Returns the same for ever, though Pods are forgotten. `ran`: the task's own record holds its
   * end.
   */
  of(name: string, place: QueuedElement | undefined, ran: boolean): Promise<TaskLocation>
  forget(name: string): void
}

const eventsKeptMs = 5000
const remembered = 20_000

/** `1.2s`, `850ms`, `1m2.5s`: Go's text form of a duration. */
const secondsIn = (text: string): number | undefined => {
  const units: Readonly<Record<string, number>> = {
    h: 3600,
    m: 60,
    s: 1,
    ms: 0.001,
    µs: 0.000001,
    us: 0.000001,
  }
  const parts = [...text.matchAll(/([\d.]+)(ms|µs|us|h|m|s)/g)]
  return parts.length === 0
    ? undefined
    : parts.reduce((sum, [, number, unit = 's']) => sum + Number(number) * (units[unit] ?? 0), 0)
}

/** Seconds that the node spent on an image, from its event; 0: it was there. */
const pullSecondsOf = (message: string): number | undefined => {
  if (/already present/.test(message)) return 0
  const [, time] = /Successfully pulled image .* in ([\d.hmsµu]+)/.exec(message) ?? []
  return time === undefined ? undefined : secondsIn(time)
}

export function openDetails(
  { shell, root, runtime }: BatchSite,
  { cluster, paths }: Namespace,
  watch: PodWatch,
  helperImageName: () => string,
): Details {
  const pulls = new RecentMap<string, number>(remembered)
  const details = new RecentMap<string, Promise<TaskLocation>>(remembered)

  /** The nodes of tasks, as their Pods recorded them. */
  const whereOf = gather(
    async (names: readonly string[]) => {
      const { stdout } = await shell.run(
        `cd ${quote(`${await root()}/tasks`)} 2> /dev/null || exit 0
for each in ${quoteAll(names)}; do p= n=; { read -r p n < "$each.place"; } 2> /dev/null; echo "$each $p $n"; done`,
      )
      const lines = stdout
        .toString()
        .split('\n')
        .map((line) => line.split(' '))
      const places = new Map(lines.map(([name = '', pod = '', node = '']) => [name, { pod, node }]))
      return new Map(names.map((name) => [name, places.get(name) ?? { pod: '', node: '' }]))
    },
    { most: 500 },
  )
  const readPulls = kept(eventsKeptMs, async () => {
    const { items } = await cluster.list<ApiEvent>(paths.events, {
      fieldSelector: 'involvedObject.kind=Pod,reason=Pulled',
    })
    for (const { involvedObject, message = '' } of items) {
      // The helper's image is not the task's.
      if (involvedObject?.fieldPath !== undefined && !involvedObject.fieldPath.includes(`{${containerName}}`))
        continue
      const seconds = pullSecondsOf(message)
      if (involvedObject?.name !== undefined && seconds !== undefined) pulls.set(involvedObject.name, seconds)
    }
  })

  /**
   * The helper image with its digest, once the keeper was seen; the record omits it where the
   * keeper cannot be reached.
   */
  let helper: string | undefined
  const helperImage = async (): Promise<string | undefined> => {
    if (helper !== undefined) return helper
    const path = `${paths.pods}/${keeperName(runtime)}`
    const pod = await cluster
      .request<{ status?: { containerStatuses?: { imageID?: string }[] } }>({ path })
      .catch(() => undefined)
    const digest = /sha256:[0-9a-f]{64}/.exec(pod?.status?.containerStatuses?.[0]?.imageID ?? '')?.[0]
    if (digest !== undefined) helper = `${helperImageName()}@${digest}`
    return helper
  }

  /**
   * A short task's record exists before its node has reported the container to the cluster: within
   * a second, or several on a loaded node.
   */
  const podOf = async (place: QueuedElement, ran: boolean): Promise<TaskPod | undefined> => {
    const isKnown = (): boolean =>
      !ran || watch.seen(place)?.startedAt !== undefined || watch.here(place) === undefined
    await poll(() => isKnown() || undefined, { everyMs: 250, deadlineMs: 5_000 })
    return watch.seen(place)
  }
  const ask = async (name: string, place: QueuedElement | undefined, ran: boolean): Promise<TaskLocation> => {
    const seen = place === undefined ? undefined : await podOf(place, ran)
    const location = seen?.node !== undefined ? { pod: seen.name, node: seen.node } : await whereOf(name)
    if (seen !== undefined && !pulls.has(seen.name)) await readPulls().catch(() => undefined)
    const pullSeconds = seen === undefined ? undefined : pulls.get(seen.name)
    const image = await helperImage()
    return {
      ...(location.node === '' ? {} : { node: location.node }),
      detail: {
        ...(location.pod === '' ? {} : { pod: location.pod }),
        ...(seen?.engine === undefined ? {} : { engine: seen.engine }),
        ...(seen?.image === undefined ? {} : { image: seen.image }),
        ...(seen?.digest === undefined ? {} : { imageDigest: seen.digest }),
        ...(pullSeconds === undefined ? {} : { pullSeconds }),
        ...(image === undefined ? {} : { helperImage: image }),
      },
    }
  }

  return {
    of(name, place, ran) {
      const asked = details.get(name) ?? ask(name, place, ran)
      details.set(name, asked)
      asked.catch(() => details.delete(name))
      return asked
    },
    forget: (name) => void details.delete(name),
  }
}
