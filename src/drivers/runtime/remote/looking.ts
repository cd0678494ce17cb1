import { randomBytes } from 'node:crypto'
import { call, readProgram } from '../../../shell/program.ts'
import { chunks, parts } from './answers.ts'
import { namesAtOnce, type RemoteContext } from './context.ts'
import {
  parseFacts,
  parseRecord,
  sightOf,
  supervisionOf,
  type AnsweringHost,
  type ParsedRecord,
  type RemoteSight,
  type TaskFacts,
} from './record.ts'

/** The content of a record, whether a cancel was requested, and whether the task was given up. */
export interface Read {
  parsed: ParsedRecord
  cancelAsked: boolean
  givenUp: boolean
}

/** Defines `records NAME…`, whose lines `parseRecords` reads. */
export const recordsProgram = readProgram(import.meta.dirname, 'records.sh')
/** Defines `each_cgroup COMMAND NAME`. */
export const eachCgroupProgram = readProgram(import.meta.dirname, 'each-cgroup.sh')
const signalProgram = `${eachCgroupProgram}${readProgram(import.meta.dirname, 'signal.sh')}`

/** Lines `NAME.task:…`, `claimed NAME`, `cancel NAME`, `lost NAME`. */
export function parseRecords(text: string): Map<string, Read> {
  const lines = new Map<string, string[]>()
  const asked = new Set<string>()
  const givenUp = new Set<string>()
  for (const line of text.split('\n')) {
    const [, name, rest] = /^([a-z0-9-]+)\.task:(.*)$/.exec(line) ?? []
    const [, word, other] = /^(claimed|cancel|lost) ([a-z0-9-]+)$/.exec(line) ?? []
    if (word === 'cancel' && other !== undefined) asked.add(other)
    if (word === 'lost' && other !== undefined) givenUp.add(other)
    if (word === 'claimed' && other !== undefined) lines.set(other, lines.get(other) ?? [])
    if (name === undefined || rest === undefined) continue
    const known = lines.get(name)
    if (known === undefined) lines.set(name, [rest])
    else known.push(rest)
  }
  return new Map(
    [...lines].map(([name, own]) => [
      name,
      { parsed: parseRecord(own), cancelAsked: asked.has(name), givenUp: givenUp.has(name) },
    ]),
  )
}

/**
 * From memory, else from the head of a script at the site: of the script that was started, where
 * `started` has it by name and the site has its facts.
 */
export async function factsOf(
  { site, memory }: RemoteContext,
  names: readonly string[],
  started: ReadonlyMap<string, string> = new Map(),
): Promise<Map<string, TaskFacts>> {
  const found = new Map<string, TaskFacts>()
  const missing: string[] = []
  for (const name of names) {
    const known = memory.facts.get(name)
    if (known === undefined) missing.push(name)
    else found.set(name, known.facts)
  }
  for (const some of chunks(missing, namesAtOnce)) {
    const { stdout } = await site.run(
      () => `grep -sm1 -H '^# facts ' ${some.map((name) => `${name}.*.run`).join(' ')}\ntrue`,
    )
    for (const line of stdout.toString().split('\n')) {
      const [, name, token, rest] = /^([a-z0-9-]+)\.([a-z0-9]+)\.run:(.*)$/.exec(line) ?? []
      const facts = rest === undefined ? undefined : parseFacts(rest)
      if (name === undefined || token === undefined || facts === undefined) continue
      const script = `${name}.${token}`
      if (found.has(name) && started.get(name) !== script) continue
      memory.facts.set(name, { script, facts })
      found.set(name, facts)
    }
  }
  return found
}

/**
 * Sends a signal, or none, to every process that carries the mark of one of the names; returns the
 * names with any such process.
 */
export async function signalMarked(
  { site, taskVariable }: RemoteContext,
  names: readonly string[],
  signal: 'TERM' | 'KILL' | undefined,
): Promise<Set<string>> {
  const marked = new Set<string>()
  for (const some of chunks(names, 500)) {
    const { stdout } = await site.run(
      () => `${signalProgram}${call('signal_marked', signal ?? '', taskVariable, ...some)}\n`,
    )
    for (const line of stdout.toString().split('\n'))
      if (line !== '') marked.add(line.slice(taskVariable.length + 1))
  }
  return marked
}

/**
 * The site's answer for some names: supervisors by process id, with the start of the live ones, and
 * records.
 */
interface Look {
  reads: Map<string, Read>
  births: Map<number, string>
  asked: ReadonlySet<number>
  host: AnsweringHost
}

/**
 * Reads processes first, records after: a task without a process and without an end in its record
 * then never gets an end.
 */
async function lookSome({ site, memory, elsewhere }: RemoteContext, names: readonly string[]): Promise<Look> {
  const asked = new Set(elsewhere ? [] : names.flatMap((name) => memory.pids.get(name) ?? []))
  const boundary = randomBytes(16).toString('hex')
  const stats =
    asked.size === 0 ? '' : `cat ${[...asked].map((pid) => `/proc/${pid}/stat`).join(' ')} 2> /dev/null`
  let host: AnsweringHost = { boot: '', hostname: '', booted: { here: 0, there: 0 } }
  const { stdout } = await site.run((facts) => {
    host = facts
    return (
      `printf '\\n${boundary} processes\\n'\n${stats}\nprintf '\\n${boundary} ` +
      `records\\n'\n${recordsProgram}${call('records', ...names)}\ntrue`
    )
  })
  const [alive, records] = parts(stdout, boundary)
  const births = new Map<number, string>()
  for (const line of alive?.bytes.toString().split('\n') ?? []) {
    const fields = line.slice(line.lastIndexOf(')') + 2).split(' ')
    if (fields.length > 19 && !'ZX'.includes(fields[0] ?? 'X'))
      births.set(Number(line.split(' ')[0]), fields[19] ?? '')
  }
  const reads = parseRecords(records?.bytes.toString() ?? '')
  for (const [name, { parsed }] of reads)
    if (parsed.form === 'started') {
      memory.pids.set(name, parsed.record.pid)
      memory.nodes.set(name, parsed.record.node)
    }
  return { reads, births, asked, host }
}

/** Facts about names after some looks. */
interface Seen {
  reads: Map<string, Read>
  /** For started tasks: the birth of the live process with the supervisor's id, and who says so. */
  processes: Map<string, { birth: string | undefined; host: AnsweringHost }>
  /** The host that answered, where processes were queried. */
  host: AnsweringHost | undefined
}

/**
 * Adds a look to the known facts; returns the names whose supervisors this look did not check,
 * because it gave their ids.
 */
function note(
  { reads, births, asked, host }: Look,
  names: readonly string[],
  elsewhere: boolean,
  seen: Seen,
): string[] {
  const unsure: string[] = []
  if (!elsewhere) seen.host = host
  for (const name of names) {
    const own = reads.get(name)
    if (own === undefined) continue
    seen.reads.set(name, own)
    if (own.parsed.form !== 'started' || own.parsed.record.exit !== undefined || elsewhere) continue
    const { pid, boot } = own.parsed.record
    if (boot === host.boot && !asked.has(pid)) unsure.push(name)
    else seen.processes.set(name, { birth: births.get(pid), host })
  }
  return unsure
}

/** Facts of started tasks. */
export const factsOfStarted = (
  context: RemoteContext,
  reads: ReadonlyMap<string, Read>,
): Promise<Map<string, TaskFacts>> => {
  const started = new Map(
    [...reads].flatMap(([name, { parsed }]) =>
      parsed.form === 'started' ? [[name, parsed.record.script] as const] : [],
    ),
  )
  return factsOf(context, [...started.keys()], started)
}

/** As `RemoteTasks.look`. */
export async function look(
  context: RemoteContext,
  names: readonly string[],
): Promise<Map<string, RemoteSight>> {
  const { memory, elsewhere } = context
  const { claimedSince } = memory
  const seen: Seen = { reads: new Map(), processes: new Map(), host: undefined }
  for (const some of chunks(names, namesAtOnce)) {
    const unsure = note(await lookSome(context, some), some, elsewhere, seen)
    if (unsure.length > 0) note(await lookSome(context, unsure), unsure, elsewhere, seen)
  }
  const facts = await factsOfStarted(context, seen.reads)
  const supervised = new Map(
    [...seen.processes].flatMap(([name, { birth, host }]) => {
      const parsed = seen.reads.get(name)?.parsed
      return parsed?.form === 'started'
        ? [[name, supervisionOf(parsed.record, birth, host, facts.get(name))]]
        : []
    }),
  )
  const dead = [...seen.reads].flatMap(([name, { parsed, givenUp }]) =>
    supervised.get(name) === false || (parsed.form === 'claimed' && givenUp) ? [name] : [],
  )
  const marked = dead.length === 0 ? new Set<string>() : await signalMarked(context, dead, undefined)
  return new Map(
    names.map((name): [string, RemoteSight] => {
      const own = seen.reads.get(name)
      if (own?.parsed.form !== 'claimed') claimedSince.delete(name)
      else if (!claimedSince.has(name)) claimedSince.set(name, performance.now())
      if (own === undefined) {
        // Another host of a shared home cannot say whether the task's processes have ended.
        const node = memory.nodes.get(name)
        const isHere = node !== undefined && node === seen.host?.hostname
        return [name, isHere ? { form: 'none', vanished: true } : { form: 'none' }]
      }
      const about = {
        ageSeconds: (performance.now() - (claimedSince.get(name) ?? performance.now())) / 1000,
        supervised: supervised.get(name),
        marked: marked.has(name),
        cancelAsked: own.cancelAsked,
        givenUp: own.givenUp,
        host: seen.host,
      }
      return [name, sightOf(own.parsed, facts.get(name), about)]
    }),
  )
}
