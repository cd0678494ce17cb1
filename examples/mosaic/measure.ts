/**
 * Measures once how long a task of each type of the mosaic takes on this machine, without running the whole workflow:
 * `node examples/mosaic/measure.ts [RESOURCE] > profiles.json` writes entries for `activityResourceProfiles` of environment.yaml.
 *
 * Two neighbouring tiles are observed, projected, compared and corrected for real. Steps that take many tiles get copies of
 * these, moved to where the other tiles would be, so they have their full size. Tasks run `jobs` at a time, as they will in
 * the run: two busy cores are not twice as fast as one.
 */
import { copyFileSync, cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import path from 'node:path'
import { pathToFileURL } from 'node:url'
import { runCommand } from '../run-serially.ts'
import type { WorkflowActivity, WorkflowDocument } from '../workflow-document.ts'
import { fullShape, mosaicWorkflow } from './generate-workflow.ts'

export interface TypeTime {
  activityType: string
  /** Mean and standard deviation over the sample. */
  runtimeSeconds: number
  runtimeStdDevSeconds: number
  sampleSize: number
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
 * @param jobs how many tasks run at the same time: the machine's cores, as far as the run will use them.
 * @param stop kills what runs and ends the measurement.
 */
export const measureMosaic = async (
  workflow: WorkflowDocument,
  seedRoot: string,
  jobs: number,
  { onType = () => undefined, stop }: { onType?: (time: TypeTime) => void; stop?: AbortSignal } = {},
): Promise<TypeTime[]> => {
  const ofType = (type: string): WorkflowActivity[] => workflow.spec.activities.filter(({ activityType }) => activityType === type)
  const named = new Map(workflow.spec.activities.map((activity) => [activity.name, activity]))
  const task = (name: string): WorkflowActivity => {
    const activity = named.get(name)
    if (activity === undefined) throw new Error(`${workflow.name} has no activity ${name}; is it a mosaic?`)
    return activity
  }
  const folder = mkdtempSync(path.join(tmpdir(), 'mosaic-'))
  const times: TypeTime[] = []
  /** Runs the tasks, `jobs` at a time; the last round is filled up by starting over, so that every round keeps all cores busy. */
  const measured = async (activityType: string, activities: readonly WorkflowActivity[]): Promise<void> => {
    const seconds: number[] = []
    for (let from = 0; from < activities.length; from += jobs) {
      const round = Array.from({ length: jobs }, (_, index) => {
        const activity = activities[(from + index) % activities.length]
        if (activity === undefined) throw new Error(`${workflow.name} has no activity of type ${activityType}`)
        return activity
      })
      seconds.push(
        ...(await Promise.all(
          round.map(async (activity, index) => {
            // Tasks that run together may write the same file; each copy works in a folder of its own.
            const directory = path.join(folder, `${activity.name}-${index}`)
            cpSync(pool, directory, { recursive: true })
            const taken = await runCommand(activity.run, directory, stop)
            for (const output of activity.expectedOutputs) copyFileSync(path.join(directory, output), path.join(pool, output))
            rmSync(directory, { recursive: true })
            return taken
          }),
        )),
      )
    }
    const mean = seconds.reduce((sum, each) => sum + each, 0) / seconds.length
    const deviation = Math.sqrt(seconds.reduce((sum, each) => sum + (each - mean) ** 2, 0) / seconds.length)
    const time = { activityType, runtimeSeconds: mean, runtimeStdDevSeconds: deviation, sampleSize: seconds.length }
    times.push(time)
    onType(time)
  }
  const pool = path.join(folder, 'pool')
  try {
    cpSync(path.join(seedRoot, task('background').workspaceSeedPath), pool, { recursive: true })
    const overlaps = ofType('overlap')
    const overlap = overlaps[Math.floor(overlaps.length / 2)]
    const pair = /^overlap-(\d+)-(\d+)$/.exec(overlap?.name ?? '')
    if (overlap === undefined || pair === null) throw new Error(`${workflow.name} has no overlap; is it a mosaic?`)
    const [, first = '', second = ''] = pair

    // What a camera sees decides how long `observe` takes: tiles from all over the picture are part of the sample.
    const observations = ofType('observe')
    const spread = [0, Math.floor(observations.length / 3), Math.floor((2 * observations.length) / 3), observations.length - 1]
    const sample = new Set([task(`observe-${first}`), task(`observe-${second}`), ...spread.flatMap((index) => observations[index] ?? [])])
    await measured('observe', [...sample])
    await measured('project', [task(`project-${first}`), task(`project-${second}`)])
    await measured('overlap', [overlap])

    const fit = readFileSync(path.join(pool, overlap.expectedOutputs[0] ?? ''), 'utf8')
    for (const { name, expectedOutputs } of overlaps) {
      const numbers = name.replace('overlap-', '').replace('-', ' ')
      writeFileSync(path.join(pool, expectedOutputs[0] ?? ''), fit.replace(/^pair .*$/m, `pair ${numbers}`))
    }
    await measured('background', [task('background')])
    await measured('correct', [task(`correct-${first}`)])
    for (const { name, run } of ofType('project')) {
      const number = name.replace('project-', '')
      const { x, y } = placeIn(run)
      if (number !== first) moved(path.join(pool, `corrected-${first}.ppm`), path.join(pool, `corrected-${number}.ppm`), x, y)
    }
    // A strip in the middle meets as many tiles as any.
    const strips = ofType('coadd')
    const middle = strips[Math.floor((strips.length - 1) / 2)]
    if (middle === undefined) throw new Error(`${workflow.name} has no strip; is it a mosaic?`)
    await measured('coadd', [middle])
    for (const { name, run, expectedOutputs } of strips) {
      const { x, y } = placeIn(run)
      if (name !== middle.name) moved(path.join(pool, middle.expectedOutputs[0] ?? ''), path.join(pool, expectedOutputs[0] ?? ''), x, y)
    }
    await measured('picture', [task('picture')])
    return times
  } finally {
    // A task that was killed beside another may still be closing its files.
    rmSync(folder, { recursive: true, force: true, maxRetries: 10 })
  }
}

/** Entries of `activityResourceProfiles` that tell these times for one resource. */
export const profilesOf = (workflow: WorkflowDocument, resourceId: string, times: readonly TypeTime[]): Record<string, unknown>[] =>
  times.map(({ activityType, ...time }) => ({
    id: `${workflow.name}-${activityType}-on-${resourceId}`,
    activityTypeId: `${workflow.name}-${activityType}`,
    resourceId,
    ...time,
    source: 'measured',
    modelVersion: '1',
  }))

const main = async (): Promise<void> => {
  const [resource = 'mosaic-host'] = process.argv.slice(2)
  const workflow = mosaicWorkflow(fullShape)
  const times = await measureMosaic(workflow, path.dirname(import.meta.dirname), Math.min(2, availableParallelism()))
  process.stdout.write(`${JSON.stringify(profilesOf(workflow, resource, times), null, 2)}\n`)
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href) await main()
