/**
 * A program of its own for the tests: opens the cluster that the first argument describes, submits
 * the intents of the second, prints the outcomes as one line of JSON and then only waits, to be
 * killed.
 */
import { openLocalShell } from '../../src/shell/local-shell.ts'
import type { Intent } from '../../src/drivers/runtime/contract/driver.ts'
import { openSlurmDriver, type SlurmDriverOptions } from '../../src/drivers/runtime/slurm/driver.ts'

const [site = '', intents = ''] = process.argv.slice(2)
const { environment, ...options } = JSON.parse(site) as Omit<SlurmDriverOptions, 'shell'> & {
  environment: Record<string, string>
}
const driver = openSlurmDriver({ ...options, shell: openLocalShell({ environment }) })
const outcomes = await driver.submit(JSON.parse(intents) as Intent[])
process.stdout.write(`${JSON.stringify(outcomes)}\n`)
setInterval(() => {}, 60_000)
