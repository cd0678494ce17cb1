/**
 * Sudden death with 200 tasks in flight on all sites at once: `npx node test/failures/reach.ts
 * [--rounds 10] [--seed 1] [--kinds hosts|all]`; `all` adds containers, Pods and function calls.
 * Prints a line per round; the exit code is 1 when one was not in order.
 */
import { parseArgs } from 'node:util'
import { playReachRounds } from './reach-rounds.ts'

const { values } = parseArgs({
  options: {
    rounds: { type: 'string', default: '10' },
    seed: { type: 'string', default: '1' },
    kinds: { type: 'string', default: 'all' },
  },
})
const shares =
  values.kinds === 'hosts'
    ? { perHost: 56, onSlurm: 44 }
    : { perHost: 36, onSlurm: 32, contained: 22, pods: 26, calls: 32 }
const rounds = await playReachRounds({
  rounds: Number(values.rounds),
  seed: Number(values.seed),
  ...shares,
  taskSeconds: 20,
  least: 200,
  say: (line) => void process.stdout.write(`${line}\n`),
})
const wrong = rounds.filter(({ violations }) => violations.length > 0)
process.stdout.write(
  `${String(rounds.length)} rounds: ${String(rounds.length - wrong.length)} in order, ${String(wrong.length)} not\n`,
)
process.exitCode = wrong.length === 0 && rounds.length === Number(values.rounds) ? 0 : 1
