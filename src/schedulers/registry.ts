import type { Algorithm, AlgorithmId } from './algorithm.ts'
import { heft } from './heft.ts'
import { prismCost, prismTime } from './prism.ts'

/** Every algorithm that a planning session can name, by id. */
export const algorithms = {
  heft,
  'prism-cost': prismCost,
  'prism-time': prismTime,
} satisfies Record<AlgorithmId, Algorithm>
