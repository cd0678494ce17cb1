/**
 * Plays failures on real parts and counts them, for a given time: `npx node bench/failures.ts KIND
 * [--minutes 40] [--count N] [--output FILE | --record]`. Prints a line for each violation. Adds
 * the counts to `bench-results.md`, to FILE, or with `--record` to `bench/RESULTS.md`; the next run
 * with the same file continues their numbers. The exit code is 1 after a violation. KIND:
 *
 *   links-ssh, links-slurm   the link is cut at each message of submit, poll and fetch, in turn
 *   scheduler                Slurm's commands fail, hang and print nonsense, for hours by the
 *                            driver's clock
 *   texts                    strings of metacharacters in every value that reaches a shell or sbatch
 *   texts-cloud              the same as ids, names, accounts and variables of cloud machines
 *   ledgers-local, ledgers-ssh, ledgers-slurm, ledgers-pods, ledgers-docker
 *                            processes of the service and the site die under runs whose tasks write a
 *                            ledger
 *   cancels                  runs are cancelled at random moments
 *   evictions                Pods are evicted while they run
 *   pods                     2,000 Pods at once on 200 nodes
 *   machines                 the daemon dies between the creation of a machine and its record
 *   copies, archives, indexes   the service is killed during jobs of storages on a tree of 20 GiB
 *                            (`ORRERY_TREE_GIB`)
 *   spots                    cloud machines are taken back under running activities
 *   clouds                   daemon, PostgreSQL, Temporal, ansible or worker is killed at a random moment
 *                            of a run on a cloud machine
 *   swaps                    a link takes the place of a directory of a storage that is used: here, by
 *                            SSH, in a Pod
 *   mutations                one thing of an honest archive is changed, which an import refuses
 *   records                  daemon or PostgreSQL is killed while records are sealed, exported,
 *                            imported, activated, reset or asked for
 *   builds                   daemon, worker, PostgreSQL, Temporal or engine is killed in a phase of a build
 *   deliveries               the same while an image is pulled or a SIF file is brought to a host
 */
import { parseArgs } from 'node:util'
import { resultsFile } from './report.ts'
import { openBuildKills, openDeliveryKills } from '../test/failures/artifact-kills.ts'
import { openCancelRaces } from '../test/failures/cancel-races.ts'
import { openCloudKills, openSpots } from '../test/failures/cloud-runs.ts'
import { openCloudCrashes } from '../test/failures/cloud-crashes.ts'
import { openCloudTexts } from '../test/failures/cloud-texts.ts'
import { openCutLinks } from '../test/failures/cut-links.ts'
import { openEvictions } from '../test/failures/evictions.ts'
import { openHostileTexts } from '../test/failures/hostile-texts.ts'
import { openLedgers } from '../test/failures/ledger-sites.ts'
import { openPods } from '../test/failures/pods.ts'
import { openArchiveMutations } from '../test/failures/archive-mutations.ts'
import { openRecordRounds } from '../test/failures/record-rounds.ts'
import { openSilentScheduler } from '../test/failures/silent-scheduler.ts'
import { openLinkSwaps } from '../test/failures/link-swaps.ts'
import { openStorageKills } from '../test/failures/storage-kills.ts'
import { addTally, countedBefore, type Failures } from './tally.ts'

const say = (line: string): void => void process.stdout.write(`${line}\n`)

const kinds: Readonly<Record<string, () => Promise<Failures>>> = {
  'links-ssh': () => openCutLinks('ssh'),
  'links-slurm': () => openCutLinks('slurm'),
  scheduler: openSilentScheduler,
  texts: openHostileTexts,
  'texts-cloud': openCloudTexts,
  'ledgers-local': () => openLedgers('on this machine', say),
  'ledgers-ssh': () => openLedgers('at an SSH host', say),
  'ledgers-slurm': () => openLedgers('on a Slurm cluster', say),
  'ledgers-pods': () => openLedgers('on a Kubernetes cluster', say),
  'ledgers-docker': () => openLedgers('in containers of this machine', say),
  cancels: openCancelRaces,
  evictions: openEvictions,
  pods: openPods,
  machines: openCloudCrashes,
  copies: () => openStorageKills('copies'),
  archives: () => openStorageKills('archives'),
  indexes: () => openStorageKills('indexes'),
  spots: openSpots,
  clouds: openCloudKills,
  swaps: openLinkSwaps,
  mutations: openArchiveMutations,
  records: openRecordRounds,
  builds: openBuildKills,
  deliveries: openDeliveryKills,
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
if (
  opener === undefined ||
  positionals.length !== 1 ||
  !(minutes > 0) ||
  !(most > 0) ||
  (values.record && values.output !== undefined)
) {
  process.stderr.write(
    `npx node bench/failures.ts ${Object.keys(kinds).join('|')} [--minutes 40] [--count N] ` +
      `[--output FILE | --record]\n`,
  )
  process.exit(2)
}

// At a signal the round is given up, what was opened is closed, and the rounds before it count.
const signalled = new Promise<undefined>((resolve) => {
  for (const name of ['SIGTERM', 'SIGINT'] as const) process.once(name, () => resolve(undefined))
})
const until = performance.now() + minutes * 60_000
const failures = await Promise.race([opener(), signalled])
if (failures === undefined) process.exit(143)
const file = resultsFile(values)
const before = countedBefore(file, failures.what)
let [counted, wrong, isStopped] = [0, 0, false]
try {
  while (counted < most && performance.now() < until) {
    const round = await Promise.race([failures.play(before + counted), signalled])
    isStopped = round === undefined
    if (round === undefined) break
    counted += round.counted
    wrong += Math.min(round.counted, round.violations.length)
    for (const violation of round.violations)
      process.stdout.write(`${String(before + counted)}: ${violation}\n`)
  }
} finally {
  await failures.close()
  const tally = {
    what: failures.what,
    command: `npx node bench/failures.ts ${kind}`,
    counted,
    inOrder: counted - wrong,
  }
  process.stdout.write(`${failures.what}: ${String(counted)} counted, ${String(counted - wrong)} in order\n`)
  if (counted > 0) addTally(file, tally)
}
if (isStopped) process.exit(143)
process.exitCode = wrong === 0 && counted > 0 ? 0 : 1
