import type { Problem } from '../../refusal.ts'
import type { Algorithm, AlgorithmId, AlgorithmOptions, ProblemSize } from '../../schedulers/algorithm.ts'
import { algorithms } from '../../schedulers/registry.ts'
import { SearchOptions, type AlgorithmRun } from './schemas.ts'

/** The registered algorithms by id. */
export const algorithmList: readonly Algorithm[] = Object.entries<Algorithm>(algorithms)
  .toSorted(([a], [b]) => (a < b ? -1 : 1))
  .map(([, algorithm]) => algorithm)

const registeredIds = algorithmList.map(({ descriptor }) => descriptor.id).join(', ')

export const algorithmOf = (id: string): Algorithm | undefined =>
  Object.hasOwn(algorithms, id) ? algorithms[id as AlgorithmId] : undefined

/** Unknown algorithms, and repeated ones. */
export const choiceProblems = (choices: readonly { id: string }[]): Problem[] =>
  choices.flatMap(({ id }, at) => {
    const path = `algorithms.${at}.id`
    if (algorithmOf(id) === undefined)
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

/** The options of a search in a stored configuration, which may hold other keys. */
export const searchOptions = (configuration: Record<string, unknown> = {}): AlgorithmOptions =>
  SearchOptions.parse(configuration) as AlgorithmOptions

/** The expected time of an algorithm on a problem of this size. */
export const estimateOf = (
  algorithm: Algorithm,
  size: ProblemSize,
  configuration?: Record<string, unknown>,
): NonNullable<AlgorithmRun['estimate']> => ({
  ...size,
  ...algorithm.estimate(size, searchOptions(configuration)),
  confidence: 'calibrated',
})
