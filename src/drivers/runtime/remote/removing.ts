import { call, readProgram } from '../../../shell/program.ts'
import { DriverError } from '../contract/driver.ts'
import { chunks } from './answers.ts'
import { forget, stagingDeadlineMs, type RemoteContext } from './context.ts'
import { errorTextOf } from './error-text.ts'
import { eachCgroupProgram, factsOf } from './looking.ts'

const program = `${eachCgroupProgram}${readProgram(import.meta.dirname, 'remove.sh')}`

/** Removes work directories and all records. Does not check whether the tasks run. */
export async function removeTasks(
  context: RemoteContext,
  names: readonly string[],
): Promise<Map<string, true>> {
  const facts = await factsOf(context, names)
  for (const some of chunks(names, 200)) {
    const calls = some.map((name) => call('remove', name, ...[facts.get(name)?.directory ?? []].flat()))
    const { stderr } = await context.site.run(() => `${program}${calls.join('\n')}\ntrue`, {
      deadlineMs: stagingDeadlineMs,
    })
    if (stderr.trim() !== '')
      throw new DriverError('infrastructure', `cannot remove at the site: ${errorTextOf(stderr)}`)
  }
  for (const name of names) forget(context.memory, name)
  return new Map(names.map((name) => [name, true as const]))
}
