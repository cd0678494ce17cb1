import { createHash } from 'node:crypto'
import { withSortedKeys } from '../../json-object.ts'
import type { Activity, Policy, PolicyInput, WorkflowVersionDocument } from './schemas.ts'
import { keptExecutable } from './executable.ts'
import { activityIdOf, defaultTypeIdOf, unlessBlank } from './names.ts'
import { defaultCpu, defaultMemoryBytes } from './quantities.ts'

/** A control edge by activity position: `to` waits for `from`. */
export interface ContentEdge {
  from: number
  to: number
}

export interface ContentData extends ContentEdge {
  logicalName: string
  sizeBytes: number
}

/**
 * The content of a workflow version, without the ids of version and workflow: activities by
 * position, edges in order, each once.
 */
export interface Content {
  activities: Omit<Activity, 'workflowVersionId'>[]
  edges: ContentEdge[]
  data: ContentData[]
}

export const defaultPolicy: Policy = { timeoutSeconds: 3600, maxAttempts: 1, retryDelaySeconds: 0 }

export const policyOf = (given: PolicyInput | undefined): Policy => ({
  // 0 counts as left out.
  timeoutSeconds: given?.timeoutSeconds || defaultPolicy.timeoutSeconds,
  maxAttempts: given?.maxAttempts || defaultPolicy.maxAttempts,
  retryDelaySeconds: given?.retryDelaySeconds ?? defaultPolicy.retryDelaySeconds,
})

const byEnds = (a: ContentEdge, b: ContentEdge): number => a.to - b.to || a.from - b.from

/** Edges in their one order, duplicates dropped. */
export const orderedEdges = (edges: ContentEdge[]): ContentEdge[] =>
  edges.toSorted(byEnds).filter((edge, i, all) => i === 0 || byEnds(edge, all[i - 1] as ContentEdge) !== 0)

/** Data dependencies in their one order. */
export const orderedData = (data: ContentData[]): ContentData[] =>
  data.toSorted(
    (a, b) => byEnds(a, b) || (a.logicalName < b.logicalName ? -1 : a.logicalName > b.logicalName ? 1 : 0),
  )

/**
 * The size of the text for one update of the hash: a call per line costs more than the hash itself.
 */
const chunk = 65_536

/** `sha256:` and 64 hexadecimal digits over the canonical content. */
export function contentHash({ activities, edges, data }: Content): string {
  const hash = createHash('sha256')
  let text = ''
  const add = (line: string): void => {
    text += line
    if (text.length < chunk) return
    hash.update(text)
    text = ''
  }
  for (const {
    id,
    activityTypeId,
    externalId,
    name,
    kind,
    capabilities,
    command,
    resources,
    service,
    simulation,
    policy,
    priority,
    metadata,
    ...rest
  } of activities) {
    const none: Record<string, never> = rest
    const fields = [command, resources, service, simulation, policy, metadata, none].map(withSortedKeys)
    add(
      `${JSON.stringify([id, activityTypeId, externalId, name, kind, capabilities, priority, ...fields])}\n`,
    )
  }
  for (const { from, to } of edges) add(`${from}>${to}\n`)
  for (const { from, to, logicalName, sizeBytes } of data)
    add(`${from}>${to} ${sizeBytes} ${JSON.stringify(logicalName)}\n`)
  return `sha256:${hash.update(text).digest('hex')}`
}

/**
 * The workflow of an embedded version: the id that it gives, or the version id without
 * `-v<number>`.
 */
export const workflowIdOf = (document: Pick<WorkflowVersionDocument, 'id' | 'workflowId'>): string =>
  document.workflowId ?? document.id.replace(/-v\d+$/, '')

type Embedded = WorkflowVersionDocument['activities'][number]

/** `real` with entrypoint and executable, `simulation` with `simulation`. */
export const madeCapabilities = ({
  command,
  simulation,
}: Pick<Embedded, 'command' | 'simulation'>): Activity['capabilities'] => [
  ...((command?.entrypoint ?? '') !== '' &&
  (command?.executable !== undefined || unlessBlank(command?.image) !== undefined)
    ? (['real'] as const)
    : []),
  ...(simulation === undefined ? [] : (['simulation'] as const)),
]

/**
 * The capabilities of an activity of an embedded version: those given, else those of its members. One
 * without `simulation` is for real also where its runtime needs no executable.
 */
export const embeddedCapabilities = (activity: Embedded): Activity['capabilities'] =>
  activity.capabilities ?? (activity.simulation === undefined ? ['real'] : madeCapabilities(activity))

const commandOf = (given: Activity['command'] = {}): Activity['command'] => ({
  entrypoint: '',
  ...given,
  ...(given.executable === undefined ? {} : { executable: keptExecutable(given.executable) }),
})

/**
 * The content of an embedded version, with defaults filled in. A version that was read from the
 * service and sent back has the same content as the stored one. The document must have passed
 * `versionProblems`.
 */
export function versionContent(document: WorkflowVersionDocument): Content {
  const workflowId = workflowIdOf(document)
  const prefix = activityIdOf(workflowId, '')
  const positions = new Map(document.activities.map((activity, position) => [activity.id, position]))
  const at = (id: string): number => {
    const position = positions.get(id)
    if (position === undefined)
      throw new Error(
        `activity ${JSON.stringify(id)} is not part of the version: its problems were not looked at`,
      )
    return position
  }
  return {
    activities: document.activities.map((given) => {
      const { workflowVersionId: _, ...activity } = given
      const externalId =
        activity.externalId ??
        (activity.id.startsWith(prefix) && activity.id.length > prefix.length
          ? activity.id.slice(prefix.length)
          : activity.id)
      return {
        ...activity,
        activityTypeId: activity.activityTypeId ?? defaultTypeIdOf(workflowId),
        externalId,
        name: activity.name ?? externalId,
        kind: activity.kind ?? 'task',
        capabilities: embeddedCapabilities(activity),
        command: commandOf(activity.command),
        resources: {
          ...activity.resources,
          cpu: activity.resources?.cpu ?? defaultCpu,
          memoryBytes: activity.resources?.memoryBytes ?? defaultMemoryBytes,
          storageBytes: activity.resources?.storageBytes ?? 0,
        },
        policy: policyOf(activity.policy),
        priority: activity.priority ?? 0,
      }
    }),
    edges: orderedEdges(
      (document.dependencies ?? []).map(({ activityId, dependsOnActivityId }) => ({
        from: at(dependsOnActivityId),
        to: at(activityId),
      })),
    ),
    data: orderedData(
      (document.dataDependencies ?? []).map(
        ({ producerActivityId, consumerActivityId, logicalName, sizeBytes }) => ({
          from: at(producerActivityId),
          to: at(consumerActivityId),
          logicalName,
          sizeBytes,
        }),
      ),
    ),
  }
}
