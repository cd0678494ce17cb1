import { test } from '@jest/globals'
import { runFolder } from '../support/remover.ts'
import { tinyRound } from './bench.ts'

/** The benchmarks that an ordinary account can run. */
test.each([
  'montage-noop',
  'montage-naive-temporal',
  'montage-processes',
  'chain',
  'reads',
  'import',
  'second-start',
  'commit',
  'function-calls',
])('%s works', (name) => tinyRound(name, { TMPDIR: runFolder() }), 300_000)
