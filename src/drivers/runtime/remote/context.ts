import { quoteAll } from '../../../shell/quote.ts'
import type { SiteShell } from '../../../shell/site-shell.ts'
import { RecentMap } from '../../../pacing/recent.ts'
import type { TaskFacts } from './record.ts'
import type { RemoteSite, RemoteSiteFacts } from './site.ts'

export interface RemoteOptions {
  shell: SiteShell
  /** Absolute at the site; absent or blank: `$HOME/.orrery`. */
  root?: string
  /** Used in manifests and messages. */
  runtime: string
  /** Environment variable that marks a task's processes with its name. */
  taskVariable: string
  /**
   * Tasks start on other machines than the shell's: their times come from those machines' clocks,
   * not from its uptime.
   */
  elsewhere?: boolean
  /** Tasks run in images, whose environment the scripts that start them keep. */
  inImage?: boolean
  /** Time between the polite and the forced end of a task whose time is over. Default 5. */
  timeoutGraceSeconds?: number
  /** Total size of texts and scripts in one request. */
  chunkBytes?: number
  /**
   * How long declared outputs that a task did not leave are looked for, as a shared file system may
   * show them late; 0: the first look counts. Default 60.
   */
  outputPatienceSeconds?: number
}

/**
 * What this process keeps of tasks, which saves most queries one round trip; another process
 * queries the site.
 */
export interface RemoteMemory {
  /**
   * Facts of tasks that this process submitted or has queried, with the script's name
   * (`NAME.TOKEN`).
   */
  facts: RecentMap<string, { script: string; facts: TaskFacts }>
  /** Process ids of supervisors. */
  pids: RecentMap<string, number>
  /** The host that started the task. */
  nodes: RecentMap<string, string>
  /** Records without a line, and since when; milliseconds of `performance.now()`. */
  claimedSince: RecentMap<string, number>
  /**
   * Ended tasks whose files may arrive late: the looks at them, and since when; milliseconds of
   * `performance.now()`.
   */
  late: RecentMap<string, { looks: number; since: number }>
}

/** A site's tasks, for all files of this folder. */
export interface RemoteContext extends Required<Omit<RemoteOptions, 'root'>> {
  site: RemoteSite
  memory: RemoteMemory
}

export const namesAtOnce = 1000
export const stagingDeadlineMs = 600_000
/** For the lists of files: some millions of them fit. */
export const mostListBytes = 480 * 1024 * 1024
const factsKept = 20_000
const namesKept = 100_000

export const openMemory = (): RemoteMemory => ({
  facts: new RecentMap(factsKept),
  pids: new RecentMap(namesKept),
  nodes: new RecentMap(namesKept),
  claimedSince: new RecentMap(namesKept),
  late: new RecentMap(namesKept),
})

export const forget = ({ facts, pids, nodes, claimedSince, late }: RemoteMemory, name: string): void => {
  for (const memory of [facts, pids, nodes, claimedSince, late]) memory.delete(name)
}

/** `outputPatienceSeconds` of a runtime's configuration, where it is a time. */
export const outputPatienceIn = ({
  outputPatienceSeconds: seconds,
}: Readonly<Record<string, unknown>>): Pick<RemoteOptions, 'outputPatienceSeconds'> =>
  typeof seconds === 'number' && Number.isFinite(seconds) && seconds >= 0
    ? { outputPatienceSeconds: seconds }
    : {}

/** The `sh` command of the supervisor; the names of scripts follow. */
export const supervisor = (
  { site, taskVariable, elsewhere }: RemoteContext,
  facts: RemoteSiteFacts,
  mode: 'foreground' | 'detached',
  confined = false,
): string =>
  `/bin/sh ${quoteAll([
    `${facts.root}/tasks/${site.wrapper}`,
    mode,
    `${facts.root}/tasks`,
    taskVariable,
    // The supervisor counts kills for memory by itself.
    '',
    facts.measure,
    facts.signals,
    elsewhere ? 'date' : '',
    confined ? 'cgroups' : '',
  ])}`
