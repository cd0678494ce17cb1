/**
 * A program of its own for the tests: opens the driver of the table that the first argument
 * describes, submits the intents of the second, prints the outcomes as one line of JSON and then
 * only waits, to be killed.
 */
import { openLocalShell } from '../../src/shell/local-shell.ts'
import type { Intent } from '../../src/drivers/runtime/contract/driver.ts'
import { openTableDriver, type TableOptions } from './table.ts'

const [site = '', intents = ''] = process.argv.slice(2)
const driver = openTableDriver({
  ...(JSON.parse(site) as Omit<TableOptions, 'shell'>),
  shell: openLocalShell(),
})
process.stdout.write(`${JSON.stringify(await driver.submit(JSON.parse(intents) as Intent[]))}\n`)
setInterval(() => {}, 60_000)
