import { notBuilt, unbuiltAlgorithms } from '../../not-built.ts'
import type { Problem } from '../../refusal.ts'
import type { Algorithm, AlgorithmId, ProblemSize } from '../../schedulers/algorithm.ts'
import { algorithms } from '../../schedulers/registry.ts'
import type { AlgorithmRun } from './schemas.ts'

/** The registered algorithms by id. */
export const algorithmList: readonly Algorithm[] = Object.entries<Algorithm>(algorithms)
  .toSorted(([a], [b]) => (a < b ? -1 : 1))
  .map(([, algorithm]) => algorithm)

const registeredIds = algorithmList.map(({ descriptor }) => descriptor.id).join(', ')

export const algorithmOf = (id: string): Algorithm | undefined =>
  Object.hasOwn(algorithms, id) ? algorithms[id as AlgorithmId] : undefined

/**
 * Unknown algorithms, and repeated ones. Known algorithms that are not built are no problem here:
 * see `refuseUnbuilt`.
 */
export const choiceProblems = (choices: readonly { id: string }[]): Problem[] =>
  choices.flatMap(({ id }, at) => {
    const path = `algorithms.${at}.id`
    if (algorithmOf(id) === undefined && !unbuiltAlgorithms.has(id))
      return [
        {
          path,
          message: `${JSON.stringify(id)} is no registered planning algorithm; there are: ${registeredIds}`,
        },
      ]
    return choices.findIndex((choice) => choice.id === id) < at
      ? [{ path, message: `${JSON.stringify(id)} is listed more than once; list it once` }]
      : []
  })

/**
 * @throws Refusal 503 `not_built` for the first algorithm that the API defines and this version
 *   lacks
 */
export const refuseUnbuilt = (choices: readonly { id: string }[]): void => {
  for (const [at, { id }] of choices.entries())
    if (unbuiltAlgorithms.has(id))
      throw notBuilt(`algorithm ${id} at algorithms.${at}.id`, `choose one of ${registeredIds}`)
}

/** The expected time of an algorithm on a problem of this size. */
export const estimateOf = (
  algorithm: Algorithm,
  size: ProblemSize,
  configuration: Record<string, unknown> = {},
): NonNullable<AlgorithmRun['estimate']> => {
  const option = (name: string): Record<string, number> => {
    const value = configuration[name] ?? algorithm.descriptor.defaults?.[name]
    return typeof value === 'number' && algorithm.descriptor.defaults?.[name] !== undefined
      ? { [name]: value }
      : {}
  }
  return {
    durationSeconds: algorithm.estimateSeconds(size),
    ...size,
    ...option('beamWidth'),
    ...option('readyBranchLimit'),
    confidence: 'calibrated',
  }
}
