import { call, readProgram } from '../../../shell/program.ts'
import { chunks } from './answers.ts'
import { namesAtOnce, type RemoteContext } from './context.ts'
import { errorTextOf } from './error-text.ts'

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
export async function giveUp(
  { site }: RemoteContext,
  names: readonly string[],
): Promise<Map<string, string>> {
  const unwritten = new Map<string, string>()
  for (const some of chunks(names, namesAtOnce)) {
    const { stdout } = await site.run(() => `${giveUpProgram}${call('give_up', ...some)}\n`)
    const { root } = await site.facts()
    for (const line of stdout.toString().split('\n')) {
      const [, file = '', name, words = ''] = /^unwritten (([a-z0-9-]+)\.[a-z]+)(.*)$/.exec(line) ?? []
      if (name !== undefined)
        unwritten.set(
          name,
          `the host cannot write ${root}/tasks/${file}: ${errorTextOf(words)}; make room there, let the account ` +
            'write in this folder, or remove what is in the place of this file',
        )
    }
  }
  return unwritten
}
