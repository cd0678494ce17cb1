import { posix } from 'node:path'
import { DriverError } from '../contract/driver.ts'
import { isFields } from '../../../json-object.ts'

export interface Volume {
  mountPath: string
  source: object
}

/** How tasks run, from the runtime's configuration: all keys of ours in it, read and checked. */
export interface KubernetesSettings {
  /** The absolute path of our files, the same in the keeper and in the tasks. */
  root: string
  /** Absent: no file system is shared, and files are carried (`courier.ts`). */
  volume?: Volume
  /**
   * Without `volume`: where the keeper has the site's files. Absent: in a folder of its Pod, lost
   * with it.
   */
  keeperVolume?: Volume
  /** Image of the keeper, and the source of its tools. */
  helperImage: string
  /** Image of tasks that name none; absent: `helperImage`, without the variables of that. */
  image?: string
  /** A static busybox in the helper image; '': the first one found there. */
  toolsPath: string
  gpuResource: string
  /** A request is the plan's number divided by this; the limit is the plan's. */
  overcommit: number
  pullPatienceSeconds: number
  settleSeconds: number
  claimSeconds: number
  nodeLostSeconds: number
  ttlSecondsAfterFinished: number
  /** Fields that go unchanged into the specification of a Pod. */
  pod: Readonly<Record<string, unknown>>
  annotations: Readonly<Record<string, string>>
  labels: Readonly<Record<string, string>>
  runAs: Readonly<Record<string, number>>
  /** Whether the container is confined as far as Kubernetes allows (default). */
  confined: boolean
  imagePullPolicy?: string
}

/**
 * Fields of a Pod's specification that come unchanged from the configuration, or from the activity.
 */
export const podKeys = [
  'nodeSelector',
  'tolerations',
  'priorityClassName',
  'imagePullSecrets',
  'runtimeClassName',
  'affinity',
  'dnsPolicy',
] as const
/** What is wrong with one of them; undefined: nothing that the cluster does not say itself. */
export const podFieldProblem = (key: (typeof podKeys)[number], value: unknown): string | undefined => {
  if (key !== 'imagePullSecrets' || value === undefined) return undefined
  const isSecret = (one: unknown): boolean =>
    isFields(one) &&
    typeof one['name'] === 'string' &&
    name.test(one['name']) &&
    Object.keys(one).length === 1
  return Array.isArray(value) && value.every(isSecret)
    ? undefined
    : 'must be a list of the names of secrets, each as {name: NAME}'
}
const runAsKeys = ['runAsUser', 'runAsGroup', 'fsGroup'] as const
const name = /^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$/
/** Image names for a registry: no blank, nothing that a shell or a header would interpret. */
export const imagePattern = /^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}$/

const absolute = (value: unknown): value is string =>
  typeof value === 'string' &&
  posix.isAbsolute(value) &&
  !/[\0\n:]/.test(value) &&
  !value.split('/').includes('..') &&
  value.length <= 4096

/**
 * One answer names all faults of a configuration.
 *
 * @throws DriverError `refused` naming each field, its value and the remedy
 */
export function settingsOf(configuration: Readonly<Record<string, unknown>>): KubernetesSettings {
  const problems: string[] = []
  const wrong = (key: string, remedy: string): undefined => {
    problems.push(`${key} ${JSON.stringify(configuration[key]) ?? 'undefined'} ${remedy}`)
    return undefined
  }
  const text = (key: string, otherwise: string, pattern: RegExp, remedy: string): string => {
    const value = configuration[key]
    if (value === undefined) return otherwise
    return typeof value === 'string' && pattern.test(value) ? value : (wrong(key, remedy) ?? otherwise)
  }
  const number = (key: string, otherwise: number, least: number, most: number): number => {
    const value = configuration[key]
    if (value === undefined) return otherwise
    return typeof value === 'number' && value >= least && value <= most
      ? value
      : (wrong(key, `must be a number from ${least} to ${most}`) ?? otherwise)
  }
  const textsOf = (key: string): Record<string, string> => {
    const value = configuration[key]
    if (value === undefined) return {}
    if (isFields(value) && Object.values(value).every((one) => typeof one === 'string'))
      return value as Record<string, string>
    return wrong(key, 'must be an object of texts') ?? {}
  }

  const root = configuration['root'] ?? '/orrery'
  if (!absolute(root)) wrong('root', 'must be an absolute path without "..", ":" and line breaks')
  const image = 'must be the name of an image: letters, digits and . _ : / @ -'
  const helperImage = text('helperImage', '', imagePattern, image)
  if (configuration['helperImage'] === undefined)
    problems.push(
      'helperImage is missing: name an image with sh, find -printf, setsid, env, grep, sed, tr, sha256sum and tar',
    )
  const settings: KubernetesSettings = {
    root: absolute(root) ? posix.normalize(root).replace(/(.)\/$/, '$1') : '/orrery',
    helperImage,
    ...(configuration['image'] === undefined ? {} : { image: text('image', '', imagePattern, image) }),
    toolsPath: text('toolsPath', '', /^\/[^\0\n]{1,1000}$/, 'must be an absolute path in the helper image'),
    gpuResource: text(
      'gpuResource',
      'nvidia.com/gpu',
      /^[a-z0-9.-]+\/[A-Za-z0-9._-]+$/,
      'must be the name of a resource such as nvidia.com/gpu',
    ),
    overcommit: number('overcommit', 1, 1, 1000),
    pullPatienceSeconds: number('pullPatienceSeconds', 300, 0, 86_400),
    settleSeconds: number('settleSeconds', 10, 0, 3600),
    claimSeconds: number('claimSeconds', 60, 0, 3600),
    nodeLostSeconds: number('nodeLostSeconds', 300, 0, 86_400),
    ttlSecondsAfterFinished: number('ttlSecondsAfterFinished', 86_400, 60, 31_536_000),
    annotations: textsOf('podAnnotations'),
    labels: textsOf('podLabels'),
    pod: Object.fromEntries(
      podKeys.flatMap((key) => {
        const problem = podFieldProblem(key, configuration[key])
        if (problem !== undefined) wrong(key, problem)
        return configuration[key] === undefined ? [] : [[key, configuration[key]]]
      }),
    ),
    runAs: Object.fromEntries(
      runAsKeys.flatMap((key) =>
        configuration[key] === undefined ? [] : [[key, number(key, 0, 0, 2_147_483_647)]],
      ),
    ),
    confined: configuration['confined'] !== false,
    ...(configuration['imagePullPolicy'] === undefined
      ? {}
      : {
          imagePullPolicy: text(
            'imagePullPolicy',
            '',
            /^(Always|IfNotPresent|Never)$/,
            'must be Always, IfNotPresent or Never',
          ),
        }),
  }

  const volumeOf = (key: 'volume' | 'keeperVolume', seen: string): Volume | undefined => {
    const value = configuration[key]
    if (value === undefined) return undefined
    const {
      persistentVolumeClaim: claim,
      hostPath,
      nfs,
      mountPath = settings.root,
    } = isFields(value) ? value : {}
    const source =
      typeof claim === 'string' && name.test(claim)
        ? { persistentVolumeClaim: { claimName: claim } }
        : absolute(hostPath)
          ? { hostPath: { path: hostPath, type: 'DirectoryOrCreate' } }
          : isFields(nfs) && typeof nfs['server'] === 'string' && absolute(nfs['path'])
            ? { nfs: { server: nfs['server'], path: nfs['path'] } }
            : undefined
    if (source === undefined)
      return wrong(
        key,
        `must be {persistentVolumeClaim: name}, {hostPath: path} or {nfs: {server, path}}, seen by ${seen}`,
      )
    if (
      !absolute(mountPath) ||
      !(settings.root === mountPath || settings.root.startsWith(`${mountPath.replace(/\/$/, '')}/`))
    )
      return wrong(key, `must have a mountPath that root (${settings.root}) is or lies below`)
    return { mountPath, source }
  }
  const volume = volumeOf('volume', 'all nodes that run tasks')
  const keeperVolume = volumeOf('keeperVolume', 'the nodes that may run the keeper')
  if (volume !== undefined) settings.volume = volume
  if (keeperVolume !== undefined) settings.keeperVolume = keeperVolume
  if (configuration['volume'] !== undefined && configuration['keeperVolume'] !== undefined)
    wrong('keeperVolume', 'is for runtimes without volume; take one of the two away')
  if (configuration['volume'] === undefined && settings.root === '/')
    wrong('root', 'must be a folder below / where there is no volume')
  if (problems.length > 0)
    throw new DriverError('refused', `the configuration of the Kubernetes runtime: ${problems.join('; ')}`)
  return settings
}

/** The same as texts, one for each fault; empty when there is none. */
export const kubernetesProblems = (configuration: Readonly<Record<string, unknown>>): string[] => {
  try {
    settingsOf(configuration)
    return []
  } catch (error) {
    if (error instanceof DriverError) return [error.message]
    throw error
  }
}
