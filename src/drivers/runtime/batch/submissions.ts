import { call, readProgram } from '../../../shell/program.ts'
import { quote } from '../../../shell/quote.ts'
import type { SiteShell } from '../../../shell/site-shell.ts'
import { DriverError } from '../contract/driver.ts'
import { errorTextOf } from '../remote/error-text.ts'
import type { BatchArray, QueuedElement } from './scheduler.ts'
import type { Verdict } from './verdict.ts'

export interface SubmittedTask {
  place: QueuedElement
  /** A cancel mark exists. */
  cancelAsked: boolean
  verdict?: Verdict
}

export type Claim =
  /**
   * This driver submits the array, with these of its indexes; `held`: names that other arrays have;
   * `failed`: names that the site could not record, and why. Other names have a record of their task.
   */
  | { state: 'ours'; indexes: number[]; held: Map<string, SubmittedTask>; failed: Map<string, DriverError> }
  | { state: 'accepted'; job: string }
  /** Another worker is submitting it, or died while doing so, this many seconds ago. */
  | { state: 'open'; ageSeconds: number }

const program = readProgram(import.meta.dirname, 'submissions.sh')

const fail = (what: string, stderr: string): never => {
  throw new DriverError('infrastructure', `${what}: ${errorTextOf(stderr)}`)
}

const positive = (text: string | undefined): number | undefined =>
  Number(text) > 0 ? Number(text) : undefined

const ends: readonly string[] = [
  'lost',
  'never',
  'walltime',
  'memory',
  'cancelled',
] satisfies Verdict['end'][]
const isEnd = (word: string): word is Verdict['end'] => ends.includes(word)

const parseEntry = (line: string): [name: string, entry: SubmittedTask] | undefined => {
  const [, name, array, index, limit, at, job, asked, end, endedAt, ...cause] = line.split(' ')
  if (name === undefined || array === undefined || !/^\d+$/.test(index ?? '')) return undefined
  const limitSeconds = positive(limit)
  const place: QueuedElement = {
    array,
    index: Number(index),
    submittedAt: Number(at),
    ...(limitSeconds === undefined ? {} : { limitSeconds }),
    ...(job === undefined || job === '-' ? {} : { job }),
  }
  const cancelAsked = asked === 'cancel'
  if (end === undefined || !isEnd(end)) return [name, { place, cancelAsked }]
  return [name, { place, cancelAsked, verdict: { end, cause: cause.join(' '), at: Number(endedAt) } }]
}

const parseEntries = (text: string): Map<string, SubmittedTask> =>
  new Map(
    text
      .split('\n')
      .flatMap((line) =>
        line.startsWith('entry ') ? [parseEntry(line)].filter((one) => one !== undefined) : [],
      ),
  )

const parseClaim = (text: string): Claim => {
  const accepted = /^accepted (\S+)/.exec(text)
  if (accepted?.[1] !== undefined) return { state: 'accepted', job: accepted[1] }
  const open = /^open (-?\d+)/.exec(text)
  if (open !== null) return { state: 'open', ageSeconds: Number(open[1]) }
  const indexes = [...text.matchAll(/^ours (\d+)$/gm)].map((line) => Number(line[1]))
  const failed = new Map(
    [...text.matchAll(/^failed (\S+) ?(.*)$/gm)].map(([, name = '', words = '']) => [
      name,
      // The other submission may still write its line, and then submits the task.
      words === ''
        ? new DriverError('unknown', `another submission has ${name}.array, without a line`)
        : new DriverError('infrastructure', `the site cannot record ${name}: ${errorTextOf(words)}`),
    ]),
  )
  return { state: 'ours', indexes, held: parseEntries(text), failed }
}

const seconds = (time: number): string => time.toFixed(3)

/**
 * What the driver itself records at the site, beside the records of the tasks, so that any other
 * driver can go on:
 *
 * - `tasks/NAME.array`: the array that the task was put into, with its index, time limit (seconds,
 *   0: none) and time; created exclusively, so that a name is in one array.
 * - `tasks/NAME.verdict`: an end that only the scheduler knew; it counts for ever.
 * - `tasks/NAME.job`: the job that started the task first, where the scheduler may run it again.
 * - `arrays/ARRAY/script`: what the scheduler runs, with the names by index;
 *   `arrays/ARRAY/TOKEN.pack`: the texts of the tasks that make their own script and work
 *   directory, one behind the other; `arrays/ARRAY/job`: the scheduler's id of it, by rename.
 *   The submitter creates the folder; without a `job` after a while, the next worker asks the
 *   scheduler for the array's name.
 *
 * @param root absolute at the site; the folder `tasks` below it exists before a name is claimed.
 *   Times are this machine's.
 */
export function openSubmissions(shell: SiteShell, root: () => Promise<string>) {
  const inTasks = async (script: string, input: Uint8Array | string = ''): Promise<string> => {
    const folder = await root()
    const text = `umask 077; cd ${quote(`${folder}/tasks`)} || exit\n${script}`
    const { code, stdout, stderr } = await shell.run(text, { input })
    if (code !== 0) fail(`cannot keep the records of submissions in ${folder}`, stderr)
    return stdout.toString()
  }
  const keep = (words: string, input?: Uint8Array | string): Promise<string> =>
    inTasks(`${program}${words}`, input)
  /** A missing folder means that there are no names. */
  const ask = async (words: string): Promise<string> => {
    const { stdout } = await shell.run(
      `cd ${quote(`${await root()}/tasks`)} 2>/dev/null || exit 0\n${program}${words}`,
    )
    return stdout.toString()
  }

  return {
    read: async (names: readonly string[]): Promise<Map<string, SubmittedTask>> =>
      names.length === 0 ? new Map() : parseEntries(await ask(call('entries', ...names))),
    claim: async (
      { name, limitSeconds = 0, tasks }: Pick<BatchArray<unknown>, 'name' | 'tasks' | 'limitSeconds'>,
      script: string,
    ): Promise<Claim> =>
      parseClaim(
        await keep(call('claim', name, String(limitSeconds), seconds(Date.now() / 1000), ...tasks), script),
      ),
    /** Writes a file into the folder of a claimed array. */
    async fill(array: string, file: string, bytes: Uint8Array): Promise<void> {
      await inTasks(`cat > ${quote(`../arrays/${array}/${file}`)}`, bytes)
    },
    /** Records that the scheduler has accepted the array. */
    async accepted(array: string, job: string): Promise<void> {
      await inTasks(acceptedScript(`../arrays/${array}`, quote(job)))
    },
    /** Records that the scheduler has not accepted it: its names are free again. */
    async release(array: string, names: readonly string[]): Promise<void> {
      await keep(call('release', array, ...names))
    },
    /** @returns the verdict that counts: ours, or an earlier one. */
    async settle(name: string, verdict: Verdict): Promise<Verdict> {
      const line = `${verdict.end} ${seconds(verdict.at)} ${verdict.cause.replace(/\s+/g, ' ')}`
      return parseEntries(await keep(call('settle', name, line))).get(name)?.verdict ?? verdict
    },
    /** @returns the arrays without a remaining name. */
    async remove(names: readonly string[]): Promise<string[]> {
      if (names.length === 0) return []
      const lines = (await ask(call('forget', ...names))).split('\n')
      return lines.flatMap((line) => /^gone (.+)$/.exec(line)?.[1] ?? [])
    },
  }
}

export type Submissions = ReturnType<typeof openSubmissions>

/**
 * Records the scheduler's id by rename, so that it is there as a whole or not at all. `folder` and
 * `jobWord` are `sh` text.
 */
export const acceptedScript = (folder: string, jobWord: string): string =>
  `echo ${jobWord} > ${folder}/job.$$ && mv ${folder}/job.$$ ${folder}/job`
