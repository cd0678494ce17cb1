import { call, readProgram } from '../../../shell/program.ts'
import { chunks } from './answers.ts'
import { namesAtOnce, type RemoteContext } from './context.ts'

const program = readProgram(import.meta.dirname, 'mark.sh')
const giveUpProgram = readProgram(import.meta.dirname, 'give-up.sh')

/** Numbers in `sh` are integers. */
export const hundredths = (seconds: number): number => Math.max(0, Math.ceil(seconds * 100))

/** As `RemoteTasks.markCancelled`. */
export async function markCancelled(
  { site, elsewhere }: RemoteContext,
  names: readonly string[],
  graceSeconds: number,
): Promise<void> {
  const signal = elsewhere ? '' : '1'
  const grace = String(hundredths(graceSeconds))
  for (const some of chunks(names, namesAtOnce))
    await site.run(
      ({ boot }) =>
        `${program}${call('mark_cancelled', String(Date.now() / 1000), grace, signal, boot, ...some)}\n`,
    )
}

/** As `RemoteTasks.giveUp`. */
export async function giveUp({ site }: RemoteContext, names: readonly string[]): Promise<void> {
  for (const some of chunks(names, namesAtOnce))
    await site.run(() => `${giveUpProgram}${call('give_up', ...some)}\n`)
}
