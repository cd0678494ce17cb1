import { posix } from 'node:path'
import { bytesOfPath, namedPath } from '../../../outside-path.ts'
import { fieldOf, fieldsOf } from '../../../shell/fields.ts'
import { append, firstTexts } from '../../../lists.ts'
import { printedWords, quote, quoteAll } from '../../../shell/quote.ts'
import {
  DriverError,
  type Left,
  type OutputManifest,
  type Stage,
  type StagedAmount,
} from '../contract/driver.ts'
import {
  conflict,
  leadOf,
  makeRoom,
  namesOf,
  replaced,
  selected,
  type Lead,
  type StageSelection,
} from '../contract/links.ts'
import { manifestWith } from '../contract/results.ts'

/** A file below a folder of the site, from GNU find. Links are never followed. */
export interface FoundFile {
  /** Relative; '' is the folder itself. */
  path: string
  kind: 'file' | 'directory' | 'link' | 'other'
  sizeBytes: number
  /** Seconds since epoch with nine or more decimals, by the clock of its file system. */
  modified: string
  changed: string
  mode: number
  /** Device and inode. */
  inode: string
  target: string
  /** Whether the account may read it; what is in a folder that it may not read is not listed. */
  readable: boolean
}

/** Four fields, each ended by NUL, because a name may contain any other byte. */
const format = '%y %s %T@ %C@ %m %D:%i\\0%H\\0%P\\0%l\\0'
/** Tests and actions for `find FOLDER…`; `!` marks what the account may not read. */
export const listingActions =
  '\\( -type l -o -type d -readable -executable -o ! -type d -readable \\) ' +
  `-printf ${quote(format)} -o -printf ${quote(`!${format}`)} -prune`

const kinds: Readonly<Record<string, FoundFile['kind']>> = { f: 'file', d: 'directory', l: 'link' }

/** The output of `find`, by the folder of the query. */
export function parseListing(bytes: Buffer): Map<string, FoundFile[]> {
  const fields = fieldsOf(bytes)
  const listings = new Map<string, FoundFile[]>()
  for (let at = 0; at + 3 < fields.length; at += 4) {
    const [facts = '', folder = '', path = '', target = ''] = fields.slice(at, at + 4)
    const readable = !facts.startsWith('!')
    const [letter = '', size, modified = '', changed = '', mode = '', inode = ''] = (
      readable ? facts : facts.slice(1)
    ).split(' ')
    const found = {
      path,
      kind: kinds[letter] ?? 'other',
      sizeBytes: Number(size),
      modified,
      changed,
      mode: parseInt(mode, 8),
      inode,
      target,
      readable,
    }
    const listing = listings.get(folder)
    if (listing === undefined) listings.set(folder, [found])
    else listing.push(found)
  }
  return listings
}

/** Before the digest `sha256sum` puts a backslash where it had to escape the name. */
export function parseSums(bytes: Buffer): Map<string, string> {
  const sums = new Map<string, string>()
  const escapes: Readonly<Record<string, string>> = { n: '\n', r: '\r', '\\': '\\' }
  for (const line of bytes.toString('latin1').split('\n')) {
    const match = /^(\\?)([0-9a-f]{64}) [ *](.*)$/s.exec(line)
    if (match === null) continue
    const [, escaped, sum = '', name = ''] = match
    const plainName = name.replace(/\\([nr\\])/g, (_, letter: string) => escapes[letter] ?? '')
    sums.set(fieldOf(escaped === '' ? name : plainName), sum)
  }
  return sums
}

/** Longest path that a call of Linux takes, in bytes; what is deeper can be listed, and not opened. */
const longestPath = 4_095
/** A copy is built under another name, which may be so much longer. */
const longerName = 128

export const isTooDeep = (root: string, path: string, longest = longestPath): boolean =>
  root.length + path.length > longest / 4 && bytesOfPath(`${root}/${path}`).length > longest

/** What one stage copies into the work directory that is being built, and what is mended around that. */
interface StageSteps {
  stage: Stage
  /** What is copied, with all that is in it; undefined: everything. */
  tops: readonly string[] | undefined
  /** Removed before: entries of earlier stages that are another kind of file here. */
  before: string[]
  /** Links that lead away, and unreadable files' remains: removed after. */
  after: string[]
  /** Links that get another target. */
  links: { path: string; target: string }[]
}

/** The planned content of a work directory, and the open queries for it. */
export interface StagingPlan {
  /** In the order in which they are copied. */
  steps: readonly StageSteps[]
  /** The amount from each of them. */
  amounts: readonly StagedAmount[]
  /** Two sources for one path; the same content is no conflict. Absolute paths at the site. */
  comparisons: readonly {
    path: string
    labels: readonly [string, string]
    files: readonly [string, string]
    /** Different content is a conflict; else the later one stays. */
    named: boolean
  }[]
  /** What is not brought. */
  left: Left[]
  /**
   * A directory among them is not writable by its owner, has another mode than 0700 at the top, or
   * contains files that are not data.
   */
  lockedDirectories: boolean
  others: boolean
  /** Parts of the sources cannot be read, and stay there. */
  partly: boolean
}

interface Source {
  steps: StageSteps
  found: FoundFile
  named: (path: string) => boolean
}

/** Puts the entries of the stages together; where two differ at a path that neither names, the later stays. */
const openEntries = () => {
  const entries = new Map<string, Source>()
  const comparisons: StagingPlan['comparisons'][number][] = []
  const left: Left[] = []

  const replace = (before: Source, source: Source): void => {
    const { path, kind } = source.found
    const labels = [before.steps.stage.label, source.steps.stage.label] as const
    const isFolder = before.found.kind === 'directory'
    makeRoom(entries, { path, before: { isFolder }, next: source }, labels)
    if (kind !== 'file' || before.found.kind !== 'file') source.steps.before.push(path)
    left.push({ path, why: replaced(...labels) })
    entries.set(path, source)
  }

  return {
    entries,
    comparisons,
    left,
    /** Whether it is the first at its path. */
    add: (source: Source): boolean => {
      const { path, kind, target, sizeBytes, inode } = source.found
      const before = entries.get(path)
      if (before === undefined) {
        entries.set(path, source)
        return true
      }
      const { found, steps } = before
      const differs =
        found.kind !== kind ||
        (kind === 'link' && found.target !== target) ||
        (kind === 'file' && found.sizeBytes !== sizeBytes)
      if (differs) replace(before, source)
      else if (kind === 'file' && found.inode !== inode)
        comparisons.push({
          path,
          labels: [steps.stage.label, source.steps.stage.label],
          files: [posix.join(steps.stage.from, path), posix.join(source.steps.stage.from, path)],
          named: before.named(path) || source.named(path),
        })
      return false
    },
  }
}

/**
 * The rules of `local/planned.ts` over listings of the predecessors' folders (`from` → its content).
 *
 * @throws DriverError `user` for conflicts at named paths and for undelivered paths, `refused` for
 *   missing sources.
 */
export function planStaging(
  stages: readonly Stage[],
  listings: ReadonlyMap<string, readonly FoundFile[]>,
): StagingPlan {
  const { entries, comparisons, left, add } = openEntries()
  const amounts: StagedAmount[] = []
  const steps: StageSteps[] = []
  let lockedDirectories = false
  let others = false
  let partly = false

  for (const stage of stages) {
    const listing = listings.get(stage.from) ?? []
    const root = listing.find(({ path }) => path === '')
    if (root?.kind !== 'directory')
      throw new DriverError(
        'refused',
        `the files of ${stage.label} are not at ${stage.from}; it is no directory there`,
      )
    if (!root.readable) throw unreadable(stage, 'its work directory')
    const byPath = new Map(listing.map((found) => [found.path, found]))
    const chosen = selected(byPath, stage)
    const own: StageSteps = { stage, tops: chosen.tops, before: [], after: [], links: [] }
    const named = namesOf(stage)
    const amount = { bytes: 0, files: 0 }
    const top = chosen.tops?.map((path) => byPath.get(path)).find((found) => found && isLeft(stage, found))
    if (top !== undefined) throw unreadable(stage, namedPath(top.path))
    append(left, stage.left ?? [])
    append(left, chosen.left)
    for (const found of chosen.entries.values()) {
      const { path, kind, target, sizeBytes } = found
      if (kind === 'directory' && (found.mode & 0o700) !== 0o700) lockedDirectories = true
      if (kind === 'other') others = true
      else if (path !== '' && isLeft(stage, found)) {
        partly = true
        left.push({ path, why: 'it cannot be read' })
      } else if (path !== '') {
        if (target !== byPath.get(path)?.target) own.links.push({ path, target })
        if (add({ steps: own, found, named }) && kind !== 'directory') {
          amount.files++
          amount.bytes += kind === 'file' ? sizeBytes : 0
        }
      }
    }
    steps.push(withoutLinks(own, chosen, entries))
    amounts.push(amount)
  }
  return { steps, amounts, comparisons, left, lockedDirectories, others, partly }
}

/**
 * The steps that leave out the links which lead away. Where an earlier stage has an entry at the
 * path of one, all others are copied by name, with directories that are empty, so that the entry
 * stays.
 */
const withoutLinks = (
  steps: StageSteps,
  { left, entries: own }: StageSelection<FoundFile>,
  entries: ReadonlyMap<string, Source>,
): StageSteps => {
  const clashes = left.flatMap(({ path }) => (entries.has(path) ? [path] : []))
  const after = left.flatMap(({ path }) => (entries.has(path) ? [] : [path]))
  if (clashes.length === 0) return { ...steps, after }
  const parents = new Set([...own.keys(), ...clashes].map((path) => posix.dirname(path)))
  // A directory without entries would be missing otherwise; links in it are removed as above.
  const tops = [...own].flatMap(([path, { kind }]) =>
    path === '' || (kind === 'directory' && parents.has(path)) ? [] : [path],
  )
  return { ...steps, tops, after }
}

/** Whether no copy can be made of it. */
const isLeft = ({ from }: Stage, { path, readable }: FoundFile): boolean =>
  !readable || isTooDeep(from, path, longestPath - longerName)

const unreadable = ({ label }: Stage, what: string): DriverError =>
  new DriverError(
    'user',
    `${label} leaves ${what} in a state in which it cannot be read; give it other permissions`,
  )

/**
 * Looks at the digests of the plan's comparisons; of different files the later stays.
 * @throws DriverError `user` for the first named pair that differs
 */
export function checkComparisons(plan: StagingPlan, sums: ReadonlyMap<string, string>): void {
  for (const { path, labels, files, named } of plan.comparisons) {
    const [one, other] = files.map((file) => sums.get(file))
    if (one !== undefined && one === other) continue
    if (named) throw conflict(path, ...labels)
    plan.left.push({ path, why: replaced(...labels) })
  }
}

const otherTrouble = "grep -vE ': (Permission denied|File name too long)$'"

/** Commands for one stage, in `sh`; `at`: the quoted folder that is being built, whose folders `open` opens. */
const stageCommands = (
  { stage, tops, before, after, links }: StageSteps,
  at: string,
  { partly, open }: { partly: boolean; open: readonly string[] },
): string[] => {
  const inside = (paths: readonly string[], command: string): string[] =>
    paths.length === 0 ? [] : [`( cd -- ${at} && ${printedWords(paths)} | xargs -0 ${command} )`]
  const below = (paths: readonly string[]): string[] => paths.map((path) => `./${path}`)
  // Only what a listing has shown may stay behind.
  const copied = (command: string): string =>
    partly ? `{ said=$( ${command} 2>&1 ) || ! printf '%s\\n' "$said" | ${otherTrouble} >&2; }` : command
  const from = quote(stage.from)
  const copy =
    tops === undefined
      ? [copied(`cp -RPpf -- ${quote(`${stage.from}/.`)} ${at}/`)]
      : tops.length === 0
        ? []
        : [
            copied(
              `( cd -- ${from} && ${printedWords(below(tops))} | xargs -0 cp -RPpf --parents -t ${at}/ -- )`,
            ),
          ]
  return [
    ...inside(below(before), 'rm -rf --'),
    ...(copy.length === 0 ? [] : [...copy, ...open]),
    ...inside(below(after), 'rm -f --'),
    ...inside(
      links.flatMap(({ path, target }) => [target, `./${path}`]),
      '-n 2 ln -sfnT --',
    ),
  ]
}

const mostLeft = 20

/** The first of what was not brought, as texts; the others are counted. */
export const leftTexts = (left: readonly Left[]): string[] =>
  firstTexts(left, mostLeft, ({ path, why }) => `${namedPath(path)} of a predecessor was not brought: ${why}`)

/**
 * A condition for `sh`: fills `directory` as planned, or leaves one with content unchanged. All or
 * nothing: it is built beside its place and renamed into it; before that it writes the list of
 * files (`staged`), and the amounts from each source with what was not brought (`moved`, two lines
 * of JSON; both relative to the folder of records).
 */
export function stagingScript(
  plan: StagingPlan,
  directory: string,
  { staged, moved }: { staged: string; moved: string },
  token: string,
): string {
  const build = posix.join(posix.dirname(directory), `.${posix.basename(directory)}.staging-${token}`)
  const [at, to] = [quote(build), quote(directory)]
  // One that cannot be read has to be opened before find enters it.
  const opening = '\\( -perm -500 -exec chmod u+rwx {} + -o -exec chmod u+rwx {} \\; \\)'
  const open = plan.lockedDirectories ? [`find ${at} -type d ! -perm -700 ${opening}`] : []
  const lines = [plan.amounts, leftTexts(plan.left)].map((each) => JSON.stringify(each))
  const steps = [
    `mkdir -p -- ${at}`,
    ...plan.steps.flatMap((one) => stageCommands(one, at, { partly: plan.partly, open })),
    ...(plan.others ? [`find ${at} ! -type f ! -type d ! -type l -delete`] : []),
    `chmod 700 -- ${at}`,
    `find ${at} -mindepth 1 \\( -type f -o -type l \\) -printf ${quote(format)} > ${staged}`,
    `printf '%s\\n' ${quoteAll(lines)} > ${moved}`,
    `{ mv -T -- ${at} ${to} 2> /dev/null || [ -n "$(ls -A -- ${to})" ]; }`,
  ]
  return (
    `{ { [ -d ${to} ] && [ -n "$(ls -A -- ${to})" ]; } || { ${steps.join(' && ')}; } || { rm -rf ` +
    `-- ${at}; false; }; } && { [ ! -e ${at} ] || rm -rf -- ${at}; }`
  )
}

const nanoseconds = (seconds: string): string => {
  const [whole = '0', rest = ''] = seconds.split('.')
  return `${whole === '0' ? '' : whole}${rest.padEnd(9, '0').slice(0, 9)}`
}

/**
 * Files and links of an ended task against those before the start: certain changes, and those that
 * need digests.
 */
export interface Changes {
  /** New or different files, which need digests. */
  changed: readonly FoundFile[]
  /**
   * Touched, of the same size: unchanged if a source of the same time (`modified`) has the same
   * content.
   */
  touched: readonly { found: FoundFile; modified: string }[]
  deleted: readonly string[]
  created: ReadonlySet<string>
  initialFiles: number
  finalFiles: number
}

/**
 * `staged`: the lists from the staging; more than one if several processes submitted it at once.
 */
export function changesOf(listing: readonly FoundFile[], staged: readonly (readonly FoundFile[])[]): Changes {
  const before = new Map<string, FoundFile[]>()
  for (const found of staged.flat()) before.set(found.path, [...(before.get(found.path) ?? []), found])
  const after = listing.filter(({ path, kind }) => path !== '' && (kind === 'file' || kind === 'link'))
  const hidden = listing.filter(({ kind, readable }) => kind === 'directory' && !readable)
  const changed: FoundFile[] = []
  const touched: Changes['touched'][number][] = []
  const created = new Set<string>()
  for (const found of after) {
    const old = before.get(found.path)
    const [first] = old ?? []
    if (old === undefined || first === undefined) {
      created.add(found.path)
      changed.push(found)
    } else if (first.kind === 'link') {
      if (found.kind !== 'link' || found.target !== first.target) changed.push(found)
    } else if (found.kind !== 'file' || found.sizeBytes !== first.sizeBytes) changed.push(found)
    else if (!old.some((one) => one.modified === found.modified && one.changed === found.changed))
      touched.push({ found, modified: first.modified })
  }
  const left = new Set(after.map(({ path }) => path))
  const isHidden = (path: string): boolean =>
    hidden.some(({ path: folder }) => folder === '' || path.startsWith(`${folder}/`))
  const deleted = [...before.keys()].filter((path) => !left.has(path) && !isHidden(path))
  return { changed, touched, deleted, created, initialFiles: before.size, finalFiles: after.length }
}

/** Whether a staged file is unchanged: same content as its source, which has not changed since. */
export const isUntouched = (
  modified: string,
  sum: string | undefined,
  sources: readonly { sum: string | undefined; modified: string | undefined }[],
): boolean =>
  sum !== undefined && sources.some((source) => source.sum === sum && source.modified === modified)

const namesShown = 5

/** Some of the paths, for a warning. */
const namedIn = (paths: readonly string[]): string => firstTexts(paths, namesShown, namedPath).join(', ')

/**
 * What a person has to know of a work directory of which not everything can be read, or was brought.
 * `left`: texts about what was not brought.
 */
export function warningsOf(
  root: string,
  listing: readonly FoundFile[],
  {
    unread,
    tooDeep,
    isCut,
    left,
  }: Record<'unread' | 'tooDeep' | 'left', readonly string[]> & { isCut: boolean },
): string[] {
  const top = listing.find(({ path }) => path === '')
  const closed = listing.flatMap(({ path, kind, readable }) =>
    kind === 'directory' && !readable ? [path || '.'] : [],
  )
  const why = isCut ? 'the look at them ended with a cancel' : 'they cannot be read'
  const parts: [boolean, string][] = [
    [top === undefined, `its work directory ${root} is gone: it was removed or moved`],
    [top !== undefined && top.kind !== 'directory', `its work directory ${root} is no directory any more`],
    [closed.length > 0, `what is in these folders is not listed, as they cannot be read: ${namedIn(closed)}`],
    [unread.length > 0, `these files have no digest, as ${why}: ${namedIn(unread)}`],
    [
      tooDeep.length > 0,
      `these paths are not listed, as they have more than ${longestPath} bytes: ${namedIn(tooDeep)}`,
    ],
  ]
  return [...parts.flatMap(([holds, text]) => (holds ? [text] : [])), ...left]
}

/**
 * `files`: the changed ones, with their digests. A file without one could not be read, which the
 * warnings say.
 */
export function manifestOf(
  place: { runtime: string; hostname: string; root: string },
  {
    changes,
    files,
    warnings,
  }: {
    changes: Changes
    files: readonly { found: FoundFile; sum: string | undefined }[]
    warnings: readonly string[]
  },
): OutputManifest {
  const listed: OutputManifest['files'] = files.map(({ found: { path, sizeBytes, modified }, sum }) => ({
    path,
    change: changes.created.has(path) ? 'created' : 'modified',
    sizeBytes,
    ...(sum === undefined ? {} : { checksum: `sha256:${sum}` }),
    modifiedUnixNano: nanoseconds(modified),
  }))
  for (const path of changes.deleted)
    listed.push({ path, change: 'deleted', sizeBytes: 0, modifiedUnixNano: '0' })
  return manifestWith(place, listed, changes, warnings)
}

/** Where a path of an ended task's folder leads, by its listing. */
export const leadIn = (root: string, listing: ReadonlyMap<string, FoundFile>, path: string): Lead =>
  leadOf(path, [root], (one) => listing.get(one))
