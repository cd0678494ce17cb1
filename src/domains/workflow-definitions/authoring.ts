import { append } from '../../lists.ts'
import type { Problem } from '../../refusal.ts'
import { normaliseActivity, TypeList, type Report } from './activity.ts'
import {
  contentHash,
  orderedData,
  orderedEdges,
  type Content,
  type ContentData,
  type ContentEdge,
} from './content.ts'
import type { AuthoringDraft } from './draft.ts'
import { activityIdOf, identifierTrouble, slug, firstVersionIdOf } from './names.ts'
import {
  cycleProblem,
  dataBytesTrouble,
  dataKey,
  duplicates,
  logicalNameTrouble,
  meetingInputs,
  meetingNames,
} from './rules.ts'
import {
  legacySpecShape,
  type ActivityType,
  type AuthoringActivity,
  type AuthoringDataDependency,
  type RawSpec,
} from './schemas.ts'

/** A workflow ready to be stored. */
export interface NewWorkflow {
  id: string
  name: string
  namespace: string
  definitionHash: string
  content: Content
  activityTypes: ActivityType[]
  /** The members of the document beside its activities, as written. An export returns them. */
  raw: RawSpec
  /**
   * Facts about the whole workflow: the author's metadata, `legacy` members, the origin of an
   * import.
   */
  metadata: Record<string, unknown> | undefined
}

export interface Reading {
  problems: Problem[]
  warnings: Problem[]
  /** Absent when there are problems. */
  workflow: NewWorkflow | undefined
  /** The id that follows from the document's name, where the name is readable. */
  id: string | undefined
}

/** Each activity without an image of its own repeats the shared one twice. */
const longestSharedImage = 4_096

/**
 * The workflow that an authoring document (domain-reference 9.1) describes, or all its problems at
 * once. Problems at paths whose form was reported before may appear again; the caller drops them.
 */
export function readAuthoring(draft: AuthoringDraft): Reading {
  const problems: Problem[] = []
  const warnings: Problem[] = []
  const report = (path: string, message: string): void => void problems.push({ path, message })
  const { name, namespace, raw } = draft
  const given = draft.activities ?? []

  const id = name === undefined ? undefined : slug(name)
  if (id === '') report('name', 'must hold at least one letter or digit')
  else if (id !== undefined) {
    const trouble = identifierTrouble(firstVersionIdOf(id))
    if (trouble !== undefined) report('name', trouble)
  }
  if (draft.activities?.length === 0) report('spec.activities', 'must hold at least one activity')
  for (const key of ['legacy'])
    if (raw.metadata !== undefined && key in raw.metadata)
      report(`spec.metadata.${key}`, 'is reserved; choose another key')

  if ((raw.image ?? '').length > longestSharedImage)
    report('spec.image', `must be at most ${longestSharedImage} characters long`)

  const slugs = given.map((activity) => (activity.name === undefined ? undefined : slug(activity.name)))
  const namePath = (i: number): string => `spec.activities.${i}.name`
  const names = given.map((activity) => activity.name)
  append(problems, duplicates(names, namePath, 'name'))
  append(problems, meetingNames(names, slugs, namePath))
  slugs.forEach((externalId, i) => {
    if (externalId === '') report(namePath(i), 'must hold at least one letter or digit')
    else if (externalId !== undefined && id !== undefined) {
      const trouble = identifierTrouble(activityIdOf(id, externalId))
      if (trouble !== undefined) report(namePath(i), `with the workflow's name before it ${trouble}`)
    }
  })

  const positions = new Map(
    given
      .flatMap((activity, i) => (activity.name === undefined ? [] : [[activity.name, i] as const]))
      .reverse(),
  )
  const edges = controlEdges(given, positions, report, warnings)
  append(
    problems,
    cycleProblem(
      given.map((activity, i) => activity.name ?? String(i)),
      edges,
      'spec.activities',
    ),
  )
  const data = dataEdges(draft.dataDependencies, positions, edges, report, warnings)

  const types = new TypeList(id ?? '', name ?? '')
  const activities = given.map((activity, i) =>
    normaliseActivity(activity, i, {
      id: id ?? '',
      externalId: slugs[i] ?? '',
      image: raw.image,
      types,
      report,
      warnings,
    }),
  )
  append(
    problems,
    meetingInputs(
      (draft.dataDependencies ?? []).map(({ consumerActivity, logicalName }) => ({
        consumer: consumerActivity === undefined ? undefined : positions.get(consumerActivity),
        logicalName,
      })),
      (position) => activities[position]?.capabilities.includes('real') === true,
      (i) => `spec.dataDependencies.${i}.logicalName`,
      (warning) => warnings.push(warning),
    ),
  )
  if (
    problems.length > 0 ||
    id === undefined ||
    name === undefined ||
    namespace === undefined ||
    draft.activities === undefined
  )
    return { problems, warnings, workflow: undefined, id }

  const content: Content = { activities, edges: orderedEdges(edges), data: orderedData(data) }
  const legacy = Object.fromEntries(
    Object.keys(legacySpecShape).flatMap((key) => (key in raw ? [[key, raw[key as keyof RawSpec]]] : [])),
  )
  const metadata = { ...raw.metadata, ...(Object.keys(legacy).length > 0 ? { legacy } : {}) }
  return {
    problems,
    warnings,
    id,
    workflow: {
      id,
      name,
      namespace,
      definitionHash: contentHash(content),
      content,
      activityTypes: types.list(),
      raw,
      metadata: Object.keys(metadata).length > 0 ? metadata : undefined,
    },
  }
}

function controlEdges(
  given: readonly Partial<AuthoringActivity>[],
  positions: ReadonlyMap<string, number>,
  report: Report,
  warnings: Problem[],
): ContentEdge[] {
  const edges: ContentEdge[] = []
  given.forEach(({ dependsOn }, to) => {
    const seen = new Set<string>()
    dependsOn?.forEach((other, k) => {
      const path = `spec.activities.${to}.dependsOn.${k}`
      const from = positions.get(other)
      if (seen.has(other))
        warnings.push({ path, message: `${JSON.stringify(other)} is listed more than once; list it once` })
      else if (from === undefined)
        report(path, `${JSON.stringify(other)} names no activity of the workflow; name one of it`)
      else edges.push({ from, to })
      seen.add(other)
    })
  })
  return edges
}

function dataEdges(
  given: readonly Partial<AuthoringDataDependency>[],
  positions: ReadonlyMap<string, number>,
  edges: readonly ContentEdge[],
  report: Report,
  warnings: Problem[],
): ContentData[] {
  const data: ContentData[] = []
  const control = new Set(edges.map(({ from, to }) => from * 2 ** 26 + to))
  given.forEach(({ producerActivity, consumerActivity, logicalName, sizeBytes }, i) => {
    const path = `spec.dataDependencies.${i}`
    const end = (activity: string | undefined, key: string): number | undefined => {
      const position = activity === undefined ? undefined : positions.get(activity)
      if (activity !== undefined && position === undefined)
        report(`${path}.${key}`, `names no activity of the workflow: ${JSON.stringify(activity)}`)
      return position
    }
    const from = end(producerActivity, 'producerActivity')
    const to = end(consumerActivity, 'consumerActivity')
    if (from !== undefined && from === to) report(path, 'producer and consumer are the same activity')
    const trouble = logicalName === undefined ? undefined : logicalNameTrouble(logicalName)
    if (trouble !== undefined) report(`${path}.logicalName`, trouble)
    if (from === undefined || to === undefined || logicalName === undefined || sizeBytes === undefined) return
    if (!control.has(from * 2 ** 26 + to)) {
      warnings.push({
        path,
        message:
          `moves nothing: ${JSON.stringify(consumerActivity)} does not depend on ` +
          `${JSON.stringify(producerActivity)}; add it to dependsOn`,
      })
    }
    data.push({ from, to, logicalName, sizeBytes })
  })
  const tooLarge = dataBytesTrouble(data.map(({ sizeBytes }) => sizeBytes))
  if (tooLarge !== undefined) report('spec.dataDependencies', tooLarge)
  const keys = given.map(({ producerActivity, consumerActivity, logicalName }) =>
    producerActivity === undefined || consumerActivity === undefined || logicalName === undefined
      ? undefined
      : dataKey(producerActivity, consumerActivity, logicalName),
  )
  for (const { path, message } of duplicates(
    keys,
    (i) => `spec.dataDependencies.${i}`,
    'the combination of producer, consumer and logicalName',
    false,
  ))
    report(path, message)
  return data
}
