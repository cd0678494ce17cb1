/**
 * Failures that are counted, on real parts, as long as there is time: `npx node bench/failures.ts KIND [--minutes 40] [--count N]
 * [--output FILE | --record]`. Prints a line for whatever is not in order. The counts are added to `bench-results.md`, to FILE, or with
 * `--record` to `bench/RESULTS.md`, and the next run with the same file goes on behind them. The exit code is 1 when something was not in
 * order. KIND:
 *
 *   links-ssh, links-slurm   the link is cut at each message of submit, poll and fetch, in turn
 *   scheduler                Slurm's commands fail, hang and babble for what are hours to the driver
 *   texts                    strings of metacharacters in every value that reaches a shell or sbatch
 *   cancels                  runs that are cancelled at whatever moment
 *   evictions                Pods that are evicted while they run
 *   pods                     2,000 Pods at once on 200 nodes
 */
import { parseArgs } from 'node:util'
import { resultsFile } from './report.ts'
import { openCancelRaces } from '../test/failures/cancel-races.ts'
import { openCutLinks } from '../test/failures/cut-links.ts'
import { openEvictions } from '../test/failures/evictions.ts'
import { openHostileTexts } from '../test/failures/hostile-texts.ts'
import { openPods } from '../test/failures/pods.ts'
import { openSilentScheduler } from '../test/failures/silent-scheduler.ts'
import { addTally, countedBefore, type Failures } from './tally.ts'

const kinds: Readonly<Record<string, () => Promise<Failures>>> = {
  'links-ssh': () => openCutLinks('ssh'),
  'links-slurm': () => openCutLinks('slurm'),
  scheduler: openSilentScheduler,
  texts: openHostileTexts,
  cancels: openCancelRaces,
  evictions: openEvictions,
  pods: openPods,
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    minutes: { type: 'string', default: '40' },
    count: { type: 'string', default: 'Infinity' },
    output: { type: 'string' },
    record: { type: 'boolean', default: false },
  },
})
const [kind = ''] = positionals
const opener = kinds[kind]
const [minutes, most] = [Number(values.minutes), Number(values.count)]
if (opener === undefined || positionals.length !== 1 || !(minutes > 0) || !(most > 0) || (values.record && values.output !== undefined)) {
  process.stderr.write(`npx node bench/failures.ts ${Object.keys(kinds).join('|')} [--minutes 40] [--count N] [--output FILE | --record]\n`)
  process.exit(2)
}

// Sites and programs end with this process.
for (const name of ['SIGTERM', 'SIGINT'] as const) process.once(name, () => process.exit(143))
const until = performance.now() + minutes * 60_000
const failures = await opener()
const file = resultsFile(values)
const before = countedBefore(file, failures.what)
let [counted, wrong] = [0, 0]
try {
  while (counted < most && performance.now() < until) {
    const round = await failures.play(before + counted)
    counted += round.counted
    wrong += Math.min(round.counted, round.violations.length)
    for (const violation of round.violations) process.stdout.write(`${String(before + counted)}: ${violation}\n`)
  }
} finally {
  await failures.close()
  const tally = { what: failures.what, command: `npx node bench/failures.ts ${kind}`, counted, inOrder: counted - wrong }
  process.stdout.write(`${failures.what}: ${String(counted)} counted, ${String(counted - wrong)} in order\n`)
  if (counted > 0) addTally(file, tally)
}
process.exitCode = wrong === 0 && counted > 0 ? 0 : 1
