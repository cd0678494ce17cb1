import { DriverError, type Intent, type LogRange, type LogSlice } from '../contract/driver.ts'
import { gather } from '../contract/gather.ts'
import { giveUp, markCancelled } from './cancelling.ts'
import { collectTasks, type CollectedPart } from './collecting.ts'
import { openCompleting } from './completing.ts'
import { namesAtOnce, openMemory, supervisor, type RemoteContext, type RemoteOptions } from './context.ts'
import { followEnds } from './ends.ts'
import { look, signalMarked } from './looking.ts'
import { prepareTasks, type PreparedTask } from './preparing.ts'
import type { RemoteSight } from './record.ts'
import { removeTasks } from './removing.ts'
import { asDriverError } from '../contract/results.ts'
import { openRemoteSite } from './site.ts'
import { largestSlice, parseSlice, sliceScript } from './slice.ts'

export type { Packed } from './preparing.ts'
export type { ClaimedSight, EndedSight, RemoteSight, StartedSight } from './record.ts'

const defaultChunkBytes = 256 * 1024
const usualOutputPatienceSeconds = 60

/**
 * Tasks at a site that is reached through a `SiteShell`: the common part of all drivers of such
 * sites. The starter of the tasks (`ssh.ts`: at once; `batch`: as a job) prepares them here, makes
 * the site run their supervisor, and reads their records here.
 *
 * At the site, below `root`:
 * - `bin/<hash>/wrapper`: the supervisor (`wrapper.sh`), installed once per content.
 * - `tasks/NAME.TOKEN.run`: the script of the task (`contract/task-script.ts`), a token per
 *   submission, so that no script is ever overwritten; `NAME.task`: its record, created
 *   exclusively before the start, growing by whole lines; `NAME.out`, `NAME.err`;
 *   `NAME.TOKEN.staged`: the content of the work directory before; `NAME.TOKEN.moved`: how much
 *   of it came from where; `NAME.cancel`: a cancel was requested. A name cancelled before its start
 *   has a record of that, and never starts.
 * - `ends`: names of ended tasks, appended as they end.
 *
 * Calls that come within some milliseconds share a round trip. Links that break reject with
 * `DriverError` class `unknown` (cause: the `LinkError`); every script can be run again. Times are
 * by this machine's clock, whatever the site's clock shows.
 */
export function openRemoteTasks(options: RemoteOptions) {
  const {
    shell,
    runtime,
    taskVariable,
    elsewhere = false,
    inImage = false,
    timeoutGraceSeconds = 5,
    chunkBytes = defaultChunkBytes,
    outputPatienceSeconds = usualOutputPatienceSeconds,
  } = options
  const site = openRemoteSite(shell, options.root ?? '')
  const context: RemoteContext = {
    ...{ shell, runtime, taskVariable, elsewhere, inImage, timeoutGraceSeconds, chunkBytes },
    ...{ outputPatienceSeconds, site },
    memory: openMemory(),
  }
  /** Intents that come together are prepared together; each name once. */
  const submitOne = gather<Intent, PreparedTask>(async (intents) => {
    const one = new Map(intents.map((intent) => [intent.name, intent]))
    const answers = await prepareTasks(context, [...one.values()])
    return new Map(
      intents.map((intent): [Intent, PreparedTask | Error] => [
        intent,
        answers.get(intent.name) ?? new DriverError('unknown', `no answer for ${intent.name}`),
      ]),
    )
  })
  const lookAt = gather<string, RemoteSight>((names) => look(context, names), { most: namesAtOnce })
  const part = gather<string, CollectedPart>((names) => collectTasks(context, names), { most: 100 })
  const completing = openCompleting(context, part)
  const removeOne = gather<string, true>((names) => removeTasks(context, names))

  return {
    /** Absolute, at the site; queried once. */
    root: async (): Promise<string> => (await site.facts()).root,
    /**
     * Makes work directories, stages predecessors' files, writes the scripts, and starts the tasks
     * detached where they run on the shell's machine. Elsewhere the site may then run their supervisor
     * (`ready`); where there is nothing to stage and the parent of the work directory is missing too,
     * the task makes its files itself (`packed`). A `known` name must not be submitted again. An error
     * counts for its own intent only when others were answered.
     */
    async submit(intents: readonly Intent[]): Promise<Map<string, PreparedTask>> {
      const settled = await Promise.allSettled(intents.map(submitOne))
      const answers = settled.map((one): PreparedTask =>
        one.status === 'fulfilled' ? one.value : { state: 'failed', error: asDriverError(one.reason) },
      )
      const [first] = answers
      if (first?.state === 'failed' && settled.every(({ status }) => status === 'rejected')) throw first.error
      return new Map(intents.map(({ name }, at) => [name, answers[at]!]))
    },
    /**
     * The `sh` command at the site that runs one prepared task to its end, with its exit code: for a
     * batch scheduler's job. `scriptWord` is inserted unchanged: `'NAME.TOKEN'` as `prepare` gave it,
     * or a variable that holds it (`"$script"`).
     */
    foregroundCommand: async (scriptWord: string): Promise<string> =>
      `${supervisor(context, await site.facts(), 'foreground')} ${scriptWord}`,
    /**
     * The content of the records, and whether the supervisors live, where those run on the shell's
     * machine. Calls that come close together share a query: any number of names, 1,000 a round trip.
     */
    look: async (names: readonly string[]): Promise<Map<string, RemoteSight>> =>
      new Map(await Promise.all(names.map(async (name) => [name, await lookAt(name)] as const))),
    /**
     * Buries names that have no record (they never start); leaves a cancel mark for the others, and
     * signals their supervisors where those run on the shell's machine.
     */
    async markCancelled(names: readonly string[], graceSeconds: number): Promise<void> {
      await markCancelled(context, names, graceSeconds)
      completing.cancelled(names)
    },
    /**
     * Gives up names whose record has no line or is missing: a supervisor that has not written its
     * line yet starts nothing, and a name without a record gets an empty one, so that no other one
     * starts. The next look shows which of them have started nevertheless, before that. Returns the
     * names for which the site cannot write that, with the reason and the remedy.
     */
    giveUp: (names: readonly string[]): Promise<Map<string, string>> => giveUp(context, names),
    /**
     * Sends a signal, or none, to every process that carries the mark of one of the names; returns the names
     * with any such process.
     */
    signalMarked: (names: readonly string[], signal: 'TERM' | 'KILL' | undefined) =>
      signalMarked(context, names, signal),
    /**
     * The full result of an ended name; many calls at once share their round trips. `unknown` while
     * it has no recorded end. Declared outputs that are missing are waited for, and large files are
     * read, without a delay for other names; a cancel ends both. `onWait`: as `RuntimeDriver.collect`.
     */
    collect: (name: string, onWait?: (reason: string) => void) => completing.collect(name, onWait),
    async logs(name: string, stream: 'stdout' | 'stderr', range: LogRange): Promise<LogSlice> {
      const file = `${name}.${stream === 'stdout' ? 'out' : 'err'}`
      const { stdout } = await site.run(() => sliceScript(file, range), { maxBytes: 2 * largestSlice })
      return parseSlice(stdout)
    },
    /** Removes work directory and all records. Does not check whether it runs. */
    remove: async (name: string): Promise<void> => void (await removeOne(name)),
    /**
     * Reports ended names promptly, from the call `stands(true)` until `stands(false)`: `look`, which
     * is the truth, finds the ends in between. Resumes by itself when the site is back. The returned
     * function stops it.
     */
    onEnds: (ended: (name: string) => void, stands: (now: boolean) => void) =>
      followEnds(context, ended, stands),
    /** Ends the waits of `collect`, which reject. */
    close: () => completing.close(),
  }
}

export type RemoteTasks = ReturnType<typeof openRemoteTasks>
