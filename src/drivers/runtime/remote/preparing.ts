import { randomBytes } from 'node:crypto'
import { posix } from 'node:path'
import { readProgram } from '../../../shell/program.ts'
import { quote, quoteAll } from '../../../shell/quote.ts'
import { DriverError, type Intent } from '../contract/driver.ts'
import { checkIntent } from '../contract/intent.ts'
import { homeOf, taskScript } from '../contract/task-script.ts'
import { chunks } from './answers.ts'
import { hundredths } from './cancelling.ts'
import { namesAtOnce, stagingDeadlineMs, supervisor, type RemoteContext } from './context.ts'
import { errorTextOf } from './error-text.ts'
import { stagingScript, type StagingPlan } from './files.ts'
import { factsLine, type TaskFacts } from './record.ts'
import { asDriverError } from '../contract/results.ts'
import type { RemoteSiteFacts } from './site.ts'
import { planAll } from './staging.ts'

/** `known`: the name has a record already: it runs, has ended, or was cancelled. */
export type PreparedTask =
  | { state: 'ready'; script: string; packed?: Packed }
  | { state: 'started'; pid: number }
  | { state: 'known' }
  | { state: 'failed'; error: DriverError }
/**
 * What the starter of the task has to make first, as the account: the directory, 0700, and
 * `tasks/SCRIPT.run` with this text.
 */
export interface Packed {
  directory: string
  text: string
}
type Answers = Map<string, PreparedTask>

interface Draft {
  intent: Intent
  plan: StagingPlan | undefined
  /** `NAME.TOKEN` */
  script: string
  text: string
  facts: TaskFacts
}

const seeProgram = readProgram(import.meta.dirname, 'unmade.sh')

/**
 * Address space that programs reserve and never touch (Java, Go, Node) does not count for
 * RLIMIT_DATA; stacks and arenas of threads do. Twice the requested size plus 256 MiB ends a
 * runaway program and leaves the others alone. local/runner.go has the same.
 */
const dataKib = (memoryBytes: number): number =>
  memoryBytes === 0 ? 0 : Math.ceil(memoryBytes / 512) + 256 * 1024

const isConfined = ({ ownLimits, memoryLimit }: Intent): boolean =>
  ownLimits !== true && (memoryLimit === undefined || memoryLimit === 'cgroup')

/**
 * `memory` is for RLIMIT_DATA, `bytes` and `cores` for a cgroup of the task's own; 0: none. `must`:
 * the required limit, or `-`.
 */
const limitsOf = (intent: Intent, elsewhere: boolean): string => {
  const { memoryBytes, cores, memoryLimit } = intent
  const [bytes, whole] = isConfined(intent) ? [Math.ceil(memoryBytes), Math.max(1, Math.ceil(cores))] : [0, 0]
  const data = memoryLimit === undefined || memoryLimit === 'rlimit' ? dataKib(memoryBytes) : 0
  // Where a scheduler starts them, the demand means the scheduler's own cgroup.
  const must = memoryLimit === 'cgroup' && memoryBytes > 0 && !elsewhere && intent.ownLimits !== true
  return `memory ${data} bytes ${bytes} cores ${whole} must ${must ? 'cgroup' : '-'}`
}

/** Free space and quota of the work directory, in the site's own output. */
async function spaceAt({ site }: RemoteContext): Promise<string> {
  const { stdout } = await site.run(
    () => `df -Pk . | tail -n 1; command -v quota > /dev/null && quota -w 2> /dev/null | tail -n +2\ntrue`,
  )
  const [disk = '', ...quota] = stdout.toString().trim().split('\n')
  const [, size, , free, , mount] = disk.split(/\s+/)
  const mebibytes = (kib: string | undefined): string => `${Math.floor(Number(kib) / 1024)} MiB`
  const limits = quota.length === 0 ? '' : `; quota: ${quota.join('; ').replaceAll(/\s+/g, ' ')}`
  return `${mebibytes(free)} of ${mebibytes(size)} are free on ${mount ?? 'its disk'}${limits}`
}

async function refusal(
  context: RemoteContext,
  name: string,
  words: string,
  stderr: string,
): Promise<DriverError> {
  const given = words === '' ? errorTextOf(stderr) : errorTextOf(`${words} ${stderr}`)
  const full = /No space left|quota|I\/O error|cannot write/i.test(given)
    ? `; ${await spaceAt(context).catch(() => 'the site does not report how much is free')}`
    : ''
  return new DriverError('infrastructure', `the site cannot start ${name}: ${given}${full}`)
}

/**
 * Starts no process for any of them, which would cost most where thousands start; the work
 * directories are "$1" and so on. An unusual one is only named, and `preparation` does it again.
 */
const plainPreparation = ({ intent: { name }, script, text }: Draft): string =>
  `if [ -e ${name}.task ]; then echo 'known ${name}'
elif [ -z "$old" ] && [ -d "$1" ] && [ ! -L "$1" ] &&
  { printf '%s' ${quote(text)} > ${script}.run; } 2> /dev/null; then ready="$ready ${script}"
else echo 'again ${name}'
fi
shift`

/** Conditions in `sh` that all hold when a task may start. */
const preparation = ({ intent: { name, directory }, plan, script, text }: Draft, token: string): string => {
  const at = quote(directory)
  const place =
    plan === undefined
      ? `{ [ -d ${at} ] && [ ! -L ${at} ] && { [ -z "$old" ] || [ -z "$(find ${at} -maxdepth 0 -perm ` +
        `/077)" ] || { echo ${quote(`${directory} may be entered by others`)} >&2; false; }; }; }`
      : stagingScript(
          plan,
          directory,
          { staged: `${name}.${token}.staged`, moved: `${name}.${token}.moved` },
          token,
        )
  return `if [ -e ${name}.task ]; then echo 'known ${name}'
elif words=$( { ${place} && printf '%s' ${quote(text)} > ${script}.run; } 2>&1 ); then ready="$ready ${script}"
else
  # A builtin only says that it could not write; tee says why.
  words="$words $(echo | tee ${script}.run 2>&1 > /dev/null; rm -f ${script}.run)"
  set -f; echo "failed ${name} "$words; set +f
fi`
}

/** Starts the tasks that are ready, or only names them. */
const beginScript = (context: RemoteContext, facts: RemoteSiteFacts, drafts: readonly Draft[]): string => {
  if (context.elsewhere) return 'for each in $ready; do echo "ready $each"; done'
  const confined = drafts.some(({ intent }) => isConfined(intent))
  return (
    `[ -z "$ready" ] || ( exec setsid ${supervisor(context, facts, 'detached', confined)} $ready ` +
    '3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- ) 2>&1 < /dev/null | cat'
  )
}

/**
 * The answer for one name from a line; undefined: the name needs another preparation, or the line
 * is about no name.
 */
async function answerOf(
  context: RemoteContext,
  line: string,
  stderr: string,
): Promise<{ name: string; answer: PreparedTask | 'again' } | undefined> {
  const [word, name = '', ...words] = line.split(' ')
  if (word === 'started') {
    const pid = Number(words[0])
    context.memory.pids.set(name, pid)
    return { name, answer: { state: 'started', pid } }
  }
  if (word === 'known') return { name, answer: { state: 'known' } }
  if (word === 'ready')
    return { name: name.slice(0, name.indexOf('.')), answer: { state: 'ready', script: name } }
  if (word === 'again') return { name, answer: 'again' }
  if (word === 'refused')
    return { name, answer: { state: 'failed', error: new DriverError('refused', words.join(' ')) } }
  if (word === 'failed')
    return { name, answer: { state: 'failed', error: await refusal(context, name, words.join(' '), stderr) } }
  return undefined
}

/**
 * Prepares drafts by the script that `blockOf` gives for each. @returns those that need another
 * preparation.
 */
async function prepareSome(
  context: RemoteContext,
  drafts: readonly Draft[],
  blockOf: (draft: Draft) => string,
  answers: Answers,
): Promise<Draft[]> {
  const blocks = drafts.map((draft) => ({ draft, text: blockOf(draft) }))
  const left: Draft[] = []
  for (const chunk of chunks(blocks, namesAtOnce, ({ text }) => text.length, context.chunkBytes)) {
    const some = chunk.map(({ draft }) => draft)
    const directories = some.filter(({ plan }) => plan === undefined).map(({ intent }) => intent.directory)
    const folders = quoteAll(directories)
    const make = `set -- ${folders}
for each; do [ -e "$each" ] && old=1; done
mkdir -p -- "$@" ${quoteAll(directories.map(homeOf))}`
    const { stdout, stderr } = await context.site.run(
      (facts) =>
        [
          'ready= old=',
          folders === '' ? '' : make,
          ...chunk.map(({ text }) => text),
          beginScript(context, facts, some),
          'true',
        ].join('\n'),
      { deadlineMs: stagingDeadlineMs },
    )
    const others: string[] = []
    const repeat = new Set<string>()
    for (const line of stdout.toString().split('\n')) {
      const given = await answerOf(context, line, stderr)
      if (given === undefined) others.push(line)
      else if (given.answer === 'again') repeat.add(given.name)
      else answers.set(given.name, given.answer)
    }
    for (const draft of some) {
      const { name } = draft.intent
      if (repeat.has(name)) left.push(draft)
      else if (!answers.has(name)) {
        const words = `${stderr}\n${others.filter((line) => line !== '').join('\n')}`
        answers.set(name, { state: 'failed', error: await refusal(context, name, '', words) })
      }
    }
  }
  return left
}

/**
 * The names of which nothing exists yet, not even the parent of their work directory, and the known
 * names. Folders that many share, two levels up, are made here: that shows whether the site can
 * make them at all.
 */
async function unmade(
  { site, chunkBytes }: RemoteContext,
  drafts: readonly Draft[],
): Promise<Map<string, 'free' | 'known'>> {
  const found = new Map<string, 'free' | 'known'>()
  const asked = drafts.map(({ intent: { name, directory } }) => ({ name, parent: posix.dirname(directory) }))
  const folders = Map.groupBy(asked, ({ parent }) => posix.dirname(parent))
  const blocks = [...folders].flatMap(([folder, all]) =>
    [...chunks(all, namesAtOnce)].map((some) => {
      const lines = some.map(({ name, parent }) => `see ${name} ${quote(parent)}`)
      const at = quote(folder)
      return `mkdir -p -- ${at}\nif [ -d ${at} ] && [ -w ${at} ]; then\n${lines.join('\n')}\nfi 2> /dev/null`
    }),
  )
  for (const some of chunks(blocks, namesAtOnce, ({ length }) => length, chunkBytes)) {
    const { stdout } = await site.run(() => `${seeProgram}${some.join('\n')}\ntrue`)
    for (const line of stdout.toString().split('\n')) {
      const [word, name = ''] = line.split(' ')
      if (word === 'free' || word === 'known') found.set(name, word)
    }
  }
  return found
}

/** Intents that may be prepared; `answers` receives the reason against the others. */
async function draftsOf(
  context: RemoteContext,
  intents: readonly Intent[],
  token: string,
  answers: Answers,
): Promise<Draft[]> {
  const sound: Intent[] = []
  for (const intent of intents) {
    try {
      checkIntent(intent)
      sound.push(intent)
    } catch (error) {
      answers.set(intent.name, { state: 'failed', error: asDriverError(error) })
    }
  }
  const plans = await planAll(
    context,
    sound.filter(({ stage }) => stage.length > 0),
  )
  const submittedAt = Date.now() / 1000
  const { zero, ahead } = await context.site.facts()
  return sound.flatMap((intent): Draft[] => {
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
    const grace = hundredths(context.timeoutGraceSeconds)
    const limits = `# limit ${hundredths(intent.timeoutSeconds)} grace ${grace} ${limitsOf(intent, context.elsewhere)}`
    const task = taskScript(intent, context.taskVariable, context.inImage)
    const text = `#!/bin/sh\n${limits}\n${factsLine(facts)}\n${task}`
    return [{ intent, plan, script: `${name}.${token}`, text, facts }]
  })
}

/** As `RemoteTasks.submit`. */
export async function prepareTasks(context: RemoteContext, intents: readonly Intent[]): Promise<Answers> {
  const answers: Answers = new Map()
  const token = randomBytes(6).toString('hex')
  const drafts = await draftsOf(context, intents, token, answers)
  const plain = drafts.filter(({ plan }) => plan === undefined)
  const packed = context.elsewhere ? await unmade(context, plain) : new Map<string, 'free' | 'known'>()
  for (const { intent, script, text } of drafts) {
    const state = packed.get(intent.name)
    if (state === 'known') answers.set(intent.name, { state })
    if (state === 'free')
      answers.set(intent.name, { state: 'ready', script, packed: { directory: intent.directory, text } })
  }
  const again = await prepareSome(
    context,
    plain.filter(({ intent }) => !packed.has(intent.name)),
    plainPreparation,
    answers,
  )
  const staged = drafts.filter(({ plan }) => plan !== undefined)
  await prepareSome(context, [...staged, ...again], (draft) => preparation(draft, token), answers)
  for (const { intent, script, facts } of drafts)
    if (['ready', 'started'].includes(answers.get(intent.name)?.state ?? ''))
      context.memory.facts.set(intent.name, { script, facts })
  return answers
}
