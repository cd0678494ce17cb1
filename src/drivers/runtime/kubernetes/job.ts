import { hash } from 'node:crypto'
import { assign, readProgram } from '../../../shell/program.ts'
import { DriverError, type Intent } from '../contract/driver.ts'
import { imagePattern, podFieldProblem, podKeys, type KubernetesSettings, type Volume } from './settings.ts'
import { chooseProgram, unpackProgram, type ArrayElement } from '../batch/array-script.ts'
import type { BatchArray } from '../batch/scheduler.ts'
import { isFields } from '../../../json-object.ts'

/** A Pod's request to the cluster. Tasks with equal requests become one Job. */
export interface PodRequest {
  image: string
  /** Nothing names the image, and the task gets no variables of it. */
  bare?: true
  cores: number
  memoryBytes: number
  gpus: number
  network: boolean
  /** The node must have the image already. */
  inPlace?: true
  /** The activity's own settings for its Pod; they override the runtime's. */
  pod?: Readonly<Record<string, unknown>>
  annotations?: Readonly<Record<string, string>>
}

/**
 * Its name also hashes the place of its files, so that it never collides with that of another
 * runtime in the namespace whose tasks have the same names.
 */
export type TaskJob = BatchArray<PodRequest>

/** For a Job whose files are only in the keeper's Pod: the set of files, and the names by index. */
export const annotations = { keeper: 'orrery.dev/keeper', names: 'orrery.dev/names' } as const

export const labels = {
  /** Label of all objects of one runtime: `keyOf` of its id. */
  runtime: 'orrery.dev/runtime',
  part: 'orrery.dev/part',
  network: 'orrery.dev/network',
  job: 'batch.kubernetes.io/job-name',
  index: 'batch.kubernetes.io/job-completion-index',
} as const

/** Names in Kubernetes do not allow all our letters and lengths. */
export const keyOf = (runtime: string): string => hash('sha256', runtime, 'hex').slice(0, 20)

/**
 * Indexes of a Job: their Pods' status is 1 KiB each in one list, and the Job's own status lists
 * the completed ones.
 */
export const mostTasks = 2000
export const containerName = 'task'
/** The container beside it where files are carried. */
export const courierName = 'courier'
/** Time beyond the grace of a cancel, which is passed with it. */
const gracePeriodSeconds = 30

/** @throws DriverError `refused` naming the field */
export function podRequestOf(intent: Intent, settings: KubernetesSettings): PodRequest {
  const { name, cores, memoryBytes, gpus = 0, container } = intent
  const refuse = (field: string, value: unknown, remedy: string): never => {
    throw new DriverError('refused', `${name}: ${field} ${JSON.stringify(value)} ${remedy}`)
  }
  const named = container?.image ?? settings.image
  const image = named ?? settings.helperImage
  if (!imagePattern.test(image))
    refuse(
      'image',
      image,
      'is no name of an image: letters, digits and . _ : / @ - are what a registry takes',
    )
  if (!(cores > 0 && cores <= 100_000)) refuse('cores', cores, 'must be above 0')
  if (!(memoryBytes >= 0 && Number.isFinite(memoryBytes)))
    refuse('memoryBytes', memoryBytes, 'must be a number of bytes')
  if (!Number.isInteger(gpus) || gpus < 0) refuse('gpus', gpus, 'must be a whole number')
  const { site = {} } = intent
  const pod = Object.fromEntries(
    podKeys.flatMap((key) => {
      const problem = podFieldProblem(key, site[key])
      if (problem !== undefined) refuse(key, site[key], problem)
      return site[key] === undefined ? [] : [[key, site[key]]]
    }),
  )
  const { podAnnotations } = site
  const texts = isFields(podAnnotations) ? podAnnotations : {}
  if (
    podAnnotations !== undefined &&
    (!isFields(podAnnotations) || !Object.values(texts).every((value) => typeof value === 'string'))
  )
    refuse('podAnnotations', podAnnotations, 'must be an object of texts')
  return {
    image,
    ...(named === undefined ? { bare: true as const } : {}),
    cores,
    memoryBytes: Math.ceil(memoryBytes),
    gpus,
    network: container?.network ?? true,
    ...(container?.inPlace === true ? { inPlace: true as const } : {}),
    ...(Object.keys(pod).length === 0 ? {} : { pod }),
    ...(Object.keys(texts).length === 0 ? {} : { annotations: texts as Record<string, string> }),
  }
}

/** The folder of tools for task Pods on the volume, relative to `root`. */
export const toolsFolder = 'bin/tools'

const body = readProgram(import.meta.dirname, 'job.sh')
/** Keeps the environment of the image, at the beginning of the first script of a task's container. */
export const keepImage = readProgram(import.meta.dirname, 'image.sh')

/**
 * The script of an index's container: it finds its own script (`NAME.TOKEN`) and becomes the
 * supervisor of that task. `supervisor`: the command of the supervisor at the keeper. The container
 * itself finds how to measure the image, and how often this node has killed for memory. `pack`:
 * file with the packed texts. `tools`: whether the site lends its own. A script that `prepares`
 * does no more, with `ORRERY_PREPARE`, than create the packed files and print its findings.
 */
export const jobScript = (
  elements: readonly ArrayElement[],
  options: { pack: string; root: string; supervisor: string; tools: boolean; prepares?: boolean },
): string => {
  const { pack, root, supervisor, tools, prepares = false } = options
  const folders = { FOLDER: `${root}/tasks`, TOOLS: `${root}/${toolsFolder}`, PACK: pack }
  const parameters = assign({ ...folders, LENT: tools ? '1' : '', PREPARES: prepares ? '1' : '' })
  return (
    `#!/bin/sh\n${keepImage}${chooseProgram(elements)}supervise() { begin ${supervisor}; ` +
    `}\n${parameters}${unpackProgram}${body}`
  )
}

const cpu = (cores: number): string => `${Math.max(1, Math.round(cores * 1000))}m`

/**
 * Limits are the plan's numbers; requests are the share of them that the configuration reserves.
 */
const resourcesOf = (
  { cores, memoryBytes, gpus }: PodRequest,
  { overcommit, gpuResource }: KubernetesSettings,
): object => {
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

/** A folder of the Pod's own, lost with it. */
const ownFolder = ({ root }: KubernetesSettings): Volume => ({ mountPath: root, source: { emptyDir: {} } })

/**
 * The common part of keeper and tasks: neither reaches the cluster's API, and both have the volume
 * at the same path.
 */
export const podSpec = (
  settings: KubernetesSettings,
  own: Readonly<Record<string, unknown>> = {},
  { source }: Volume = settings.volume ?? ownFolder(settings),
): object => ({
  ...settings.pod,
  ...own,
  automountServiceAccountToken: false,
  enableServiceLinks: false,
  securityContext: {
    ...settings.runAs,
    ...(settings.confined ? { seccompProfile: { type: 'RuntimeDefault' } } : {}),
  },
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

export const containerSpec = (
  settings: KubernetesSettings,
  { mountPath }: Volume = settings.volume ?? ownFolder(settings),
): object => ({
  ...(settings.imagePullPolicy === undefined ? {} : { imagePullPolicy: settings.imagePullPolicy }),
  volumeMounts: [{ name: 'work', mountPath }],
  securityContext: settings.confined
    ? { allowPrivilegeEscalation: false, capabilities: { drop: ['ALL'] } }
    : {},
})

/**
 * An Indexed Job. An index is tried once (`backoffLimitPerIndex: 0`), whatever ends its Pod, and a
 * leaving Pod is not replaced before it is over: an attempt runs at most once. With `courier`,
 * scripts for `sh` of the helper image: one before the task, one beside it.
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
    // A plan that fills its node leaves no room for more. Quotas need the explicit value.
    resources: { requests: { cpu: '0', memory: '32Mi' } },
    ...containerSpec(settings),
  })
  const field = (name: string, fieldPath: string): object => ({
    name,
    valueFrom: { fieldRef: { fieldPath } },
  })
  return {
    apiVersion: 'batch/v1',
    kind: 'Job',
    metadata: {
      name: job.name,
      namespace,
      labels: own,
      annotations: {
        'orrery.dev/tasks':
          job.tasks.length === 1 ? job.tasks[0] : `${job.tasks.length}, the first is ${job.tasks[0] ?? ''}`,
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
              env: [
                field('ORRERY_POD', 'metadata.name'),
                field('ORRERY_NODE', 'spec.nodeName'),
                ...(job.request.bare === true ? [{ name: 'ORRERY_IMAGE', value: '' }] : []),
              ],
              resources: resourcesOf(job.request, settings),
              ...containerSpec(settings),
              ...(job.request.inPlace === true ? { imagePullPolicy: 'Never' } : {}),
            },
            ...(courier === undefined ? [] : [side(courierName, courier.stay)]),
          ],
        },
      },
    },
  }
}
