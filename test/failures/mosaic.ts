/**
 * The rounds of sudden death on the mosaic: `npx node test/failures/mosaic.ts [--full] [--rounds
 * 20] [--seed 1]`. Without `--full` a variant of 60 activities and a few seconds; with it the
 * workflow of the demo. Prints a line per round; the exit code is 1 when one was not in order.
 */
import { parseArgs } from 'node:util'
import { fullShape, mosaicWorkflow, smallShape } from '../../examples/mosaic/generate-workflow.ts'
import type { WorldTask } from '../support/worlds.ts'
import { withLedger } from './ledger.ts'
import { playRounds } from './rounds.ts'

const { values } = parseArgs({
  options: {
    full: { type: 'boolean', default: false },
    rounds: { type: 'string', default: '20' },
    seed: { type: 'string', default: '1' },
  },
})
const { spec } = mosaicWorkflow(values.full ? fullShape : { ...smallShape, columns: 4, rows: 3, strips: 5 })

const tasks = (ledger: string): WorldTask[] =>
  spec.activities.map((activity) => ({
    name: activity.name,
    type: activity.activityType,
    run: withLedger(ledger, activity.run),
    seedPath: activity.workspaceSeedPath,
    stage: activity.stage,
    outputs: activity.expectedOutputs,
    ...(activity.dependsOn === undefined ? {} : { after: activity.dependsOn }),
    inputs: spec.dataDependencies
      .filter((edge) => edge.consumerActivity === activity.name)
      .map((edge) => ({ from: edge.producerActivity, file: edge.logicalName, bytes: edge.sizeBytes })),
  }))

const began = performance.now()
const rounds = await playRounds({
  seed: Number(values.seed),
  rounds: Number(values.rounds),
  tasks,
  environment: { SERVICE_SEED_ROOT: new URL('../../examples', import.meta.url).pathname },
  latestBlowMs: values.full ? 40_000 : 5_000,
  runSeconds: values.full ? 600 : 180,
  say: (line) => void process.stdout.write(`${line}\n`),
})
const wrong = rounds.filter(({ violations }) => violations.length > 0)
process.stdout.write(
  `${String(spec.activities.length)} activities, ${String(rounds.length)} rounds in ` +
    `${((performance.now() - began) / 1_000).toFixed(0)} s: ` +
    `${String(rounds.length - wrong.length)} in order, ${String(wrong.length)} not\n`,
)
process.exitCode = wrong.length === 0 && rounds.length === Number(values.rounds) ? 0 : 1
