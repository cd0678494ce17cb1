import type { KubernetesCluster } from '../../../clients/kubernetes-cluster.ts'
import { linkErrorOf, openPodShell } from '../../../clients/kubernetes-shell.ts'
import { KubernetesError } from '../../../clients/kubernetes.ts'
import { openBackoff } from '../../../pacing/backoff.ts'
import { poll } from '../../../pacing/poll.ts'
import { TerminalLost, type TerminalHost } from '../contract/terminal.ts'
import { containerSpec, keyOf, labels, podSpec } from './job.ts'
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
}

const containerName = 'terminal'
/** The recording and its program are in the Pod itself, beside the volume of tasks. */
const folder = '/run/orrery-console'
/** A Pod that no service removes ends by itself. */
const longestSeconds = 86_400

const manifest = (pod: string, settings: KubernetesSettings, { namespace, runtime }: PodTerminalOptions) => {
  const { volumes, ...spec } = podSpec(settings) as { volumes: object[] }
  const container = containerSpec(settings) as { volumeMounts: object[] }
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      name: pod,
      namespace,
      labels: {
        ...settings.labels,
        'app.kubernetes.io/managed-by': 'orrery',
        [labels.runtime]: keyOf(runtime),
        [labels.part]: 'console',
      },
      annotations: { ...settings.annotations },
    },
    spec: {
      ...spec,
      volumes: [...volumes, { name: 'console', emptyDir: {} }],
      terminationGracePeriodSeconds: 1,
      activeDeadlineSeconds: longestSeconds,
      restartPolicy: 'Never',
      containers: [
        {
          name: containerName,
          image: settings.image,
          // The first process of a container receives only the signals that it catches, and reaps
          // orphans.
          command: ['/bin/sh', '-c', "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"],
          // A person mostly waits. Quotas need the explicit value.
          resources: { requests: { cpu: '0', memory: '32Mi' } },
          ...container,
          volumeMounts: [...container.volumeMounts, { name: 'console', mountPath: folder }],
        },
      ],
    },
  }
}

const join = (...texts: (string | undefined)[]): string =>
  texts.filter((text) => text !== undefined && text !== '').join(': ')

/** Why a Pod does not run; '' where the cluster gives no reason. */
const reasonOf = ({ metadata = {}, status = {} }: ApiPod): string => {
  const condition = (type: string, value: string) =>
    status.conditions?.find((one) => one.type === type && one.status === value)
  const { waiting, terminated } = status.containerStatuses?.[0]?.state ?? {}
  const disruption = condition('DisruptionTarget', 'True')
  const unscheduled = condition('PodScheduled', 'False')
  const because = join(
    status.reason,
    status.message,
    disruption?.reason,
    disruption?.message,
    waiting?.reason,
    waiting?.message,
    terminated?.reason,
    terminated?.message,
    unscheduled?.reason,
    unscheduled?.message,
  )
  return because === '' && metadata.deletionTimestamp !== undefined ? 'it is being deleted' : because
}

const isOver = ({ metadata = {}, status = {} }: ApiPod): boolean =>
  metadata.deletionTimestamp !== undefined || status.phase === 'Failed' || status.phase === 'Succeeded'

const unless =
  (...statuses: number[]) =>
  (error: unknown): undefined => {
    if (error instanceof KubernetesError && error.status !== undefined && statuses.includes(error.status))
      return undefined
    throw error
  }

/**
 * A Pod for one terminal, with the runtime's image, volume and settings. It is made once: a Pod
 * that is gone takes its terminal with it.
 */
export function openPodTerminal(options: PodTerminalOptions): TerminalHost {
  const { cluster, namespace, configuration } = options
  const pod = `orrery-console-${options.name}`
  const pods = `/api/v1/namespaces/${namespace}/pods`
  const look = (): Promise<ApiPod | undefined> =>
    cluster.request<ApiPod>({ path: `${pods}/${pod}` }).catch(unless(404))
  const shell = openPodShell({
    exec: (command, deadlineMs) =>
      cluster.exec({ namespace, pod, container: containerName, command, deadlineMs }),
  })

  const make = async (settings: KubernetesSettings): Promise<void> => {
    const account = settings.volume === undefined ? {} : await options.account()
    const body = manifest(pod, { ...settings, runAs: { ...account, ...settings.runAs } }, options)
    await cluster.request({ verb: 'create', path: pods, body }).catch(unless(409))
  }
  const ready = async (first: boolean): Promise<void> => {
    const settings = settingsOf(configuration)
    const until = performance.now() + settings.pullPatienceSeconds * 1_000
    for (const backoff = openBackoff({ firstMs: 100, longestMs: 1_000, growth: 1.5 }); ;) {
      const found = await look()
      if (found === undefined) {
        if (!first)
          throw new TerminalLost(`Pod ${pod} is gone, and the terminal with it: it was evicted or deleted`)
        await make(settings)
      } else if (isOver(found))
        throw new TerminalLost(`Pod ${pod} has ended, and the terminal with it: ${reasonOf(found)}`)
      else if (found.status?.containerStatuses?.[0]?.state?.running !== undefined) return
      if (performance.now() > until)
        throw new TerminalLost(
          `Pod ${pod} does not run after ${String(settings.pullPatienceSeconds)} s: ` +
            (found === undefined ? 'it was not made' : reasonOf(found)),
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
      const body = { apiVersion: 'v1', kind: 'DeleteOptions', gracePeriodSeconds: 0 }
      const isGone = async (): Promise<true | undefined> => {
        await cluster.request({ verb: 'delete', path: `${pods}/${pod}`, body }).catch(unless(404))
        return (await look()) === undefined ? true : undefined
      }
      await poll(isGone, { everyMs: 500 })
    },
    close: () => shell.close(),
  }
}
