import { randomBytes } from 'node:crypto'
import { posix } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { quote, quoteAll } from '../../quote.ts'
import type { SiteShell } from '../../shell.ts'
import { DriverError, type Collected, type Intent, type LogSlice, type OutputManifest, type StagedAmount } from '../contract/driver.ts'
import { gather } from '../contract/gather.ts'
import { checkIntent } from '../contract/intent.ts'
import {
  changesOf,
  checkComparisons,
  isDelivered,
  isUntouched,
  listingFormat,
  manifestOf,
  parseListing,
  parseSums,
  planStaging,
  stagingScript,
  sumCommands,
  type Found,
  type StagingPlan,
} from './files.ts'
import {
  factsLine,
  parseFacts,
  parseRecord,
  sightOf,
  type EndedSight,
  type ParsedRecord,
  type RemoteSight,
  type TaskFacts,
} from './record.ts'
import { asDriverError, openRemoteSite, type SiteFacts } from './site.ts'
import { taskScript } from '../contract/task-script.ts'

/**
 * Tasks at a site that is reached through a `SiteShell`: what every driver of such a site shares. Whoever starts the tasks (`ssh.ts`:
 * at once; `batch`: as a job) prepares them here, makes the site run their supervisor, and reads here what they left behind.
 *
 * At the site, below `root`:
 * - `bin/<hash>/wrapper`: the supervisor (`wrapper.ts`), installed once per content.
 * - `tasks/NAME.TOKEN.run`: the script of the task (`contract/task-script.ts`), a token per submission, so that no script is ever written over;
 *   `NAME.task`: its record, created exclusively before the start, growing by whole lines; `NAME.out`, `NAME.err`;
 *   `NAME.TOKEN.staged`: what was in the work directory before; `NAME.TOKEN.moved`: how much of it came from where; `NAME.cancel`: somebody asked for its end. A name cancelled before its
 *   start has a record that says so, and never starts.
 * - `ends`: names of ended tasks, appended as they end.
 *
 * Calls that come within some milliseconds share a round trip. Links that break reject with `DriverError` class `unknown` (cause: the
 * `LinkError`); every script can be run again. Times are by this machine's clock, whatever the site's says.
 */
export interface RemoteTasks {
  readonly shell: SiteShell
  /** Absolute, at the site; asked once. */
  root(): Promise<string>
  /**
   * Makes work directories, stages predecessors' files, writes the scripts; where nothing is to be staged and not even the parent of the work
   * directory is there, that is left to the task (`packed`). `ready`: the site may run its supervisor. `known`: the name has a record already
   * (it runs, has ended, or was cancelled) and must not be submitted again.
   */
  prepare(intents: readonly Intent[]): Promise<Map<string, Prepared>>
  /** The same, and starts them detached. `known` also if somebody else was faster. */
  start(intents: readonly Intent[]): Promise<Map<string, Started>>
  /**
   * Words for `sh` at the site that run one prepared task as long as it lasts, with its exit code: for a batch scheduler's job.
   * `scriptWord` is put in as it is: `'NAME.TOKEN'` as `prepare` gave it, or a variable that holds it (`"$script"`).
   */
  foregroundCommand(scriptWord: string): Promise<string>
  /**
   * What the records say, and whether the supervisors live; `processes: false` where those run on other machines than the shell's.
   * Scripts are asked about once the answer is needed by nobody else: any number of names, 1,000 a round trip.
   */
  look(names: readonly string[], options?: { processes?: boolean }): Promise<Map<string, RemoteSight>>
  /** Buries names that have no record (they never start); leaves a cancel mark for the others. With `signal`, tells their supervisors. */
  markCancelled(names: readonly string[], graceSeconds: number, options?: { signal?: boolean }): Promise<void>
  /** Sends a signal to every process that carries the mark of one of the names; answers the names that had any. */
  signalMarked(names: readonly string[], signal: 'TERM' | 'KILL'): Promise<Set<string>>
  /** Everything about an ended name; many at once share their round trips. `unknown` while it has no recorded end. */
  collect(name: string): Promise<RemoteCollected>
  logs(name: string, stream: 'stdout' | 'stderr', range: { offset: number; limit: number } | { tail: number }): Promise<LogSlice>
  /** Work directory and all records. Does not ask whether it runs. */
  remove(name: string): Promise<void>
  /**
   * Calls back promptly with names that ended, from when `stands(true)` was called until `stands(false)`: what ends between is told by
   * `look`, which is the truth. Goes on by itself when the site is back. The returned function stops it.
   */
  readonly onEnds: (ended: (name: string) => void, stands: (now: boolean) => void) => () => void
  /** Free space and quota of the work directory, in the site's words. */
  space(): Promise<string>
}

export type Prepared = { state: 'ready'; script: string; packed?: Packed } | { state: 'known' } | { state: 'failed'; error: DriverError }
/** What whoever starts the task has to make first, as the account: the directory, 0700, and `tasks/SCRIPT.run` with this text. */
export interface Packed {
  directory: string
  text: string
}
export type Started = { state: 'started'; pid: number } | { state: 'known' } | { state: 'failed'; error: DriverError }

export interface RemoteCollected extends Omit<Collected, 'state'> {
  sight: EndedSight | Extract<RemoteSight, { form: 'buried' }>
}

export type { EndedSight, RemoteSight, StartedSight } from './record.ts'

export interface RemoteOptions {
  shell: SiteShell
  /** Absolute at the site; default `$HOME/.orrery`. */
  root?: string
  /** For manifests and messages. */
  runtime: string
  /** Environment variable that marks a task's processes with its name. */
  taskVariable: string
  /** Tasks start on other machines than the one the shell reaches: their times come from those machines' clocks, not from its uptime. */
  elsewhere?: boolean
  /** Between the polite and the forced end of a task whose time is over. Default 5. */
  timeoutGraceSeconds?: number
  /** Sum of texts and scripts that are sent at once. */
  chunkBytes?: number
}

const defaultChunkBytes = 256 * 1024
const namesAtOnce = 1000
const stderrTailBytes = 4096
const stderrTailLines = 20
/** A slice of a log is held in memory; more is read in several. */
const largestSlice = 16 * 1024 * 1024
/** Facts of tasks that this process submitted, so that a collect needs one round trip less. */
const factsKept = 20_000
/** Digests at this rate at least, or the site is taken for silent. */
const slowestBytesPerSecond = 10_000_000
const stagingDeadlineMs = 600_000

/** Numbers of `sh` are whole. */
const hundredths = (seconds: number): number => Math.max(0, Math.ceil(seconds * 100))

/**
 * Address space that programs reserve and never touch (Java, Go, Node) does not count for RLIMIT_DATA, stacks and arenas of threads do: twice what
 * was asked for and 256 MiB ends a runaway program and leaves the others alone. local/runner.go has the same.
 */
const dataKib = (memoryBytes: number): number => (memoryBytes === 0 ? 0 : Math.ceil(memoryBytes / 512) + 256 * 1024)

const isConfined = ({ ownLimits, memoryLimit }: Intent): boolean =>
  ownLimits !== true && (memoryLimit === undefined || memoryLimit === 'cgroup')

/** `memory` is for RLIMIT_DATA, `bytes` and `cores` for a cgroup of the task's own; 0: none. `must`: what is demanded, or `-`. */
const limitsOf = (intent: Intent, elsewhere: boolean): string => {
  const { memoryBytes, cores, memoryLimit } = intent
  const [bytes, whole] = isConfined(intent) ? [Math.ceil(memoryBytes), Math.max(1, Math.ceil(cores))] : [0, 0]
  const data = memoryLimit === undefined || memoryLimit === 'rlimit' ? dataKib(memoryBytes) : 0
  // Where a scheduler starts them its own cgroup is meant.
  const must = memoryLimit === 'cgroup' && memoryBytes > 0 && !elsewhere && intent.ownLimits !== true
  return `memory ${data} bytes ${bytes} cores ${whole} must ${must ? 'cgroup' : '-'}`
}

const lastLines = (text: string): string => text.trimEnd().split('\n').slice(-stderrTailLines).join('\n')
const wordsOf = (stderr: string): string => stderr.trim().slice(-1000) || 'it said nothing'

function* chunks<T>(items: readonly T[], most: number, size: (item: T) => number = () => 0, bytes = Infinity): Generator<T[]> {
  let chunk: T[] = []
  let sum = 0
  for (const item of items) {
    const own = size(item)
    if (chunk.length > 0 && (chunk.length >= most || sum + own > bytes)) {
      yield chunk
      chunk = []
      sum = 0
    }
    chunk.push(item)
    sum += own
  }
  if (chunk.length > 0) yield chunk
}

/** What is between the boundaries of an answer, each made for this answer alone, so that nothing that is quoted in it can be one. */
function parts(stdout: Buffer, boundary: string): { label: string; bytes: Buffer }[] {
  const mark = Buffer.from(`\n${boundary} `)
  const found: { label: string; bytes: Buffer }[] = []
  let at = stdout.indexOf(mark)
  while (at !== -1) {
    const labelEnd = stdout.indexOf('\n', at + mark.length)
    const next = stdout.indexOf(mark, labelEnd)
    found.push({
      label: stdout.subarray(at + mark.length, labelEnd).toString(),
      bytes: stdout.subarray(labelEnd + 1, next === -1 ? stdout.length : next),
    })
    at = next
  }
  return found
}

interface Read {
  parsed: ParsedRecord
  cancelAsked: boolean
}

/** Lines `NAME.task:…`, `claimed NAME`, `cancel NAME`. */
function parseRecords(text: string): Map<string, Read> {
  const lines = new Map<string, string[]>()
  const asked = new Set<string>()
  for (const line of text.split('\n')) {
    const [, name, rest] = /^([a-z0-9-]+)\.task:(.*)$/.exec(line) ?? []
    const [, word, other] = /^(claimed|cancel) ([a-z0-9-]+)$/.exec(line) ?? []
    if (word === 'cancel' && other !== undefined) asked.add(other)
    if (word === 'claimed' && other !== undefined) lines.set(other, lines.get(other) ?? [])
    if (name === undefined || rest === undefined) continue
    const known = lines.get(name)
    if (known === undefined) lines.set(name, [rest])
    else known.push(rest)
  }
  return new Map([...lines].map(([name, own]) => [name, { parsed: parseRecord(own), cancelAsked: asked.has(name) }]))
}

const recordsScript = `
for each; do
  if [ -e "$each.task" ]; then
    [ -s "$each.task" ] || echo "claimed $each"
    [ -e "$each.cancel" ] && echo "cancel $each"
    set -- "$@" "$each.task"
  fi
  shift
done
[ $# -eq 0 ] || grep -sH '' "$@"
`

/** Defines `each_cgroup NAME`, which calls the command with the folder of each cgroup that the record names, and NAME. */
const eachCgroup = (command: string): string => `each_cgroup() {
  while read -r word kind folder; do
    [ "$word $kind" != 'limits cgroup' ] || ${command} "$folder" "$1"
  done < "$1.task"
} 2> /dev/null`

export function openRemoteTasks(options: RemoteOptions): RemoteTasks {
  const { shell, taskVariable, runtime, elsewhere = false, timeoutGraceSeconds = 5, chunkBytes = defaultChunkBytes } = options
  const site = openRemoteSite(shell, options.root ?? '')
  const kept = new Map<string, { script: string; facts: TaskFacts }>()
  const pids = new Map<string, number>()
  /** Records without a line, and since when. */
  const claimedSince = new Map<string, number>()

  const keep = (name: string, script: string, facts: TaskFacts): void => {
    kept.delete(name)
    kept.set(name, { script, facts })
    const [oldest] = kept.keys()
    if (kept.size > factsKept && oldest !== undefined) kept.delete(oldest)
  }

  const supervisor = (facts: SiteFacts, mode: 'foreground' | 'detached', confined = false): string =>
    `/bin/sh ${quoteAll([
      `${facts.root}/tasks/${site.wrapper}`,
      mode,
      `${facts.root}/tasks`,
      taskVariable,
      String(facts.oom),
      facts.measure,
      facts.signals,
      elsewhere ? 'date' : '',
      confined ? 'cgroups' : '',
    ])}`

  // ---- submit

  /** Which of the staged tasks still need their files, and what is in the folders that they come from. */
  async function survey(intents: readonly Intent[]): Promise<{ filled: Set<string>; known: Set<string>; listings: Map<string, Found[]> }> {
    const sources = [...new Set(intents.flatMap(({ stage }) => stage.map(({ from }) => from)))]
    const boundary = randomBytes(16).toString('hex')
    const asked = intents.map(
      ({ name, directory }) =>
        `if [ -e ${name}.task ]; then echo 'known ${name}'; elif [ -d ${quote(directory)} ] && [ -n "$(ls -A -- ${quote(directory)})" ]; then echo 'filled ${name}'; fi`,
    )
    const lists = [...chunks(sources, 200)].map((some) => `find ${quoteAll(some)} -printf ${quote(listingFormat)}`)
    const { stdout, stderr } = await site.run(
      () => `printf '\\n${boundary} tasks\\n'\n${asked.join('\n')}\nprintf '\\n${boundary} files\\n'\n${lists.join('\n')}\ntrue`,
      { deadlineMs: stagingDeadlineMs },
    )
    const [tasks, files] = parts(stdout, boundary)
    const listings = parseListing(files?.bytes ?? Buffer.alloc(0))
    // What is not there is told by name later; anything else would leave files out in silence.
    const trouble = stderr.split('\n').filter((line) => line !== '' && !line.endsWith(': No such file or directory'))
    if (trouble.length > 0) throw new DriverError('infrastructure', `cannot list what is to be staged: ${wordsOf(trouble.join('\n'))}`)
    const words = (tasks?.bytes.toString() ?? '').split('\n').map((line) => line.split(' '))
    const are = (word: string): Set<string> => new Set(words.filter(([first]) => first === word).map(([, name = '']) => name))
    return { filled: are('filled'), known: are('known'), listings }
  }

  async function planned(intents: readonly Intent[]): Promise<Map<string, StagingPlan | 'known' | DriverError>> {
    const plans = new Map<string, StagingPlan | 'known' | DriverError>()
    if (intents.length === 0) return plans
    const { filled, known, listings } = await survey(intents)
    for (const { name, stage } of intents) {
      if (known.has(name)) plans.set(name, 'known')
      else if (!filled.has(name)) {
        try {
          plans.set(name, planStaging(stage, listings))
        } catch (error) {
          plans.set(name, asDriverError(error))
        }
      }
    }
    const open = [...plans].flatMap(([name, plan]) => (typeof plan === 'object' && 'comparisons' in plan ? [{ name, plan }] : []))
    const sums = await digests(open.flatMap(({ plan }) => plan.comparisons.flatMap(({ files }) => files)))
    for (const { name, plan } of open) {
      try {
        checkComparisons(plan, sums)
      } catch (error) {
        plans.set(name, asDriverError(error))
      }
    }
    return plans
  }

  async function digests(paths: readonly string[], bytes = 0): Promise<Map<string, string>> {
    const sums = new Map<string, string>()
    const commands = sumCommands([...new Set(paths)])
    for (const some of chunks(commands, Infinity, (command) => command.length, chunkBytes)) {
      const deadlineMs = stagingDeadlineMs + (bytes / slowestBytesPerSecond) * 1000
      const { stdout } = await site.run(() => `${some.join(' 2> /dev/null\n')} 2> /dev/null\ntrue`, { deadlineMs })
      for (const [path, sum] of parseSums(stdout.toString())) sums.set(path, sum)
    }
    return sums
  }

  /**
   * Without a process for any of them, what costs most where thousands start; the work directories are "$1" and so on. What is not as usual is
   * only named, to be done once more by `preparation`.
   */
  const plainPreparation = ({ intent: { name }, script, text }: Draft): string =>
    `if [ -e ${name}.task ]; then echo 'known ${name}'
elif [ -z "$old" ] && [ -d "$1" ] && [ ! -L "$1" ] && { printf '%s' ${quote(text)} > ${script}.run; } 2> /dev/null; then ready="$ready ${script}"
else echo 'again ${name}'
fi
shift`

  /** Conditions of `sh` that all hold when a task may start. */
  function preparation({ intent: { name, directory }, plan, script, text }: Draft, token: string): string {
    const at = quote(directory)
    const place =
      plan === undefined
        ? `{ [ -d ${at} ] && [ ! -L ${at} ] && { [ -z "$old" ] || [ -z "$(find ${at} -maxdepth 0 -perm /077)" ] || { echo ${quote(`${directory} may be entered by others`)} >&2; false; }; }; }`
        : stagingScript(plan, directory, { staged: `${name}.${token}.staged`, moved: `${name}.${token}.moved` }, token)
    return `if [ -e ${name}.task ]; then echo 'known ${name}'
elif words=$( { ${place} && printf '%s' ${quote(text)} > ${script}.run; } 2>&1 ); then ready="$ready ${script}"
else
  # A builtin only says that it could not write; tee says why.
  words="$words $(echo | tee ${script}.run 2>&1 > /dev/null; rm -f ${script}.run)"
  set -f; echo "failed ${name} "$words; set +f
fi`
  }

  interface Draft {
    intent: Intent
    plan: StagingPlan | undefined
    /** `NAME.TOKEN` */
    script: string
    text: string
    facts: TaskFacts
  }

  async function submitSome(intents: readonly Intent[], detached: boolean): Promise<Map<string, Prepared | Started>> {
    const answers = new Map<string, Prepared | Started>()
    const sound: Intent[] = []
    for (const intent of intents) {
      try {
        checkIntent(intent)
        sound.push(intent)
      } catch (error) {
        answers.set(intent.name, { state: 'failed', error: asDriverError(error) })
      }
    }
    const plans = await planned(sound.filter(({ stage }) => stage.length > 0))
    const token = randomBytes(6).toString('hex')
    const submittedAt = Date.now() / 1000
    const { zero, ahead } = await site.facts()
    const drafts = sound.flatMap((intent): Draft[] => {
      const { name, directory, expectedOutputs, stage } = intent
      const plan = plans.get(name)
      if (plan === 'known' || plan instanceof DriverError) {
        answers.set(name, plan === 'known' ? { state: 'known' } : { state: 'failed', error: plan })
        return []
      }
      const facts: TaskFacts = {
        ...{ directory, expectedOutputs, sources: stage.map(({ from }) => from), submittedAt, zero, ahead },
        ...(intent.memoryLimit === 'none' && intent.memoryBytes > 0 ? { unlimited: true as const } : {}),
      }
      const limits = `# limit ${hundredths(intent.timeoutSeconds)} grace ${hundredths(timeoutGraceSeconds)} ${limitsOf(intent, elsewhere)}`
      const text = `#!/bin/sh\n${limits}\n${factsLine(facts)}\n${taskScript(intent, taskVariable)}`
      return [{ intent, plan, script: `${name}.${token}`, text, facts }]
    })
    const packed = detached ? new Map<string, 'free' | 'known'>() : await unmade(drafts.filter(({ plan }) => plan === undefined))
    for (const { intent, script, text } of drafts) {
      const state = packed.get(intent.name)
      if (state === 'known') answers.set(intent.name, { state })
      if (state === 'free') answers.set(intent.name, { state: 'ready', script, packed: { directory: intent.directory, text } })
    }
    const rest = drafts.filter(({ intent }) => !packed.has(intent.name))
    const again = await prepareSome(
      rest.filter(({ plan }) => plan === undefined),
      plainPreparation,
    )
    await prepareSome([...rest.filter(({ plan }) => plan !== undefined), ...again], (draft) => preparation(draft, token))
    for (const { intent, script, facts } of drafts)
      if (['ready', 'started'].includes(answers.get(intent.name)?.state ?? '')) keep(intent.name, script, facts)
    return answers

    /** @returns those that are to be prepared once more. */
    async function prepareSome(some: readonly Draft[], blockOf: (draft: Draft) => string): Promise<Draft[]> {
      const blocks = some.map((draft) => ({ draft, text: blockOf(draft) }))
      const left: Draft[] = []
      for (const chunk of chunks(blocks, namesAtOnce, ({ text }) => text.length, chunkBytes)) {
        const folders = quoteAll(chunk.filter(({ draft }) => draft.plan === undefined).map(({ draft }) => draft.intent.directory))
        const make = `set -- ${folders}
for each; do [ -e "$each" ] && old=1; done
mkdir -p -- "$@"`
        const begin = (facts: SiteFacts): string =>
          detached
            ? `[ -z "$ready" ] || ( exec setsid ${supervisor(
                facts,
                'detached',
                chunk.some(({ draft }) => isConfined(draft.intent)),
              )} $ready 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- ) 2>&1 < /dev/null | cat`
            : 'for each in $ready; do echo "ready $each"; done'
        const { stdout, stderr } = await site.run(
          (facts) => `ready= old=\n${folders === '' ? '' : make}\n${chunk.map(({ text }) => text).join('\n')}\n${begin(facts)}\ntrue`,
          { deadlineMs: stagingDeadlineMs },
        )
        const others: string[] = []
        const repeat = new Set<string>()
        for (const line of stdout.toString().split('\n')) {
          const [word, name = '', ...words] = line.split(' ')
          if (word === 'started') {
            answers.set(name, { state: 'started', pid: Number(words[0]) })
            pids.set(name, Number(words[0]))
          } else if (word === 'known') answers.set(name, { state: 'known' })
          else if (word === 'ready') answers.set(name.slice(0, name.indexOf('.')), { state: 'ready', script: name })
          else if (word === 'again') repeat.add(name)
          else if (word === 'refused') answers.set(name, { state: 'failed', error: new DriverError('refused', words.join(' ')) })
          else if (word === 'failed') answers.set(name, { state: 'failed', error: await refusal(name, words.join(' '), stderr) })
          else if (line !== '') others.push(line)
        }
        for (const { draft } of chunk) {
          const { name } = draft.intent
          if (repeat.has(name)) left.push(draft)
          else if (!answers.has(name))
            answers.set(name, { state: 'failed', error: await refusal(name, '', `${stderr}\n${others.join('\n')}`) })
        }
      }
      return left
    }
  }

  /**
   * Those of which nothing is there yet, not even the parent of their work directory, and those that are known. Folders that many share, two
   * levels up, are made here: that tells whether the site can make them at all.
   */
  async function unmade(drafts: readonly Draft[]): Promise<Map<string, 'free' | 'known'>> {
    const found = new Map<string, 'free' | 'known'>()
    const folders = new Map<string, string[]>()
    for (const { intent } of drafts) {
      const parent = posix.dirname(intent.directory)
      const folder = posix.dirname(parent)
      const asked = folders.get(folder) ?? []
      asked.push(`see ${intent.name} ${quote(parent)}`)
      folders.set(folder, asked)
    }
    const blocks = [...folders].flatMap(([folder, asked]) =>
      [...chunks(asked, namesAtOnce)].map(
        (some) =>
          `mkdir -p -- ${quote(folder)}\nif [ -d ${quote(folder)} ] && [ -w ${quote(folder)} ]; then\n${some.join('\n')}\nfi 2> /dev/null`,
      ),
    )
    const ask = `see() {
  if [ -e "$1.task" ]; then echo "known $1"; elif ! [ -e "$2" ] && ! [ -L "$2" ]; then echo "free $1"; fi
}`
    for (const some of chunks(blocks, namesAtOnce, ({ length }) => length, chunkBytes)) {
      const { stdout } = await site.run(() => `${ask}\n${some.join('\n')}\ntrue`)
      for (const line of stdout.toString().split('\n')) {
        const [word, name = ''] = line.split(' ')
        if (word === 'free' || word === 'known') found.set(name, word)
      }
    }
    return found
  }

  async function refusal(name: string, words: string, stderr: string): Promise<DriverError> {
    const said = words === '' ? wordsOf(stderr) : `${words} ${stderr.trim()}`.trim().slice(-1000)
    const full = /No space left|quota|I\/O error|cannot write/i.test(said)
      ? `; ${await space().catch(() => 'the site does not say how much is free')}`
      : ''
    return new DriverError('infrastructure', `the site cannot start ${name}: ${said}${full}`)
  }

  async function space(): Promise<string> {
    const { stdout } = await site.run(
      () => `df -Pk . | tail -n 1; command -v quota > /dev/null && quota -w 2> /dev/null | tail -n +2\ntrue`,
    )
    const [disk = '', ...quota] = stdout.toString().trim().split('\n')
    const [, size, , free, , mount] = disk.split(/\s+/)
    const mebibytes = (kib: string | undefined): string => `${Math.floor(Number(kib) / 1024)} MiB`
    const limits = quota.length === 0 ? '' : `; quota: ${quota.join('; ').replaceAll(/\s+/g, ' ')}`
    return `${mebibytes(free)} of ${mebibytes(size)} are free on ${mount ?? 'its disk'}${limits}`
  }

  const submitters = (detached: boolean): ((intent: Intent) => Promise<Prepared | Started>) =>
    gather<Intent, Prepared | Started>(async (intents) => {
      const one = new Map(intents.map((intent) => [intent.name, intent]))
      const answers = await submitSome([...one.values()], detached)
      return new Map(
        intents.map((intent): [Intent, Prepared | Started | Error] => [
          intent,
          answers.get(intent.name) ?? new DriverError('unknown', `no answer for ${intent.name}`),
        ]),
      )
    })
  const [prepareOne, startOne] = [submitters(false), submitters(true)]

  /** What was answered; an error stands for its own intent only when others were answered. */
  async function each<Answer>(
    intents: readonly Intent[],
    one: (intent: Intent) => Promise<Answer>,
  ): Promise<Map<string, Answer | { state: 'failed'; error: DriverError }>> {
    const settled = await Promise.allSettled(intents.map(one))
    if (settled.length > 0 && settled.every(({ status }) => status === 'rejected')) {
      throw asDriverError(settled.find((result) => result.status === 'rejected')?.reason)
    }
    return new Map(
      intents.map(({ name }, position): [string, Answer | { state: 'failed'; error: DriverError }] => {
        const result = settled[position]
        if (result?.status === 'fulfilled') return [name, result.value]
        return [name, { state: 'failed', error: asDriverError(result?.reason) }]
      }),
    )
  }

  // ---- look

  interface Look {
    reads: Map<string, Read>
    /** Supervisors that live, by process id: their start. */
    births: Map<number, string>
    asked: ReadonlySet<number>
    boot: string
  }

  /** Processes first, records after: what is dead and has no end then never gets one. */
  async function lookSome(names: readonly string[], processes: boolean): Promise<Look> {
    const asked = processes ? new Set(names.flatMap((name) => pids.get(name) ?? [])) : new Set<number>()
    const boundary = randomBytes(16).toString('hex')
    const stats = asked.size === 0 ? '' : `cat ${[...asked].map((pid) => `/proc/${pid}/stat`).join(' ')} 2> /dev/null`
    let boot = ''
    const { stdout } = await site.run((facts) => {
      boot = facts.boot
      return `printf '\\n${boundary} processes\\n'\n${stats}\nprintf '\\n${boundary} records\\n'\nset -- ${names.join(' ')}${recordsScript}true`
    })
    const [alive, records] = parts(stdout, boundary)
    const births = new Map<number, string>()
    for (const line of alive?.bytes.toString().split('\n') ?? []) {
      const fields = line.slice(line.lastIndexOf(')') + 2).split(' ')
      if (fields.length > 19 && !'ZX'.includes(fields[0] ?? 'X')) births.set(Number(line.split(' ')[0]), fields[19] ?? '')
    }
    const reads = parseRecords(records?.bytes.toString() ?? '')
    for (const [name, { parsed }] of reads) if (parsed.form === 'started') pids.set(name, parsed.record.pid)
    return { reads, births, asked, boot }
  }

  async function look(names: readonly string[], processes: boolean): Promise<Map<string, RemoteSight>> {
    const sights = new Map<string, RemoteSight>()
    const dead = new Set<string>()
    const reads = new Map<string, Read>()
    const alive = new Set<string>()
    const read = async (some: readonly string[]): Promise<string[]> => {
      const { reads: found, births, asked, boot } = await lookSome(some, processes)
      const unsure: string[] = []
      for (const name of some) {
        const own = found.get(name)
        if (own === undefined) continue
        reads.set(name, own)
        if (own.parsed.form !== 'started' || own.parsed.record.exit !== undefined || !processes) continue
        const { pid, birth, boot: since } = own.parsed.record
        if (since !== boot) dead.add(name)
        else if (!asked.has(pid)) unsure.push(name)
        else if (births.get(pid) === birth) alive.add(name)
        else dead.add(name)
      }
      return unsure
    }
    for (const some of chunks(names, namesAtOnce)) {
      const unsure = await read(some)
      if (unsure.length > 0) await read(unsure)
    }
    const marked = dead.size === 0 ? new Set<string>() : await signalMarked([...dead], undefined)
    const facts = await factsOf([...reads].filter(([, { parsed }]) => parsed.form === 'started').map(([name]) => name))
    for (const name of names) {
      const own = reads.get(name)
      const claimed = own?.parsed.form === 'claimed'
      if (!claimed) claimedSince.delete(name)
      else if (!claimedSince.has(name)) claimedSince.set(name, performance.now())
      const seen = {
        ageSeconds: (performance.now() - (claimedSince.get(name) ?? performance.now())) / 1000,
        supervised: alive.has(name) ? true : dead.has(name) ? false : undefined,
        marked: marked.has(name),
        cancelAsked: own?.cancelAsked === true,
      }
      sights.set(name, own === undefined ? { form: 'none' } : sightOf(own.parsed, facts.get(name), seen))
    }
    return sights
  }

  /** From memory, else from the head of the script at the site. */
  async function factsOf(names: readonly string[]): Promise<Map<string, TaskFacts>> {
    const missing = names.filter((name) => !kept.has(name))
    const found = new Map(names.flatMap((name) => (kept.has(name) ? [[name, kept.get(name)!.facts] as const] : [])))
    for (const some of chunks(missing, namesAtOnce)) {
      const { stdout } = await site.run(() => `grep -sm1 -H '^# facts ' ${some.map((name) => `${name}.*.run`).join(' ')}\ntrue`)
      for (const line of stdout.toString().split('\n')) {
        const [, name, token, rest] = /^([a-z0-9-]+)\.([a-z0-9]+)\.run:(.*)$/.exec(line) ?? []
        const facts = rest === undefined ? undefined : parseFacts(rest)
        if (name === undefined || token === undefined || facts === undefined) continue
        keep(name, `${name}.${token}`, facts)
        found.set(name, facts)
      }
    }
    return found
  }

  const lookers = (processes: boolean): ((name: string) => Promise<RemoteSight>) =>
    gather((names) => look(names, processes), { most: namesAtOnce })
  const [lookWith, lookWithout] = [lookers(true), lookers(false)]

  async function signalMarked(names: readonly string[], signal: 'TERM' | 'KILL' | undefined): Promise<Set<string>> {
    const marked = new Set<string>()
    for (const some of chunks(names, 500)) {
      const patterns = some.map((name) => `-e ${quote(`${taskVariable}=${name}`)}`).join(' ')
      const { stdout } = await site.run(
        () => `for each in $(grep -slF ${patterns} /proc/[0-9]*/environ); do
  mark=$(tr '\\000' '\\n' < "$each" 2> /dev/null | grep -xF ${patterns}) || continue
  echo "$mark"
  ${signal === undefined ? '' : `each=\${each#/proc/}; kill -s ${signal} "\${each%/environ}" 2> /dev/null`}
done
within() {
  [ -r "$1/cgroup.procs" ] || return
  while read -r pid; do
    echo "${taskVariable}=$2"
    ${signal === undefined ? ':' : `kill -s ${signal} "$pid" 2> /dev/null`}
  done < "$1/cgroup.procs"
}
${eachCgroup('within')}
for each in ${some.join(' ')}; do each_cgroup "$each"; done
true`,
      )
      for (const line of stdout.toString().split('\n')) if (line !== '') marked.add(line.slice(taskVariable.length + 1))
    }
    return marked
  }

  async function markCancelled(names: readonly string[], graceSeconds: number, signal: boolean): Promise<void> {
    const tell = `
  [ "$word" = start ] && [ "$since" = "$boot" ] && { read -r line < "/proc/$pid/stat"; } 2> /dev/null || return 0
  set -f; set -- \${line##*") "}; set +f
  shift 9; shift 9
  [ "$2" = "$birth" ] && kill -s USR2 "$pid" 2> /dev/null`
    for (const some of chunks(names, namesAtOnce)) {
      await site.run(
        () => `set -C
mark() {
  { echo 'cancelled ${Date.now() / 1000} .' > "$1.task"; } 2> /dev/null && return
  word=
  { read -r word script pid birth since rest < "$1.task"; } 2> /dev/null
  [ "$word" = cancelled ] && return
  { echo ${hundredths(graceSeconds)} > "$1.cancel"; } 2> /dev/null${signal ? tell : ''}
}
for each in ${some.join(' ')}; do mark "$each"; done
true`,
      )
    }
  }

  // ---- collect

  interface Contents {
    listing: Found[]
    staged: Found[][]
    moved: StagedAmount[] | undefined
  }

  /** What is in the work directories, and what was there before. */
  function contentsScript(tasks: readonly { name: string; facts: TaskFacts }[], boundary: string): string {
    const folders = quoteAll(tasks.map(({ facts }) => facts.directory))
    const lists = tasks
      .filter(({ facts }) => facts.sources.length > 0)
      .map(
        ({ name }) =>
          `for each in ${name}.*.staged; do [ -e "$each" ] && { printf '\\n${boundary} staged ${name}\\n'; cat "$each"; }; done
for each in ${name}.*.moved; do [ -e "$each" ] && { printf '\\n${boundary} moved ${name}\\n'; head -n 1 "$each"; }; done`,
      )
    return `printf '\\n${boundary} files\\n'\nfind ${folders} -mindepth 1 -printf ${quote(listingFormat)} 2> /dev/null\n${lists.join('\n')}`
  }

  function readContents(
    answer: readonly { label: string; bytes: Buffer }[],
    into: Map<string, Contents>,
    tasks: readonly { name: string; facts: TaskFacts }[],
  ): void {
    const listings = new Map(answer.filter(({ label }) => label === 'files').flatMap(({ bytes }) => [...parseListing(bytes)]))
    for (const { name, facts } of tasks) {
      const lists = answer.filter(({ label }) => label === `staged ${name}`).map(({ bytes }) => [...parseListing(bytes).values()].flat())
      // Who staged it beside another process planned the same.
      const moved = answer
        .find(({ label }) => label === `moved ${name}`)
        ?.bytes.toString()
        .trim()
      into.set(name, {
        listing: listings.get(facts.directory) ?? [],
        staged: lists,
        moved: moved === undefined || moved === '' ? undefined : (JSON.parse(moved) as StagedAmount[]),
      })
    }
  }

  async function collectSome(names: readonly string[]): Promise<Map<string, RemoteCollected | Error>> {
    const boundary = randomBytes(16).toString('hex')
    const contents = new Map<string, Contents>()
    const known = (some: readonly string[]): { name: string; facts: TaskFacts }[] =>
      some.flatMap((name) => {
        const facts = kept.get(name)?.facts
        return facts === undefined ? [] : [{ name, facts }]
      })
    const first = known(names)
    const { hostname } = await site.facts()
    const { stdout } = await site.run(
      () => `printf '\\n${boundary} records\\n'
set -- ${names.join(' ')}${recordsScript}
for each in ${names.join(' ')}; do
  [ -s "$each.err" ] && { printf '\\n${boundary} err %s\\n' "$each"; tail -c ${stderrTailBytes} "$each.err"; }
done
${first.length === 0 ? '' : contentsScript(first, boundary)}
true`,
      { deadlineMs: stagingDeadlineMs },
    )
    const answer = parts(stdout, boundary)
    const reads = parseRecords(answer.find(({ label }) => label === 'records')?.bytes.toString() ?? '')
    const tails = new Map(answer.filter(({ label }) => label.startsWith('err ')).map(({ label, bytes }) => [label.slice(4), bytes]))
    readContents(answer, contents, first)
    // Submitted by another process: the facts first, then the files.
    const facts = await factsOf([...reads].filter(([, { parsed }]) => parsed.form === 'started').map(([name]) => name))
    const second = [...facts].flatMap(([name, own]) => (contents.has(name) ? [] : [{ name, facts: own }]))
    if (second.length > 0) {
      const more = await site.run(() => `${contentsScript(second, boundary)}\ntrue`, { deadlineMs: stagingDeadlineMs })
      readContents(parts(more.stdout, boundary), contents, second)
    }
    const manifests = await manifestsOf(
      [...facts].map(([name, own]) => ({ name, facts: own, ...(contents.get(name) ?? { listing: [], staged: [] }) })),
      hostname,
    )

    return new Map(
      names.map((name): [string, RemoteCollected | Error] => {
        const read = reads.get(name)
        const own = facts.get(name)
        const seen = { ageSeconds: 0, supervised: undefined, marked: false, cancelAsked: read?.cancelAsked === true }
        const sight: RemoteSight = read === undefined ? { form: 'none' } : sightOf(read.parsed, own, seen)
        const place = { runtime, hostname, root: '' }
        const empty = manifestOf(place, changesOf([], []), [], new Map())
        if (sight.form === 'buried') {
          const used = { wallSeconds: 0, cpuSeconds: null, peakMemoryBytes: null, measuredBy: 'none' as const }
          return [name, { sight, submittedAt: sight.at, ...used, manifest: empty, missingOutputs: [], stderrTail: '' }]
        }
        if (sight.form !== 'ended')
          return [name, new DriverError('unknown', `${name} has no recorded end; find tells whether it runs, is lost or was never started`)]
        const { submittedAt, wallSeconds, cpuSeconds, peakMemoryBytes, measuredBy, node, limits } = sight
        const listing = new Map((contents.get(name)?.listing ?? []).map((found) => [found.path, found]))
        const manifest = manifests.get(name) ?? empty
        return [
          name,
          {
            sight,
            submittedAt,
            node,
            wallSeconds,
            cpuSeconds,
            peakMemoryBytes,
            measuredBy,
            manifest: { ...manifest, hostname: node },
            ...(contents.get(name)?.moved === undefined ? {} : { staged: contents.get(name)?.moved ?? [] }),
            missingOutputs: (own?.expectedOutputs ?? []).filter((path) => !isDelivered(own?.directory ?? '', listing, path)),
            stderrTail: lastLines(tails.get(name)?.toString() ?? ''),
            ...(limits === undefined ? {} : { detail: { limits } }),
          },
        ]
      }),
    )
  }

  async function manifestsOf(
    tasks: readonly { name: string; facts: TaskFacts; listing: readonly Found[]; staged: readonly (readonly Found[])[] }[],
    hostname: string,
  ): Promise<Map<string, OutputManifest>> {
    const all = tasks.map((task) => ({ ...task, changes: changesOf(task.listing, task.staged) }))
    const sourcesOf = (facts: TaskFacts, path: string): string[] => facts.sources.map((from) => `${from.replace(/\/$/, '')}/${path}`)
    const own = all.flatMap(({ facts, changes }) =>
      [...changes.changed, ...changes.touched.map(({ found }) => found)]
        .filter(({ kind }) => kind === 'file')
        .map(({ path, sizeBytes }) => ({ path: `${facts.directory}/${path}`, sizeBytes })),
    )
    const origins = all.flatMap(({ facts, changes }) => changes.touched.flatMap(({ found }) => sourcesOf(facts, found.path)))
    const bytes = own.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0)
    const sums = await digests([...own.map(({ path }) => path), ...origins], bytes)
    const times = new Map<string, string>()
    for (const some of chunks(origins, Infinity, (path) => path.length + 8, chunkBytes / 4)) {
      const { stdout } = await site.run(() => `find ${quoteAll(some)} -maxdepth 0 -printf '%T@ %p\\0' 2> /dev/null\ntrue`)
      for (const field of stdout.toString().split('\0')) times.set(field.slice(field.indexOf(' ') + 1), field.slice(0, field.indexOf(' ')))
    }
    return new Map(
      all.map(({ name, facts, changes }) => {
        const modified = changes.touched
          .filter(({ found, modified: before }) => {
            const sources = sourcesOf(facts, found.path).map((path) => ({ sum: sums.get(path), modified: times.get(path) }))
            return !isUntouched(before, sums.get(`${facts.directory}/${found.path}`), sources)
          })
          .map(({ found }) => found)
        const files = [...changes.changed, ...modified]
        const byPath = new Map(files.flatMap(({ path }) => [[path, sums.get(`${facts.directory}/${path}`) ?? ''] as const]))
        return [name, manifestOf({ runtime, hostname, root: facts.directory }, changes, files, byPath)]
      }),
    )
  }

  const collect = gather(collectSome, { most: 100 })

  const removeOne = gather<string, true>(async (names) => {
    const facts = await factsOf(names)
    for (const some of chunks(names, 200)) {
      const scripts = some.map((name) => {
        const directory = facts.get(name)?.directory
        if (directory === undefined) return `each_cgroup ${name}; rm -f -- ${name}.*`
        const [parent, base] = [directory.slice(0, directory.lastIndexOf('/')), directory.slice(directory.lastIndexOf('/') + 1)]
        const at = quote(directory)
        return `each_cgroup ${name}; rm -rf -- ${at} 2> /dev/null || { chmod -R u+rwx -- ${at} 2> /dev/null; rm -rf -- ${at}; } && rm -rf -- ${quote(parent)}/.${quote(base)}.staging-* && rm -f -- ${name}.*`
      })
      // A supervisor that was killed has left its cgroup behind. Processes that nobody finds any more hold it until they are quite gone.
      const release = `release() {
  for turn in 1 2 3 4 5 6 7 8 9 10; do
    [ ! -d "$1" ] || rmdir -- "$1" && return
    sleep 0.1 || sleep 1
  done
}
${eachCgroup('release')}`
      const { stderr } = await site.run(() => `${release}\n${scripts.join('\n')}\ntrue`, { deadlineMs: stagingDeadlineMs })
      if (stderr.trim() !== '') throw new DriverError('infrastructure', `cannot remove at the site: ${wordsOf(stderr)}`)
    }
    for (const name of names) for (const memory of [kept, pids, claimedSince]) memory.delete(name)
    return new Map(names.map((name) => [name, true as const]))
  })

  return {
    shell,
    root: async () => (await site.facts()).root,
    prepare: async (intents) => (await each(intents, prepareOne)) as Map<string, Prepared>,
    start: async (intents) => (await each(intents, startOne)) as Map<string, Started>,
    foregroundCommand: async (scriptWord) => `${supervisor(await site.facts(), 'foreground')} ${scriptWord}`,
    look: async (names, { processes = true } = {}) => {
      const ask = processes ? lookWith : lookWithout
      return new Map(await Promise.all(names.map(async (name) => [name, await ask(name)] as const)))
    },
    markCancelled: (names, graceSeconds, { signal = false } = {}) => markCancelled(names, graceSeconds, signal),
    signalMarked,
    collect,
    async logs(name, stream, range) {
      const wanted = Math.min('tail' in range ? range.tail : range.limit, largestSlice)
      const offset = 'tail' in range ? '$((size > wanted ? size - wanted : 0))' : String(range.offset)
      const { stdout } = await site.run(
        () => `file=${name}.${stream === 'stdout' ? 'out' : 'err'} wanted=${wanted} size=0
[ -e "$file" ] && size=$(($(wc -c < "$file")))
offset=${offset}
count=$((size - offset < wanted ? size - offset : wanted))
echo "$size $offset"
[ "$count" -le 0 ] || tail -c "+$((offset + 1))" "$file" | head -c "$count"
true`,
        { maxBytes: 2 * largestSlice },
      )
      const line = stdout.indexOf('\n')
      const [totalBytes = 0, from = 0] = stdout.subarray(0, line).toString().split(' ').map(Number)
      return { bytes: stdout.subarray(line + 1), offset: from, totalBytes }
    },
    remove: async (name) => {
      await removeOne(name)
    },
    onEnds: followEnds,
    space,
  }

  function followEnds(ended: (name: string) => void, stands: (now: boolean) => void): () => void {
    const stopping = new AbortController()
    const { signal } = stopping
    const pause = (milliseconds: number): Promise<unknown> => sleep(milliseconds, undefined, { signal }).catch(() => undefined)
    const follow = async (): Promise<void> => {
      // It grows by a line a task. Whoever follows it has read it, and whoever does not asks the records.
      // Our end of its standard input tells that we live: where output is no pipe, tail would miss us only at the next line.
      const script = await site.script(
        () => `[ "$(wc -c < ../ends)" -gt 1000000 ] && : > ../ends
exec 3<&0 < /dev/null 2> /dev/null
( cat <&3 3<&-; kill $$ ) > /dev/null &
exec tail -n 0 -F ../ends 3<&-`,
      )
      const stream = await shell.open(script)
      const stop = (): void => stream.kill()
      signal.addEventListener('abort', stop)
      if (signal.aborted) stop()
      // It stands when a line of ours has come through.
      const line = `open-${randomBytes(8).toString('hex')}`
      let standing = false
      let over = false
      let rest = ''
      stream.stdout.on('data', (bytes: Buffer) => {
        const lines = (rest + bytes.toString()).split('\n')
        rest = lines.pop() ?? ''
        for (const one of lines) {
          if (one === line && !standing) stands((standing = true))
          else if (!one.startsWith('open-')) ended(one)
        }
      })
      const knock = async (): Promise<void> => {
        for (let wait = 50; !standing && !over && !signal.aborted; wait = Math.min(wait * 2, 5000)) {
          await site.run(() => `echo ${line} >> ../ends`)
          await pause(wait)
        }
      }
      knock().catch(stop)
      await stream.done.finally(() => {
        over = true
        signal.removeEventListener('abort', stop)
        if (standing) stands(false)
      })
    }
    const keepFollowing = async (): Promise<void> => {
      for (let wait = 200; !signal.aborted; wait = Math.min(wait * 2, 30_000)) {
        const from = performance.now()
        await follow().catch(() => undefined)
        if (performance.now() - from > 60_000) wait = 200
        await pause(wait * (0.5 + Math.random() / 2))
      }
    }
    void keepFollowing()
    return () => stopping.abort()
  }
}
