import type { Algorithm, AlgorithmId } from './algorithm.ts'
import { heft } from './heft.ts'

/** Every algorithm that a planning session can name, by id. */
export const algorithms = { heft } satisfies Record<AlgorithmId, Algorithm>
