import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { cloud } from '../../src/drivers/runtime/cloud/kind.ts'
import type { WaysOut } from '../../src/drivers/runtime/contract/kind.ts'
import { withKeeping } from '../../src/drivers/transfer/keeping-driver.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import type { SiteShell } from '../../src/shell/site-shell.ts'
import { runFolder } from '../support/run-folder.ts'
import { runtimeDriverConformance, type ConformanceSite } from './conformance.ts'

/**
 * The driver of machines that are made for runs, with the copies that it leaves on this machine,
 * over a shell as an instance's session gives one. `test/execution-runs/cloud.proof.test.ts` has it over
 * real sessions to machines of a provider.
 */

const submitter = [process.execPath, join(import.meta.dirname, 'ssh-submitter.ts')]

const openSite = (): ConformanceSite => {
  const scratch = mkdtempSync(join(runFolder(), 'orrery-cloud-'))
  const kept = mkdtempSync(join(runFolder(), 'orrery-kept-'))
  mkdirSync(join(scratch, 'work'))
  const shells: SiteShell[] = []
  const machineShell = (): SiteShell => {
    const shell = openLocalShell()
    shells.push(shell)
    return shell
  }
  const request = {
    runtime: 'ssh',
    taskVariable: 'ORRERY_TASK',
    configuration: { workDirectory: scratch, outputPatienceSeconds: 0 },
  }
  return {
    scratch,
    endsUnmarked: false,
    open() {
      const opened = cloud.open!({ ...request, machine: 'one' }, { machineShell } as unknown as WaysOut)
      return withKeeping(opened.driver, {
        from: () =>
          Promise.resolve({ site: 'cloud/t', host: 'machine:one', shell: opened.shell, mounts: [] }),
        to: { site: 'local@here', host: 'here', shell: machineShell(), mounts: [] },
        ...{ workRoot: kept, host: 'here' },
      })
    },
    submitter: [
      ...submitter,
      JSON.stringify({ options: { root: scratch, runtime: 'ssh', taskVariable: 'ORRERY_TASK' } }),
    ],
    close: async () => {
      for (const shell of shells) await shell.close()
      for (const folder of [scratch, kept]) rmSync(folder, { recursive: true, force: true })
    },
  }
}

runtimeDriverConformance('cloud, with copies off the machine', openSite, {
  peakNeeds: ['time'],
  restless: false,
})
