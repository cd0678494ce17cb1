import { hash } from 'node:crypto'
import { quote } from '../../quote.ts'
import { DriverError, type Intent } from '../contract/driver.ts'
import { imagePattern, isRecord, podKeys, type KubernetesSettings, type Volume } from './settings.ts'
import { packOf, type ArrayElement } from '../batch/books.ts'

/** What one Pod asks of the cluster. Tasks with equal requests become one Job. */
export interface PodRequest {
  image: string
  cores: number
  memoryBytes: number
  gpus: number
  network: boolean
  /** The activity's own words for its Pod: they stand over the runtime's. */
  pod?: Readonly<Record<string, unknown>>
  annotations?: Readonly<Record<string, string>>
}

export interface TaskJob {
  /**
   * A hash of where its files are and of its tasks' names, so that it can be asked for when the answer of its creation was lost, and is never taken
   * for that of another runtime in the namespace whose tasks have these names too.
   */
  name: string
  request: PodRequest
  tasks: readonly string[]
}

/** Of a Job whose files are in the keeper's Pod alone: which those are, and the names by index. */
export const annotations = { keeper: 'orrery.dev/keeper', names: 'orrery.dev/names' } as const

export const labels = {
  /** Of everything that one runtime has made: `keyOf` of its id. */
  runtime: 'orrery.dev/runtime',
  part: 'orrery.dev/part',
  network: 'orrery.dev/network',
  job: 'batch.kubernetes.io/job-name',
  index: 'batch.kubernetes.io/job-completion-index',
} as const

/** Names of Kubernetes take neither every letter nor every length of ours. */
export const keyOf = (runtime: string): string => hash('sha256', runtime, 'hex').slice(0, 20)

/** Indexes of a Job: their Pods' status is 1 KiB each in one list, and the Job's own status names those that are done. */
const mostTasks = 2000
export const containerName = 'task'
/** Beside it where files are carried. */
export const courierName = 'courier'
/** Beyond the grace of a cancel, which is told with it. */
const gracePeriodSeconds = 30

/** @throws DriverError `refused` naming the field */
export function podRequestOf(intent: Intent, settings: KubernetesSettings): PodRequest {
  const { name, cores, memoryBytes, gpus = 0, container } = intent
  const refuse = (field: string, value: unknown, remedy: string): never => {
    throw new DriverError('refused', `${name}: ${field} ${JSON.stringify(value)} ${remedy}`)
  }
  const image = container?.image ?? settings.image
  if (!imagePattern.test(image)) refuse('image', image, 'is no name of an image: letters, digits and . _ : / @ - are what a registry takes')
  if (!(cores > 0 && cores <= 100_000)) refuse('cores', cores, 'must be above 0')
  if (!(memoryBytes >= 0 && Number.isFinite(memoryBytes))) refuse('memoryBytes', memoryBytes, 'must be a number of bytes')
  if (!Number.isInteger(gpus) || gpus < 0) refuse('gpus', gpus, 'must be a whole number')
  const { site = {} } = intent
  const pod = Object.fromEntries(podKeys.flatMap((key) => (site[key] === undefined ? [] : [[key, site[key]]])))
  const { podAnnotations } = site
  const texts = isRecord(podAnnotations) ? podAnnotations : {}
  if (podAnnotations !== undefined && (!isRecord(podAnnotations) || !Object.values(texts).every((value) => typeof value === 'string')))
    refuse('podAnnotations', podAnnotations, 'must be an object of texts')
  return {
    image,
    cores,
    memoryBytes: Math.ceil(memoryBytes),
    gpus,
    network: container?.network ?? true,
    ...(Object.keys(pod).length === 0 ? {} : { pod }),
    ...(Object.keys(texts).length === 0 ? {} : { annotations: texts as Record<string, string> }),
  }
}

export const requestKey = (request: PodRequest): string => JSON.stringify(Object.entries(request).sort(([a], [b]) => (a < b ? -1 : 1)))

/** Tasks with equal requests together, in the order given. `runtime`, `root`: where their files are. */
export function jobsOf(requests: ReadonlyMap<string, PodRequest>, { runtime, root }: { runtime: string; root: string }): TaskJob[] {
  const groups = new Map<string, { request: PodRequest; tasks: string[] }>()
  for (const [name, request] of requests) {
    const group = groups.get(requestKey(request)) ?? { request, tasks: [] }
    group.tasks.push(name)
    groups.set(requestKey(request), group)
  }
  return [...groups.values()].flatMap(({ request, tasks }) =>
    Array.from({ length: Math.ceil(tasks.length / mostTasks) }, (_, part) => {
      const some = tasks.slice(part * mostTasks, (part + 1) * mostTasks)
      const text = [runtime, root, ...[...some].sort()].join('\n')
      return { name: `orrery-${hash('sha256', text, 'hex').slice(0, 32)}`, request, tasks: some }
    }),
  )
}

/** The folder of tools that task Pods find on the volume, relative to `root`. */
export const toolsFolder = 'bin/tools'

/** What a task with nothing to stage makes itself, from the Job's pack, so that thousands are not made one after the other by the keeper. */
const unpackScript = (pack: string): string => `if [ -n "$size" ] && ! [ -e "$script.run" ]; then
  umask 077
  mkdir -p -- "$directory" && ! [ -L "$directory" ] &&
    tail -c "+$from" ${quote(pack)} | head -c "$size" > "$script.part" && [ -s "$script.part" ] && mv -f -- "$script.part" "$script.run" || exit 73
fi
`

/**
 * What the container of an index runs: it finds its script (`NAME.TOKEN`) and becomes the supervisor of that task. `supervisor` are the words that
 * run it where the keeper is; how the image is measured, and how often this node has killed for memory, is asked in the container itself. `pack`:
 * file of the texts of those that are packed. One that `prepares` does, with `ORRERY_PREPARE`, no more than to make what is packed and to say what it found.
 */
export const jobScript = (
  elements: readonly ArrayElement[],
  pack: string,
  root: string,
  supervisor: string,
  tools: boolean,
  prepares = false,
): string => {
  const { places } = packOf(elements)
  const choices = elements.map(({ script, packed }, index) => {
    const place =
      packed === undefined ? '' : ` from=${places[index]?.from} size=${places[index]?.size} directory=${quote(packed.directory)}`
    return `${index}) script=${script}${place} ;;`
  })
  // The image's own shell knows its own tools better; the one that is lent takes its own before any other.
  const shell = tools
    ? `shell=${quote(`${root}/${toolsFolder}/sh`)}
if [ -x /bin/sh ]; then
  [ -n "$ORRERY_SHELL" ] || ORRERY_SHELL=own exec /bin/sh "$0"
  shell=/bin/sh
fi`
    : 'shell=/bin/sh'
  return `#!/bin/sh
cd ${quote(`${root}/tasks`)} || exit 97
${shell}
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:${quote(`${root}/${toolsFolder}`)}
export PATH
size=
case $JOB_COMPLETION_INDEX in
${choices.join('\n')}
*) exit 0 ;;
esac
name=\${script%%.*}
[ -e "$name.verdict" ] && exit 0
${elements.some(({ packed }) => packed !== undefined) ? unpackScript(pack) : ''}${prepares ? '[ -z "$ORRERY_PREPARE" ] || { echo "$script"; exit 0; }\n' : ''}{ echo "$ORRERY_POD $ORRERY_NODE" > "$name.place"; } 2> /dev/null
measure= signals=
for each in /usr/bin/time /bin/time; do
  [ -x "$each" ] && "$each" --version 2>&1 | grep -q GNU && measure=$each && break
done
env -i --default-signal=INT,QUIT true 2> /dev/null && signals=--default-signal=INT,QUIT
oom=$(grep '^oom_kill ' /proc/vmstat) || oom='oom_kill 0'
set -- ${supervisor}
wrapper=$2 mode=$3 records=$4 variable=$5
shift 8
exec "$shell" "$wrapper" "$mode" "$records" "$variable" "\${oom#oom_kill }" "$measure" "$signals" "$@"
`
}

const cpu = (cores: number): string => `${Math.max(1, Math.round(cores * 1000))}m`

/** Limits are the plan, requests the share of it that the configuration reserves. */
const resourcesOf = ({ cores, memoryBytes, gpus }: PodRequest, { overcommit, gpuResource }: KubernetesSettings): object => {
  const devices = gpus === 0 ? {} : { [gpuResource]: String(gpus) }
  return {
    requests: {
      cpu: cpu(cores / overcommit),
      ...(memoryBytes === 0 ? {} : { memory: String(Math.ceil(memoryBytes / overcommit)) }),
      ...devices,
    },
    limits: { cpu: cpu(cores), ...(memoryBytes === 0 ? {} : { memory: String(memoryBytes) }), ...devices },
  }
}

/** A folder of the Pod's own, gone with it. */
const ownFolder = ({ root }: KubernetesSettings): Volume => ({ mountPath: root, source: { emptyDir: {} } })

/** What keeper and tasks have in common: nothing of the cluster's own is in reach of them, and the volume is where the other sees it. */
export const podSpec = (
  settings: KubernetesSettings,
  own: Readonly<Record<string, unknown>> = {},
  { source }: Volume = settings.volume ?? ownFolder(settings),
): object => ({
  ...settings.pod,
  ...own,
  automountServiceAccountToken: false,
  enableServiceLinks: false,
  securityContext: { ...settings.runAs, ...(settings.confined ? { seccompProfile: { type: 'RuntimeDefault' } } : {}) },
  tolerations: [
    ...[own['tolerations'] ?? settings.pod['tolerations'] ?? []].flat(),
    ...['node.kubernetes.io/not-ready', 'node.kubernetes.io/unreachable'].map((key) => ({
      key,
      operator: 'Exists',
      effect: 'NoExecute',
      tolerationSeconds: settings.nodeLostSeconds,
    })),
  ],
  volumes: [{ name: 'work', ...source }],
})

export const containerSpec = (settings: KubernetesSettings, { mountPath }: Volume = settings.volume ?? ownFolder(settings)): object => ({
  ...(settings.imagePullPolicy === undefined ? {} : { imagePullPolicy: settings.imagePullPolicy }),
  volumeMounts: [{ name: 'work', mountPath }],
  securityContext: settings.confined ? { allowPrivilegeEscalation: false, capabilities: { drop: ['ALL'] } } : {},
})

/**
 * An Indexed Job: an index is tried once (`backoffLimitPerIndex: 0`), whoever ends its Pod, and a Pod that leaves is not replaced before it is over:
 * an attempt runs at most once. With `courier`, scripts for `sh` of the helper image: one before the task, one beside it.
 */
export function jobManifest(
  job: TaskJob,
  {
    namespace,
    runtime,
    settings,
    command,
    courier,
  }: {
    namespace: string
    runtime: string
    settings: KubernetesSettings
    command: readonly string[]
    courier?: { install: string; stay: string; annotations?: Readonly<Record<string, string>> }
  },
): object {
  const own = {
    ...settings.labels,
    'app.kubernetes.io/managed-by': 'orrery',
    [labels.runtime]: keyOf(runtime),
    [labels.part]: 'task',
    [labels.network]: job.request.network ? 'on' : 'off',
  }
  const side = (name: string, script: string): object => ({
    name,
    image: settings.helperImage,
    command: ['/bin/sh', '-c', script],
    // Beside a plan that fills its node there is no room for more. Quotas want it said.
    resources: { requests: { cpu: '0', memory: '32Mi' } },
    ...containerSpec(settings),
  })
  const field = (name: string, fieldPath: string): object => ({ name, valueFrom: { fieldRef: { fieldPath } } })
  return {
    apiVersion: 'batch/v1',
    kind: 'Job',
    metadata: {
      name: job.name,
      namespace,
      labels: own,
      annotations: {
        'orrery.dev/tasks': job.tasks.length === 1 ? job.tasks[0] : `${job.tasks.length}, the first is ${job.tasks[0] ?? ''}`,
        ...courier?.annotations,
      },
    },
    spec: {
      completionMode: 'Indexed',
      completions: job.tasks.length,
      parallelism: job.tasks.length,
      backoffLimitPerIndex: 0,
      podReplacementPolicy: 'Failed',
      ttlSecondsAfterFinished: settings.ttlSecondsAfterFinished,
      template: {
        metadata: { labels: own, annotations: { ...settings.annotations, ...job.request.annotations } },
        spec: {
          ...podSpec(settings, job.request.pod),
          restartPolicy: 'Never',
          terminationGracePeriodSeconds: gracePeriodSeconds,
          ...(courier === undefined ? {} : { initContainers: [side('tools', courier.install)] }),
          containers: [
            {
              name: containerName,
              image: job.request.image,
              command,
              env: [field('ORRERY_POD', 'metadata.name'), field('ORRERY_NODE', 'spec.nodeName')],
              resources: resourcesOf(job.request, settings),
              ...containerSpec(settings),
            },
            ...(courier === undefined ? [] : [side(courierName, courier.stay)]),
          ],
        },
      },
    },
  }
}
