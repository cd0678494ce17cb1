import { reasonText } from '../../../outside-text.ts'
import { quote, quoteAll } from '../../../shell/quote.ts'
import type { ShellResult, SiteShell } from '../../../shell/site-shell.ts'
import { DriverError } from '../contract/driver.ts'
import { renderIndexes } from './array.ts'
import { acceptedScript } from '../batch/submissions.ts'
import { NoRoom } from '../batch/scheduler.ts'
import {
  historyFields,
  parseHistory,
  parseJobRecords,
  parseQueue,
  queueFormat,
  type SlurmJob,
} from './jobs.ts'
import { parseLimits, partitionFormat } from './limits.ts'
import { requestOptions } from './request.ts'
import type { SlurmScheduler } from './scheduler.ts'

/** The controller does not know the id. */
const deniedId = /invalid job id/i

export interface SlurmCommandsOptions {
  shell: SiteShell
  root: () => Promise<string>
  /** Whether Slurm itself may run a task again after it took the task away (`--requeue`). */
  requeue: boolean
  /** A command of the scheduler without an answer by then is ended. */
  deadlineSeconds: number
}

/** Variables of the account that would change the format and the amount of the commands' output. */
const plainEnvironment = `unset SQUEUE_ACCOUNT SQUEUE_ALL SQUEUE_ARRAY SQUEUE_FORMAT SQUEUE_FORMAT2 \\
  SQUEUE_LICENSES SQUEUE_NAMES SQUEUE_PARTITION SQUEUE_PRIORITY SQUEUE_QOS SQUEUE_SORT SQUEUE_STATES SQUEUE_USERS \\
  SACCT_FORMAT SINFO_FORMAT SINFO_PARTITION SINFO_SORT SBATCH_WAIT SBATCH_PARSABLE
export SLURM_TIME_FORMAT=%s SLURM_BITSTR_LEN=0 LC_ALL=C
`

const silent = new RegExp(
  [
    'unable to contact slurm|socket timed out|connection refused|connect failure|communication',
    'zero bytes|transport endpoint|backup controller|unable to establish|configuration source',
    'protocol authentication|munge|dbd.*(down|unavailable)|connection to slurmdbd',
    'network is unreachable|I/O error writing script|invalid authentication credential',
  ].join('|'),
  'i',
)
/**
 * Also the answer to a request that a site's submit plugin refuses: the plugin's reason is another
 * line then.
 */
const unexplained = /^(batch job submission failed: )?unspecified error$/i
const noRoom =
  /MaxSubmit|MaxJobCount|temporarily unable to accept|resource temporarily unavailable|too many jobs|MaxArraySize/i

const textOf = (text: string): string =>
  reasonText(text)
    .split('\n')
    .map((line) =>
      line.replace(/^(sbatch|squeue|sacct|scancel|sinfo|scontrol): (error: |fatal: )?/, '').trim(),
    )
    .filter((line) => line !== '')
    .slice(-4)
    .join('; ')

/**
 * Submits, and prints the array's id. Where a site wraps `sbatch`, other lines stand beside the id,
 * or there is none, or the code is the wrapper's: then the one job of this account with the array's
 * name counts, and where that is not found the last line that is an id.
 */
const submitScript = ({
  limited,
  name,
  options,
  accepted,
}: {
  limited: string
  name: string
  options: readonly string[]
  accepted: string
}): string => `answer=$(${limited} sbatch ${quoteAll(options)} < /dev/null)
code=$?
case $code in 124 | 126 | 127 | 137) exit "$code" ;; esac
id=\${answer%%;*}
case $code:$id in
  0: | *[!0-9:]* | [!0]*)
    id=$(${limited} squeue --all -h -t all -u "$(id -u)" -n ${quote(name)} -o %F 2> /dev/null |
      grep -x '[0-9][0-9]*' | sort -u) ;;
esac
case $id in
  '' | *[!0-9]*)
    [ "$code" -eq 0 ] || exit "$code"
    id=$(printf '%s\\n' "$answer" | sed -n 's/^ *\\([0-9][0-9]*\\)\\(;.*\\)*[[:space:]]*$/\\1/p' | tail -n 1) ;;
esac
[ -n "$id" ] || { printf %s "$answer"; exit 0; }
echo "$id"
${accepted}`

/** Runs Slurm's commands at a site, and reads what their failures mean. */
const openCommands = (shell: SiteShell, deadlineSeconds: number) => {
  /** `commands`: how many may take their whole deadline, one after the other. */
  const run = async (what: string, script: string, commands = 1): Promise<ShellResult> => {
    // The command's own deadline comes first: it leaves no process at the site.
    const deadlineMs = (commands * deadlineSeconds + 15) * 1000
    const result = await shell.run(`${plainEnvironment}${script}`, { deadlineMs })
    const errorText = textOf(result.stderr)
    if (result.code === 124 || result.code === 137)
      throw new DriverError('unknown', `${what} did not answer within ${deadlineSeconds} s`)
    if (result.code === 127)
      throw new DriverError('refused', `${what} cannot be run at the site: ${errorText}`)
    if (result.code !== 0 && silent.test(result.stderr))
      throw new DriverError('unknown', `${what}: ${errorText}`)
    return result
  }
  const ask = async (what: string, script: string): Promise<string> => {
    const { code, signal, stdout, stderr } = await run(what, script)
    // A status command that fails for any reason counts as silent.
    if (code !== 0) throw new DriverError('unknown', `${what}: ${textOf(stderr) || `exit ${code ?? signal}`}`)
    return stdout.toString()
  }
  /** The same about jobs by their ids; that the controller does not know an id is an answer. */
  const askById = async (what: string, script: string): Promise<string> => {
    const { code, stdout, stderr } = await run(what, script)
    const lines = stderr.split('\n').filter((line) => line.trim() !== '')
    const denied = lines.some((line) => deniedId.test(line))
    // A wrapped command may say more: beside a denial only what names an error is trouble.
    const trouble = lines.filter((line) => !deniedId.test(line) && (!denied || /error/i.test(line)))
    if (code !== 0 && (trouble.length > 0 || !denied))
      throw new DriverError(
        'unknown',
        `${what}: ${textOf(trouble.join('\n')) || `exit ${code ?? 'unknown'}`}`,
      )
    return stdout.toString()
  }
  return { run, ask, askById }
}

/**
 * Converts times of a cluster with a wrong clock to this machine's; `text` begins with the
 * cluster's time.
 */
const atOurTime = (text: string, parse: (lines: string) => SlurmJob[]): SlurmJob[] => {
  const offset = Math.round(Date.now() / 1000 - Number.parseInt(text))
  const moved = (time: number | undefined): number | undefined =>
    time === undefined || Math.abs(offset) < 3 ? time : time + offset
  return parse(text).map((job) => ({
    ...job,
    startedAt: moved(job.startedAt),
    endedAt: moved(job.endedAt),
  }))
}

/** A scheduler that is queried by its commands, at the site that the shell reaches. */
export function openSlurmCommands({
  shell,
  root,
  requeue,
  deadlineSeconds,
}: SlurmCommandsOptions): SlurmScheduler {
  const limited = `timeout -k 2 ${deadlineSeconds}`

  const { run, ask, askById } = openCommands(shell, deadlineSeconds)

  return {
    async limits() {
      const text = await ask(
        'sinfo',
        `echo '== now'; date +%s; echo '== partitions'; ${limited} sinfo -a -e -h -o ${quote(partitionFormat)} || exit
echo '== config'; ${limited} scontrol show config || exit
echo '== reservations'; ${limited} scontrol -o show reservation || exit`,
      )
      return parseLimits(text)
    },
    async queue() {
      const text = await ask(
        'squeue',
        `date +%s; { ${limited} squeue --all -h -t all -u "$(id -u)" -o ${quote(queueFormat)}; echo "exit $?"; } |
  grep -e '|orrery-' -e '^exit' | {
  while IFS= read -r line; do
    case $line in 'exit '*) exit "\${line#exit }" ;; *) printf '%s\\n' "$line" ;; esac
  done; exit 1; }`,
      )
      return atOurTime(text, parseQueue)
    },
    async jobs(ids) {
      const listed = await askById(
        'squeue',
        `date +%s; ${limited} squeue --all -h -t all -j ${quote(ids.join(','))} -o ${quote(queueFormat)}`,
      )
      const jobs = atOurTime(listed, parseQueue)
      const lacking = ids.filter((id) => !jobs.some(({ job }) => job === id))
      if (lacking.length === 0) return jobs
      const shown = await askById(
        'scontrol',
        `date +%s; code=0
for id in ${quoteAll(lacking)}; do ${limited} scontrol --all -o show job "$id" || code=$?; done
exit "$code"`,
      )
      return [...jobs, ...atOurTime(shown, parseJobRecords)]
    },
    async history(jobs, ageSeconds) {
      // Without a start sacct looks from midnight on.
      const from = `now-${Math.ceil(ageSeconds) + 86_400}seconds`
      const text = await ask(
        'sacct',
        `date +%s; ${limited} sacct -n -P -j ${quote(jobs.join(','))} -S ${quote(from)} -o ${quote(historyFields)}`,
      )
      return atOurTime(text, parseHistory)
    },
    async submit(array, indexes) {
      const folder = `${await root()}/arrays/${array.name}`
      const options = [
        '--parsable',
        `--array=${renderIndexes(indexes)}`,
        `--job-name=${array.name}`,
        `--comment=${array.name}`,
        requeue ? '--requeue' : '--no-requeue',
        '--export=ALL',
        '--chdir=/',
        '--output=/dev/null',
        '--error=/dev/null',
        ...requestOptions(array.request),
        `${folder}/script`,
      ]
      const { code, stdout, stderr } = await run(
        'sbatch',
        submitScript({
          limited,
          name: array.name,
          options,
          accepted: acceptedScript(quote(folder), '"$id"'),
        }),
        2,
      )
      const answer = stdout.toString().trim()
      if (/^\d+$/.test(answer)) return answer
      const errorText = textOf(stderr)
      if (noRoom.test(stderr)) throw new NoRoom(errorText)
      // A refusal has a reason. After any other error the array may have been accepted: it is
      // looked up by its name.
      if (code === 0 || errorText === '' || unexplained.test(errorText))
        throw new DriverError(
          'unknown',
          `sbatch: exit ${code ?? 'unknown'} without a job id: ` +
            ((errorText || answer).slice(0, 200) || 'no text'),
        )
      throw new DriverError('refused', `sbatch: ${errorText}`)
    },
    async cancel(elements, how, name) {
      if (elements.size === 0) return
      const options = {
        polite: ['--batch', '--signal=USR2', '--state=RUNNING'],
        waiting: ['--state=PENDING'],
        whole: [],
      }[how]
      const named = name === undefined ? [] : [`--name=${name}`]
      const jobs = [...elements].map(([job, indexes]) => `${job}_[${renderIndexes(indexes)}]`)
      const { code, stderr } = await run(
        'scancel',
        `${limited} scancel ${quoteAll([...options, ...named, ...jobs])}`,
      )
      // A job that has ended meanwhile is no error.
      const left = stderr
        .split('\n')
        .filter(
          (line) =>
            line.trim() !== '' && !/invalid job id|already complet|not pending|not running/i.test(line),
        )
      if (code !== 0 && left.length > 0)
        throw new DriverError('unknown', `scancel: ${textOf(left.join('\n'))}`)
    },
  }
}
