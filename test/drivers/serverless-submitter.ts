/**
 * A program of its own for the tests: opens the site that the first argument describes, submits the
 * intents of the second, prints the outcomes as one line of JSON and then only waits, to be killed.
 */
import { openFunctions } from '../../src/clients/functions.ts'
import type { Intent } from '../../src/drivers/runtime/contract/driver.ts'
import {
  openServerlessDriver,
  type ServerlessDriverOptions,
} from '../../src/drivers/runtime/serverless/driver.ts'

const [site = '', intents = ''] = process.argv.slice(2)
const { invoke } = openFunctions({ addressAllowed: () => true })
const driver = openServerlessDriver({
  ...(JSON.parse(site) as Omit<ServerlessDriverOptions, 'invoke'>),
  invoke,
})
const outcomes = await driver.submit(JSON.parse(intents) as Intent[])
process.stdout.write(`${JSON.stringify(outcomes)}\n`)
setInterval(() => {}, 60_000)
