import { buildKubernetes } from '../../sites/kubernetes-build.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'
import { tinyRound } from './bench.ts'

const { beforeAll, test } = needs(...sites.kubernetes)

// Four minutes of two processors where the cache lacks it, which is none of the benchmark.
beforeAll(() => buildKubernetes(), 1_200_000)

test('kubernetes-jobs works', () => tinyRound('kubernetes-jobs'), 300_000)
