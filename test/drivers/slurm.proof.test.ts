import { chmodSync, copyFileSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import { openSlurmDriver } from '../../src/drivers/runtime/slurm/driver.ts'
import { startSlurm, type SlurmSite } from '../../sites/slurm.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'
import { runtimeDriverConformance, type ConformanceSite } from './conformance.ts'
import { livesInside } from './in-containers.ts'
import { manyCases, tortureConformance } from './torture.ts'

const { afterAll, beforeAll, describe } = needs(...sites.slurm)

/** One cluster for all tests of this file. */
let site: SlurmSite
let node: string
beforeAll(async () => {
  site = await startSlurm()
  // The nodes have a /home, /srv and /tmp of their own: a checkout below one of them is not there.
  node = join(site.scratch, 'node')
  copyFileSync(process.execPath, node)
}, 300_000)
afterAll(() => site.stop(), 120_000)

const makeSite = (): ConformanceSite => {
  const scratch = mkdtempSync(join(site.scratch, 'conformance-'))
  chmodSync(scratch, 0o755)
  const environment = { PATH: `${site.commands}:/usr/local/bin:/usr/bin:/bin`, SLURM_CONF: site.conf }
  const options = {
    root: join(scratch, 'root'),
    runtime: 'slurm',
    taskVariable: 'ORRERY_TASK',
    pollMilliseconds: 500,
    configuration: { settleSeconds: 3, outputPatienceSeconds: 0 },
  }
  const shells: ReturnType<typeof openLocalShell>[] = []
  return {
    scratch,
    node,
    endsUnmarked: false,
    // Each node has process ids of its own: the same number is a supervisor on the other.
    lives: (pid) => livesInside(pid, join(scratch, 'work')),
    open: () => {
      const shell = openLocalShell({ environment })
      shells.push(shell)
      return openSlurmDriver({ ...options, shell })
    },
    hiding: {
      forMs: 8000,
      open() {
        const folder = mkdtempSync(join(scratch, 'hiding-'))
        const [hidden, squeue] = [join(folder, 'hidden'), join(site.commands, 'squeue')]
        const lacks = `${squeue} "$@" | grep -v orrery-; exit 0`
        const script = `[ ! -e ${hidden} ] || case " $* " in *' -j '*) ;; *) ${lacks} ;; esac\nexec ${squeue} "$@"\n`
        writeFileSync(join(folder, 'squeue'), `#!/bin/sh\n${script}`, { mode: 0o755 })
        const shell = openLocalShell({
          environment: { ...environment, PATH: `${folder}:${environment.PATH}` },
        })
        shells.push(shell)
        const hide = (now: boolean): void =>
          now ? writeFileSync(hidden, '') : rmSync(hidden, { force: true })
        return { driver: openSlurmDriver({ ...options, shell }), hide }
      },
    },
    submitter: [
      process.execPath,
      join(import.meta.dirname, 'slurm-submitter.ts'),
      JSON.stringify({ ...options, environment }),
    ],
    close: async () => {
      for (const shell of shells) await shell.close()
      rmSync(scratch, { recursive: true, force: true })
    },
  }
}

describe('by the commands of this machine', () => {
  runtimeDriverConformance('slurm', makeSite, { hides: true })
  tortureConformance('slurm', makeSite, manyCases)
})
