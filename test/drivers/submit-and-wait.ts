/**
 * A program of its own for the tests: opens the site that the first argument describes, submits the
 * intents of the second, prints the outcomes as one line of JSON and then only waits, to be killed.
 */
import { openLocalDriver, type LocalDriverOptions } from '../../src/drivers/runtime/local/driver.ts'
import type { Intent } from '../../src/drivers/runtime/contract/driver.ts'
import { runnerProgram } from '../support/runner-program.ts'

const [site = '', intents = ''] = process.argv.slice(2)
const driver = openLocalDriver({
  ...(JSON.parse(site) as Omit<LocalDriverOptions, 'runnerProgram'>),
  runnerProgram,
})
const outcomes = await driver.submit(JSON.parse(intents) as Intent[])
process.stdout.write(`${JSON.stringify(outcomes)}\n`)
setInterval(() => {}, 60_000)
