import { readProgram } from '../../../shell/program.ts'
import { cgroupFunctions } from '../contract/cgroups.ts'

/** The supervisor of tasks at a site (`wrapper.sh`), installed there once per content. */
export const wrapper = `${cgroupFunctions}${readProgram(import.meta.dirname, 'wrapper.sh')}`
