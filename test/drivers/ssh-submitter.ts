/**
 * A program of its own for the tests: opens the site that the first argument describes, submits the
 * intents of the second, prints the outcomes as one line of JSON and then only waits, to be killed.
 */
import { openSshSessions } from '../../src/clients/ssh/sessions.ts'
import type { SshTarget } from '../../src/clients/ssh/target.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import type { Intent } from '../../src/drivers/runtime/contract/driver.ts'
import { openSshDriver, type SshDriverOptions } from '../../src/drivers/runtime/remote/ssh.ts'

interface Site {
  options: Omit<SshDriverOptions, 'shell'>
  /** Absent: this machine without a network between. */
  host?: { target: SshTarget; privateKey: string }
}

const [site = '', intents = ''] = process.argv.slice(2)
const { options, host } = JSON.parse(site) as Site
const shell =
  host === undefined
    ? openLocalShell()
    : openSshSessions().shell({
        ...host.target,
        secret: () => Promise.resolve({ privateKey: host.privateKey }),
      })
const outcomes = await openSshDriver({ ...options, shell }).submit(JSON.parse(intents) as Intent[])
process.stdout.write(`${JSON.stringify(outcomes)}\n`)
setInterval(() => {}, 60_000)
