import { randomBytes } from 'node:crypto'
import { posix } from 'node:path'
import { append } from '../../../lists.ts'
import { reasonText } from '../../../outside-text.ts'
import { call } from '../../../shell/program.ts'
import { fieldsOf } from '../../../shell/fields.ts'
import { printedWords, quote, quoteAll } from '../../../shell/quote.ts'
import type { Collected, DriverError, StagedAmount } from '../contract/driver.ts'
import { missingOf, type Lead } from '../contract/links.ts'
import { buriedEnd, emptyResult, manifestWith, noEndOf } from '../contract/results.ts'
import { chunks, parts } from './answers.ts'
import { mostListBytes, stagingDeadlineMs, type RemoteContext, type RemoteMemory } from './context.ts'
import {
  changesOf,
  isTooDeep,
  isUntouched,
  leadIn,
  listingActions,
  manifestOf,
  parseListing,
  warningsOf,
  type Changes,
  type FoundFile,
} from './files.ts'
import { factsOfStarted, parseRecords, recordsProgram, type Read } from './looking.ts'
import { sightOf, type EndedSight, type RemoteSight, type TaskFacts } from './record.ts'
import { arrivedFiles, type Arrived } from './late.ts'
import { digests } from './staging.ts'

export interface RemoteCollected extends Omit<Collected, 'state'> {
  sight: EndedSight | Extract<RemoteSight, { form: 'buried' }>
}

/** A result as far as it is soon read, with what its task alone has to wait for. */
export interface EndedPart {
  next: Extract<Arrived, string>
  /** Files whose digests are missing yet, absolute, smaller ones first. */
  unread: readonly string[]
  unreadBytes: number
  /** The result with those digests, by path; `isCut`: a cancel ended the reading. */
  complete: (sums: ReadonlyMap<string, string>, isCut: boolean) => RemoteCollected
}

/** Where `next` is another look, nothing is read yet. */
export type CollectedPart = EndedPart | { next: Exclude<Arrived, string> }

const stderrTailBytes = 4096
/** Of each task so much is read together with that of others. */
const soonReadBytes = 64 * 1024 * 1024

type Part = ReturnType<typeof parts>[number]

interface Contents {
  listing: FoundFile[]
  staged: FoundFile[][]
  moved: StagedAmount[] | undefined
  /** Texts about what was not brought. */
  left: string[]
}
interface Task {
  name: string
  facts: TaskFacts
}

/**
 * Opens the folders in which late files may appear: a client of a shared file system then asks its
 * server for them.
 */
const openingScript = ({ facts: { directory, expectedOutputs } }: Task): string => {
  const folders = expectedOutputs.map((path) => posix.dirname(posix.join(directory, path)))
  return `ls -f -- ${quoteAll([...new Set([posix.dirname(directory), directory, ...folders])])} > /dev/null 2>&1`
}

/**
 * Lists the content of the work directories, now and before the start; folders of the tasks in
 * `late` are opened first.
 */
function contentsScript(tasks: readonly Task[], boundary: string, late: RemoteMemory['late']): string {
  const opening = tasks.filter(({ name }) => late.has(name)).map(openingScript)
  const folders = quoteAll(tasks.map(({ facts }) => facts.directory))
  const lists = tasks
    .filter(({ facts }) => facts.sources.length > 0)
    .map(
      ({ name }) =>
        `for each in ${name}.*.staged; do
  [ -e "$each" ] && { printf '\\n${boundary} staged ${name}\\n'; cat "$each"; }; done
for each in ${name}.*.moved; do
  [ -e "$each" ] && { printf '\\n${boundary} moved ${name}\\n'; head -n 2 "$each"; }; done`,
    )
  return [
    ...opening,
    `printf '\\n${boundary} files\\n'`,
    `find ${folders} ${listingActions} 2> /dev/null`,
    ...lists,
  ].join('\n')
}

function readContents(answer: readonly Part[], into: Map<string, Contents>, tasks: readonly Task[]): void {
  const listings = new Map(
    answer.filter(({ label }) => label === 'files').flatMap(({ bytes }) => [...parseListing(bytes)]),
  )
  for (const { name, facts } of tasks) {
    const lists = answer
      .filter(({ label }) => label === `staged ${name}`)
      .map(({ bytes }) => [...parseListing(bytes).values()].flat())
    // A process that staged it at the same time planned the same.
    const [moved = '', left = ''] =
      answer
        .find(({ label }) => label === `moved ${name}`)
        ?.bytes.toString()
        .trim()
        .split('\n') ?? []
    into.set(name, {
      listing: listings.get(facts.directory) ?? [],
      staged: lists,
      moved: moved === '' ? undefined : (JSON.parse(moved) as StagedAmount[]),
      left: left === '' ? [] : (JSON.parse(left) as string[]),
    })
  }
}

/** The times of source files, by path. */
async function modifiedTimes(
  { site, chunkBytes }: RemoteContext,
  paths: readonly string[],
): Promise<Map<string, string>> {
  const times = new Map<string, string>()
  const find = quote('exec find "$@" -maxdepth 0 -printf \'%T@ %p\\0\'')
  for (const some of chunks(paths, Infinity, (path) => path.length + 8, chunkBytes / 4)) {
    const { stdout } = await site.run(
      () => `${printedWords(some)} | xargs -0 -r sh -c ${find} sh 2> /dev/null\ntrue`,
    )
    for (const field of fieldsOf(stdout))
      times.set(field.slice(field.indexOf(' ') + 1), field.slice(0, field.indexOf(' ')))
  }
  return times
}

/** An ended task whose files are there, before any of them is read. */
interface Ended extends Task {
  next: Extract<Arrived, string>
  contents: Contents
  result: Omit<RemoteCollected, 'manifest'>
  node: string
}

const sourcesOf = (facts: TaskFacts, path: string): string[] =>
  facts.sources.map((from) => `${from.replace(/\/$/, '')}/${path}`)

/** What of a task needs digests: what is soon read, and the rest. */
function readingsOf({ facts, contents: { listing: found, staged } }: Ended): {
  listing: readonly FoundFile[]
  tooDeep: readonly string[]
  changes: Changes
  soon: readonly string[]
  bytes: number
} & Pick<EndedPart, 'unread' | 'unreadBytes'> {
  const tooDeep = found.flatMap(({ path }) => (isTooDeep(facts.directory, path) ? [path] : []))
  const deep = new Set(tooDeep)
  const listing = deep.size === 0 ? found : found.filter(({ path }) => !deep.has(path))
  const changes = changesOf(listing, staged)
  // A touched file has the size of its source.
  const readings = [
    ...changes.changed.map((one) => ({ one, from: [] as string[] })),
    ...changes.touched.map(({ found: one }) => ({ one, from: sourcesOf(facts, one.path) })),
  ]
    .filter(({ one: { kind, readable } }) => kind === 'file' && readable)
    .map(({ one: { path, sizeBytes }, from }) => ({
      paths: [`${facts.directory}/${path}`, ...from],
      bytes: sizeBytes * (1 + from.length),
    }))
    .sort((a, b) => a.bytes - b.bytes)
  const soon: string[] = []
  const unread: string[] = []
  let [bytes, unreadBytes] = [0, 0]
  for (const { paths, bytes: own } of readings) {
    const isSoon = unread.length === 0 && bytes + own <= soonReadBytes
    append(isSoon ? soon : unread, paths)
    if (isSoon) bytes += own
    else unreadBytes += own
  }
  return { listing, tooDeep, changes, soon, bytes, unread, unreadBytes }
}

/** Reads the files of ended tasks that are soon read. */
async function readSoon(
  context: RemoteContext,
  tasks: readonly Ended[],
): Promise<(readonly [name: string, part: EndedPart])[]> {
  const all = tasks.map((task) => ({ ...task, ...readingsOf(task) }))
  const read = await digests(
    context,
    all.flatMap(({ soon }) => soon),
    all.reduce((sum, task) => sum + task.bytes, 0),
  )
  const times = await modifiedTimes(
    context,
    all.flatMap(({ facts, changes }) => changes.touched.flatMap(({ found }) => sourcesOf(facts, found.path))),
  )
  return all.map((task) => {
    const { name, next, facts, changes, listing, tooDeep, unread, unreadBytes, result } = task
    const complete: EndedPart['complete'] = (late, isCut) => {
      const sumOf = (path: string): string | undefined => read.get(path) ?? late.get(path)
      const isChanged = ({ found, modified }: Changes['touched'][number]): boolean => {
        const sources = sourcesOf(facts, found.path).map((path) => ({
          sum: sumOf(path),
          modified: times.get(path),
        }))
        return !isUntouched(modified, sumOf(`${facts.directory}/${found.path}`), sources)
      }
      const modified = changes.touched.filter(isChanged).map(({ found }) => found)
      const files = [...changes.changed, ...modified].map((found) => ({
        found,
        sum: found.kind === 'file' ? sumOf(`${facts.directory}/${found.path}`) : undefined,
      }))
      const without = files.flatMap(({ found: { path, kind }, sum }) =>
        kind === 'file' && sum === undefined ? [path] : [],
      )
      const { left } = task.contents
      const warnings = warningsOf(facts.directory, listing, { unread: without, tooDeep, isCut, left })
      const place = { runtime: context.runtime, hostname: task.node, root: facts.directory }
      return { ...result, manifest: manifestOf(place, { changes, files, warnings }) }
    }
    return [name, { next, unread, unreadBytes, complete }] as const
  })
}

/** A result of which nothing is to be read. */
const whole = (result: RemoteCollected): EndedPart => ({
  ...{ next: 'done', unread: [], unreadBytes: 0 },
  complete: () => result,
})

/** One task's result out of the answer for many. */
function endedOf(
  { memory, runtime, outputPatienceSeconds: patienceSeconds }: RemoteContext,
  name: string,
  of: {
    read: Read | undefined
    facts: TaskFacts | undefined
    contents: Contents | undefined
    tail: Buffer | undefined
    hostname: string
  },
): Ended | CollectedPart | DriverError {
  const { read, facts, tail, hostname } = of
  const cancelAsked = read?.cancelAsked === true
  const seen = { ageSeconds: 0, supervised: undefined, marked: false, cancelAsked }
  const sight: RemoteSight = read === undefined ? { form: 'none' } : sightOf(read.parsed, facts, seen)
  if (sight.form === 'buried') {
    const { state: _, ...result } = emptyResult(buriedEnd(sight.at), { at: sight.at, runtime, hostname })
    return whole({ sight, ...result })
  }
  if (sight.form !== 'ended') return noEndOf(name)
  const { submittedAt, wallSeconds, cpuSeconds, peakMemoryBytes, measuredBy, node, limits } = sight
  const contents = of.contents ?? { listing: [], staged: [], moved: undefined, left: [] }
  const { directory = '', expectedOutputs = [] } = facts ?? {}
  const listing = new Map(contents.listing.map((one) => [one.path, one]))
  const leadTo = (path: string): Lead => leadIn(directory, listing, path)
  const missing = missingOf(expectedOutputs, leadTo)
  const result: Ended['result'] = {
    ...{ sight, submittedAt, node, wallSeconds, cpuSeconds, peakMemoryBytes, measuredBy },
    ...(contents.moved === undefined ? {} : { staged: contents.moved }),
    ...missing,
    stderrTail: reasonText(tail ?? ''),
    ...(limits === undefined ? {} : { detail: { limits } }),
  }
  const arrival = {
    succeeded: sight.reason === 'exited' && sight.exitCode === 0,
    // A link that leads away has arrived.
    missing: missing.missingOutputs.filter((path) => ['inside', 'nowhere'].includes(leadTo(path).leads)),
    bare: expectedOutputs.length === 0 && contents.listing.every(({ path }) => path === ''),
    cancelAsked,
  }
  const { looks, since } = memory.late.get(name) ?? { looks: 0, since: performance.now() }
  const looked = { looks: looks + 1, sinceMs: performance.now() - since, patienceSeconds }
  const next = arrivedFiles(arrival, looked)
  if (typeof next !== 'string') {
    memory.late.set(name, { looks: looks + 1, since })
    return { next }
  }
  if (facts === undefined)
    return whole({ ...result, manifest: manifestWith({ runtime, hostname: node, root: '' }) })
  return { name, facts, next, contents, result, node }
}

/** The results of ended names; `unknown` for one that has no recorded end. */
export async function collectTasks(
  context: RemoteContext,
  names: readonly string[],
): Promise<Map<string, CollectedPart | Error>> {
  const { site, memory } = context
  const boundary = randomBytes(16).toString('hex')
  const contents = new Map<string, Contents>()
  const first = names.flatMap((name): Task[] => {
    const facts = memory.facts.get(name)?.facts
    return facts === undefined ? [] : [{ name, facts }]
  })
  const { hostname } = await site.facts()
  const { stdout } = await site.run(
    () => `printf '\\n${boundary} records\\n'
${recordsProgram}${call('records', ...names)}
for each in ${names.join(' ')}; do
  [ -s "$each.err" ] && { printf '\\n${boundary} err %s\\n' "$each"; tail -c ${stderrTailBytes} "$each.err"; }
done
${first.length === 0 ? '' : contentsScript(first, boundary, memory.late)}
true`,
    { deadlineMs: stagingDeadlineMs, maxBytes: mostListBytes },
  )
  const answer = parts(stdout, boundary)
  const reads = parseRecords(answer.find(({ label }) => label === 'records')?.bytes.toString() ?? '')
  const tails = new Map(
    answer.filter(({ label }) => label.startsWith('err ')).map(({ label, bytes }) => [label.slice(4), bytes]),
  )
  readContents(answer, contents, first)
  // Submitted by another process: it reads the facts first, then the files.
  const facts = await factsOfStarted(context, reads)
  const second = [...facts].flatMap(([name, own]): Task[] =>
    contents.has(name) ? [] : [{ name, facts: own }],
  )
  if (second.length > 0) {
    const more = await site.run(() => `${contentsScript(second, boundary, memory.late)}\ntrue`, {
      deadlineMs: stagingDeadlineMs,
      maxBytes: mostListBytes,
    })
    readContents(parts(more.stdout, boundary), contents, second)
  }
  const ended: Ended[] = []
  const answers = new Map<string, CollectedPart | Error>()
  for (const name of names) {
    const one = endedOf(context, name, {
      ...{ read: reads.get(name), facts: facts.get(name), contents: contents.get(name) },
      ...{ tail: tails.get(name), hostname },
    })
    if ('result' in one) ended.push(one)
    else answers.set(name, one)
  }
  // A task whose files are looked for again is not read before they are there.
  for (const [name, part] of await readSoon(context, ended)) answers.set(name, part)
  return answers
}
