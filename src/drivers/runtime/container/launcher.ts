import { assign, readProgram } from '../../program.ts'

const program = (name: string): string => readProgram(import.meta.dirname, name)
const clock = program('clock.sh')

/** Defines `sweep NODE`, which removes what killed engines left on a host. */
export const sweepPodman = program('sweep.sh')

/** The program of a task that runs in a container (`launcher.sh`), with all that it consists of. */
export const launcher = `${assign({ inside: `${clock}${program('inside.sh')}` })}${clock}${sweepPodman}${program('launcher.sh')}`
