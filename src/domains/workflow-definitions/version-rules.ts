import { append } from '../../lists.ts'
import { notBuilt } from '../../not-built.ts'
import type { Problem } from '../../refusal.ts'
import { embeddedCapabilities, workflowIdOf } from './content.ts'
import { executableProblems } from './executable.ts'
import {
  cycleProblem,
  dataBytesTrouble,
  dataKey,
  duplicates,
  logicalNameTrouble,
  meetingInputs,
  pathProblems,
} from './rules.ts'
import type { WorkflowVersionDocument } from './schemas.ts'
import { commandProblems, variableProblems } from './script.ts'

/**
 * All problems of an embedded workflow version (domain-reference 9.2) that its schema does not
 * find, at paths below `path`: repeated ids, edges to unknown activities, cycles, capabilities
 * without their requirements.
 * @throws Refusal `not_built` for services and interactive activities
 */
export function versionProblems(document: WorkflowVersionDocument, path = 'workflow'): Problem[] {
  const problems: Problem[] = []
  const report = (at: string, message: string): void => void problems.push({ path: `${path}.${at}`, message })
  const ids = document.activities.map(({ id }) => id)
  const positions = new Map(ids.map((id, position) => [id, position]))
  if (ids.length === 0) report('activities', 'must hold at least one activity')
  if (workflowIdOf(document) === '') report('workflowId', 'must not be blank')
  append(
    problems,
    duplicates(ids, (i) => `${path}.activities.${i}.id`, 'id'),
  )

  document.activities.forEach((activity, i) => {
    const at = `activities.${i}`
    if (activity.kind !== undefined && activity.kind !== 'task')
      throw notBuilt(`kind ${activity.kind} at ${path}.${at}.kind`, 'give task')
    if (activity.workflowVersionId !== undefined && activity.workflowVersionId !== document.id)
      report(`${at}.workflowVersionId`, `must be ${JSON.stringify(document.id)}, the version it is part of`)
    const capabilities = embeddedCapabilities(activity)
    const isReal = capabilities.includes('real')
    if (capabilities.includes('simulation') && activity.simulation === undefined)
      report(`${at}.simulation`, 'is required by the capability simulation')
    if (isReal && (activity.command?.entrypoint ?? '') === '')
      report(
        `${at}.command.entrypoint`,
        activity.capabilities === undefined
          ? 'is required for an activity without simulation'
          : 'is required by the capability real',
      )
    for (const { path: part, message } of variableProblems(activity.command ?? {}))
      report(`${at}.${part}`, message)
    if (activity.command !== undefined && isReal)
      for (const { path: part, message } of commandProblems(activity.command))
        report(`${at}.${part}`, message)
    const ofPaths = pathProblems(
      { ...activity.command, expectedOutputs: activity.metadata?.['expectedOutputs'] },
      {
        workingDirectory: `${at}.command.workingDirectory`,
        expectedOutputs: `${at}.metadata.expectedOutputs`,
      },
    )
    // A simulation has no folders.
    if (isReal) for (const problem of ofPaths) report(problem.path, problem.message)
    if (activity.command?.executable !== undefined)
      append(problems, executableProblems(activity.command.executable, `${path}.${at}.command.executable`))
  })

  const end = (id: string, at: string): number | undefined => {
    const position = positions.get(id)
    if (position === undefined) report(at, `names no activity of the workflow: ${JSON.stringify(id)}`)
    return position
  }
  const edges: { from: number; to: number }[] = []
  document.dependencies?.forEach((dependency, i) => {
    const to = end(dependency.activityId, `dependencies.${i}.activityId`)
    const from = end(dependency.dependsOnActivityId, `dependencies.${i}.dependsOnActivityId`)
    if (from !== undefined && to !== undefined) edges.push({ from, to })
  })
  append(problems, cycleProblem(ids, edges, `${path}.dependencies`))

  document.dataDependencies?.forEach((dependency, i) => {
    const at = `dataDependencies.${i}`
    const from = end(dependency.producerActivityId, `${at}.producerActivityId`)
    const to = end(dependency.consumerActivityId, `${at}.consumerActivityId`)
    if (from !== undefined && from === to) report(at, 'producer and consumer are the same activity')
    const trouble = logicalNameTrouble(dependency.logicalName)
    if (trouble !== undefined) report(`${at}.logicalName`, trouble)
  })
  const tooLarge = dataBytesTrouble((document.dataDependencies ?? []).map(({ sizeBytes }) => sizeBytes))
  if (tooLarge !== undefined) report('dataDependencies', tooLarge)
  const keys =
    document.dataDependencies?.map(({ producerActivityId, consumerActivityId, logicalName }) =>
      dataKey(producerActivityId, consumerActivityId, logicalName),
    ) ?? []
  append(
    problems,
    duplicates(
      keys,
      (i) => `${path}.dataDependencies.${i}`,
      'the combination of producer, consumer and logicalName',
      false,
    ),
  )
  append(
    problems,
    meetingInputs(
      (document.dataDependencies ?? []).map(({ consumerActivityId, logicalName }) => ({
        consumer: positions.get(consumerActivityId),
        logicalName,
      })),
      (position) => {
        const consumer = document.activities[position]
        return consumer !== undefined && embeddedCapabilities(consumer).includes('real')
      },
      (i) => `${path}.dataDependencies.${i}.logicalName`,
    ),
  )
  return problems
}
