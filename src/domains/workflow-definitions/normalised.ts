import { z } from 'zod'
import { checkDocument } from '../../http/check.ts'
import { createShapes } from '../../http/keys.ts'
import { append } from '../../lists.ts'
import { Refusal, type Problem } from '../../refusal.ts'
import { reservedMetadataKeys } from './activity.ts'
import { readAuthoring, type Reading } from './authoring.ts'
import { versionContent } from './content.ts'
import type { AuthoringDraft } from './draft.ts'
import { authoringActivity } from './export.ts'
import { normalisedChanges } from './normalised-changes.ts'
import { defaultTypeIdOf, slug, withoutControls } from './names.ts'
import { AuthoringActivity, type NormalisedDocument } from './schemas.ts'
import { versionProblems } from './version-rules.ts'

/**
 * Reads a definition in the service's answer form as a new workflow. It is converted to the
 * authoring form and read from there, so that its ids follow from its names again. A value that is
 * not adopted as given is a problem or a warning. `renamed`: the request gives the name, so that
 * `id` need not follow from it.
 */
export function readNormalised(document: NormalisedDocument, renamed: boolean): Reading {
  const problems: Problem[] = versionProblems(document.version, 'version')
  const { name } = document
  if (problems.length > 0) return { problems, warnings: [], workflow: undefined, id: slug(name) }

  const content = versionContent(document.version)
  const labels = new Map(document.activityTypes?.map((type) => [type.id, type.name]))
  const standard = defaultTypeIdOf(document.id ?? slug(name))
  const names = content.activities.map(({ externalId }) => externalId)
  const dependsOn = names.map((): string[] => [])
  for (const { from, to } of content.edges) dependsOn[to]?.push(names[from] ?? '')
  const activities = content.activities.map((activity, i) => {
    const label =
      activity.activityTypeId === standard
        ? undefined
        : withoutControls(labels.get(activity.activityTypeId) ?? activity.activityTypeId)
    const written = authoringActivity(
      {
        ...activity,
        name: slug(activity.name) === activity.externalId ? activity.name : activity.externalId,
      },
      i,
      dependsOn[i] ?? [],
      label,
      undefined,
    )
    return written
  })
  append(problems, memberProblems(activities))
  if (problems.length > 0) return { problems, warnings: [], workflow: undefined, id: slug(name) }
  const byName = activities.map((activity) => activity.name)
  const rename = new Map(names.map((externalId, i) => [externalId, byName[i] ?? externalId]))
  for (const activity of activities)
    if (activity.dependsOn !== undefined)
      activity.dependsOn = activity.dependsOn.map((other) => rename.get(other) ?? other)
  const free = Object.fromEntries(
    Object.entries(document.version.metadata ?? {}).filter(([key]) => !reservedMetadataKeys.has(key)),
  )
  const draft: AuthoringDraft = {
    name,
    namespace: document.namespace,
    raw: Object.keys(free).length === 0 ? {} : { metadata: free },
    activities,
    dataDependencies: content.data
      .filter(({ sizeBytes }) => sizeBytes > 0)
      .map(({ from, to, logicalName, sizeBytes }) => ({
        producerActivity: byName[from] ?? '',
        consumerActivity: byName[to] ?? '',
        logicalName,
        sizeBytes,
      })),
  }
  const reading = readAuthoring(draft)
  const at = ({ path, message }: Problem): Problem => ({
    path: path
      .replace(/^spec\.activities/, 'version.activities')
      .replace(/^spec\.dataDependencies/, 'version.dataDependencies'),
    message,
  })
  if (document.id !== undefined && reading.id !== undefined && !renamed && document.id !== reading.id)
    problems.push({
      path: 'id',
      message:
        `does not follow from the name, which gives ${JSON.stringify(reading.id)}; leave it out or ` +
        'change the name',
    })
  append(problems, reading.problems.map(at))
  const changes =
    reading.workflow === undefined
      ? { problems: [], warnings: [] }
      : normalisedChanges(document, reading.workflow, renamed)
  append(problems, changes.problems)
  return {
    id: reading.id,
    problems,
    warnings: [...changes.warnings, ...reading.warnings.map(at)],
    workflow: problems.length > 0 ? undefined : reading.workflow,
  }
}

const Activities = z.array(AuthoringActivity)
const shape = createShapes()(Activities)

/** The places in the answer form of members that are elsewhere in the authoring form. */
const placeOf: Readonly<Record<string, string>> = {
  activityType: 'activityTypeId',
  run: 'command.arguments.1',
  cpuLimit: 'resources.cpu',
  memoryLimit: 'resources.memoryBytes',
}

/**
 * The members that an author could not have written: those of free form here, such as metadata.
 * An export of the workflow would be refused because of them.
 */
function memberProblems(activities: AuthoringActivity[]): Problem[] {
  try {
    checkDocument(Activities, shape, activities)
    return []
  } catch (error) {
    if (!(error instanceof Refusal)) throw error
    return error.details.map(({ path, message }) => {
      const [, position = '', member = '', rest = ''] = /^(\d+)\.(\w+)(.*)$/s.exec(path) ?? []
      const place = reservedMetadataKeys.has(member) ? `metadata.${member}` : (placeOf[member] ?? member)
      return {
        path: position === '' ? 'version.activities' : `version.activities.${position}.${place}${rest}`,
        message,
      }
    })
  }
}
