import { isDeepStrictEqual } from 'node:util'
import { firstProblems, type Problem } from '../../refusal.ts'
import { reservedMetadataKeys } from './activity.ts'
import type { NewWorkflow } from './authoring.ts'
import { workflowIdOf } from './content.ts'
import { defaultTypeIdOf, firstVersionIdOf } from './names.ts'
import type { NormalisedDocument } from './schemas.ts'

type Given = NormalisedDocument['version']['activities'][number]
type Kept = NewWorkflow['content']['activities'][number]

/** The limit of warnings in one answer. */
const bound = 1_000

/**
 * Members of a definition in the service's answer form that differ from the stored workflow, so
 * that no value is replaced silently. `problems` are capabilities that the activity cannot have;
 * `warnings` are all other differences, at most 1,000 and a count of the rest. Where the request
 * renames the workflow, ids that follow from the former name count as equal.
 */
export function normalisedChanges(
  document: NormalisedDocument,
  workflow: NewWorkflow,
  renamed: boolean,
): { problems: Problem[]; warnings: Problem[] } {
  const problems: Problem[] = []
  const warnings: Problem[] = []
  const warn = (path: string, message: string): void => void warnings.push({ path, message })
  const former = document.id ?? workflowIdOf(document.version)
  /** The id that `id` becomes when the workflow is stored under another name. */
  const following = (id: string): string =>
    renamed && (id === former || id.startsWith(`${former}-`)) ? workflow.id + id.slice(former.length) : id
  const differs = (path: string, given: string | undefined, kept: string): void => {
    if (given !== undefined && following(given) !== kept)
      warn(path, `${JSON.stringify(given)} is not kept; it is ${JSON.stringify(kept)} here`)
  }

  differs('externalId', document.externalId, workflow.id)
  versionChanges(document.version, workflow, renamed, differs, warn)
  typeChanges(document, workflow, following, warn)
  const typesSeen = new Set<string>()
  document.version.activities.forEach((given, i) => {
    const kept = workflow.content.activities[i]
    if (kept === undefined)
      throw new Error(`activity ${i} of the document is not part of the workflow that was read from it`)
    const path = `version.activities.${i}`
    if (given.id !== kept.externalId) differs(`${path}.id`, given.id, kept.id)
    differs(`${path}.externalId`, given.externalId, kept.externalId)
    differs(`${path}.name`, given.name, kept.name)
    if (given.activityTypeId !== undefined && !typesSeen.has(given.activityTypeId)) {
      typesSeen.add(given.activityTypeId)
      differs(`${path}.activityTypeId`, given.activityTypeId, kept.activityTypeId)
    }
    if (!isDeepStrictEqual(given.metadata?.['legacy'], kept.metadata?.['legacy']))
      warn(
        `${path}.metadata.legacy`,
        'is not kept as it is: it holds limits in an older notation, equal to resources',
      )
    capabilityChanges(given, kept, path, problems, warn)
    if (given.service !== undefined) warn(`${path}.service`, 'is not kept, because the activity is a task')
    if (given.command?.resolvedExecutable !== undefined)
      warn(`${path}.command.resolvedExecutable`, 'is not kept; every run resolves its executables')
    if ((given.resources?.storageBytes ?? 0) > 0 || given.resources?.gpu !== undefined)
      warn(`${path}.resources`, 'storageBytes and gpu are not kept')
  })
  return { problems, warnings: firstProblems(warnings, bound) }
}

/**
 * A claimed capability must follow from the document. A capability that follows without a claim is
 * a warning.
 */
function capabilityChanges(
  given: Given,
  kept: Kept,
  path: string,
  problems: Problem[],
  warn: (path: string, message: string) => void,
): void {
  if (given.capabilities === undefined) return
  const needs = {
    real: 'needs command.entrypoint and an executable: command.image or command.executable',
    simulation: 'needs simulation',
    interactive: 'is not supported; activities are real, simulation or both',
  }
  given.capabilities.forEach((capability, i) => {
    if (!kept.capabilities.includes(capability))
      problems.push({ path: `${path}.capabilities.${i}`, message: `${capability} ${needs[capability]}` })
  })
  const added = kept.capabilities.filter((capability) => given.capabilities?.includes(capability) === false)
  if (added.length > 0)
    warn(
      `${path}.capabilities`,
      `the activity also has ${added.join(' and ')}, because it has what that needs`,
    )
}

function versionChanges(
  version: NormalisedDocument['version'],
  workflow: NewWorkflow,
  renamed: boolean,
  differs: (path: string, given: string | undefined, kept: string) => void,
  warn: (path: string, message: string) => void,
): void {
  differs('version.id', version.id, firstVersionIdOf(workflow.id))
  differs('version.workflowId', version.workflowId, workflow.id)
  if (version.version !== undefined && version.version !== 1)
    warn('version.version', `${version.version} is not kept; a new workflow has version 1`)
  differs('version.status', version.status, 'published')
  // The ids are part of what is hashed, so another name gives another hash.
  if (!renamed) differs('version.definitionHash', version.definitionHash, workflow.definitionHash)
  for (const key of Object.keys(version.metadata ?? {}))
    if (reservedMetadataKeys.has(key))
      warn(`version.metadata.${key}`, 'is not kept, because the key is reserved')
  const { activities, edges, data } = workflow.content
  const counts = {
    activityCount: activities.length,
    dependencyCount: edges.length,
    dataDependencyCount: data.length,
  }
  for (const [name, kept] of Object.entries(counts)) {
    const given = version[name as keyof typeof counts]
    if (given !== undefined && given !== kept)
      warn(`version.${name}`, `is ${given}, but the workflow has ${kept}`)
  }
  version.dataDependencies?.forEach(({ sizeBytes }, i) => {
    if (sizeBytes === 0) warn(`version.dataDependencies.${i}`, 'is not kept, because its sizeBytes is 0')
  })
}

function typeChanges(
  document: NormalisedDocument,
  workflow: NewWorkflow,
  following: (id: string) => string,
  warn: (path: string, message: string) => void,
): void {
  const kept = new Map(workflow.activityTypes.map((type) => [type.id, type]))
  document.activityTypes?.forEach((type, i) => {
    const path = `activityTypes.${i}`
    const stored = kept.get(following(type.id))
    if (stored === undefined)
      return warn(
        path,
        `type ${JSON.stringify(type.id)} is not kept under this id: no activity uses it, or its name gives another id`,
      )
    // The default type's name follows from the workflow's name.
    if (type.name !== stored.name && stored.id !== defaultTypeIdOf(workflow.id))
      warn(
        `${path}.name`,
        `${JSON.stringify(type.name)} is not kept; it is ${JSON.stringify(stored.name)} here`,
      )
    for (const key of ['application', 'defaultImage', 'metadata'] as const)
      if (type[key] !== undefined) warn(`${path}.${key}`, 'is not kept')
    for (const key of ['cpuIntensity', 'memoryIntensity', 'ioIntensity', 'networkIntensity'] as const)
      if (type[key] !== stored[key])
        warn(`${path}.${key}`, `${type[key]} is not kept; it is ${stored[key]} here`)
  })
}
