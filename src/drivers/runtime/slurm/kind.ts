import { z } from 'zod'
import { memberText } from '../../../json-object.ts'
import { assign } from '../../../shell/program.ts'
import type { SiteShell } from '../../../shell/site-shell.ts'
import { inContainers } from '../container/shell-site.ts'
import type { DriverKind, WaysOut } from '../contract/kind.ts'
import { slurmCapabilities } from './adapter.ts'
import { openSlurmDriver, type SlurmDriverOptions } from './driver.ts'

/** A shell whose scripts have one more variable. */
const withVariable = (shell: SiteShell, name: string, value: string): SiteShell => {
  const given = `${assign({ [name]: value })}export ${name}\n`
  return {
    run: (script, options) => shell.run(given + script, options),
    open: (script, options) => shell.open(given + script, options),
    ...(shell.terminal === undefined
      ? {}
      : { terminal: (script, size) => shell.terminal!(given + script, size) }),
    close: () => shell.close(),
  }
}

const Rest = z.object({ url: z.url({ protocol: /^https?$/ }), user: z.string(), credentialRef: z.string() })

/** `slurmrestd: {url, user, credentialRef}` of a runtime's configuration. */
const restOf = (
  value: unknown,
  { http, tokenOf }: WaysOut['slurmrestd'],
): Pick<SlurmDriverOptions, 'slurmrestd'> => {
  const rest = Rest.safeParse(value)
  if (!rest.success) return {}
  const { url, user, credentialRef } = rest.data
  return { slurmrestd: { http, url, user, token: () => tokenOf(credentialRef) } }
}

/** A cluster that Slurm schedules, by the commands of a login node or of this machine. */
export const slurm: DriverKind = {
  capabilities: { ...slurmCapabilities, container: true },
  schedulesItself: true,
  sharesFiles: true,
  connection: { type: 'ssh', optional: true },
  hasPartitions: true,
  inNamespace: false,
  containers: 'configured',
  holdsDefaultMemory: true,
  siteOf: ({ runtimeId }) => `slurm/${runtimeId}`,
  open({ runtime, taskVariable, connectionId, configuration }, ways) {
    const [root, slurmConf] = [
      memberText(configuration['workDirectory']),
      memberText(configuration['slurmConf']),
    ]
    const reached = ways.shellOf(connectionId)
    const shell = slurmConf === '' ? reached : withVariable(reached, 'SLURM_CONF', slurmConf)
    const driver = openSlurmDriver({
      ...{ runtime, taskVariable, shell, configuration, root },
      ...restOf(configuration['slurmrestd'], ways.slurmrestd),
    })
    return inContainers(driver, { shell, taskVariable, endsDescendants: true })
  },
}
