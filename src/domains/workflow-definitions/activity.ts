import type { Problem } from '../../refusal.ts'
import { madeCapabilities, policyOf, type Content } from './content.ts'
import { executableProblems, keptExecutable } from './executable.ts'
import { activityIdOf, defaultTypeIdOf, identifierTrouble, slug, typeIdOf, unlessBlank } from './names.ts'
import { pathProblems } from './rules.ts'
import { defaultCpu, defaultMemoryBytes, parseCpu, parseMemory } from './quantities.ts'
import type { Activity, ActivityType, AuthoringActivity } from './schemas.ts'
import { commandProblems, variableProblems, withUnixEnds } from './script.ts'

export type Report = (path: string, message: string) => void

/** Metadata keys that activities get from their own fields. */
const fieldKeys = [
  'runtime',
  'resourceSelector',
  'keepDisk',
  'mountPath',
  'workspaceSeedPath',
  'expectedOutputs',
  'stage',
] as const
export const reservedMetadataKeys: ReadonlySet<string> = new Set([...fieldKeys, 'legacy'])

/** The activity types of one workflow, in the order in which its activities use them. */
export class TypeList {
  readonly #workflowId: string
  readonly #workflowName: string
  readonly #types = new Map<string, ActivityType>()
  readonly #met = new Set<string>()

  constructor(workflowId: string, workflowName: string) {
    this.#workflowId = workflowId
    this.#workflowName = workflowName
  }

  /**
   * The id of the type named `label`; without a label, that of the workflow's own type. Types of
   * equal slug are one: `met` is called with the name that it has already, once for each label.
   */
  idOf(label: string | undefined, met: (name: string) => void): string {
    const standard = defaultTypeIdOf(this.#workflowId)
    const id = label === undefined ? standard : typeIdOf(this.#workflowId, slug(label))
    const known = this.#types.get(id)
    if (known === undefined) {
      const name = label === undefined || id === standard ? `${this.#workflowName} activity` : label
      this.#types.set(id, {
        id,
        name,
        cpuIntensity: 0,
        memoryIntensity: 0,
        ioIntensity: 0,
        networkIntensity: 0,
      })
    } else if (label !== undefined && label !== known.name && !this.#met.has(label)) {
      this.#met.add(label)
      met(known.name)
    }
    return id
  }

  list(): ActivityType[] {
    return [...this.#types.values()]
  }
}

interface Surroundings {
  id: string
  externalId: string
  image: string | undefined
  types: TypeList
  report: Report
  warnings: Problem[]
}

/**
 * One activity of an authoring document in the normalised shape. Its problems are reported at its
 * path.
 */
export function normaliseActivity(
  activity: Partial<AuthoringActivity>,
  index: number,
  { id, externalId, image: shared, types, report, warnings }: Surroundings,
): Content['activities'][number] {
  const path = `spec.activities.${index}`
  const legacy: Record<string, unknown> = {}
  const cpu = quantity(activity.cpuLimit, parseCpu, defaultCpu, `${path}.cpuLimit`, report)
  if (cpu.legacy) legacy['cpuLimit'] = activity.cpuLimit
  const memory = quantity(
    activity.memoryLimit,
    parseMemory,
    defaultMemoryBytes,
    `${path}.memoryLimit`,
    report,
  )
  if (memory.legacy) legacy['memoryLimit'] = activity.memoryLimit

  const label = unlessBlank(activity.activityType)
  if (label !== undefined) {
    const trouble =
      slug(label) === ''
        ? 'must hold at least one letter or digit'
        : identifierTrouble(typeIdOf(id, slug(label)))
    if (trouble !== undefined) report(`${path}.activityType`, trouble)
  }
  for (const key of Object.keys(activity.metadata ?? {})) {
    if (!reservedMetadataKeys.has(key)) continue
    report(
      `${path}.metadata.${key}`,
      key === 'legacy'
        ? 'is reserved; choose another key'
        : `is a field of the activity itself: give it as ${key} beside metadata`,
    )
  }

  const activityTypeId = types.idOf(label, (name) =>
    warnings.push({
      path: `${path}.activityType`,
      message: `${JSON.stringify(label)} and ${JSON.stringify(name)} become one type; write both alike, or rename one`,
    }),
  )
  const fields = Object.fromEntries(
    fieldKeys.flatMap((key) =>
      isBlank(activity[key]) || (key === 'stage' && activity.stage === 'all') ? [] : [[key, activity[key]]],
    ),
  )
  const metadata = { ...activity.metadata, ...fields, ...(Object.keys(legacy).length > 0 ? { legacy } : {}) }
  const { command, capabilities } = commandOf(activity, path, shared, report, warnings)
  const ofPaths = pathProblems(
    {
      // A simulation has no folders.
      ...(capabilities.includes('real') ? activity.command : {}),
      expectedOutputs: activity.expectedOutputs,
    },
    {
      workingDirectory: `${path}.command.workingDirectory`,
      expectedOutputs: `${path}.expectedOutputs`,
    },
  )
  for (const { path: at, message } of ofPaths) report(at, message)
  const priority = activity.priority ?? new Set(activity.dependsOn).size + index
  return {
    id: activityIdOf(id, externalId),
    activityTypeId,
    externalId,
    name: activity.name ?? '',
    kind: 'task',
    capabilities,
    command,
    resources: { cpu: cpu.value, memoryBytes: memory.value, storageBytes: 0 },
    ...(activity.simulation === undefined ? {} : { simulation: activity.simulation }),
    policy: policyOf(activity.policy),
    priority,
    ...(Object.keys(metadata).length === 0 ? {} : { metadata }),
  }
}

function quantity<T>(
  given: T | undefined,
  parse: (given: T) => { value: number; legacy: boolean } | string,
  standard: number,
  path: string,
  report: Report,
): { value: number; legacy: boolean } {
  const parsed = given === undefined || isBlank(given) ? { value: standard, legacy: false } : parse(given)
  if (typeof parsed !== 'string') return parsed
  report(path, parsed)
  return { value: standard, legacy: false }
}

/** The activity's command, and so its capabilities. */
function commandOf(
  activity: Partial<AuthoringActivity>,
  path: string,
  shared: string | undefined,
  report: Report,
  warnings: Problem[],
): Pick<Activity, 'command' | 'capabilities'> {
  const given = activity.command
  const own = given?.entrypoint ?? ''
  const script = withUnixEnds(activity.run ?? '')
  if (script !== (activity.run ?? ''))
    warnings.push({
      path: `${path}.run`,
      message:
        'has a byte order mark or line ends of Windows (CR LF), which sh does not know; they were removed',
    })
  if (script !== '' && own !== '')
    warnings.push({
      path: `${path}.run`,
      message: 'is not used, because command.entrypoint is given; remove one of them',
    })
  if (script !== '' && own === '' && given?.arguments !== undefined)
    warnings.push({
      path: `${path}.command.arguments`,
      message: 'are not used, because run is given without command.entrypoint; write them into run',
    })
  given?.arguments?.forEach((text, i) => {
    if (text.includes('\r\n'))
      warnings.push({
        path: `${path}.command.arguments.${i}`,
        message:
          'has line ends of Windows (CR LF), which a shell takes as a part of the words before them; write LF, ' +
          'or give a script as run',
      })
  })
  if (given?.executable !== undefined)
    for (const { path: at, message } of executableProblems(given.executable, `${path}.command.executable`))
      report(at, message)
  for (const { path: part, message } of variableProblems(given ?? {})) report(`${path}.${part}`, message)

  const entrypoint = own !== '' ? own : script !== '' ? 'sh' : ''
  const args = own === '' && script !== '' ? ['-c', script] : given?.arguments
  if (entrypoint !== '')
    for (const { path: part, message } of commandProblems({
      ...{ entrypoint, arguments: args },
      environment: given?.environment,
    }))
      report(`${path}.${own === '' && part === 'command.arguments.1' ? 'run' : part}`, message)
  const image = unlessBlank(activity.image) ?? unlessBlank(shared)
  const executable =
    given?.executable !== undefined
      ? keptExecutable(given.executable)
      : image === undefined
        ? undefined
        : { source: { type: 'oci', reference: image }, delivery: { strategy: 'auto' } }
  if (activity.simulation === undefined) {
    if (entrypoint === '')
      report(
        `${path}.command.entrypoint`,
        'is required for an activity without simulation; run is the short form',
      )
    if (executable === undefined)
      report(
        `${path}.image`,
        'an activity without simulation needs an executable: its own image, spec.image or command.executable',
      )
  }
  const command = {
    ...(image === undefined ? {} : { image }),
    ...(executable === undefined ? {} : { executable }),
    entrypoint,
    ...(args === undefined ? {} : { arguments: args }),
    ...(given?.environment === undefined ? {} : { environment: given.environment }),
    ...(given?.workingDirectory === undefined ? {} : { workingDirectory: given.workingDirectory }),
  }
  return { command, capabilities: madeCapabilities({ command, simulation: activity.simulation }) }
}

/** Whether a member is left out. */
const isBlank = (value: unknown): boolean =>
  value === undefined || (typeof value === 'string' && unlessBlank(value) === undefined)
