import type { KubernetesCluster } from '../../../clients/kubernetes-cluster.ts'
import { linkErrorOf, openPodShell } from '../../../clients/kubernetes-shell.ts'
import { KubernetesError } from '../../../clients/kubernetes.ts'
import { openBackoff } from '../../../pacing/backoff.ts'
import { poll } from '../../../pacing/poll.ts'
import { LinkError } from '../../../shell/site-shell.ts'
import { TerminalLost, type TerminalHost } from '../contract/terminal.ts'
import { containerSpec, podSpec } from './job.ts'
import { openOwnPod, podReason, waitingPod } from './own-pod.ts'
import type { ApiPod } from './pods.ts'
import { settingsOf, type KubernetesSettings } from './settings.ts'

export interface PodTerminalOptions {
  cluster: Pick<KubernetesCluster, 'request' | 'exec'>
  namespace: string
  /** Id of the runtime; its label is on the Pod. */
  runtime: string
  configuration: Readonly<Record<string, unknown>>
  /** In letters, digits and `-`, unique in the namespace. */
  name: string
  /** The account that owns the files on the runtime's volume. */
  account: () => Promise<Readonly<Record<string, number>>>
  /** A removal waits so long for the end of the Pod. Default 30 s. */
  removalMs?: number
}

const containerName = 'terminal'
/** The recording and its program are in the Pod itself, beside the volume of tasks. */
const folder = '/run/orrery-console'
/** A finalizer, or a node that is away, may keep a Pod for ever: its removal ends, and is tried again later. */
const usualRemovalMs = 30_000
/** A Pod that no service removes ends by itself. */
const longestSeconds = 86_400

const manifest = (pod: string, settings: KubernetesSettings, options: PodTerminalOptions): object => {
  const { volumes, ...spec } = podSpec(settings) as { volumes: object[] }
  const container = containerSpec(settings) as { volumeMounts: object[] }
  return waitingPod(
    pod,
    { ...options, settings },
    {
      part: 'console',
      annotations: { ...settings.annotations },
      spec: {
        ...spec,
        volumes: [...volumes, { name: 'console', emptyDir: {} }],
        terminationGracePeriodSeconds: 1,
        activeDeadlineSeconds: longestSeconds,
        restartPolicy: 'Never',
      },
      container: {
        name: containerName,
        image: settings.image ?? settings.helperImage,
        ...container,
        volumeMounts: [...container.volumeMounts, { name: 'console', mountPath: folder }],
      },
    },
  )
}

const isOver = ({ metadata = {}, status = {} }: ApiPod): boolean =>
  metadata.deletionTimestamp !== undefined || status.phase === 'Failed' || status.phase === 'Succeeded'

/**
 * A Pod for one terminal, with the runtime's image, volume and settings. It is made once: a Pod
 * that is gone takes its terminal with it.
 */
export function openPodTerminal(options: PodTerminalOptions): TerminalHost {
  const { cluster, namespace, configuration, removalMs = usualRemovalMs } = options
  const pod = `orrery-console-${options.name}`
  const own = openOwnPod(cluster, namespace, pod)
  const shell = openPodShell({
    exec: (command, deadlineMs) =>
      cluster.exec({ namespace, pod, container: containerName, command, deadlineMs }),
  })

  const make = async (settings: KubernetesSettings): Promise<void> => {
    const account = settings.volume === undefined ? {} : await options.account()
    await own.create(manifest(pod, { ...settings, runAs: { ...account, ...settings.runAs } }, options))
  }
  const ready = async (first: boolean): Promise<void> => {
    const settings = settingsOf(configuration)
    const until = performance.now() + settings.pullPatienceSeconds * 1_000
    for (const backoff = openBackoff({ firstMs: 100, longestMs: 1_000, growth: 1.5 }); ;) {
      const found = await own.look()
      if (found === undefined) {
        if (!first)
          throw new TerminalLost(`Pod ${pod} is gone, and the terminal with it: it was evicted or deleted`)
        await make(settings)
      } else if (isOver(found))
        throw new TerminalLost(`Pod ${pod} has ended, and the terminal with it: ${podReason(found)}`)
      else if (found.status?.containerStatuses?.[0]?.state?.running !== undefined) return
      if (performance.now() > until)
        throw new TerminalLost(
          `Pod ${pod} does not run after ${String(settings.pullPatienceSeconds)} s: ` +
            (found === undefined ? 'it was not made' : podReason(found)),
        )
      await backoff.pause()
    }
  }

  return {
    shell,
    root: () => Promise.resolve(folder),
    ownEnvironment: true,
    ready: (first) =>
      ready(first).catch((error: unknown) => {
        // The cluster will not take it later either: a quota, a wrong field, a missing namespace.
        if (error instanceof KubernetesError && [400, 403, 404, 422].includes(error.status ?? 0))
          throw new TerminalLost(`Pod ${pod} cannot be made: ${error.message}`, { cause: error })
        throw linkErrorOf(error)
      }),
    async remove() {
      const isGone = async (): Promise<true | undefined> => {
        await own.remove()
        return (await own.look()) === undefined ? true : undefined
      }
      if ((await poll(isGone, { everyMs: 500, deadlineMs: removalMs })) !== true)
        throw new LinkError(
          'link',
          `Pod ${pod} is still there ${String(removalMs / 1_000)} s after its deletion was asked for; ` +
            'see its finalizers and its node',
        )
    },
    close: () => shell.close(),
  }
}
