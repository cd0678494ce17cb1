import { quote, quoteAll } from '../../quote.ts'
import type { SiteShell } from '../../shell.ts'
import { DriverError } from '../contract/driver.ts'
import type { Packed } from '../remote/tasks.ts'
import type { SlurmArray } from '../slurm/request.ts'
import type { SlurmPlace, Verdict } from '../slurm/state.ts'

/**
 * What the driver itself writes down at the site, beside the records of the tasks, so that any other driver can go on:
 *
 * - `tasks/NAME.array`: the array that the task was put into, with its index, time limit (seconds, 0: none) and time; created exclusively, so
 *   that a name is in one array.
 * - `tasks/NAME.verdict`: an end that only the scheduler knew of; it counts for ever.
 * - `arrays/ARRAY/script`: what Slurm runs, with the names by index; `arrays/ARRAY/TOKEN.pack`: the texts of the tasks that make their own
 *   script and work directory, one behind the other; `arrays/ARRAY/job`: the id that Slurm gave it, by rename. The folder is created by the one
 *   who submits; without a `job` after a while, whoever comes next asks the scheduler for the array's name.
 */
export interface SlurmBooks {
  read(names: readonly string[]): Promise<Map<string, BookEntry>>
  claim(array: SlurmArray, script: string): Promise<Claim>
  /** Writes a file into the folder of a claimed array. */
  fill(array: string, file: string, bytes: Uint8Array): Promise<void>
  /** The scheduler has taken it. */
  accepted(array: string, job: string): Promise<void>
  /** It was not taken: its names are free again. */
  release(array: string, names: readonly string[]): Promise<void>
  /** @returns the verdict that counts: ours, or the one that was there. */
  settle(name: string, verdict: Verdict): Promise<Verdict>
  remove(names: readonly string[]): Promise<void>
}

export interface BookEntry {
  place: SlurmPlace
  /** A cancel mark is there. */
  cancelAsked: boolean
  verdict?: Verdict
}

export type Claim =
  /** To be submitted by us, with these of its indexes; `held`: names that other arrays have. */
  | { state: 'ours'; indexes: number[]; held: Map<string, BookEntry> }
  | { state: 'accepted'; job: string }
  /** Somebody is at it, or died there so many seconds ago. */
  | { state: 'open'; ageSeconds: number }

const fail = (what: string, stderr: string): never => {
  throw new DriverError('infrastructure', `${what}: ${stderr.trim() || 'no words'}`)
}

const positive = (text: string | undefined): number | undefined => (Number(text) > 0 ? Number(text) : undefined)

/** Two lines of shell for one name: where it is, and its verdict. No process is started for it. */
const entryOf = `entry() {
  a= i= l= t= j= e= c= w= x=-
  read -r a i l t < "$1.array" || return
  read -r j < "../arrays/$a/job"
  read -r e c w < "$1.verdict"
  [ -e "$1.cancel" ] && x=cancel
  printf 'entry %s\\n' "$1 $a $i $l $t \${j:--} $x \${e:--} \${c:-0} $w"
} 2>/dev/null
`

const ends: readonly string[] = ['lost', 'never', 'walltime', 'memory', 'cancelled'] satisfies Verdict['end'][]
const isEnd = (word: string): word is Verdict['end'] => ends.includes(word)

const parseEntry = (line: string): [name: string, entry: BookEntry] | undefined => {
  const [, name, array, index, limit, at, job, asked, end, endedAt, ...cause] = line.split(' ')
  if (name === undefined || array === undefined || !/^\d+$/.test(index ?? '')) return undefined
  const limitSeconds = positive(limit)
  const place: SlurmPlace = {
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

const parseEntries = (text: string): Map<string, BookEntry> =>
  new Map(text.split('\n').flatMap((line) => (line.startsWith('entry ') ? [parseEntry(line)].filter((one) => one !== undefined) : [])))

/** @param root absolute at the site; the folder `tasks` below it exists before a name is claimed. Times are this machine's. */
export function openSlurmBooks(shell: SiteShell, root: () => Promise<string>): SlurmBooks {
  const inTasks = async (script: string, input: Uint8Array | string = ''): Promise<string> => {
    const folder = await root()
    const { code, stdout, stderr } = await shell.run(`umask 077; cd ${quote(`${folder}/tasks`)} || exit\n${script}`, { input })
    if (code !== 0) fail(`cannot keep the books in ${folder}`, stderr)
    return stdout.toString()
  }
  const now = (): string => (Date.now() / 1000).toFixed(3)

  return {
    async read(names) {
      if (names.length === 0) return new Map()
      const folder = await root()
      const { stdout } = await shell.run(
        `cd ${quote(`${folder}/tasks`)} 2>/dev/null || exit 0\n${entryOf}for n in ${quoteAll(names)}; do [ -e "$n.array" ] && entry "$n"; done; :`,
      )
      return parseEntries(stdout.toString())
    },
    async claim({ name, request, tasks }, script) {
      const limit = (request.walltimeMinutes ?? 0) * 60
      const text = await inTasks(
        `A=${quote(name)}
mkdir -p ../arrays || exit
if ! said=$(mkdir "../arrays/$A" 2>&1); then
  [ -d "../arrays/$A" ] || { echo "$said" >&2; exit 1; }
  j=; [ -e "../arrays/$A/job" ] && read -r j < "../arrays/$A/job"
  if [ -n "$j" ]; then echo "accepted $j"; else echo "open $(($(date +%s) - $(stat -c %Y "../arrays/$A")))"; fi
  exit 0
fi
cat > "../arrays/$A/script" || { rm -rf "../arrays/$A"; exit 1; }
${entryOf}set -C
index=0
for n in ${quoteAll(tasks)}; do
  if [ ! -e "$n.task" ] && { echo "$A $index ${limit} ${now()}" > "$n.array"; } 2>/dev/null; then echo "ours $index"
  else
    a=; [ -e "$n.array" ] && read -r a i < "$n.array"
    if [ "$a" = "$A" ] && [ ! -e "$n.task" ]; then echo "ours $index"; else entry "$n"; fi
  fi
  index=$((index + 1))
done
:`,
        script,
      )
      const [first = ''] = text.split('\n')
      const accepted = /^accepted (\d+)$/.exec(first)
      if (accepted?.[1] !== undefined) return { state: 'accepted', job: accepted[1] }
      const open = /^open (-?\d+)$/.exec(first)
      if (open !== null) return { state: 'open', ageSeconds: Number(open[1]) }
      const indexes = [...text.matchAll(/^ours (\d+)$/gm)].map((line) => Number(line[1]))
      return { state: 'ours', indexes, held: parseEntries(text) }
    },
    async fill(array, file, bytes) {
      await inTasks(`cat > ${quote(`../arrays/${array}/${file}`)}`, bytes)
    },
    async accepted(array, job) {
      await inTasks(acceptedScript(`../arrays/${array}`, quote(job)))
    },
    async release(array, names) {
      await inTasks(
        `set --; for n in ${quoteAll(names)}; do a=; [ -e "$n.array" ] && read -r a i < "$n.array"; [ "$a" = ${quote(array)} ] && set -- "$@" "$n.array"; done
rm -rf "$@" ${quote(`../arrays/${array}`)}`,
      )
    },
    async settle(name, verdict) {
      const line = `${verdict.end} ${verdict.at.toFixed(3)} ${verdict.cause.replace(/\s+/g, ' ')}`
      const text = await inTasks(
        `${entryOf}n=${quote(name)}; t="$n.verdict.$$"; printf '%s\\n' ${quote(line)} > "$t" || exit
ln "$t" "$n.verdict" 2>/dev/null || {
  e=never; [ -e "$n.verdict" ] && read -r e c w < "$n.verdict"
  [ "$e" != never ] || mv "$t" "$n.verdict" || exit
}
rm -f "$t"; entry "$n"`,
      )
      return parseEntries(text).get(name)?.verdict ?? verdict
    },
    async remove(names) {
      if (names.length === 0) return
      const folder = await root()
      // An array's folder goes with the last of its names.
      await shell.run(
        `cd ${quote(`${folder}/tasks`)} 2>/dev/null || exit 0
arrays=
for n in ${quoteAll(names)}; do a=; [ -e "$n.array" ] && read -r a i < "$n.array"; case " $arrays " in *" $a "*) ;; *) arrays="$arrays $a" ;; esac; done
set --; for n in ${quoteAll(names)}; do set -- "$@" "$n.array" "$n.verdict" "$n".task.*; done
rm -f "$@"
for a in $arrays; do
  left=
  while read -r n word rest; do case $word in script=*) word=\${word#script=}; [ -e "\${word%%.*}.array" ] && { left=1; break; } ;; esac; done < "../arrays/$a/script"
  [ -n "$left" ] || rm -rf "../arrays/$a"
done 2>/dev/null
:`,
      )
    },
  }
}

/** Writes down the id that the scheduler gave: by rename, so that it is there as a whole or not at all. `folder` and `jobWord` are shell words. */
export const acceptedScript = (folder: string, jobWord: string): string =>
  `echo ${jobWord} > ${folder}/job.$$ && mv ${folder}/job.$$ ${folder}/job`

/** Slurm took it away and runs it once more: the record of the earlier start is put aside, unless the task had come to an end of its own. */
const againScript = `if [ "\${SLURM_RESTART_COUNT:-0}" -gt 0 ] && grep -q '^start ' "$name.task" && ! grep '^exit .*\\.$' "$name.task" | grep -qv '^exit [0-9]* stopped '; then
  mv "$name.task" "$name.task.$SLURM_RESTART_COUNT"
fi
`

/** One element of an array: `NAME.TOKEN`, and what its task makes itself, if that is not there. */
export interface ArrayElement {
  script: string
  packed?: Packed
}

/** The packed texts of an array in one file, and where in it each begins, counted from 1, and how many bytes it has. */
export const packOf = (elements: readonly ArrayElement[]): { bytes: Buffer; places: { from: number; size: number }[] } => {
  const texts = elements.map(({ packed }) => Buffer.from(packed?.text ?? ''))
  let from = 1
  const places = texts.map(({ length: size }) => {
    const place = { from, size }
    from += size
    return place
  })
  return { bytes: Buffer.concat(texts), places }
}

/** A file of another submission under this array's name would not have these bytes at these places: hence the name of its own. */
const unpackScript = (pack: string): string => `if [ -n "$size" ] && ! [ -e "$script.run" ]; then
  umask 077
  mkdir -p -- "$directory" && ! [ -L "$directory" ] &&
    tail -c "+$from" ${quote(pack)} | head -c "$size" > "$script.part" && [ -s "$script.part" ] && mv -f -- "$script.part" "$script.run" || exit 73
fi
`

/**
 * What an array runs: its element finds its script (`NAME.TOKEN`), makes it if it is packed, and becomes the supervisor of that task.
 * `command` are words for `sh` that take it from `$script`. A task with a verdict is over, even if the scheduler runs it once more.
 */
export const arrayScript = (elements: readonly ArrayElement[], pack: string, folder: string, command: string, requeue: boolean): string => {
  const { places } = packOf(elements)
  const choices = elements.map(({ script, packed }, index) => {
    const place =
      packed === undefined ? '' : ` from=${places[index]?.from} size=${places[index]?.size} directory=${quote(packed.directory)}`
    return `${index}) script=${script}${place} ;;`
  })
  return `#!/bin/sh
cd ${quote(folder)} || exit 66
size=
case $SLURM_ARRAY_TASK_ID in
${choices.join('\n')}
*) exit 64 ;;
esac
name=\${script%%.*}
[ -e "$name.verdict" ] && exit 0
${requeue ? againScript : ''}${elements.some(({ packed }) => packed !== undefined) ? unpackScript(pack) : ''}exec ${command}
`
}
