import { quote, quoteAll } from '../../../shell/quote.ts'
import type { Intent } from './driver.ts'

/**
 * The home of a task: beside its work directory, so that what programs keep there is no output. It
 * goes with the work directory.
 */
export const homeOf = (directory: string): string => `${directory}.home`

/** The environment of a task where its intent sets nothing: the same at every site. */
export const taskEnvironment = (intent: Intent, taskVariable: string): Record<string, string> => ({
  PATH: '/usr/local/bin:/usr/bin:/bin',
  HOME: homeOf(intent.directory),
  TMPDIR: '/tmp',
  ...intent.environment,
  [taskVariable]: intent.name,
})

/**
 * The script of a task at a remote site: home, work directory, the whole environment, the program. A
 * person may run it there with `sh`; its supervisor sources it, sets `"$@"` to the command that
 * starts a session, and `signals` to options of env and the scheduler's GPU variables.
 *
 * The shell interprets no text of the intent: all of it is single-quoted (`quote.ts`). env would
 * read a program with `=` in its name as a variable, so nice, which changes nothing, starts it.
 */
export const taskScript = (intent: Intent, taskVariable: string): string => {
  const { directory, workingDirectory, argv } = intent
  const place = workingDirectory === undefined ? directory : `${directory}/${workingDirectory}`
  const variables = Object.entries(taskEnvironment(intent, taskVariable)).map(
    ([name, value]) => `${name}=${value}`,
  )
  const program = argv[0]?.includes('=') === true ? ['nice', '-n', '0', '--', ...argv] : argv
  const home = quote(homeOf(directory))
  const enter = `[ -d ${home} ] || mkdir -p -m 700 -- ${home} || exit 126\ncd ${quote(place)} || exit 126\n`
  return `${enter}exec "$@" env -i \${signals-} ${quoteAll(variables)} ${quoteAll(program)}\n`
}
