import { hostname } from 'node:os'
import {
  capabilitiesOf,
  DriverError,
  type Intent,
  type RuntimeDriver,
  type SubmitOutcome,
} from '../contract/driver.ts'
import { collect, readLog } from './collect.ts'
import { checkIntent } from '../contract/intent.ts'
import { asDriverError, driverClosed, removedMeanwhile } from '../contract/results.ts'
import { homeOf } from '../contract/task-script.ts'
import { openFileReads } from './file-reads.ts'
import { openRunnerPool } from './pool.ts'
import { bootId } from './processes.ts'
import { externalId, openControlFolder, settledRecord } from './records.ts'
import { openEnding } from '../contract/ending.ts'
import { endByRunner, endMarked, see, type Site } from './task-states.ts'
import { openWatcher } from './watch.ts'
import { removeTree } from './remove-tree.ts'
import { removeStagingRemains, stage, writeStagedFiles } from './staging.ts'

export const localCapabilities = capabilitiesOf(
  'batch',
  'interactive',
  'sharedStorage',
  'dataStaging',
  'cancellation',
  'logStreaming',
)

export interface LocalDriverOptions {
  /**
   * Holds records and output of the tasks, apart from their work directories. All drivers that
   * share tasks use one; it is on a local disk.
   */
  controlDirectory: string
  /** Environment variable that marks a task's processes with its name. */
  taskVariable?: string
  /** Used in manifests. */
  runtime?: string
  /** Time between the polite and the forced end of a task whose time is over. */
  timeoutGraceSeconds?: number
  /** Pause between two looks at tasks that another driver started. */
  pollMilliseconds?: number
  /** The compiled `runner.go`, requested when tasks have to be started. */
  runnerProgram: () => Promise<string>
  /** The file in which the kernel counts the processes that it killed for memory (`oom_kill`). */
  vmstatFile?: string
}

/**
 * Processes on this machine. Every task leads its own session. A runner (`runner.go`) that outlives
 * this process starts it and waits for it. The control folder holds all events, so that any driver
 * over the same folder can go on.
 *
 * The runner enforces time limits: they hold while no driver is alive. A cgroup of its own enforces
 * `memoryBytes` where this account may make one, else RLIMIT_DATA of each process (`memoryLimit` of
 * the intent overrides); an end by the kernel's out-of-memory killer has the reason `memory`.
 * Processor time is that of the task and all its descendants, peak memory that of the largest of
 * them. After a restart of the machine a task without a recorded end is `lost`: the boot id in its
 * record is another.
 *
 * It sets no limit on tasks at once: the caller knows the machine's cores.
 */
export function openLocalDriver(options: LocalDriverOptions): RuntimeDriver {
  const control = openControlFolder(options.controlDirectory)
  const runnerless = new Set<string>()
  const taskVariable = options.taskVariable ?? 'ORRERY_TASK'
  const site: Site = { control, boot: bootId(), taskVariable, runnerless }
  const pool = openRunnerPool({
    program: options.runnerProgram,
    control: control.root,
    vmstatFile: options.vmstatFile ?? '/proc/vmstat',
  })
  /** Tasks whose runner will report their end, or has reported it before a caller waited for it. */
  const announced = new Map<string, 'running' | 'ended'>()
  const reads = openFileReads()
  let closed = false

  const look = async (names: string[]): Promise<string[]> => {
    const ended = names.filter((name) => announced.get(name) === 'ended')
    const silent = names.filter((name) => announced.get(name) !== 'ended')
    for (const name of ended) announced.delete(name)
    const orphans = new Set<string>()
    for (const [name, { state, orphaned }] of see(site, silent)) {
      if (orphaned) orphans.add(name)
      else if (state.state === 'ended' || state.state === 'lost') ended.push(name)
    }
    // No process can record how these end; they must not run beside their next attempt. They count
    // as running until they are over.
    endOrphans([...orphans])
    return ended
  }
  const endOrphans = openEnding((names) => endMarked(site, new Set(names), 0))
  const watcher = openWatcher(
    look,
    (name) => announced.get(name) === 'running',
    options.pollMilliseconds ?? 250,
  )

  async function launch(intent: Intent): Promise<string> {
    const { name, directory, argv, expectedOutputs, timeoutSeconds } = intent
    const isStarted = (): boolean => control.record(name) !== undefined
    const staged = intent.stage.length > 0
    // Without files to bring, the runner's own look is enough.
    if (!staged || !isStarted()) {
      if (staged)
        await stage(
          directory,
          intent.stage,
          (files) => writeStagedFiles(control.path(name, 'staged'), files),
          isStarted,
        )
      const answer = await pool.run(
        {
          name,
          directory,
          workingDirectory: intent.workingDirectory ?? '.',
          timeoutSeconds,
          timeoutGraceSeconds: options.timeoutGraceSeconds ?? 5,
          memoryBytes: intent.ownLimits === true ? 0 : intent.memoryBytes,
          ...(intent.memoryLimit === undefined ? {} : { memoryLimit: intent.memoryLimit }),
          facts: JSON.stringify({
            ...{ directory, expectedOutputs, submittedAt: Date.now() / 1000, staged },
            ...(staged ? { sources: intent.stage.map(({ from }) => from) } : {}),
          }),
          argv,
          environment: {
            PATH: '/usr/local/bin:/usr/bin:/bin',
            HOME: homeOf(directory),
            TMPDIR: '/tmp',
            ...intent.environment,
            [site.taskVariable]: name,
          },
        },
        {
          started: () => announced.set(name, 'running'),
          ended: () => {
            if (watcher.ended(name)) announced.delete(name)
            else announced.set(name, 'ended')
          },
          abandoned: () => {
            announced.delete(name)
            runnerless.add(name)
            watcher.lookAt([name])
          },
        },
      )
      if (answer.answer === 'started') return String(answer.pid)
      if (answer.answer === 'refused') throw new DriverError('refused', answer.message)
      // A runner that disappeared without an answer may also have started it: the record shows
      // that.
      if (answer.answer === 'failed' && !isStarted()) throw new DriverError('infrastructure', answer.message)
    }
    const record = await settledRecord(control, name)
    if (record === undefined) throw removedMeanwhile(name)
    return externalId(record)
  }

  async function submitOne(intent: Intent): Promise<SubmitOutcome> {
    try {
      if (closed) throw driverClosed('local')
      checkIntent(intent)
      return { name: intent.name, ok: true, externalId: await launch(intent) }
    } catch (error) {
      return { name: intent.name, ok: false, error: asDriverError(error) }
    }
  }

  return {
    kind: 'local',
    capabilities: localCapabilities,
    submit: (intents) => Promise.all(intents.map(submitOne)),
    find: async (names) => new Map([...see(site, names)].map(([name, { state }]) => [name, state])),
    watch: watcher.watch,
    async cancel(names, graceSeconds) {
      reads.end(names)
      const asked = await Promise.allSettled(names.map((name) => endByRunner(site, name, graceSeconds)))
      // Also where no mark could be written: what runs may be what fills the disk.
      await endMarked(site, new Set(names), graceSeconds)
      for (const one of asked) if (one.status === 'rejected') throw one.reason as Error
    },
    collect: (name) =>
      reads.during(name, (signal) => collect(control, options.runtime ?? 'local', hostname(), name, signal)),
    logs: async (name, stream, range) => readLog(control, name, stream, range),
    async remove(name) {
      const record = control.record(name)
      if (see(site, [name]).get(name)?.state.state === 'running')
        throw new DriverError('refused', `${name} is running; cancel it before removing it`)
      if (record?.form === 'started') {
        await removeStagingRemains(record.facts.directory)
        await removeTree(record.facts.directory)
        await removeTree(homeOf(record.facts.directory))
      }
      announced.delete(name)
      runnerless.delete(name)
      control.forget(name)
    },
    async close() {
      closed = true
      reads.close()
      pool.close()
      await watcher.close()
    },
  }
}
