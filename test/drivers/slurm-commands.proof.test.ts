import { playWhole } from '../support/share.ts'

// 5,000 strings reach sbatch, of which the gate sends a share.
playWhole()
await import('./slurm-commands.test.ts')
