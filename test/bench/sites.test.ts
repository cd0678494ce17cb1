import { prepareSnakemake } from '../../bench/reach/slurm-tasks.ts'
import { needs } from '../support/needs.ts'
import type { Need } from '../support/requirements.ts'
import { tinyRound } from './bench.ts'

const hosts: readonly Need[] = ['root', 'openssh-server', 'openssh-client', 'iproute2', 'iptables']

/** The benchmarks that start hosts or an engine of their own, and what they need. */
const benchmarks: readonly [name: string, ...Need[]][] = [
  ['ssh-tasks', ...hosts, 'parallel'],
  ['ssh-chain', ...hosts],
  ['host-to-host', ...hosts, 'rsync', 'rclone'],
  ['slurm-tasks', ...hosts, 'slurm-wlm', 'slurmdbd', 'mariadb-server', 'munge', 'python3-venv'],
  ['container-tasks', 'root', 'docker.io', 'runc', 'debootstrap', 'iproute2', 'parallel'],
]

// A minute where the cache lacks it, which is none of the benchmark.
needs('root', 'python3-venv').beforeAll(() => prepareSnakemake(), 600_000)

for (const [name, ...needed] of benchmarks) needs(...needed).test(`${name} works`, () => tinyRound(name), 300_000)
