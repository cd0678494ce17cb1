import { quote, quoteAll } from '../../../shell/quote.ts'
import type { Intent } from './driver.ts'

/**
 * The home of a task: beside its work directory, so that what programs keep there is no output. It
 * goes with the work directory.
 */
export const homeOf = (directory: string): string => `${directory}.home`

/**
 * The program as words for env, which would read one with `=` in its name as a variable: nice, which
 * changes nothing, starts it.
 */
export const programOf = ({ argv }: Pick<Intent, 'argv'>): readonly string[] =>
  argv[0]?.includes('=') === true ? ['nice', '-n', '0', '--', ...argv] : argv

/** A word of `sh` for env, where the task itself sets no LANG: the image's holds. */
export const imageLanguage = '"LANG=${LANG:-C.UTF-8}"'

/**
 * The script of a task at a remote site: home, work directory, the whole environment, the program. A
 * person may run it there with `sh`; its supervisor sources it, sets `"$@"` to the command that
 * starts a session, and `signals` to options of env and the scheduler's GPU variables.
 *
 * In an image its environment comes first: ORRERY_IMAGE is that as text (`kubernetes/image.sh`).
 * The text may set any variable, so what comes from before it is kept in `"$@"`. The supervisor's
 * PATH still finds what starts the program, as the image's need not lead to tools.
 *
 * The shell interprets no text of the intent: all of it is single-quoted (`quote.ts`).
 */
export const taskScript = (intent: Intent, taskVariable: string): string => {
  const { directory, workingDirectory, environment, container, inImage = container !== undefined } = intent
  const place = workingDirectory === undefined ? directory : `${directory}/${workingDirectory}`
  const home = quote(homeOf(directory))
  const variables = {
    ...(inImage ? {} : { PATH: '/usr/local/bin:/usr/bin:/bin' }),
    HOME: homeOf(directory),
    TMPDIR: '/tmp',
    ...environment,
    [taskVariable]: intent.name,
  }
  const words = [
    ...Object.entries(variables).map(([name, value]) => `${name}=${value}`),
    ...programOf(intent),
  ]
  const make = `[ -d ${home} ] || mkdir -p -m 700 -- ${home} || exit 126\n`
  const enter = `cd ${quote(place)} || exit 126\n`
  if (!inImage) return `${make}${enter}exec "$@" env -i \${signals-} ${quoteAll(words)}\n`
  return (
    `${make}set -- "$PATH" "$@" env \${signals-}\neval "\${ORRERY_IMAGE-}"\n${enter}unset OLDPWD\n` +
    `set -- "$@" "PATH=$PATH"${'LANG' in environment ? '' : ` ${imageLanguage}`}\nPATH=$1\nshift\n` +
    `exec "$@" ${quoteAll(words)}\n`
  )
}
