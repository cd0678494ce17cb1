import { quote, quoteAll } from '../../quote.ts'
import type { Intent } from './driver.ts'

/** What a task finds where its intent says nothing: the same at every site. */
export const taskEnvironment = (intent: Intent, taskVariable: string): Record<string, string> => ({
  PATH: '/usr/local/bin:/usr/bin:/bin',
  HOME: intent.directory,
  TMPDIR: '/tmp',
  ...intent.environment,
  [taskVariable]: intent.name,
})

/**
 * The script of a task as it stands at a remote site: work directory, the whole environment, the program. A person may run it there with
 * `sh`; its supervisor sources it, and puts what starts a session into `"$@"`, and into `signals` options of env and what a scheduler says of GPUs.
 *
 * No text of the intent has a meaning for the shell: all of it is single-quoted (`quote.ts`). A program with `=` in its name
 * would be one more variable to env, so nice, which changes nothing, takes it from there.
 */
export const taskScript = (intent: Intent, taskVariable: string): string => {
  const { directory, workingDirectory, argv } = intent
  const place = workingDirectory === undefined ? directory : `${directory}/${workingDirectory}`
  const variables = Object.entries(taskEnvironment(intent, taskVariable)).map(([name, value]) => `${name}=${value}`)
  const program = argv[0]?.includes('=') === true ? ['nice', '-n', '0', '--', ...argv] : argv
  return `cd ${quote(place)} || exit 126\nexec "$@" env -i \${signals-} ${quoteAll(variables)} ${quoteAll(program)}\n`
}
