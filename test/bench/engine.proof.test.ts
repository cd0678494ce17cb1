import { prepareDask } from '../../bench/dask/cluster.ts'
import { needs } from '../support/needs.ts'
import { runFolder } from '../support/run-folder.ts'
import type { Need } from '../../sites/requirements.ts'
import { tinyRound } from './bench.ts'

/** The benchmarks that an ordinary account can run, and what they need. */
const benchmarks: readonly [name: string, ...Need[]][] = [
  ['montage-noop', 'python3-venv'],
  ['montage-naive-temporal'],
  ['montage-processes', 'make'],
  ['chain'],
  ['reads'],
  ['streams'],
  ['polls'],
  ['import'],
  ['second-start'],
  ['commit'],
  ['function-calls'],
  ['record-reads'],
  ['record-reads-10m'],
  ['record-archives'],
  ['record-zip', 'zip', 'unzip'],
]

// Half a minute where the cache lacks it, which is none of the benchmark.
needs('python3-venv').beforeAll(() => prepareDask(), 600_000)

for (const [name, ...needed] of benchmarks)
  needs(...needed).test(`${name} works`, () => tinyRound(name, { TMPDIR: runFolder() }), 300_000)
