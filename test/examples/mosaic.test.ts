import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { createHash } from 'node:crypto'
import { copyFileSync, cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { parse } from 'yaml'
import { fullShape, mosaicWorkflow, smallShape } from '../../examples/mosaic/generate-workflow.ts'
import { isSteady, median } from '../../examples/mosaic/steadiness.ts'
import { inOrder, runCommand, runSerially } from '../../examples/run-serially.ts'
import { workflowYaml, type WorkflowDocument } from '../../examples/workflow-document.ts'
import { readPng, type Picture } from './png.ts'
import { proved } from '../support/share.ts'

const examples = path.resolve(import.meta.dirname, '../../examples')
const documentNamed = (name: string): unknown =>
  parse(readFileSync(path.join(examples, 'mosaic', name), 'utf8'))

/** A 16-bit PPM of the example with its place; read here without the example's own programs. */
interface Raster {
  width: number
  height: number
  x: number
  y: number
  levels: Uint16Array
}
const readRaster = (file: string): Raster => {
  const bytes = readFileSync(file)
  const header = /^P6\n#.*\bx=(\d+).*\by=(\d+).*\n(\d+) (\d+)\n65535\n/.exec(
    bytes.subarray(0, 256).toString('latin1'),
  )
  if (header === null) throw new Error(`${file} is no raster`)
  const [x = 0, y = 0, width = 0, height = 0] = header.slice(1).map(Number)
  const levels = new Uint16Array(3 * width * height)
  for (let at = 0; at < levels.length; at++) levels[at] = bytes.readUInt16BE(header[0].length + 2 * at)
  return { width, height, x, y, levels }
}
const levelAt = (raster: Raster, x: number, y: number): number | undefined => {
  const [column, row] = [x - raster.x, y - raster.y]
  if (column < 0 || row < 0 || column >= raster.width || row >= raster.height) return undefined
  const at = 3 * (row * raster.width + column)
  return raster.levels[at] === 0 ? undefined : raster.levels[at + 1]
}

/**
 * Mean difference of two tiles where both saw something, in brightness (1 = white); undefined where
 * they do not meet.
 */
const disagreement = (one: Raster, other: Raster): number | undefined => {
  let sum = 0
  let count = 0
  for (let y = one.y; y < one.y + one.height; y++) {
    for (let x = one.x; x < one.x + one.width; x++) {
      const [a, b] = [levelAt(one, x, y), levelAt(other, x, y)]
      if (a === undefined || b === undefined) continue
      sum += Math.abs(a - b) / 32767
      count++
    }
  }
  return count < 64 ? undefined : sum / count
}

/**
 * How much steeper a picture is, in steps of 255, where the set of tiles that saw a pixel changes
 * than four pixels beside that line.
 */
const seams = (picture: Picture, tiles: readonly Raster[]): number => {
  const seenBy = (x: number, y: number): string =>
    tiles.map((tile) => (levelAt(tile, x, y) === undefined ? '-' : 'x')).join('')
  const step = (x: number, y: number): number =>
    [0, 1, 2].reduce(
      (sum, c) =>
        sum +
        Math.abs(
          picture.pixels[3 * (y * picture.width + x) + c]! -
            picture.pixels[3 * (y * picture.width + x + 1) + c]!,
        ),
      0,
    ) / 3
  let excess = 0
  let count = 0
  for (let y = 0; y < picture.height; y += 2) {
    const sets = Array.from({ length: picture.width }, (_, x) => seenBy(x, y))
    for (let x = 4; x + 5 < picture.width; x++) {
      if (sets[x] === sets[x + 1]) continue
      excess += step(x, y) - (step(x - 4, y) + step(x + 4, y)) / 2
      count++
    }
  }
  if (count < 100) throw new Error('the tiles have no borders in the picture')
  return excess / count
}

const mean = (values: readonly number[]): number =>
  values.reduce((sum, value) => sum + value, 0) / values.length

describe('the mosaic of the examples', () => {
  const folder = mkdtempSync(path.join(tmpdir(), 'mosaic-test-'))
  const small = mosaicWorkflow(smallShape)
  const tileNumbers = Array.from({ length: smallShape.columns * smallShape.rows }, (_, index) => index + 1)
  const first = path.join(folder, 'first')
  let projected: Raster[] = []
  let corrected: Raster[] = []

  beforeAll(async () => {
    await runSerially(small, first, examples)
    projected = tileNumbers.map((number) =>
      readRaster(path.join(first, `project-${number}`, `projected-${number}.ppm`)),
    )
    corrected = tileNumbers.map((number) =>
      readRaster(path.join(first, `correct-${number}`, `corrected-${number}.ppm`)),
    )
  }, 300_000)
  afterAll(() => rmSync(folder, { recursive: true, force: true }))

  test('gives a valid picture of the whole field and statistics of it', () => {
    const picture = readPng(readFileSync(path.join(first, 'picture', 'mosaic.png')))
    expect([picture.width, picture.height]).toEqual([smallShape.width, smallShape.height])
    expect(new Set(picture.pixels).size).toBeGreaterThan(100)
    const statistics = JSON.parse(
      readFileSync(path.join(first, 'picture', 'statistics.json'), 'utf8'),
    ) as Record<string, unknown>
    expect(statistics).toMatchObject({
      width: smallShape.width,
      height: smallShape.height,
      coverage: 1,
      strips: smallShape.strips,
    })
  })

  test('writes files of exactly the sizes that the document declares', () => {
    const written = small.spec.dataDependencies.map(({ producerActivity, logicalName, ...dependency }) => {
      return {
        producerActivity,
        logicalName,
        ...dependency,
        sizeBytes: statSync(path.join(first, producerActivity, logicalName)).size,
      }
    })
    expect(written).toEqual(small.spec.dataDependencies)
  })

  test('makes overlapping tiles agree: the differences that the cameras brought in are gone', () => {
    const pairs = tileNumbers.flatMap((a) =>
      tileNumbers.filter((b) => b > a).map((b) => [a - 1, b - 1] as const),
    )
    const between = (tiles: readonly Raster[]): number[] =>
      pairs.flatMap(([a, b]) => disagreement(tiles[a]!, tiles[b]!) ?? [])
    const [before, after] = [between(projected), between(corrected)]
    expect(before.length).toBeGreaterThanOrEqual(12)
    expect(mean(before)).toBeGreaterThan(0.03)
    expect(mean(after)).toBeLessThan(mean(before) / 10)
    expect(Math.max(...after)).toBeLessThan(0.015)
  })

  test('leaves no seam in the picture; without the correction the seams are plain', async () => {
    const uncorrected = path.join(folder, 'uncorrected')
    mkdirSync(uncorrected)
    cpSync(path.join(examples, 'mosaic/bin'), uncorrected, { recursive: true })
    for (const number of tileNumbers) {
      copyFileSync(
        path.join(first, `project-${number}`, `projected-${number}.ppm`),
        path.join(uncorrected, `projected-${number}.ppm`),
      )
    }
    const size = `${smallShape.width}x${smallShape.height}`
    await runCommand(
      `perl coadd.pl --window ${size}+0+0 strip.ppm projected-*.ppm && perl picture.pl --size ` +
        `${size} mosaic.png s.json strip.ppm`,
      uncorrected,
    )

    const visible = seams(readPng(readFileSync(path.join(uncorrected, 'mosaic.png'))), projected)
    const left = seams(readPng(readFileSync(path.join(first, 'picture', 'mosaic.png'))), projected)
    expect(visible).toBeGreaterThan(8)
    expect(Math.abs(left)).toBeLessThan(1)
  })

  proved('is the same to the last bit for the same seed, and another for another seed', async () => {
    const digest = (name: string): string =>
      createHash('sha256')
        .update(readFileSync(path.join(folder, name, 'picture', 'mosaic.png')))
        .digest('hex')
    const tiny = { ...smallShape, columns: 2, rows: 2, width: 96, height: 72 }
    await runSerially(mosaicWorkflow(tiny), path.join(folder, 'once'), examples)
    await runSerially(mosaicWorkflow(tiny), path.join(folder, 'again'), examples)
    await runSerially(mosaicWorkflow({ ...tiny, seed: tiny.seed + 1 }), path.join(folder, 'other'), examples)
    expect(digest('again')).toBe(digest('once'))
    expect(digest('other')).not.toBe(digest('once'))
  })

  test('a type is measured at least three times, and until three passes agree', () => {
    expect(isSteady([1, 1])).toBe(false)
    expect(isSteady([1, 1.04, 0.98])).toBe(true)
    // What another program slowed down is left out of the median, and is no reason to go on for
    // ever.
    expect(isSteady([1.9, 1, 1.3])).toBe(false)
    expect(isSteady([1.9, 1, 1.3, 1.02, 1.01])).toBe(true)
    expect(median([1.9, 1, 1.3, 1.02, 1.01])).toBe(1.02)
    // A process of a few milliseconds varies by more than its share.
    expect(isSteady([0.03, 0.036, 0.027])).toBe(true)
  })

  test('stops with a word about the value that it cannot use', async () => {
    expect(() => mosaicWorkflow({ ...smallShape, columns: 0 })).toThrow('columns is 0')
    expect(() => mosaicWorkflow({ ...smallShape, columns: 1, rows: 1 })).toThrow('at least two tiles')
    expect(() => mosaicWorkflow({ ...smallShape, columns: 40 })).toThrow('32 pixels')
    const bin = path.join(examples, 'mosaic/bin')
    await expect(runCommand('perl project.pl --window 10x10 --detail 1 in out', bin)).rejects.toThrow(
      '--window 10x10: give WIDTHxHEIGHT+X+Y',
    )
    await expect(runCommand('perl correct.pl --size 10x10 --tile 3 nowhere.txt in out', bin)).rejects.toThrow(
      'nowhere.txt',
    )
    await expect(runCommand('perl coadd.pl --window 10x10+0+0 out Mosaic.pm', bin)).rejects.toThrow(
      'not a raster',
    )
  })
})

describe('the documents of the mosaic', () => {
  const workflow = documentNamed('workflow.yaml') as WorkflowDocument

  test('workflow.yaml is what its script writes', () => {
    expect(readFileSync(path.join(examples, 'mosaic/workflow.yaml'), 'utf8')).toBe(
      workflowYaml(mosaicWorkflow(fullShape), 'generate-workflow.ts'),
    )
  })

  test('has at least 50 activities of several types, in an order that can be run, with its data on control edges', () => {
    const { activities, dataDependencies } = workflow.spec
    expect(activities.length).toBeGreaterThanOrEqual(50)
    expect(new Set(activities.map(({ activityType }) => activityType)).size).toBe(7)
    expect(inOrder(activities)).toHaveLength(activities.length)
    const edges = new Set(
      activities.flatMap(({ name, dependsOn = [] }) => dependsOn.map((other) => `${other} ${name}`)),
    )
    expect(
      new Set(
        dataDependencies.map(
          ({ producerActivity, consumerActivity }) => `${producerActivity} ${consumerActivity}`,
        ),
      ),
    ).toEqual(edges)
    for (const { producerActivity, logicalName, sizeBytes } of dataDependencies) {
      expect(activities.find(({ name }) => name === producerActivity)?.expectedOutputs).toContain(logicalName)
      expect(sizeBytes).toBeGreaterThan(0)
    }
    for (const { workspaceSeedPath } of activities)
      expect(statSync(path.join(examples, workspaceSeedPath)).isDirectory()).toBe(true)
  })

  test('an order that cannot be run is refused with the names of those that wait', () => {
    const [one, two] = workflow.spec.activities
    expect(() =>
      inOrder([
        { ...one!, dependsOn: [two!.name] },
        { ...two!, dependsOn: [one!.name] },
      ]),
    ).toThrow(`${one!.name}, ${two!.name}`)
    expect(() => inOrder([{ ...one!, dependsOn: ['nobody'] }])).toThrow('nobody')
  })

  test('environment, scope and topology refer to each other, and the resource has an enabled runtime of each mode', () => {
    const environment = documentNamed('environment.yaml') as {
      version: { id: string }
      runtimes: { id: string; mode: string }[]
      resources: { id: string; schedulable: boolean }[]
      resourceRuntimeBindings: { resourceId: string; runtimeId: string; enabled: boolean }[]
      activityResourceProfiles: unknown[]
    }
    const scope = documentNamed('scope.yaml')
    const topology = documentNamed('topology.yaml')
    expect(scope).toMatchObject({ environmentVersionIds: [environment.version.id] })
    expect(topology).toMatchObject({
      executionScopeId: (scope as { id: string }).id,
      id: (scope as { networkTopologyId: string }).networkTopologyId,
    })
    for (const { id, schedulable } of environment.resources) {
      expect(schedulable).toBe(true)
      const bound = environment.resourceRuntimeBindings.filter(
        ({ resourceId, enabled }) => resourceId === id && enabled,
      )
      const modes = bound.map(
        ({ runtimeId }) => environment.runtimes.find((runtime) => runtime.id === runtimeId)?.mode,
      )
      expect(modes.toSorted()).toEqual(['execution', 'simulation'])
    }
    expect(environment.activityResourceProfiles).toEqual([])
  })
})
