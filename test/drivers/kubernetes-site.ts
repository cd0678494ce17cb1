import { chmodSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { PassThrough, type TransformCallback } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { openKubernetesCluster, type KubernetesCluster } from '../../src/clients/kubernetes-cluster.ts'
import type { ExecChannel, ExecRequest } from '../../src/clients/kubernetes-exec.ts'
import type { Intent, RuntimeDriver, TaskState } from '../../src/drivers/runtime/contract/driver.ts'
import { openKubernetesDriver, openKubernetesShell } from '../../src/drivers/runtime/kubernetes/driver.ts'
import type { RootedDriver } from '../../src/drivers/runtime/contract/rooted.ts'
import type { SiteShell } from '../../src/shell/site-shell.ts'
import type { KubernetesSite } from '../../sites/kubernetes.ts'
import { plainIntent, taskName } from './intent.ts'

/**
 * What tests on a real cluster have in common: drivers over it, tasks for them, and how those are
 * waited for.
 */

/** In milliseconds. */
export const minutes = 60_000
export const sh = (script: string, ...args: string[]): string[] => ['/bin/sh', '-c', script, 'sh', ...args]

/** The API server of a site as a program of its own can be told it. */
export const serverOf = (
  site: KubernetesSite,
): { host: string; port: number; certificateAuthority: string } => {
  const { hostname: host, port } = new URL(site.server)
  return { host, port: Number(port), certificateAuthority: site.certificateAuthority }
}

/** Connections of one worker. */
export const clusterOf = (
  site: KubernetesSite,
  token: () => Promise<string>,
  more: { certificateAuthority?: string } = {},
): KubernetesCluster =>
  openKubernetesCluster({ ...serverOf(site), token, addressAllowed: () => true, ...more })

export interface OpenedRuntime {
  driver: RootedDriver
  shell: SiteShell
  cluster: KubernetesCluster
  root: string
  /** A task of a name that no other has. */
  intent(argv: string[], more?: Partial<Intent>): Intent
  close(): Promise<void>
}

let count = 0

/**
 * One worker of a runtime; several may be open over the same. `close` closes the cluster too, and
 * may be called again.
 */
export const openRuntime = (
  cluster: KubernetesCluster,
  {
    namespace,
    runtime,
    configuration,
  }: { namespace: string; runtime: string; configuration: Readonly<Record<string, unknown>> },
): OpenedRuntime => {
  const root = String(configuration['root'])
  const place = {
    ...{ cluster, namespace, runtime },
    // Two real cores, and Pods that mostly wait.
    configuration: { settleSeconds: 4, claimSeconds: 2, overcommit: 20, ...configuration },
  }
  const shell = openKubernetesShell(place)
  const driver = openKubernetesDriver({ ...place, shell, taskVariable: 'ORRERY_TASK', pollMilliseconds: 500 })
  let closed: Promise<void> | undefined
  const close = async (): Promise<void> => {
    await driver.close()
    await shell.close()
    cluster.close()
  }
  const intent = (argv: string[], more: Partial<Intent> = {}): Intent => {
    const name = taskName(++count)
    return { ...plainIntent(name, `${root}/work/run/${name}`, argv), ...more }
  }
  return { driver, shell, cluster, root, intent, close: () => (closed ??= close()) }
}

/** @returns their ids at the cluster. @throws DriverError of the first that was not taken */
export const submit = async (
  driver: Pick<RuntimeDriver, 'submit'>,
  ...intents: Intent[]
): Promise<string[]> =>
  (await driver.submit(intents)).map((outcome) => {
    if (!outcome.ok) throw outcome.error
    return outcome.externalId
  })

/** Resolves when the driver has told the end of all. */
export const over = (driver: Pick<RuntimeDriver, 'watch'>, ...intents: Intent[]): Promise<void> =>
  new Promise((resolve) => {
    const left = new Set(intents.map(({ name }) => name))
    driver.watch([...left], (name) => {
      left.delete(name)
      if (left.size === 0) resolve()
    })
  })

export const stateOf = async (driver: RootedDriver, { name }: Intent): Promise<TaskState> =>
  (await driver.find([name])).get(name) ?? { state: 'unknown' }

/** The first answer that is one. What fails is asked again, as the engine does it. */
export const until = async <T>(
  what: string,
  probe: () => Promise<T | undefined | false>,
  seconds = 90,
): Promise<T> => {
  const end = performance.now() + seconds * 1000
  for (let last: unknown; ; await sleep(200)) {
    const found = await probe().catch((error: unknown) => void (last = error))
    if (found !== undefined && found !== false) return found
    if (performance.now() > end) throw new Error(`waited in vain for ${what}`, { cause: last })
  }
}

/** The first state of a task that is the wanted one. */
export const becomes = async (
  driver: RootedDriver,
  task: Intent,
  wanted: TaskState['state'] | ((state: TaskState) => boolean),
  seconds?: number,
): Promise<TaskState> => {
  const suits = typeof wanted === 'string' ? ({ state }: TaskState) => state === wanted : wanted
  let last: TaskState | undefined
  const what = `${task.name} to be ${typeof wanted === 'string' ? wanted : 'as it should'}`
  return until(
    what,
    async () => {
      last = await stateOf(driver, task)
      return suits(last) && last
    },
    seconds,
  ).catch((error: unknown) => {
    throw new Error(`${what}: it is ${JSON.stringify(last)}`, { cause: error })
  })
}

/** The Pod of a task, by the id that the driver has for it. */
export const podOf = async (
  site: KubernetesSite,
  externalId: string,
): Promise<{ name: string; node: string }> => {
  const text = await site.kubectl(
    'get',
    'pods',
    '-o',
    'jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName}{"\\n"}{end}',
  )
  const line = text.split('\n').find((one) => one.startsWith(`${externalId}-`))
  if (line === undefined) throw new Error(`no Pod of ${externalId} among ${text}`)
  const [name = '', node = ''] = line.split(' ')
  return { name, node }
}

const policies = '/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies'
const binding = '/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings'

/**
 * Changes Pods that are made from now on by the cluster's own admission, as an operator may: those of
 * the CEL `condition`, by the CEL `change`. `isSeen`: whether a probe Pod shows it. Resolves when it
 * is in force.
 */
export const changePods = async (
  site: KubernetesSite,
  name: string,
  { condition, change, labels = {} }: { condition: string; change: string; labels?: Record<string, string> },
  isSeen: (pod: string) => boolean,
): Promise<void> => {
  const api = { apiVersion: 'admissionregistration.k8s.io/v1', metadata: { name } }
  await site.call('PATCH', `${policies}/${name}`, {
    ...api,
    kind: 'MutatingAdmissionPolicy',
    spec: {
      matchConstraints: {
        resourceRules: [
          { apiGroups: [''], apiVersions: ['v1'], operations: ['CREATE'], resources: ['pods'] },
        ],
      },
      matchConditions: [{ name, expression: condition }],
      ...{ failurePolicy: 'Fail', reinvocationPolicy: 'Never' },
      mutations: [{ patchType: 'ApplyConfiguration', applyConfiguration: { expression: change } }],
    },
  })
  await site.call('PATCH', `${binding}/${name}`, {
    ...api,
    kind: 'MutatingAdmissionPolicyBinding',
    spec: { policyName: name },
  })
  const probe = {
    ...{ apiVersion: 'v1', kind: 'Pod', metadata: { name: 'probe', labels } },
    spec: { containers: ['task', 'courier'].map((one) => ({ name: one, image: site.images.busybox })) },
  }
  await until(`${name} to be in force`, async () => {
    const pod = await site.call('POST', `/api/v1/namespaces/${site.namespace}/pods?dryRun=All`, probe)
    return isSeen(JSON.stringify(pod))
  })
}

/**
 * A folder that tasks and this machine see under the same path though their runtime has no volume:
 * every Pod that has a courier gets it. Resolves when it is in force.
 */
export const openWindow = async (site: KubernetesSite): Promise<string> => {
  const folder = join(site.volume.folder, 'window')
  mkdirSync(folder)
  chmodSync(folder, 0o777)
  const text = JSON.stringify
  const volume =
    'Object.spec.volumes{name: "window", persistentVolumeClaim: ' +
    `Object.spec.volumes.persistentVolumeClaim{claimName: ${text(site.volume.claim)}}}`
  const mount = `Object.spec.containers.volumeMounts{name: "window", mountPath: ${text(folder)}, subPath: "window"}`
  const change =
    `Object{spec: Object.spec{volumes: [${volume}], containers: [Object.spec.containers{name: ` +
    `"task", volumeMounts: [${mount}]}]}}`
  const condition = 'object.spec.containers.exists(one, one.name == "courier")'
  await changePods(site, 'window', { condition, change }, (pod) => pod.includes(folder))
  return folder
}

/**
 * Commands in the courier of a Pod, by what they do for its task: files there, its start, files
 * back, its release.
 */
const errands = { there: /tar -xpof/, go: /: > \.go/, back: /tar \$format/, done: /: > .*\.fetched/ } as const
export type Errand = keyof typeof errands

export const errandOf = ({ container, command }: ExecRequest): Errand | undefined =>
  container === 'courier'
    ? (Object.keys(errands) as Errand[]).find((kind) => errands[kind].test(command.join(' ')))
    : undefined

/**
 * The channel of an errand that carries files, with a meter in their way: each piece goes on when
 * `passed` has resolved, which is told the bytes so far.
 */
export const metered = (
  channel: ExecChannel,
  errand: 'there' | 'back',
  passed: (bytes: number) => Promise<void>,
): ExecChannel => {
  let sum = 0
  const meter = new PassThrough({
    transform(bytes: Buffer, _: BufferEncoding, callback: TransformCallback) {
      passed((sum += bytes.length)).then(() => callback(null, bytes), callback)
    },
  })
  // Both ends of a link that is cut are told by it.
  meter.on('error', () => undefined)
  if (errand === 'there') {
    meter.pipe(channel.stdin)
    return { ...channel, stdin: meter }
  }
  channel.stdout.pipe(meter)
  return { ...channel, stdout: meter }
}
