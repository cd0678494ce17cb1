/**
 * Measures how long a task of each type of the mosaic takes on this machine, without running the
 * whole workflow: `node examples/mosaic/measure.ts [RESOURCE] > profiles.json` writes entries for
 * `activityResourceProfiles` of environment.yaml.
 *
 * Two neighbouring tiles are observed, projected, compared and corrected for real. Steps that take
 * many tiles get copies of these, moved to where the other tiles would be, so they have their full
 * size. Tasks run `jobs` at a time, as they will in the run: two busy cores are not twice as fast
 * as one. All types are measured one after the other, pass by pass, so that a slow moment of the
 * machine hits one pass of a few types, and the median of the passes leaves it out (see
 * `steadiness.ts`).
 */
import { copyFileSync, cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import path from 'node:path'
import { pathToFileURL } from 'node:url'
import { runCommand } from '../run-serially.ts'
import type { WorkflowActivity, WorkflowDocument } from '../workflow-document.ts'
import { fullShape, mosaicWorkflow } from './generate-workflow.ts'
import { isSteady, median, mostPasses } from './steadiness.ts'

export interface TypeTime {
  activityType: string
  /** Median over the passes. Each pass has the mean of its tasks. */
  runtimeSeconds: number
  /** Seconds of the fastest and the slowest pass. */
  lowestSeconds: number
  highestSeconds: number
  /** Standard deviation over all tasks. */
  runtimeStdDevSeconds: number
  /** The number of tasks that ran. */
  sampleSize: number
  passes: number
}

/** Tasks of one type that run in each pass. */
interface Sample {
  activityType: string
  activities: readonly WorkflowActivity[]
  /** Makes further files that the next types read, once. */
  prepare?: () => void
}

const headerBytes = 256

/** The raster `from`, as `to`, at another place of the picture. */
const moved = (from: string, to: string, x: number, y: number): void => {
  const file = readFileSync(from)
  const [magic = '', comment = '', ...rest] = file.subarray(0, headerBytes).toString('latin1').split('\n')
  const facts = comment
    .trimEnd()
    .replace(/\bx=\d+/, `x=${x}`)
    .replace(/\by=\d+/, `y=${y}`)
  const header = [magic, facts.padEnd(comment.length), ...rest].join('\n')
  writeFileSync(to, Buffer.concat([Buffer.from(header, 'latin1'), file.subarray(headerBytes)]))
}

const placeIn = (command: string): { x: number; y: number } => {
  const found = /--window \d+x\d+\+(\d+)\+(\d+)/.exec(command)
  if (found === null) throw new Error(`no --window in: ${command}`)
  return { x: Number(found[1]), y: Number(found[2]) }
}

/**
 * Times of every activity type of a mosaic made by `mosaicWorkflow`.
 * @param seedRoot the folder that the documents' `workspaceSeedPath` starts from.
 * @param jobs the number of tasks that run at the same time: the machine's cores, as far as the run
 *   will use them.
 * @param onType called each time a type was measured, with its figures so far.
 * @param stop kills the running tasks and ends the measurement.
 */
export const measureMosaic = async (
  workflow: WorkflowDocument,
  seedRoot: string,
  jobs: number,
  { onType = () => undefined, stop }: { onType?: (time: TypeTime) => void; stop?: AbortSignal } = {},
): Promise<TypeTime[]> => {
  const folder = mkdtempSync(path.join(tmpdir(), 'mosaic-'))
  const pool = path.join(folder, 'pool')
  try {
    mkdirSync(pool)
    const samples = samplesOf(workflow, pool)
    const measured = samples.map(() => ({ passes: [] as number[], tasks: [] as number[] }))
    for (let pass = 0; pass < mostPasses; pass++) {
      for (const [index, { activityType, activities, prepare }] of samples.entries()) {
        const so = measured[index]!
        if (isSteady(so.passes)) continue
        const seconds = await runRounds(activities, jobs, { workflow, seedRoot, pool, folder, stop })
        if (pass === 0) prepare?.()
        so.passes.push(meanOf(seconds))
        so.tasks.push(...seconds)
        onType(timeOf(activityType, so))
      }
    }
    return samples.map(({ activityType }, index) => timeOf(activityType, measured[index]!))
  } finally {
    // A killed task may still be closing its files.
    rmSync(folder, { recursive: true, force: true, maxRetries: 10 })
  }
}

const meanOf = (values: readonly number[]): number =>
  values.reduce((sum, each) => sum + each, 0) / values.length

const timeOf = (
  activityType: string,
  { passes, tasks }: { passes: readonly number[]; tasks: readonly number[] },
): TypeTime => {
  const mean = meanOf(tasks)
  return {
    activityType,
    runtimeSeconds: median(passes),
    lowestSeconds: Math.min(...passes),
    highestSeconds: Math.max(...passes),
    runtimeStdDevSeconds: Math.sqrt(meanOf(tasks.map((each) => (each - mean) ** 2))),
    sampleSize: tasks.length,
    passes: passes.length,
  }
}

interface Workplace {
  workflow: WorkflowDocument
  seedRoot: string
  /** Folder of the outputs so far, from which later tasks take their inputs. */
  pool: string
  folder: string
  stop: AbortSignal | undefined
}

/**
 * Runs the tasks, `jobs` at a time. The last round is filled from the start of the list, so that
 * every round keeps all cores busy.
 */
const runRounds = async (
  activities: readonly WorkflowActivity[],
  jobs: number,
  { workflow, seedRoot, pool, folder, stop }: Workplace,
): Promise<number[]> => {
  const inputsOf = ({ name }: WorkflowActivity): string[] =>
    workflow.spec.dataDependencies.flatMap(({ consumerActivity, logicalName }) =>
      consumerActivity === name ? [logicalName] : [],
    )
  const seconds: number[] = []
  for (let from = 0; from < activities.length; from += jobs) {
    const round = Array.from({ length: jobs }, (_, index) => activities[(from + index) % activities.length]!)
    seconds.push(
      ...(await Promise.all(
        round.map(async (activity, index) => {
          // Tasks that run together may write the same file, so each copy works in its own folder.
          const directory = path.join(folder, `${activity.name}-${index}`)
          cpSync(path.join(seedRoot, activity.workspaceSeedPath), directory, { recursive: true })
          for (const input of inputsOf(activity))
            copyFileSync(path.join(pool, input), path.join(directory, input))
          const taken = await runCommand(activity.run, directory, stop)
          for (const output of activity.expectedOutputs)
            copyFileSync(path.join(directory, output), path.join(pool, output))
          rmSync(directory, { recursive: true })
          return taken
        }),
      )),
    )
  }
  return seconds
}

const taskNamed = (workflow: WorkflowDocument, name: string): WorkflowActivity => {
  const activity = workflow.spec.activities.find((each) => each.name === name)
  if (activity === undefined) throw new Error(`${workflow.name} has no activity ${name}; is it a mosaic?`)
  return activity
}

/** The samples of each type, in an order in which each finds its inputs in the pool. */
const samplesOf = (workflow: WorkflowDocument, pool: string): Sample[] => {
  const ofType = (type: string): WorkflowActivity[] =>
    workflow.spec.activities.filter(({ activityType }) => activityType === type)
  const task = (name: string): WorkflowActivity => taskNamed(workflow, name)
  const output = ({ expectedOutputs: [file = ''] }: WorkflowActivity): string => path.join(pool, file)
  const overlaps = ofType('overlap')
  const overlap = overlaps[Math.floor(overlaps.length / 2)]
  const pair = /^overlap-(\d+)-(\d+)$/.exec(overlap?.name ?? '')
  if (overlap === undefined || pair === null)
    throw new Error(`${workflow.name} has no overlap; is it a mosaic?`)
  const [, first = '', second = ''] = pair
  // The duration of `observe` depends on the content of the sky, so the sample holds tiles from all
  // over the picture.
  const observations = ofType('observe')
  const spread = [
    0,
    Math.floor(observations.length / 3),
    Math.floor((2 * observations.length) / 3),
    observations.length - 1,
  ]
  const seen = new Set([
    task(`observe-${first}`),
    task(`observe-${second}`),
    ...spread.flatMap((index) => observations[index] ?? []),
  ])
  // A strip in the middle meets the most tiles.
  const strips = ofType('coadd')
  const strip = strips[Math.floor((strips.length - 1) / 2)]
  if (strip === undefined) throw new Error(`${workflow.name} has no strip; is it a mosaic?`)

  const fitOfEveryPair = (): void => {
    const fit = readFileSync(output(overlap), 'utf8')
    for (const each of overlaps)
      writeFileSync(
        output(each),
        fit.replace(/^pair .*$/m, `pair ${each.name.replace('overlap-', '').replace('-', ' ')}`),
      )
  }
  const everyTileCorrected = (): void => {
    for (const { name, run } of ofType('project')) {
      const number = name.replace('project-', '')
      const { x, y } = placeIn(run)
      if (number !== first)
        moved(path.join(pool, `corrected-${first}.ppm`), path.join(pool, `corrected-${number}.ppm`), x, y)
    }
  }
  const everyStrip = (): void => {
    for (const each of strips) {
      const { x, y } = placeIn(each.run)
      if (each !== strip) moved(output(strip), output(each), x, y)
    }
  }
  return [
    { activityType: 'observe', activities: [...seen] },
    { activityType: 'project', activities: [task(`project-${first}`), task(`project-${second}`)] },
    { activityType: 'overlap', activities: [overlap], prepare: fitOfEveryPair },
    { activityType: 'background', activities: [task('background')] },
    { activityType: 'correct', activities: [task(`correct-${first}`)], prepare: everyTileCorrected },
    { activityType: 'coadd', activities: [strip], prepare: everyStrip },
    { activityType: 'picture', activities: [task('picture')] },
  ]
}

/** Entries of `activityResourceProfiles` with these times for one resource. */
export const profilesOf = (
  workflow: WorkflowDocument,
  resourceId: string,
  times: readonly TypeTime[],
): Record<string, unknown>[] =>
  times.map(({ activityType, lowestSeconds, highestSeconds, passes, ...time }) => ({
    id: `${workflow.name}-${activityType}-on-${resourceId}`,
    activityTypeId: `${workflow.name}-${activityType}`,
    resourceId,
    ...time,
    source: 'measured',
    modelVersion: '1',
    metadata: { lowestSeconds, highestSeconds, passes },
  }))

const main = async (): Promise<void> => {
  const [resource = 'mosaic-host'] = process.argv.slice(2)
  const workflow = mosaicWorkflow(fullShape)
  const times = await measureMosaic(
    workflow,
    path.dirname(import.meta.dirname),
    Math.min(2, availableParallelism()),
  )
  process.stdout.write(`${JSON.stringify(profilesOf(workflow, resource, times), null, 2)}\n`)
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href) await main()
