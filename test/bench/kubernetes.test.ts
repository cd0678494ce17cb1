import { beforeAll, test } from '@jest/globals'
import { buildKubernetes } from '../sites/kubernetes-build.ts'
import { tinyRound } from './bench.ts'

// Four minutes of two processors where the cache lacks it, which is none of the benchmark.
beforeAll(() => buildKubernetes(), 1_200_000)

test('kubernetes-jobs works', () => tinyRound('kubernetes-jobs'), 300_000)
