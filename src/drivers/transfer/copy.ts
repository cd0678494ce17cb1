import { hash } from 'node:crypto'
import { posix } from 'node:path'
import { bytesOfPath, namedPath } from '../../outside-path.ts'
import { reasonText } from '../../outside-text.ts'
import { fieldsOf } from '../../shell/fields.ts'
import { quote, quoteAll } from '../../shell/quote.ts'
import { DriverError, type Stage } from '../runtime/contract/driver.ts'
import { mostListBytes } from '../runtime/remote/context.ts'
import type { ShellResult, SiteShell } from '../../shell/site-shell.ts'
import { asSiteError, converse, pump, type ScriptAnswer, type Traffic } from './carry.ts'
import { inPlaces } from './places.ts'
import {
  blockBytes,
  parcelsOf,
  prefixByNotes,
  unitKey,
  unitsOf,
  type MissingPart,
  type Parcel,
  type Unit,
} from './parcels.ts'
import {
  closedDirectory,
  digestScript,
  finishScript,
  linkList,
  listScript,
  noDirectory,
  notesScript,
  nulList,
  packScript,
  parseDigests,
  parseNotes,
  pathsBeside,
  prepareScript,
  readPiecesScript,
  runsOf,
  settleScript,
  setupScript,
  unpackScript,
  versionScript,
  writePiecesScript,
} from './scripts.ts'
import { broughtBy, differenceBetween, parseTree, type Brought, type Tree } from './tree.ts'

/** A machine where the commands of a copy run. */
export interface CopySite {
  site: string
  shell: SiteShell
}

/**
 * The login by which one of the two sites reaches the other: OpenSSH's `ssh` on the first site uses
 * the agent that the session forwards.
 */
export interface Door {
  host: string
  port: number
  username: string
  /** Lines for the check of the other side's key; nothing else is used. */
  knownHosts: string
  /** A shell of the source, whose session forwards an agent; absent: the site's own. */
  shell?: SiteShell
}

export type CopyRoute = { by: 'gateway' } | { by: 'source-push' | 'destination-pull'; door: Door }

/** The direct way does not work; the site's message gives the reason. */
export class NoWayError extends Error {
  constructor(message: string) {
    super(message)
    this.name = 'NoWayError'
  }
}

/** Rounds of sending because digests differ. */
const rounds = 3
/** One process sums files up to this size; larger ones are summed block by block. */
const summedTogether = 1024 * 1024
/** Above this size two processes make the digests of a tree. */
const summedAlone = 64 * 1024 * 1024
const listDeadlineMs = 600_000

const fullDisk = /No space left on device|Disk quota exceeded/

const run = async ({ site, shell }: CopySite, script: string, input?: Uint8Array): Promise<ShellResult> => {
  try {
    return await shell.run(script, {
      ...(input === undefined ? {} : { input }),
      maxBytes: mostListBytes,
      deadlineMs: listDeadlineMs,
    })
  } catch (error) {
    throw asSiteError(site, error)
  }
}

const troubleOf = (
  site: string,
  doing: string,
  answer: { code: number | null; stderr: string },
): DriverError =>
  new DriverError(
    'infrastructure',
    `cannot ${doing} at ${site}: ${reasonText(answer.stderr) || `exit code ${String(answer.code)}`}`,
  )

const noSource = ({ site }: CopySite, { from, label }: Pick<Stage, 'from' | 'label'>): DriverError =>
  new DriverError('refused', `the files of ${label} are not at ${from} of ${site}; it is no directory there`)

/** Names the present content of `from`: a directory that has changed since has another version. */
export const versionOf = async (at: CopySite, stage: Pick<Stage, 'from' | 'label'>): Promise<string> => {
  const answer = await run(at, versionScript(stage.from))
  if (answer.code === noDirectory) throw noSource(at, stage)
  if (answer.code !== 0) throw troubleOf(at.site, `list ${stage.from}`, answer)
  return answer.stdout.toString()
}

/**
 * Lists all files below `from`, or its `paths` with what links among them lead to. Links that lead
 * away are left out; where a path leads away or is missing, that is the producer's fault.
 */
export const listTree = async (
  at: CopySite,
  stage: Pick<Stage, 'from' | 'madeAt' | 'label' | 'paths'>,
): Promise<Brought> => {
  const { from, label } = stage
  return broughtBy(async (paths) => {
    const answer = await run(at, listScript(from, paths))
    if (answer.code === closedDirectory)
      throw new DriverError(
        'user',
        `${label} leaves its work directory in a state in which it cannot be read; give it other permissions`,
      )
    if (answer.code === noDirectory) throw noSource(at, stage)
    if (answer.code !== 0) throw troubleOf(at.site, `list ${from}`, answer)
    return parseTree(answer.stdout, label)
  }, stage)
}

/** The state of the target before the transfer. */
export type PreparedTarget =
  | { state: 'existing'; tree: Tree; digests: Map<string, string>; note: unknown }
  | { state: 'partial' | 'fresh'; freeBytes: number | undefined }

/** Type letter of the record of a manifest that holds the note; `parseTree` skips it. */
const noteLetter = 'n'

/**
 * Digests in a manifest follow the fields of `parseTree`, one for each unit; `note` is a record of
 * its own, JSON in ASCII.
 */
const manifestOf = (tree: Tree, digests: ReadonlyMap<string, string>, note: unknown): Buffer => {
  const letters = { file: 'f', directory: 'd', link: 'l' } as const
  const records = [...tree].map(([path, entry]) => {
    const { kind, mode, sizeBytes, modified, target } = entry
    const sums =
      kind === 'file'
        ? [...unitsOf(path, entry)].map((unit) => digests.get(unitKey(unit)) ?? '').join(',')
        : ''
    return (
      `${letters[kind]} ${mode.toString(8)} ${String(sizeBytes)} ${String(modified)} ` +
      `${sums}\0./${path}\0${target}\0`
    )
  })
  const json = JSON.stringify(note)?.replace(
    /[^ -~]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`,
  )
  if (json !== undefined) records.push(`${noteLetter} 0 0 0\0./\0${json}\0`)
  return bytesOfPath(records.join(''))
}

const readManifest = (
  bytes: Buffer,
  label: string,
): { tree: Tree; digests: Map<string, string>; note: unknown } => {
  const tree = parseTree(bytes, label)
  const digests = new Map<string, string>()
  let note: unknown
  const fields = fieldsOf(bytes)
  for (let at = 0; at + 2 < fields.length; at += 3) {
    if (fields[at]?.startsWith(`${noteLetter} `) === true) {
      note = JSON.parse(fields[at + 2] as string)
      continue
    }
    const path = (fields[at + 1] as string).slice(2)
    const sums = (fields[at] as string).split(' ')[4] ?? ''
    for (const [block, sum] of sums.split(',').entries())
      if (sum !== '') digests.set(unitKey({ offset: block * blockBytes, path }), sum)
  }
  return { tree, digests, note }
}

/** What the last line of `df -Pk` says. */
const freeSpace = (output: Buffer): { freeBytes: number | undefined; where: string | undefined } => {
  const [, free, where] = /\s(\d+)\s+\d+%\s+(.*)\n$/.exec(output.toString()) ?? []
  return { freeBytes: free === undefined ? undefined : Number(free) * 1024, where }
}

export const prepareTarget = async (
  at: CopySite,
  directory: string,
  label: string,
): Promise<PreparedTarget> => {
  const answer = await run(at, prepareScript(directory))
  if (answer.code !== 0) throw troubleOf(at.site, `make room for ${directory}`, answer)
  const end = answer.stdout.indexOf('\n')
  const state = answer.stdout.subarray(0, end).toString()
  const rest = answer.stdout.subarray(end + 1)
  if (state === 'existing') return { state, ...readManifest(rest, label) }
  if (state === 'occupied')
    throw new DriverError(
      'refused',
      `${directory} of ${at.site} holds something else already; the files of ${label} cannot be put there`,
    )
  return { state: state === 'partial' ? 'partial' : 'fresh', freeBytes: freeSpace(rest).freeBytes }
}

type Digests = ReadonlyMap<string, string>

/** Whether both sides have the same digest of a unit: where neither could make one, nothing is known. */
const isSame = (unit: Unit, one: Digests, other: Digests): boolean => {
  const digest = one.get(unitKey(unit))
  return digest !== undefined && digest === other.get(unitKey(unit))
}

const filesOf = function* (tree: Tree): Generator<Unit> {
  for (const [path, entry] of tree) if (entry.kind === 'file') yield* unitsOf(path, entry)
}

/** SHA-256 of units, by their keys, computed at their site. */
const digestsAt = async (
  { site, shell }: CopySite,
  directory: string,
  units: readonly Unit[],
  tree: Tree,
  traffic: Traffic,
): Promise<Map<string, string>> => {
  const digests = new Map<string, string>()
  if (units.length === 0) return digests
  const small = units.filter(({ path }) => (tree.get(path)?.sizeBytes ?? 0) <= summedTogether)
  const runs = runsOf(units.filter(({ path }) => (tree.get(path)?.sizeBytes ?? 0) > summedTogether))
  const total = runs.reduce((sum, { start, end }) => sum + end - start, 0)
  const halves = total > summedAlone ? 2 : 1
  // A run is cut where a block ends.
  const cut = runs.flatMap((piece) => {
    const middle = piece.start + Math.ceil((piece.end - piece.start) / 2 / blockBytes) * blockBytes
    return halves === 1 || middle >= piece.end
      ? [piece]
      : [
          { ...piece, end: middle },
          { ...piece, start: middle },
        ]
  })
  const ask = async (pieces: typeof runs, paths: string[]): Promise<void> => {
    if (pieces.length === 0 && paths.length === 0) return
    try {
      const answer = await converse(shell, digestScript(directory, pieces), nulList(paths), traffic)
      parseDigests(answer.stdout, digests)
    } catch (error) {
      throw asSiteError(site, error)
    }
  }
  await Promise.all(
    Array.from({ length: halves }, (_, half) =>
      ask(
        cut.filter((_piece, at) => at % halves === half),
        half === 0 ? small.map(({ path }) => path) : [],
      ),
    ),
  )
  return digests
}

/** Why the target does not match the manifest; undefined: it does. */
export const differenceFromManifest = async (
  at: CopySite,
  directory: string,
  manifest: { tree: Tree; digests: ReadonlyMap<string, string> },
  traffic: Traffic,
): Promise<string | undefined> => {
  const answer = await run(at, listScript(directory))
  if (answer.code !== 0) return reasonText(answer.stderr) || 'it cannot be listed'
  const difference = differenceBetween(manifest.tree, parseTree(answer.stdout, directory))
  if (difference !== undefined) return difference
  const units = [...filesOf(manifest.tree)]
  const digests = await digestsAt(at, directory, units, manifest.tree, traffic)
  const wrong = units.find((unit) => !isSame(unit, digests, manifest.digests))
  return wrong === undefined ? undefined : `${namedPath(wrong.path)} has another SHA-256`
}

export const discard = async (at: CopySite, directory: string): Promise<void> => {
  const { arriving, manifest } = pathsBeside(directory)
  const removed = posix.join(arriving, 'removed')
  // Files that a removal leaves in their place, as it was cut off, would count as those of others.
  const answer = await run(
    at,
    `mkdir -p ${quote(arriving)} && rm -rf ${quote(removed)} && mv -T ${quoteAll([directory, removed])} &&
      rm -rf ${quoteAll([manifest, removed])}`,
  )
  if (answer.code !== 0) throw troubleOf(at.site, `remove ${directory}`, answer)
}

const sshOptions = [
  ...['BatchMode=yes', 'StrictHostKeyChecking=yes', 'GlobalKnownHostsFile=/dev/null', 'UpdateHostKeys=no'],
  ...['ConnectTimeout=15', 'ServerAliveInterval=15', 'ServerAliveCountMax=4', 'ForwardAgent=no'],
  ...['ForwardX11=no', 'Compression=no', 'LogLevel=ERROR'],
].flatMap((option) => ['-o', option])

/** The script that runs `there` on the other site over ssh, in a pipe with `here`. */
export const throughDoor = (
  { host, port, username, knownHosts }: Door,
  there: string,
  here: string,
  direction: 'push' | 'pull',
): string => {
  const command = quote(`exec /bin/sh -c ${quote(there)}`)
  const address = quoteAll(['-T', '-p', String(port), '-l', username, '--', host])
  const ssh = `ssh ${quoteAll(sshOptions)} -o UserKnownHostsFile="$K" ${address} ${command}`
  const own = `(\n${here}\n)`
  return `K=$(umask 077; mktemp) || exit 1
trap 'rm -f "$K"' EXIT
trap 'exit 1' HUP INT TERM
printf '%s\\n' ${quote(knownHosts)} > "$K" || exit 1
${direction === 'push' ? `${own} | ${ssh}` : `${ssh} | ${own}`}`
}

export interface CopyRequest {
  from: CopySite
  to: CopySite
  source: string
  tree: Tree
  directory: string
  label: string
  route: CopyRoute
  streams: number
  traffic: Traffic
  prepared: Extract<PreparedTarget, { state: 'partial' | 'fresh' }>
  /**
   * Recorded beside the files, in the same step that makes them visible, and read back with them
   * (`Prepared.note`).
   */
  note?: () => unknown
}

/** The remains of an earlier attempt: the useless ones, and what is still needed. */
interface Survey {
  needs: MissingPart[]
  links: string[]
  strangers: string[]
  resumed: boolean
}

const noteOf = (path: string): string => hash('sha256', bytesOfPath(path)).slice(0, 40)

/** One copy, with the facts about its units so far. */
class Copy {
  readonly #request: CopyRequest
  readonly #failure = new AbortController()
  readonly #traffic: Traffic
  readonly #arriving: string
  readonly #complaints = new Set<string>()
  /** Digests by unit: at the source, and on arrival. */
  readonly #given = new Map<string, string>()
  readonly #arrived = new Map<string, string>()
  /** Files whose modes and times are still to be set. */
  readonly #toSettle = new Set<string>()

  constructor(request: CopyRequest) {
    const { signal } = this.#failure
    const { traffic } = request
    this.#request = request
    this.#traffic = {
      ...traffic,
      signal: traffic.signal === undefined ? signal : AbortSignal.any([traffic.signal, signal]),
    }
    this.#arriving = pathsBeside(request.directory).arriving
  }

  async #diskFull(refusal: string): Promise<DriverError> {
    const { to, label } = this.#request
    const { stdout } = await run(to, `LC_ALL=C df -Pk ${quote(this.#arriving)} | tail -n 1`)
    const { freeBytes, where } = freeSpace(stdout)
    return new DriverError(
      'infrastructure',
      `${to.site}: ${refusal.replaceAll('\n', '; ')}; ` +
        `${freeBytes === undefined ? 'unknown' : freeBytes / 1024} KiB free at ` +
        `${where ?? this.#arriving}, for the files of ${label}`,
    )
  }

  async #survey(): Promise<Survey> {
    const { to, tree, directory, label, prepared } = this.#request
    const files = posix.join(this.#arriving, 'files')
    const links = [...tree]
      .filter(([, { kind, isNew }]) => kind === 'link' && isNew !== true)
      .map(([path]) => path)
    const units = [...filesOf(tree)]
    if (prepared.state === 'fresh')
      return { needs: units.map((unit) => ({ unit, has: 0 })), links, strangers: [], resumed: false }
    const [answer, noted] = await Promise.all([run(to, listScript(files)), run(to, notesScript(directory))])
    if (answer.code !== 0) throw troubleOf(to.site, `read ${this.#arriving}`, answer)
    const listed = parseTree(answer.stdout, label)
    const notes = parseNotes(noted.stdout)
    const strangers = [...listed]
      .filter(([path, entry]) => {
        const twin = tree.get(path)
        return twin?.kind !== entry.kind || twin.target !== entry.target || entry.sizeBytes > twin.sizeBytes
      })
      .map(([path]) => path)
    const gone = new Set(strangers)
    const had = (unit: Unit): number => {
      const there = listed.get(unit.path)
      if (there === undefined || gone.has(unit.path)) return 0
      const single = (tree.get(unit.path)?.sizeBytes ?? 0) <= blockBytes
      return single
        ? there.sizeBytes
        : Math.min(
            prefixByNotes(notes.get(noteOf(unit.path)) ?? '', unit),
            Math.max(0, there.sizeBytes - unit.offset),
          )
    }
    const found = units.map((unit) => ({ unit, has: had(unit) }))
    const whole = found
      .filter(({ unit, has }) => has === unit.length && listed.has(unit.path) && !gone.has(unit.path))
      .map(({ unit }) => unit)
    const right = await this.#verified(files, whole, listed)
    const wrong = new Set(whole.map(unitKey).filter((key) => !right.has(key)))
    const needs = found
      .filter(({ unit }) => !right.has(unitKey(unit)))
      .map(({ unit, has }) => ({ unit, has: wrong.has(unitKey(unit)) ? 0 : has }))
    return {
      needs,
      links: links.filter((path) => listed.get(path)?.kind !== 'link' || gone.has(path)),
      strangers,
      resumed: right.size > 0 || needs.some(({ has }) => has > 0),
    }
  }

  /** The complete units whose digest is the same as at the source. */
  async #verified(files: string, whole: readonly Unit[], listed: Tree): Promise<Set<string>> {
    const { from, to, source, tree } = this.#request
    const [ours, theirs] = await Promise.all([
      digestsAt(to, files, whole, tree, this.#traffic),
      digestsAt(from, source, whole, tree, this.#traffic),
    ])
    for (const [key, digest] of theirs) this.#given.set(key, digest)
    const right = new Set(whole.filter((unit) => isSame(unit, ours, theirs)).map(unitKey))
    for (const key of right) this.#arrived.set(key, this.#given.get(key) as string)
    for (const unit of whole) {
      const [there, asked] = [listed.get(unit.path), tree.get(unit.path)]
      if (there?.mode !== asked?.mode || there?.modified !== asked?.modified) this.#toSettle.add(unit.path)
    }
    return right
  }

  /** When one fails the others stop too, and have recorded their progress when this rejects. */
  async #together(work: readonly Promise<unknown>[]): Promise<void> {
    const ends = await Promise.allSettled(
      work.map((one) =>
        one.catch((error: unknown) => {
          this.#failure.abort(error)
          throw error
        }),
      ),
    )
    if (this.#failure.signal.aborted && ends.some(({ status }) => status === 'rejected'))
      throw this.#failure.signal.reason
  }

  async #carry(parcel: Parcel, list: number, isFirst: boolean): Promise<ScriptAnswer> {
    const { from, to, source, directory, route, tree } = this.#request
    const traffic = this.#traffic
    const give =
      parcel.kind === 'pack' ? packScript(source, parcel.bytes) : readPiecesScript(source, parcel.pieces)
    const take =
      parcel.kind === 'pack'
        ? unpackScript(directory, list, parcel.bytes)
        : writePiecesScript(directory, parcel.pieces, {
            noteOf,
            sizeOf: isFirst ? (path) => tree.get(path)?.sizeBytes ?? 0 : undefined,
          })
    const input = parcel.kind === 'pack' ? nulList(parcel.members) : new Uint8Array()
    if (route.by === 'gateway')
      return inPlaces(
        [from.shell, to.shell],
        () => pump({ ...from, script: give, input }, { ...to, script: take }, traffic),
        traffic,
      )
    const push = route.by === 'source-push'
    const at = push ? from : to
    const shell = route.door.shell ?? at.shell
    const script = push
      ? throughDoor(route.door, take, give, 'push')
      : throughDoor(route.door, give, take, 'pull')
    const converses = async (): Promise<ScriptAnswer> => {
      try {
        // The only output is a digest at the end of each block.
        return await converse(shell, script, input, { ...traffic, stallMs: traffic.stallMs * 5 })
      } catch (error) {
        throw asSiteError(at.site, error)
      }
    }
    const answer = await inPlaces([from.shell, to.shell], converses, traffic)
    if (answer.code !== 0 && !fullDisk.test(answer.stderr))
      throw new NoWayError(
        reasonText(answer.stderr, { characters: 1_000 }) || `ssh ended with ${String(answer.code)}`,
      )
    traffic.moved(parcel.bytes)
    return answer
  }

  async #sendAll(parcels: readonly Parcel[], isFirst: boolean): Promise<void> {
    const queue = parcels.entries()
    const lane = async (): Promise<void> => {
      for (const [list, parcel] of queue) {
        if (parcel.kind === 'pieces') for (const { path } of parcel.pieces) this.#toSettle.add(path)
        const answer = await this.#carry(parcel, list, isFirst)
        if (fullDisk.test(answer.stderr)) throw await this.#diskFull(answer.stderr.trim())
        if (answer.stderr !== '') this.#complaints.add(answer.stderr.replaceAll('\n', '; '))
        parseDigests(answer.stdout, this.#arrived)
      }
    }
    await this.#together(Array.from({ length: Math.min(this.#request.streams, parcels.length) }, lane))
  }

  /** The first of these was sent often enough and still differs. */
  #unverified(needs: readonly MissingPart[]): DriverError {
    const { from, to, label } = this.#request
    const { unit } = needs[0] as MissingPart
    const [there, here] = [this.#given.get(unitKey(unit)), this.#arrived.get(unitKey(unit))]
    const difference =
      `${namedPath(unit.path)} has SHA-256 ${there ?? 'nothing'} at ${from.site} and ` +
      `${here ?? 'nothing'} at ${to.site}`
    return new DriverError(
      'infrastructure',
      [`the files of ${label} cannot be verified: ${difference}`, ...this.#complaints].join('; '),
    )
  }

  /**
   * Sends the needed units, once; `isFirst`: nothing is at the target yet. @returns those that did
   * not arrive unchanged.
   */
  async #send(
    needs: readonly MissingPart[],
    links: readonly string[],
    before: { strangers: readonly string[]; directories: readonly string[]; isFirst: boolean },
  ): Promise<MissingPart[]> {
    const { from, to, source, tree, directory, streams } = this.#request
    const parcels = parcelsOf(tree, needs, links, streams)
    const lists = parcels.map((parcel) =>
      nulList(parcel.kind === 'pack' ? parcel.members.filter((path) => tree.get(path)?.kind === 'file') : []),
    )
    const [strange, made] = [nulList(before.strangers), nulList(before.directories)]
    const lengths = {
      strangers: strange.length,
      directories: made.length,
      lists: lists.map(({ length }) => length),
    }
    const set = await run(to, setupScript(directory, lengths), Buffer.concat([strange, made, ...lists]))
    if (fullDisk.test(set.stderr)) throw await this.#diskFull(set.stderr.trim())
    if (set.code !== 0) throw troubleOf(to.site, `make room for ${directory}`, set)
    const wanted = needs.map(({ unit }) => unit)
    // A stream that breaks off has written over them, and gives no digest.
    for (const unit of wanted) this.#arrived.delete(unitKey(unit))
    const summing = digestsAt(from, source, wanted, tree, this.#traffic)
    await this.#together([summing, this.#sendAll(parcels, before.isFirst)])
    for (const [key, digest] of await summing) this.#given.set(key, digest)
    return wanted
      .filter((unit) => !isSame(unit, this.#given, this.#arrived))
      .map((unit) => ({ unit, has: 0 }))
  }

  /** Sets modes and times, then renames the whole into place. */
  async #finish(): Promise<void> {
    const { to, tree, directory, label, note } = this.#request
    const byMode = new Map<number, string[]>()
    for (const [path, { kind, mode }] of tree) {
      if (kind !== 'directory' || (mode | 0o700) === 0o700) continue
      byMode.set(mode | 0o700, [...(byMode.get(mode | 0o700) ?? []), path])
    }
    const modes = [...byMode].map(([mode, paths]) => ({ mode, list: nulList(paths) }))
    const links = linkList([...tree].filter(([, { isNew }]) => isNew === true))
    const settled = await run(
      to,
      settleScript(
        directory,
        { links: links.length, modes: modes.map(({ mode, list }) => ({ mode, length: list.length })) },
        [...this.#toSettle].map((path) => ({
          path,
          mode: tree.get(path)?.mode ?? 0o600,
          modified: tree.get(path)?.modified ?? 0,
        })),
      ),
      Buffer.concat([links, ...modes.map(({ list }) => list)]),
    )
    if (settled.code !== 0) throw troubleOf(to.site, `put ${directory} in order`, settled)
    const difference = differenceBetween(tree, parseTree(settled.stdout, label))
    if (difference !== undefined)
      throw new DriverError(
        'infrastructure',
        [
          `the files of ${label} did not arrive at ${to.site} as they are: ${difference}`,
          ...this.#complaints,
        ].join('; '),
      )
    const finished = await run(to, finishScript(directory), manifestOf(tree, this.#given, note?.()))
    if (fullDisk.test(finished.stderr)) throw await this.#diskFull(finished.stderr.trim())
    if (finished.code !== 0) throw troubleOf(to.site, `rename ${this.#arriving}`, finished)
  }

  async run(): Promise<{ resumed: boolean }> {
    const { tree, prepared } = this.#request
    const survey = await this.#survey()
    const missing = survey.needs.reduce((sum, { unit, has }) => sum + unit.length - has, 0)
    if (prepared.freeBytes !== undefined && missing > prepared.freeBytes)
      throw await this.#diskFull(
        `${String(Math.ceil(missing / 1024))} KiB have no room (No space left on device)`,
      )
    const directories = [...tree].filter(([, { kind }]) => kind === 'directory').map(([path]) => path)
    let needs = await this.#send(survey.needs, survey.links, {
      strangers: survey.strangers,
      directories,
      isFirst: prepared.state === 'fresh',
    })
    for (let round = 2; needs.length > 0; round++) {
      if (round > rounds) throw this.#unverified(needs)
      needs = await this.#send(needs, [], { strangers: [], directories: [], isFirst: false })
    }
    await this.#finish()
    return { resumed: survey.resumed }
  }
}

/**
 * Brings `tree` from the source to the target and resumes from the existing files, until every unit
 * has the digest of the source; only then it appears under `directory`.
 */
export const copy = (request: CopyRequest): Promise<{ resumed: boolean }> => new Copy(request).run()
