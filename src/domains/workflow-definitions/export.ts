import { reservedMetadataKeys } from './activity.ts'
import { defaultPolicy, type Content } from './content.ts'
import { defaultTypeIdOf } from './names.ts'
import { parseMemory } from './quantities.ts'
import type { ActivityType, AuthoringActivity, AuthoringDocument, RawSpec } from './schemas.ts'
import { isScript, withUnixEnds } from './script.ts'
import { yamlOf } from './yaml-text.ts'

type ContentActivity = Content['activities'][number]

/** The input of an export: a stored workflow with everything that its author wrote. */
export interface ExportedWorkflow {
  id: string
  name: string
  namespace: string
  raw: RawSpec
  content: Content
  activityTypes: readonly ActivityType[]
}

/** The authoring form of a stored workflow as YAML. Its import yields the same definition hash. */
export const exportYaml = (workflow: ExportedWorkflow): string => yamlOf({ ...exportDocument(workflow) })

/** The authoring form of a stored workflow. */
export function exportDocument({
  id,
  name,
  namespace,
  raw,
  content,
  activityTypes,
}: ExportedWorkflow): AuthoringDocument {
  const labels = new Map(
    activityTypes.map((type) => [type.id, type.id === defaultTypeIdOf(id) ? undefined : type.name]),
  )
  const names = content.activities.map((activity) => activity.name)
  const dependsOn = names.map((): string[] => [])
  for (const { from, to } of content.edges) dependsOn[to]?.push(names[from] ?? '')
  const activities = content.activities.map((activity, i) =>
    authoringActivity(activity, i, dependsOn[i] ?? [], labels.get(activity.activityTypeId), raw.image),
  )
  const dataDependencies = content.data.map(({ from, to, logicalName, sizeBytes }) => ({
    producerActivity: names[from] ?? '',
    consumerActivity: names[to] ?? '',
    logicalName,
    sizeBytes,
  }))
  return {
    name,
    spec: { namespace, ...raw, activities, ...(dataDependencies.length === 0 ? {} : { dataDependencies }) },
  }
}

/** One activity as its author would write it, without ids and default values. */
export function authoringActivity(
  activity: ContentActivity,
  index: number,
  dependsOn: string[],
  label: string | undefined,
  sharedImage: string | undefined,
): AuthoringActivity {
  const { command, resources, metadata = {} } = activity
  const fields = Object.fromEntries(
    Object.entries(metadata).filter(([key]) => key !== 'legacy' && reservedMetadataKeys.has(key)),
  )
  const free = Object.fromEntries(Object.entries(metadata).filter(([key]) => !reservedMetadataKeys.has(key)))
  const policy = Object.fromEntries(
    Object.entries(activity.policy).filter(
      ([key, value]) => value !== defaultPolicy[key as keyof typeof defaultPolicy],
    ),
  )
  return {
    name: activity.name,
    ...(label === undefined ? {} : { activityType: label }),
    ...(command.image === undefined || command.image === sharedImage ? {} : { image: command.image }),
    ...commandFields(command),
    cpuLimit: String(resources.cpu),
    memoryLimit: memoryText(resources.memoryBytes),
    ...olderNotations(metadata['legacy'], resources),
    ...(dependsOn.length === 0 ? {} : { dependsOn }),
    ...fields,
    ...(activity.simulation === undefined ? {} : { simulation: activity.simulation }),
    ...(Object.keys(policy).length === 0 ? {} : { policy }),
    ...(activity.priority === dependsOn.length + index ? {} : { priority: activity.priority }),
    ...(Object.keys(free).length === 0 ? {} : { metadata: free }),
  }
}

/** The limits in an older notation that the author used, where they are still those of the activity. */
function olderNotations(
  legacy: unknown,
  { cpu, memoryBytes }: ContentActivity['resources'],
): Pick<AuthoringActivity, 'cpuLimit' | 'memoryLimit'> {
  const { cpuLimit, memoryLimit } = (legacy ?? {}) as Record<string, unknown>
  const memory = typeof memoryLimit === 'string' ? parseMemory(memoryLimit) : undefined
  return {
    ...(cpuLimit === cpu ? { cpuLimit: cpu } : {}),
    ...(typeof memory === 'object' && memory.value === memoryBytes
      ? { memoryLimit: memoryLimit as string }
      : {}),
  }
}

function commandFields(command: ContentActivity['command']): Pick<AuthoringActivity, 'run' | 'command'> {
  const { entrypoint = '', arguments: args, environment, workingDirectory } = command
  // An import gives `run` the line ends of `sh`.
  const script = isScript(command) && args?.[1] === withUnixEnds(args?.[1] ?? '') ? args[1] : undefined
  const executable =
    command.executable === undefined || impliedBy(command.image, command.executable)
      ? undefined
      : command.executable
  const written = {
    ...(script !== undefined || entrypoint === '' ? {} : { entrypoint }),
    ...(script !== undefined || args === undefined ? {} : { arguments: args }),
    ...(environment === undefined ? {} : { environment }),
    ...(workingDirectory === undefined ? {} : { workingDirectory }),
    ...(executable === undefined ? {} : { executable }),
  }
  return {
    ...(script === undefined ? {} : { run: script }),
    ...(Object.keys(written).length === 0 ? {} : { command: written }),
  }
}

/** Whether the executable follows completely from the image. */
const impliedBy = (image: string | undefined, executable: Record<string, unknown>): boolean => {
  const { source, delivery, ...rest } = executable as {
    source?: Record<string, unknown>
    delivery?: Record<string, unknown>
  }
  return (
    image !== undefined &&
    Object.keys(rest).length === 0 &&
    source !== undefined &&
    Object.keys(source).length === 2 &&
    source['type'] === 'oci' &&
    source['reference'] === image &&
    delivery !== undefined &&
    Object.keys(delivery).length === 1 &&
    delivery['strategy'] === 'auto'
  )
}

/** The shortest exact form: whole Gi, Mi or Ki, else bytes. */
const memoryText = (bytes: number): string => {
  for (const [suffix, factor] of [
    ['Gi', 2 ** 30],
    ['Mi', 2 ** 20],
    ['Ki', 2 ** 10],
  ] as const)
    if (bytes > 0 && bytes % factor === 0) return `${bytes / factor}${suffix}`
  return String(bytes)
}
