import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { openSshSessions } from '../../src/clients/ssh/sessions.ts'
import type { SshSessions } from '../../src/clients/ssh/target.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import { openSshDriver } from '../../src/drivers/runtime/remote/ssh.ts'
import type { SiteShell } from '../../src/shell/site-shell.ts'
import { processesWorkingIn } from '../../src/embedded/processes.ts'
import { startSshd, type Sshd } from '../clients/sshd.ts'
import { until } from '../../sites/ground.ts'
import { runtimeDriverConformance, type ConformanceSite } from './conformance.ts'
import { plainIntent } from './intent.ts'
import { runFolder } from '../support/run-folder.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterAll, beforeAll, describe, test } = needs(...sites.sshd)

const submitter = [process.execPath, join(import.meta.dirname, 'ssh-submitter.ts')]

const siteOver = (
  openShell: () => SiteShell,
  closeShells: () => Promise<void>,
  host?: object,
): ConformanceSite => {
  const scratch = mkdtempSync(join(runFolder(), 'orrery-ssh-'))
  const options = {
    root: join(scratch, 'root'),
    runtime: 'ssh',
    taskVariable: 'ORRERY_TASK',
    timeoutGraceSeconds: 1,
    outputPatienceSeconds: 0,
    pollMilliseconds: 500,
  }
  return {
    scratch,
    endsUnmarked: false,
    open: () => openSshDriver({ ...options, shell: openShell() }),
    submitter: [...submitter, JSON.stringify({ options, host })],
    close: async () => {
      await closeShells()
      rmSync(scratch, { recursive: true, force: true })
    },
  }
}

runtimeDriverConformance(
  'ssh, over a shell of this machine',
  () => {
    const shells: SiteShell[] = []
    return siteOver(
      () => {
        const shell = openLocalShell()
        shells.push(shell)
        return shell
      },
      async () => {
        for (const shell of shells) await shell.close()
      },
    )
  },
  { peakNeeds: ['time'] },
)

let sshd: Sshd
let sessions: SshSessions
beforeAll(async () => {
  sshd = await startSshd()
  sessions = openSshSessions()
}, 60_000)
afterAll(async () => {
  await sessions.close()
  await sshd.stop()
})

describe('over sshd', () => {
  runtimeDriverConformance('ssh', () =>
    siteOver(
      () => sessions.shell(sshd.target()),
      () => Promise.resolve(),
      { target: sshd.target(), privateKey: sshd.privateKey },
    ),
  )
})

test('what listens at a site for the ends of tasks goes with the process that it listens for, also when that is killed', async () => {
  const site = siteOver(openLocalShell, () => Promise.resolve())
  const listen = async (): Promise<boolean> =>
    processesWorkingIn('tail', join(site.scratch, 'root', 'tasks')).length > 0
  const [program = '', ...args] = site.submitter
  const task = plainIntent('listened-for', join(site.scratch, 'work'), ['true'])
  const submitting = spawn(program, [...args, JSON.stringify([task])], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  try {
    await once(submitting.stdout, 'data')
    await until('what listens', listen)
    submitting.kill('SIGKILL')
    await until('the end of what listened', async () => !(await listen()))
  } finally {
    submitting.kill('SIGKILL')
    await site.close()
  }
}, 30_000)
