/**
 * Writes the workflow document of the Montage mosaic: `node
 * examples/mosaic-montage/generate-workflow.ts > workflow.yaml`.
 *
 * Montage decides the size of a projected tile, so the program runs the workflow once, in a
 * temporary folder, to learn the sizes of its files. Needs Debian's `montage` package.
 */
import { mkdtempSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { pathToFileURL } from 'node:url'
import { runSerially } from '../run-serially.ts'
import { workflowYaml, type WorkflowDocument } from '../workflow-document.ts'

const columns = 3
const rows = 3
/** Pixels of an exposure in each direction. Tiles are 100 pixels apart, so a third overlaps. */
const pixels = 132
const seed = 7
const centre = { ra: 210.8, dec: 54.35 }
const stepDegrees = (100 * 3) / 3600

/** The document with all sizes 1: the dependencies and the commands. */
export const montageWorkflow = (): WorkflowDocument => {
  const activities: WorkflowDocument['spec']['activities'] = []
  const dataDependencies: WorkflowDocument['spec']['dataDependencies'] = []
  const producers = new Map<string, string>()
  const add = (
    activityType: string,
    name: string,
    run: string,
    inputs: string[],
    expectedOutputs: string[],
  ): void => {
    const dependsOn = new Set<string>()
    for (const logicalName of inputs) {
      const producerActivity = producers.get(logicalName)
      if (producerActivity === undefined)
        throw new Error(`${name} reads ${logicalName}, which no earlier task writes`)
      dependsOn.add(producerActivity)
      dataDependencies.push({ producerActivity, consumerActivity: name, logicalName, sizeBytes: 1 })
    }
    for (const file of expectedOutputs) producers.set(file, name)
    activities.push({
      name,
      activityType,
      run,
      cpuLimit: '1',
      memoryLimit: '256Mi',
      ...(dependsOn.size === 0 ? {} : { dependsOn: [...dependsOn] }),
      workspaceSeedPath: 'mosaic-montage/bin',
      stage: 'declared',
      expectedOutputs,
    })
  }

  const tiles = Array.from({ length: columns * rows }, (_, index) => {
    const dec = centre.dec + (Math.floor(index / columns) - (rows - 1) / 2) * stepDegrees
    const ra =
      centre.ra + (((index % columns) - (columns - 1) / 2) * stepDegrees) / Math.cos((dec * Math.PI) / 180)
    return {
      number: index + 1,
      column: index % columns,
      row: Math.floor(index / columns),
      centre: `${ra.toFixed(6)},${dec.toFixed(6)}`,
      turn: ((index * 5) % 7) - 3,
    }
  })
  // Diagonal neighbours count too: these are all pairs that mOverlaps finds.
  const pairs = tiles.flatMap((one) =>
    tiles.flatMap((other) =>
      other.number > one.number &&
      Math.abs(other.column - one.column) <= 1 &&
      Math.abs(other.row - one.row) <= 1
        ? [[one.number, other.number] as const]
        : [],
    ),
  )
  const withArea = (name: string): string[] => [`${name}.fits`, `${name}_area.fits`]

  for (const { number, centre, turn } of tiles) {
    const output = `raw-${number}.fits`
    add(
      'expose',
      `expose-${number}`,
      `perl expose.pl --centre ${centre} --turn ${turn} --pixels ${pixels} --seed ${seed} --tile ${number} ${output}`,
      [],
      [output],
    )
  }
  for (const { number } of tiles) {
    const [input, output] = [`raw-${number}.fits`, `projected-${number}`]
    add(
      'project',
      `project-${number}`,
      `mProject ${input} ${output}.fits region.hdr`,
      [input],
      withArea(output),
    )
  }
  const projected = tiles.map(({ number }) => `projected-${number}.fits`)
  add('table', 'table', 'mImgtbl . images.tbl && mOverlaps -e images.tbl overlaps.tbl', projected, [
    'images.tbl',
    'overlaps.tbl',
  ])
  for (const [first, second] of pairs) {
    const fit = `fit-${first}-${second}.txt`
    const command =
      `mDiff projected-${first}.fits projected-${second}.fits difference.fits region.hdr && ` +
      `mFitplane difference.fits > ${fit}`
    add(
      'difference',
      `difference-${first}-${second}`,
      command,
      [...withArea(`projected-${first}`), ...withArea(`projected-${second}`)],
      [fit],
    )
  }
  const fits = pairs.map(([first, second]) => `fit-${first}-${second}.txt`)
  const model =
    `perl fit-table.pl images.tbl fits.tbl ${fits.join(' ')} && mBgModel images.tbl fits.tbl ` +
    'corrections.tbl'
  add('model', 'model', model, ['images.tbl', ...fits], ['corrections.tbl'])
  for (const { number } of tiles) {
    const command = `mBackground -t projected-${number}.fits corrected-${number}.fits images.tbl corrections.tbl`
    add(
      'correct',
      `correct-${number}`,
      command,
      ['images.tbl', 'corrections.tbl', ...withArea(`projected-${number}`)],
      withArea(`corrected-${number}`),
    )
  }
  const corrected = tiles.flatMap(({ number }) => withArea(`corrected-${number}`))
  add('add', 'add', 'mImgtbl . corrected.tbl && mAdd corrected.tbl region.hdr mosaic.fits', corrected, [
    'mosaic.fits',
  ])
  add(
    'picture',
    'picture',
    'mViewer -ct 0 -gray mosaic.fits -1s max gaussian-log -out mosaic.png',
    ['mosaic.fits'],
    ['mosaic.png'],
  )
  return {
    name: 'mosaic-montage',
    spec: { namespace: 'examples', image: 'debian:12', activities, dataDependencies },
  }
}

const main = async (): Promise<void> => {
  const workflow = montageWorkflow()
  const folder = mkdtempSync(path.join(tmpdir(), 'mosaic-montage-'))
  try {
    await runSerially(workflow, folder, path.dirname(import.meta.dirname))
    for (const dependency of workflow.spec.dataDependencies) {
      dependency.sizeBytes = statSync(
        path.join(folder, dependency.producerActivity, dependency.logicalName),
      ).size
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
  process.stdout.write(workflowYaml(workflow, 'generate-workflow.ts'))
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href) await main()
