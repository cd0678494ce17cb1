import { call, readProgram } from '../../../shell/program.ts'
import { chunks } from './answers.ts'
import { namesAtOnce, type RemoteContext } from './context.ts'

const program = readProgram(import.meta.dirname, 'mark.sh')

/** Numbers in `sh` are integers. */
export const hundredths = (seconds: number): number => Math.max(0, Math.ceil(seconds * 100))

/**
 * Buries names that have no record (they never start); leaves a cancel mark for the others. With
 * `signal`, signals their supervisors.
 */
export async function markCancelled(
  { site }: RemoteContext,
  names: readonly string[],
  graceSeconds: number,
  signal: boolean,
): Promise<void> {
  const grace = String(hundredths(graceSeconds))
  for (const some of chunks(names, namesAtOnce))
    await site.run(
      ({ boot }) =>
        `${program}${call('mark_cancelled', String(Date.now() / 1000), grace, signal ? '1' : '', boot, ...some)}\n`,
    )
}
