/**
 * A program of its own for the tests: opens the site that the first argument describes with its
 * tasks in containers, submits the intents of the second, prints the outcomes as one line of JSON
 * and then only waits, to be killed.
 */
import type { Intent } from '../../src/drivers/runtime/contract/driver.ts'
import { openContainerSite, type ContainerSiteOptions } from './container-site.ts'

const [site = '', intents = ''] = process.argv.slice(2)
const { driver } = openContainerSite(JSON.parse(site) as ContainerSiteOptions)
process.stdout.write(`${JSON.stringify(await driver.submit(JSON.parse(intents) as Intent[]))}\n`)
setInterval(() => {}, 60_000)
