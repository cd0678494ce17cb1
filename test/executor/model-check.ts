import { pathToFileURL } from 'node:url'
import { parseArgs } from 'node:util'
import fc from '../support/fast-check.ts'
import { playScenario, type Scheduling } from './model.ts'
import { scenarios } from './scenario.ts'

// node test/executor/model-check.ts [--sequences 200000] [--seed N] [--moves 80] [--tasks 8]
// [--scheduling FILE] [--raw] Plays random runs with the scheduling of the executor, or with the one in FILE,
// and prints the first that breaks a law, shrunk; with --raw as it was found.

const { values } = parseArgs({
  options: {
    sequences: { type: 'string', default: '200000' },
    seed: { type: 'string', default: String(Date.now() % 1_000_000) },
    moves: { type: 'string', default: '80' },
    tasks: { type: 'string', default: '8' },
    scheduling: { type: 'string' },
    raw: { type: 'boolean', default: false },
  },
})
const file =
  values.scheduling === undefined
    ? new URL('../../src/executor/scheduling.ts', import.meta.url)
    : pathToFileURL(values.scheduling)
const { decide } = (await import(file.href)) as Scheduling
const { openScheduling } = (await import(new URL('scheduling-state.ts', file).href)) as Scheduling
const began = performance.now()
let takeOvers = 0
const result = fc.check(
  fc.property(scenarios({ moves: Number(values.moves), tasks: Number(values.tasks) }), (scenario) => {
    takeOvers += playScenario({ decide, openScheduling }, scenario).takeOvers
  }),
  { seed: Number(values.seed), numRuns: Number(values.sequences), endOnFailure: values.raw },
)
const seconds = ((performance.now() - began) / 1_000).toFixed(1)
if (result.failed) {
  process.stdout.write(
    `seed ${values.seed}, sequence ${String(result.numRuns)}, ${seconds} s: ` +
      `${String((result.errorInstance as Error).stack)}\n` +
      `${JSON.stringify(result.counterexample?.[0])}\n`,
  )
  process.exit(1)
}
process.stdout.write(
  `seed ${values.seed}: ${String(result.numRuns)} sequences, ${String(takeOvers)} take-overs, no ` +
    `law broken, ${seconds} s\n`,
)
