import type { Problem } from '../../refusal.ts'
import type { Algorithm, AlgorithmId, ProblemSize } from '../../schedulers/algorithm.ts'
import { algorithms } from '../../schedulers/registry.ts'
import type { AlgorithmRun } from './schemas.ts'

/** The registered algorithms by id. */
export const algorithmList: readonly Algorithm[] = Object.entries<Algorithm>(algorithms)
  .toSorted(([a], [b]) => (a < b ? -1 : 1))
  .map(([, algorithm]) => algorithm)

export const algorithmOf = (id: string): Algorithm | undefined =>
  Object.hasOwn(algorithms, id) ? algorithms[id as AlgorithmId] : undefined

/** Algorithms that are not registered, and those named twice. */
export const choiceProblems = (choices: readonly { id: string }[]): Problem[] =>
  choices.flatMap(({ id }, at) => {
    const path = `algorithms.${at}.id`
    if (algorithmOf(id) === undefined)
      return [
        {
          path,
          message: `${JSON.stringify(id)} is no registered planning algorithm; there are: ${algorithmList.map(({ descriptor }) => descriptor.id).join(', ')}`,
        },
      ]
    return choices.findIndex((choice) => choice.id === id) < at ? [{ path, message: `${JSON.stringify(id)} is named twice` }] : []
  })

/** How long an algorithm is expected to take on a problem of this size. */
export const estimateOf = (
  algorithm: Algorithm,
  size: ProblemSize,
  configuration: Record<string, unknown> = {},
): NonNullable<AlgorithmRun['estimate']> => {
  const option = (name: string): Record<string, number> => {
    const value = configuration[name] ?? algorithm.descriptor.defaults?.[name]
    return typeof value === 'number' && algorithm.descriptor.defaults?.[name] !== undefined ? { [name]: value } : {}
  }
  return {
    durationSeconds: algorithm.estimateSeconds(size),
    ...size,
    ...option('beamWidth'),
    ...option('readyBranchLimit'),
    confidence: 'calibrated',
  }
}
