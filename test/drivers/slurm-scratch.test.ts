import { mkdtempSync, rmSync, chmodSync } from 'node:fs'
import { join } from 'node:path'
import { openLocalShell } from '../../src/drivers/local-shell.ts'
import { openSlurmDriver } from '../../src/drivers/runtime/slurm.ts'
import { runtimeDriverConformance } from './conformance.ts'

runtimeDriverConformance('slurm scratch', () => {
  const scratch = mkdtempSync('/tmp/eh/c-')
  chmodSync(scratch, 0o755)
  const environment = { SLURM_CONF: '/tmp/eh/slurm/slurm.conf' }
  const options = { root: join(scratch, 'root'), runtime: 'slurm', taskVariable: 'ORRERY_TASK', pollMilliseconds: 500, configuration: { settleSeconds: 3 } }
  const shells: ReturnType<typeof openLocalShell>[] = []
  return {
    scratch,
    endsUnmarked: false,
    open: () => {
      const shell = openLocalShell({ environment })
      shells.push(shell)
      return openSlurmDriver({ ...options, shell })
    },
    submitter: [process.execPath, join(import.meta.dirname, 'slurm-submitter.ts'), JSON.stringify({ ...options, environment })],
    close: async () => {
      for (const shell of shells) await shell.close()
      rmSync(scratch, { recursive: true, force: true })
    },
  }
})
