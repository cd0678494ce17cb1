import { randomBytes } from 'node:crypto'
import { printedWords, quote, quoteAll } from '../../../shell/quote.ts'
import { DriverError, type Intent } from '../contract/driver.ts'
import { chunks, parts } from './answers.ts'
import { mostListBytes, stagingDeadlineMs, type RemoteContext } from './context.ts'
import { errorTextOf } from './error-text.ts'
import {
  checkComparisons,
  listingActions,
  parseListing,
  parseSums,
  planStaging,
  type FoundFile,
  type StagingPlan,
} from './files.ts'
import { asDriverError } from '../contract/results.ts'

/** Digests at this rate at least; a slower site counts as silent. */
const slowestBytesPerSecond = 10_000_000

/** A shell takes a day at most. */
const longestDeadlineMs = 86_000_000

const deadlineFor = (bytes: number): { deadlineMs: number } => ({
  deadlineMs: Math.min(longestDeadlineMs, stagingDeadlineMs + (bytes / slowestBytesPerSecond) * 1000),
})

/** Digests of files at the site, by path; `bytes`: how much to read. */
export async function digests(
  { site, chunkBytes }: RemoteContext,
  paths: readonly string[],
  bytes = 0,
): Promise<Map<string, string>> {
  const sums = new Map<string, string>()
  for (const some of chunks([...new Set(paths)], Infinity, ({ length }) => length + 8, chunkBytes)) {
    const { stdout } = await site.run(
      () => `${printedWords(some)} | xargs -0 -r sha256sum -- 2> /dev/null\ntrue`,
      deadlineFor(bytes),
    )
    for (const [path, sum] of parseSums(stdout)) sums.set(path, sum)
  }
  return sums
}

/**
 * Finds which of the staged tasks still need their files, and the content of their source folders.
 */
async function survey(
  { site }: RemoteContext,
  intents: readonly Intent[],
): Promise<{ filled: Set<string>; known: Set<string>; listings: Map<string, FoundFile[]> }> {
  const sources = [...new Set(intents.flatMap(({ stage }) => stage.map(({ from }) => from)))]
  const boundary = randomBytes(16).toString('hex')
  const asked = intents.map(
    ({ name, directory }) =>
      `if [ -e ${name}.task ]; then echo 'known ${name}'; elif [ -d ${quote(directory)} ] && [ -n ` +
      `"$(ls -A -- ${quote(directory)})" ]; then echo 'filled ${name}'; fi`,
  )
  const lists = [...chunks(sources, 200)].map((some) => `find ${quoteAll(some)} ${listingActions}`)
  const { stdout, stderr } = await site.run(
    () =>
      `printf '\\n${boundary} tasks\\n'\n${asked.join('\n')}\nprintf '\\n${boundary} ` +
      `files\\n'\n${lists.join('\n')}\ntrue`,
    { deadlineMs: stagingDeadlineMs, maxBytes: mostListBytes },
  )
  const [tasks, files] = parts(stdout, boundary)
  const listings = parseListing(files?.bytes ?? Buffer.alloc(0))
  // A later error names missing files; any other trouble here would leave files out in silence.
  const trouble = stderr
    .split('\n')
    .filter((line) => line !== '' && !line.endsWith(': No such file or directory'))
  if (trouble.length > 0)
    throw new DriverError(
      'infrastructure',
      `cannot list what is to be staged: ${errorTextOf(trouble.join('\n'))}`,
    )
  const words = (tasks?.bytes.toString() ?? '').split('\n').map((line) => line.split(' '))
  const are = (word: string): Set<string> =>
    new Set(words.filter(([first]) => first === word).map(([, name = '']) => name))
  return { filled: are('filled'), known: are('known'), listings }
}

/**
 * How the files of tasks are staged; absent: they are there. `known`: the task has a record
 * already.
 */
export async function planAll(
  context: RemoteContext,
  intents: readonly Intent[],
): Promise<Map<string, StagingPlan | 'known' | DriverError>> {
  const plans = new Map<string, StagingPlan | 'known' | DriverError>()
  if (intents.length === 0) return plans
  const { filled, known, listings } = await survey(context, intents)
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
  const open = [...plans].flatMap(([name, plan]) =>
    typeof plan === 'object' && 'comparisons' in plan ? [{ name, plan }] : [],
  )
  const sums = await digests(
    context,
    open.flatMap(({ plan }) => plan.comparisons.flatMap(({ files }) => files)),
  )
  for (const { name, plan } of open) {
    try {
      checkComparisons(plan, sums)
    } catch (error) {
      plans.set(name, asDriverError(error))
    }
  }
  return plans
}
