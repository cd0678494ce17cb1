import { randomBytes } from 'node:crypto'
import { reasonText } from '../../../outside-text.ts'
import { call } from '../../../shell/program.ts'
import { fieldsOf } from '../../../shell/fields.ts'
import { printedWords, quote, quoteAll } from '../../../shell/quote.ts'
import { DriverError, type Collected, type OutputManifest, type StagedAmount } from '../contract/driver.ts'
import { missingOf } from '../contract/links.ts'
import { chunks, parts } from './answers.ts'
import { mostListBytes, stagingDeadlineMs, type RemoteContext } from './context.ts'
import {
  changesOf,
  isTooDeep,
  isUntouched,
  leadIn,
  listingActions,
  manifestOf,
  parseListing,
  warningsOf,
  type FoundFile,
} from './files.ts'
import { factsOfStarted, parseRecords, recordsProgram, type Read } from './looking.ts'
import { sightOf, type EndedSight, type RemoteSight, type TaskFacts } from './record.ts'
import { digests, largeDigests } from './staging.ts'

export interface RemoteCollected extends Omit<Collected, 'state'> {
  sight: EndedSight | Extract<RemoteSight, { form: 'buried' }>
}

const stderrTailBytes = 4096
/** The look at a file of this size ends with a cancel of its task; smaller ones are soon read. */
const largeFileBytes = 64 * 1024 * 1024

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

/** Lists the content of the work directories, now and before the start. */
function contentsScript(tasks: readonly Task[], boundary: string): string {
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
  return (
    `printf '\\n${boundary} files\\n'\nfind ${folders} ${listingActions} ` +
    `2> /dev/null\n${lists.join('\n')}`
  )
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

async function manifestsOf(
  context: RemoteContext,
  tasks: readonly (Task & Pick<Contents, 'listing' | 'staged' | 'left'>)[],
  hostname: string,
): Promise<Map<string, OutputManifest>> {
  const { runtime } = context
  const all = tasks.map(({ listing, ...task }) => {
    const tooDeep = listing.flatMap(({ path }) => (isTooDeep(task.facts.directory, path) ? [path] : []))
    const deep = new Set(tooDeep)
    const kept = deep.size === 0 ? listing : listing.filter(({ path }) => !deep.has(path))
    return { ...task, listing: kept, tooDeep, changes: changesOf(kept, task.staged) }
  })
  const sourcesOf = (facts: TaskFacts, path: string): string[] =>
    facts.sources.map((from) => `${from.replace(/\/$/, '')}/${path}`)
  const own = all.flatMap(({ name, facts, changes }) =>
    [...changes.changed, ...changes.touched.map(({ found }) => found)]
      .filter(({ kind, readable }) => kind === 'file' && readable)
      .map(({ path, sizeBytes }) => ({ name, path: `${facts.directory}/${path}`, sizeBytes })),
  )
  const origins = all.flatMap(({ facts, changes }) =>
    changes.touched.flatMap(({ found }) => sourcesOf(facts, found.path)),
  )
  const isLarge = ({ sizeBytes }: { sizeBytes: number }): boolean => sizeBytes >= largeFileBytes
  const small = own.filter((file) => !isLarge(file))
  const bytes = small.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0)
  const sums = await digests(context, [...small.map(({ path }) => path), ...origins], bytes)
  const large = await largeDigests(context, own.filter(isLarge))
  for (const [path, sum] of large.sums) sums.set(path, sum)
  const times = await modifiedTimes(context, origins)
  return new Map(
    all.map(({ name, facts, changes, listing, tooDeep, left }) => {
      const modified = changes.touched
        .filter(({ found, modified: before }) => {
          const sources = sourcesOf(facts, found.path).map((path) => ({
            sum: sums.get(path),
            modified: times.get(path),
          }))
          return !isUntouched(before, sums.get(`${facts.directory}/${found.path}`), sources)
        })
        .map(({ found }) => found)
      const files = [...changes.changed, ...modified]
      const byPath = new Map(
        files.flatMap(({ path }) => {
          const sum = sums.get(`${facts.directory}/${path}`)
          return sum === undefined ? [] : [[path, sum] as const]
        }),
      )
      const unread = files.flatMap(({ path, kind }) => (kind === 'file' && !byPath.has(path) ? [path] : []))
      const isCut = large.cut.has(name)
      const warnings = warningsOf(facts.directory, listing, { unread, tooDeep, isCut, left })
      const place = { runtime, hostname, root: facts.directory }
      return [name, manifestOf(place, { changes, files, sums: byPath, warnings })]
    }),
  )
}

/** One task's result out of the answer for many. */
function collectedOf(
  name: string,
  of: {
    read: Read | undefined
    facts: TaskFacts | undefined
    contents: Contents | undefined
    tail: Buffer | undefined
    boot: string | undefined
  },
  { manifest, empty }: { manifest: OutputManifest | undefined; empty: OutputManifest },
): RemoteCollected | DriverError {
  const { read, facts, contents, tail, boot } = of
  const seen = {
    ageSeconds: 0,
    supervised: undefined,
    marked: false,
    cancelAsked: read?.cancelAsked === true,
    boot,
  }
  const sight: RemoteSight = read === undefined ? { form: 'none' } : sightOf(read.parsed, facts, seen)
  if (sight.form === 'buried') {
    const used = { wallSeconds: 0, cpuSeconds: null, peakMemoryBytes: null, measuredBy: 'none' as const }
    return { sight, submittedAt: sight.at, ...used, manifest: empty, missingOutputs: [], stderrTail: '' }
  }
  if (sight.form !== 'ended')
    return new DriverError(
      'unknown',
      `${name} has no recorded end; find shows whether it runs, is lost or was never started`,
    )
  const { submittedAt, wallSeconds, cpuSeconds, peakMemoryBytes, measuredBy, node, limits } = sight
  const listing = new Map((contents?.listing ?? []).map((found) => [found.path, found]))
  return {
    sight,
    submittedAt,
    node,
    wallSeconds,
    cpuSeconds,
    peakMemoryBytes,
    measuredBy,
    manifest: { ...(manifest ?? empty), hostname: node },
    ...(contents?.moved === undefined ? {} : { staged: contents.moved }),
    ...missingOf(facts?.expectedOutputs ?? [], (path) => leadIn(facts?.directory ?? '', listing, path)),
    stderrTail: reasonText(tail ?? ''),
    ...(limits === undefined ? {} : { detail: { limits } }),
  }
}

/** The full results of ended names; `unknown` for one that has no recorded end. */
export async function collectTasks(
  context: RemoteContext,
  names: readonly string[],
): Promise<Map<string, RemoteCollected | Error>> {
  const { site, memory, runtime } = context
  const boundary = randomBytes(16).toString('hex')
  const contents = new Map<string, Contents>()
  const first = names.flatMap((name): Task[] => {
    const facts = memory.facts.get(name)?.facts
    return facts === undefined ? [] : [{ name, facts }]
  })
  const { hostname, boot } = await site.facts()
  const { stdout } = await site.run(
    () => `printf '\\n${boundary} records\\n'
${recordsProgram}${call('records', ...names)}
for each in ${names.join(' ')}; do
  [ -s "$each.err" ] && { printf '\\n${boundary} err %s\\n' "$each"; tail -c ${stderrTailBytes} "$each.err"; }
done
${first.length === 0 ? '' : contentsScript(first, boundary)}
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
    const more = await site.run(() => `${contentsScript(second, boundary)}\ntrue`, {
      deadlineMs: stagingDeadlineMs,
      maxBytes: mostListBytes,
    })
    readContents(parts(more.stdout, boundary), contents, second)
  }
  const filled = [...facts].map(([name, own]) => ({
    name,
    facts: own,
    ...(contents.get(name) ?? { listing: [], staged: [], left: [] }),
  }))
  const manifests = await manifestsOf(context, filled, hostname)
  const empty = manifestOf(
    { runtime, hostname, root: '' },
    { changes: changesOf([], []), files: [], sums: new Map(), warnings: [] },
  )
  return new Map(
    names.map((name) => {
      const of = {
        read: reads.get(name),
        facts: facts.get(name),
        contents: contents.get(name),
        tail: tails.get(name),
        boot: context.elsewhere ? undefined : boot,
      }
      return [name, collectedOf(name, of, { manifest: manifests.get(name), empty })]
    }),
  )
}
