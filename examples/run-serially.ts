/**
 * Runs a workflow document on this machine without the service, one task after the other:
 * `node examples/run-serially.ts examples/mosaic/workflow.yaml FOLDER`.
 *
 * Each task gets a work directory of its own with the files of its seed folder and the declared
 * files of its predecessors, an environment of a few harmless variables, and must leave its
 * expected outputs: the same rules as a run by the service, in the plainest form, to try an
 * example's programs and to time them.
 */
import { spawn } from 'node:child_process'
import { copyFileSync, cpSync, existsSync, mkdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { text } from 'node:stream/consumers'
import { pathToFileURL } from 'node:url'
import { parse } from 'yaml'
import type { DataDependency, WorkflowActivity, WorkflowDocument } from './workflow-document.ts'

export interface TaskTime {
  name: string
  activityType: string
  seconds: number
}

/**
 * Activities in an order in which each follows all its predecessors.
 * @throws Error naming an unknown activity or those on a cycle
 */
export const inOrder = (activities: readonly WorkflowActivity[]): WorkflowActivity[] => {
  const names = new Set(activities.map(({ name }) => name))
  for (const { name, dependsOn = [] } of activities) {
    for (const other of dependsOn)
      if (!names.has(other)) throw new Error(`${name} depends on ${other}, which is not an activity`)
  }
  const done = new Set<string>()
  const ordered: WorkflowActivity[] = []
  let waiting = [...activities]
  while (waiting.length > 0) {
    const ready = waiting.filter(({ dependsOn = [] }) => dependsOn.every((other) => done.has(other)))
    if (ready.length === 0)
      throw new Error(`these activities wait for each other: ${waiting.map(({ name }) => name).join(', ')}`)
    for (const activity of ready) done.add(activity.name)
    ordered.push(...ready)
    waiting = waiting.filter(({ name }) => !done.has(name))
  }
  return ordered
}

/**
 * Runs a command line in a folder; returns its seconds. With `stop` the command has its own process
 * group, which is killed when the signal is aborted.
 * @throws Error with the end of its output when it fails
 */
export const runCommand = async (command: string, directory: string, stop?: AbortSignal): Promise<number> => {
  stop?.throwIfAborted()
  const start = process.hrtime.bigint()
  const child = spawn('sh', ['-c', command], {
    cwd: directory,
    env: { PATH: '/usr/local/bin:/usr/bin:/bin', HOME: directory, LC_ALL: 'C.UTF-8' },
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: stop !== undefined,
  })
  const kill = (): void => {
    if (child.pid !== undefined && child.exitCode === null && child.signalCode === null)
      process.kill(-child.pid, 'SIGKILL')
  }
  stop?.addEventListener('abort', kill)
  const ended = new Promise<string>((resolve, reject) => {
    child.once('error', reject)
    child.once('close', (code, signal) => resolve(signal ?? String(code)))
  })
  const [stdout, stderr, end] = await Promise.all([text(child.stdout), text(child.stderr), ended]).finally(
    () => {
      stop?.removeEventListener('abort', kill)
    },
  )
  const seconds = Number(process.hrtime.bigint() - start) / 1e9
  if (end !== '0') throw new Error(`${command} ended with ${end}: ${`${stdout}${stderr}`.slice(-2000)}`)
  return seconds
}

/**
 * Runs one activity in `<folder>/<name>`; the work directories of its predecessors are beside it.
 * @returns seconds between start and end of its command.
 * @throws Error when it fails, when a file to stage is missing, or when an expected output is
 *   missing.
 */
const runTask = async (
  activity: WorkflowActivity,
  inputs: readonly DataDependency[],
  folder: string,
  seedRoot: string,
): Promise<number> => {
  const directory = path.join(folder, activity.name)
  mkdirSync(directory, { recursive: true, mode: 0o700 })
  cpSync(path.join(seedRoot, activity.workspaceSeedPath), directory, { recursive: true })
  for (const { producerActivity, logicalName } of inputs) {
    copyFileSync(path.join(folder, producerActivity, logicalName), path.join(directory, logicalName))
  }
  const seconds = await runCommand(activity.run, directory)
  for (const output of activity.expectedOutputs) {
    if (!existsSync(path.join(directory, output))) throw new Error(`${activity.name} did not write ${output}`)
  }
  return seconds
}

/**
 * Runs all activities of a document below `folder` (one folder each), and reports each task's time
 * at its end.
 */
export const runSerially = async (
  workflow: WorkflowDocument,
  folder: string,
  seedRoot: string,
  onTask: (task: TaskTime) => void = () => undefined,
): Promise<TaskTime[]> => {
  const times: TaskTime[] = []
  for (const activity of inOrder(workflow.spec.activities)) {
    const inputs = workflow.spec.dataDependencies.filter(
      ({ consumerActivity }) => consumerActivity === activity.name,
    )
    const seconds = await runTask(activity, inputs, folder, seedRoot)
    const task = { name: activity.name, activityType: activity.activityType, seconds }
    times.push(task)
    onTask(task)
  }
  return times
}

const main = async (): Promise<void> => {
  const [document, folder] = process.argv.slice(2)
  if (document === undefined || folder === undefined)
    throw new Error('usage: run-serially.ts WORKFLOW.yaml FOLDER')
  const workflow = parse(readFileSync(document, 'utf8')) as WorkflowDocument
  const times = await runSerially(
    workflow,
    path.resolve(folder),
    import.meta.dirname,
    ({ name, seconds }) => {
      process.stderr.write(`${name} ${seconds.toFixed(2)} s\n`)
    },
  )
  const line = (label: string, seconds: readonly number[]): string => {
    const total = seconds.reduce((sum, each) => sum + each, 0)
    return (
      `${label.padEnd(12)} ${String(seconds.length).padStart(4)} tasks ` +
      `${(total / seconds.length).toFixed(3).padStart(8)} s each ${total.toFixed(1).padStart(7)} s\n`
    )
  }
  for (const type of new Set(times.map(({ activityType }) => activityType))) {
    const seconds = times.flatMap((task) => (task.activityType === type ? [task.seconds] : []))
    process.stdout.write(line(type, seconds))
  }
  process.stdout.write(
    line(
      'in all',
      times.map(({ seconds }) => seconds),
    ),
  )
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href) await main()
