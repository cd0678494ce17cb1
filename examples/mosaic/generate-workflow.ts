/**
 * Writes the workflow document of the mosaic: `node examples/mosaic/generate-workflow.ts [--columns
 * 4] [--rows 4] [--strips 4] [--size 1024x768] [--detail 3] [--seed 7] [--name mosaic] >
 * workflow.yaml`.
 *
 * `--size` and `--detail` scale the work: its CPU time grows with width × height × detail², its
 * data with width × height. All sizes in the document are exact: the programs write files whose
 * sizes follow from the geometry alone.
 */
import { pathToFileURL } from 'node:url'
import { parseArgs } from 'node:util'
import { workflowYaml, type WorkflowDocument } from '../workflow-document.ts'

export interface MosaicShape {
  name: string
  columns: number
  rows: number
  /** Horizontal strips in which the corrected tiles are added, each by a task of its own. */
  strips: number
  width: number
  height: number
  /** Samples per pixel and axis in `project`. */
  detail: number
  /** The seed of the sky. */
  seed: number
}

export const fullShape: MosaicShape = {
  name: 'mosaic',
  columns: 4,
  rows: 4,
  strips: 4,
  width: 1024,
  height: 768,
  detail: 3,
  seed: 7,
}
/** The same mosaic in a few seconds of CPU time. */
export const smallShape: MosaicShape = {
  ...fullShape,
  name: 'mosaic-small',
  columns: 3,
  rows: 3,
  strips: 2,
  width: 320,
  height: 240,
  detail: 1,
}

/**
 * A task's frame extends 30 % beyond its cell, so that neighbours overlap in any rotation. Its
 * window holds the rotated frame.
 */
const frameShare = 1.3
const windowShare = 1.42
const fitBytes = 512
const correctionLineBytes = 160
const rasterHeaderBytes = 256

interface Window {
  width: number
  height: number
  x: number
  y: number
}

const rasterBytes = (area: { width: number; height: number }): number =>
  rasterHeaderBytes + 6 * area.width * area.height
const windowText = (window: Window): string => `${window.width}x${window.height}+${window.x}+${window.y}`

/** The part of one axis, around `centre`, inside the picture. */
const span = (centre: number, extent: number, limit: number): { from: number; length: number } => {
  const from = Math.max(0, Math.floor(centre - extent / 2))
  return { from, length: Math.min(limit, Math.ceil(centre + extent / 2)) - from }
}

/**
 * The authoring document of a mosaic.
 * @throws RangeError when the shape cannot be a mosaic (a value below 1 or not whole, cells under
 *   32 pixels, more strips than rows of pixels).
 */
export const mosaicWorkflow = (shape: MosaicShape): WorkflowDocument => {
  const { columns, rows, strips, width, height, detail, seed } = shape
  for (const [key, value] of Object.entries({ columns, rows, strips, width, height, detail, seed })) {
    if (!Number.isInteger(value) || value < 1)
      throw new RangeError(`${key} is ${value}: give a whole number of at least 1`)
  }
  if (columns * rows < 2) throw new RangeError('a mosaic has at least two tiles: give more columns or rows')
  if (width / columns < 32 || height / rows < 32)
    throw new RangeError(`${width}x${height} in ${columns}x${rows} tiles: a tile needs 32 pixels each way`)
  if (strips > height)
    throw new RangeError(`${strips} strips of ${height} rows of pixels: give at most ${height}`)

  const size = `${width}x${height}`
  const cell = { width: width / columns, height: height / rows }
  const frame = { width: Math.ceil(cell.width * frameShare), height: Math.ceil(cell.height * frameShare) }
  const tiles = Array.from({ length: columns * rows }, (_, index) => {
    const centre = {
      x: ((index % columns) + 0.5) * cell.width,
      y: (Math.floor(index / columns) + 0.5) * cell.height,
    }
    const across = span(centre.x, cell.width * windowShare, width)
    const down = span(centre.y, cell.height * windowShare, height)
    return {
      number: index + 1,
      centre,
      window: { width: across.length, height: down.length, x: across.from, y: down.from },
    }
  })
  const pairs = tiles.flatMap(({ number }) => [
    ...(number % columns === 0 ? [] : [[number, number + 1] as const]),
    ...(number > columns * (rows - 1) ? [] : [[number, number + columns] as const]),
  ])
  const stripWindows = Array.from({ length: strips }, (_, index): Window => {
    const y = Math.round((index * height) / strips)
    return { width, height: Math.round(((index + 1) * height) / strips) - y, x: 0, y }
  })

  const activities: WorkflowDocument['spec']['activities'] = []
  const dataDependencies: NonNullable<WorkflowDocument['spec']['dataDependencies']> = []
  const produced = new Map<string, { producer: string; sizeBytes: number }>()
  /**
   * A task that reads `inputs` (files of earlier tasks) and writes `outputs`, with their sizes
   * where later tasks read them.
   */
  const add = (
    activityType: string,
    name: string,
    command: string,
    inputs: string[],
    outputs: Record<string, number | null>,
  ): void => {
    const dependsOn = new Set<string>()
    for (const logicalName of inputs) {
      const source = produced.get(logicalName)
      if (source === undefined) throw new Error(`${name} reads ${logicalName}, which no earlier task writes`)
      dependsOn.add(source.producer)
      dataDependencies.push({
        producerActivity: source.producer,
        consumerActivity: name,
        logicalName,
        sizeBytes: source.sizeBytes,
      })
    }
    for (const [file, sizeBytes] of Object.entries(outputs))
      if (sizeBytes !== null) produced.set(file, { producer: name, sizeBytes })
    activities.push({
      name,
      activityType,
      run: command,
      cpuLimit: '1',
      memoryLimit: '256Mi',
      ...(dependsOn.size === 0 ? {} : { dependsOn: [...dependsOn] }),
      workspaceSeedPath: 'mosaic/bin',
      stage: 'declared',
      expectedOutputs: Object.keys(outputs),
    })
  }

  for (const { number, centre } of tiles) {
    const file = `raw-${number}.ppm`
    const look =
      `--picture ${size} --frame ${frame.width}x${frame.height} --centre ${centre.x},${centre.y} ` +
      `--tile ${number} --seed ${seed} --detail 1`
    add('observe', `observe-${number}`, `perl observe.pl ${look} ${file}`, [], { [file]: rasterBytes(frame) })
  }
  for (const { number, window } of tiles) {
    const [input, output] = [`raw-${number}.ppm`, `projected-${number}.ppm`]
    const command = `perl project.pl --window ${windowText(window)} --detail ${detail} ${input} ${output}`
    add('project', `project-${number}`, command, [input], { [output]: rasterBytes(window) })
  }
  for (const [first, second] of pairs) {
    const [inputs, output] = [
      [`projected-${first}.ppm`, `projected-${second}.ppm`],
      `fit-${first}-${second}.txt`,
    ]
    const command = `perl overlap.pl --size ${size} --first ${first} --second ${second} ${inputs.join(' ')} ${output}`
    add('overlap', `overlap-${first}-${second}`, command, inputs, { [output]: fitBytes })
  }
  const fits = pairs.map(([first, second]) => `fit-${first}-${second}.txt`)
  add(
    'background',
    'background',
    `perl background.pl --tiles ${tiles.length} corrections.txt ${fits.join(' ')}`,
    fits,
    {
      'corrections.txt': correctionLineBytes * (tiles.length + 1),
    },
  )
  for (const { number, window } of tiles) {
    const [input, output] = [`projected-${number}.ppm`, `corrected-${number}.ppm`]
    const command = `perl correct.pl --size ${size} --tile ${number} corrections.txt ${input} ${output}`
    add('correct', `correct-${number}`, command, ['corrections.txt', input], {
      [output]: rasterBytes(window),
    })
  }
  for (const [index, strip] of stripWindows.entries()) {
    const inputs = tiles
      .filter(({ window }) => window.y < strip.y + strip.height && strip.y < window.y + window.height)
      .map(({ number }) => `corrected-${number}.ppm`)
    const output = `strip-${index + 1}.ppm`
    add(
      'coadd',
      `coadd-${index + 1}`,
      `perl coadd.pl --window ${windowText(strip)} ${output} ${inputs.join(' ')}`,
      inputs,
      {
        [output]: rasterBytes(strip),
      },
    )
  }
  const stripFiles = stripWindows.map((_, index) => `strip-${index + 1}.ppm`)
  const picture = `perl picture.pl --size ${size} mosaic.png statistics.json ${stripFiles.join(' ')}`
  add('picture', 'picture', picture, stripFiles, { 'mosaic.png': null, 'statistics.json': null })
  return {
    name: shape.name,
    spec: { namespace: 'examples', image: 'debian:12-slim', activities, dataDependencies },
  }
}

const wholeOption = (name: string, text: string): number => {
  if (!/^[1-9][0-9]{0,8}$/.test(text))
    throw new RangeError(`--${name} ${text}: give a whole number of at least 1`)
  return Number(text)
}

const main = (): void => {
  const { values } = parseArgs({
    options: {
      name: { type: 'string', default: fullShape.name },
      columns: { type: 'string', default: String(fullShape.columns) },
      rows: { type: 'string', default: String(fullShape.rows) },
      strips: { type: 'string', default: String(fullShape.strips) },
      size: { type: 'string', default: `${fullShape.width}x${fullShape.height}` },
      detail: { type: 'string', default: String(fullShape.detail) },
      seed: { type: 'string', default: String(fullShape.seed) },
    },
  })
  const size = /^([1-9][0-9]{0,4})x([1-9][0-9]{0,4})$/.exec(values.size)
  if (size === null) throw new RangeError(`--size ${values.size}: give WIDTHxHEIGHT`)
  const workflow = mosaicWorkflow({
    name: values.name,
    columns: wholeOption('columns', values.columns),
    rows: wholeOption('rows', values.rows),
    strips: wholeOption('strips', values.strips),
    width: Number(size[1]),
    height: Number(size[2]),
    detail: wholeOption('detail', values.detail),
    seed: wholeOption('seed', values.seed),
  })
  process.stdout.write(workflowYaml(workflow, ['generate-workflow.ts', ...process.argv.slice(2)].join(' ')))
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href) main()
