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

/**
 * Search path of tasks without that of an image: that of a login shell. Nothing of the service's own
 * environment is passed on.
 */
export const taskPath = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

/** A word of `sh` for env, before those that the task sets: the image's holds. */
export const imageLanguage = '"LANG=${LANG:-C.UTF-8}"'

/**
 * The script of a task at a remote site: home, work directory, the whole environment, the program. A
 * person may run it there with `sh`; its supervisor sources it, sets `"$@"` to the command that
 * starts a session, and `signals` to options of env and the scheduler's GPU variables.
 *
 * `inImage`: ORRERY_IMAGE may be the environment of an image, as text (`kubernetes/image.sh`), which
 * comes first. The text may set any variable, so what comes from before it is kept in `"$@"`; it may
 * print, for a name that is none for the shell. The supervisor's PATH still finds what starts the
 * program, as the image's need not lead to tools. Without the text nothing is inherited.
 *
 * The shell interprets no text of the intent: all of it is single-quoted (`quote.ts`).
 */
export const taskScript = (intent: Intent, taskVariable: string, inImage = false): string => {
  const { directory, workingDirectory, environment } = intent
  const place = workingDirectory === undefined ? directory : `${directory}/${workingDirectory}`
  const home = quote(homeOf(directory))
  const variables = {
    ...(inImage ? {} : { PATH: taskPath }),
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
    `${make}if [ -n "\${ORRERY_IMAGE-}" ]; then\n` +
    `  set -- "$PATH" "$@" env \${signals-}\n  eval "$ORRERY_IMAGE" > /dev/null 2>&1\n` +
    `  set -- "$@" "PATH=$PATH" ${imageLanguage}\n  PATH=$1\n  shift\n` +
    `else\n  set -- "$@" env -i \${signals-} PATH=${taskPath} LANG=C.UTF-8\nfi\n` +
    `${enter}unset OLDPWD\nexec "$@" ${quoteAll(words)}\n`
  )
}
