import { assign, readProgram, sumProgram } from '../../../shell/program.ts'

const program = (name: string): string => readProgram(import.meta.dirname, name)
const clock = program('clock.sh')

/** Defines `sweep NODE`, which removes the remains of killed engines on a host. */
export const sweepPodman = program('sweep.sh')

/** The program of a task that runs in a container (`launcher.sh`), with all its parts. */
export const launcher = [
  assign({ inside: `${clock}${program('inside.sh')}` }),
  clock,
  sweepPodman,
  sumProgram,
  program('launcher.sh'),
].join('')
