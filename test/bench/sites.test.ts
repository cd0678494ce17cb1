import { test } from '@jest/globals'
import { tinyRound } from './bench.ts'

/** The benchmarks that start hosts or an engine of their own. */
test.each(['ssh-tasks', 'ssh-chain', 'host-to-host', 'slurm-tasks', 'container-tasks'])('%s works', (name) => tinyRound(name), 300_000)
