import { prepareSnakemake } from '../../bench/reach/slurm-tasks.ts'
import { needs } from '../support/needs.ts'
import { sites, type Need } from '../../sites/requirements.ts'
import { tinyRound } from './bench.ts'

/** The benchmarks that start hosts or an engine of their own, and what they need. */
const benchmarks: readonly [name: string, ...Need[]][] = [
  ['ssh-tasks', ...sites.ssh, 'parallel'],
  ['ssh-chain', ...sites.ssh],
  ['host-to-host', ...sites.ssh, 'rsync', 'rclone'],
  ['slurm-tasks', ...sites.slurm, 'python3-venv'],
  ['console-keys', ...sites.ssh],
  ['console-output', ...sites.ssh],
  ['console-memory', ...sites.ssh],
  ['console-commands', ...sites.ssh],
  ['container-tasks', ...sites.docker, 'parallel'],
  ['cloud-instances', ...sites.ssh, 'python3-venv', 'ansible-core', 'bubblewrap'],
]

// A minute where the cache lacks it, which is none of the benchmark.
needs('root', 'python3-venv').beforeAll(() => prepareSnakemake(), 600_000)

for (const [name, ...needed] of benchmarks)
  needs(...needed).test(`${name} works`, () => tinyRound(name), 300_000)
