import { expect } from '@jest/globals'
import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { parse } from 'yaml'
import { montageWorkflow } from '../../examples/mosaic-montage/generate-workflow.ts'
import { inOrder, runSerially } from '../../examples/run-serially.ts'
import type { WorkflowDocument } from '../../examples/workflow-document.ts'
import { readPngChunks } from './png.ts'
import { needs } from '../support/needs.ts'

const { afterAll, beforeAll, describe, test } = needs('montage')

const examples = path.resolve(import.meta.dirname, '../../examples')
const documentNamed = (name: string): unknown =>
  parse(readFileSync(path.join(examples, 'mosaic-montage', name), 'utf8'))

interface Fits {
  width: number
  height: number
  /** Where the image's first pixel lies on the grid of the mosaic, whose centre is the origin. */
  left: number
  bottom: number
  values: Float64Array
}

/** Reads a FITS image of floating numbers as the standard describes it, without Montage. */
const readFits = (file: string): Fits => {
  const bytes = readFileSync(file)
  if (bytes.length % 2880 !== 0) throw new Error(`${file} is not made of blocks of 2880 bytes`)
  const cards = new Map<string, string>()
  let at = 0
  for (; ; at += 80) {
    const card = bytes.subarray(at, at + 80).toString('latin1')
    if (card.startsWith('END ')) break
    cards.set(card.slice(0, 8).trim(), card.slice(10).split('/')[0]!.trim())
  }
  const number = (key: string): number => Number(cards.get(key) ?? Number.NaN)
  const [width, height, wide] = [number('NAXIS1'), number('NAXIS2'), -number('BITPIX') / 8]
  const data = bytes.subarray(Math.ceil((at + 80) / 2880) * 2880)
  const values = Float64Array.from({ length: width * height }, (_, index) =>
    wide === 8 ? data.readDoubleBE(8 * index) : data.readFloatBE(4 * index),
  )
  return { width, height, left: Math.round(-number('CRPIX1')), bottom: Math.round(-number('CRPIX2')), values }
}

/** Mean difference over the pixels that both saw; undefined where they do not meet. */
const disagreement = (one: Fits, other: Fits): number | undefined => {
  let sum = 0
  let count = 0
  for (let index = 0; index < one.values.length; index++) {
    const column = one.left + (index % one.width) - other.left
    const row = one.bottom + Math.floor(index / one.width) - other.bottom
    if (column < 0 || row < 0 || column >= other.width || row >= other.height) continue
    const difference = one.values[index]! - other.values[row * other.width + column]!
    if (Number.isNaN(difference)) continue
    sum += Math.abs(difference)
    count++
  }
  return count < 64 ? undefined : sum / count
}

const mean = (values: readonly number[]): number =>
  values.reduce((sum, value) => sum + value, 0) / values.length

describe('the mosaic made with Montage', () => {
  const folder = mkdtempSync(path.join(tmpdir(), 'mosaic-montage-test-'))
  const workflow = documentNamed('workflow.yaml') as WorkflowDocument
  const numbers = Array.from({ length: 9 }, (_, index) => index + 1)

  beforeAll(async () => {
    if (spawnSync('sh', ['-c', 'command -v mProject mBgModel mViewer']).status !== 0) {
      throw new Error('Montage is not installed; this example runs it. On Debian: apt-get install -y montage')
    }
    await runSerially(workflow, folder, examples)
  }, 300_000)
  afterAll(() => rmSync(folder, { recursive: true, force: true }))

  test('ends in an image of the whole region and a picture of it', () => {
    const mosaic = readFits(path.join(folder, 'add', 'mosaic.fits'))
    expect([mosaic.width, mosaic.height]).toEqual([300, 300])
    expect(mosaic.values.every(Number.isFinite)).toBe(true)
    const header = readPngChunks(readFileSync(path.join(folder, 'picture', 'mosaic.png')))[0]!
    expect([header.data.readUInt32BE(0), header.data.readUInt32BE(4)]).toEqual([300, 300])
  })

  test('takes away what made the tiles differ', () => {
    const tiles = (activity: string, prefix: string): Fits[] =>
      numbers.map((number) =>
        readFits(path.join(folder, `${activity}-${number}`, `${prefix}-${number}.fits`)),
      )
    const between = (images: readonly Fits[]): number[] =>
      images.flatMap((one, index) =>
        images.slice(index + 1).flatMap((other) => disagreement(one, other) ?? []),
      )
    const [before, after] = [between(tiles('project', 'projected')), between(tiles('correct', 'corrected'))]
    expect(before).toHaveLength(20)
    expect(mean(before)).toBeGreaterThan(10)
    expect(mean(after)).toBeLessThan(0.5)
    expect(Math.max(...after)).toBeLessThan(1.5)
  })

  test('compares the pairs that Montage itself finds to overlap', () => {
    const lines = readFileSync(path.join(folder, 'table', 'overlaps.tbl'), 'utf8').split('\n')
    const found = lines.flatMap((line) => {
      const pair = /projected-(\d+)\.fits\s+projected-(\d+)\.fits/.exec(line)
      return pair === null ? [] : [[Number(pair[1]), Number(pair[2])].sort((a, b) => a - b).join('-')]
    })
    const compared = workflow.spec.activities.flatMap(({ name, activityType }) =>
      activityType === 'difference' ? [name.replace('difference-', '')] : [],
    )
    expect(found.toSorted()).toEqual(compared.toSorted())
  })

  test('workflow.yaml is what its script writes, with the sizes of the files that Montage writes', () => {
    const declared = montageWorkflow()
    expect(inOrder(workflow.spec.activities)).toHaveLength(51)
    const withoutSizes = (document: WorkflowDocument) => ({
      ...document,
      spec: {
        ...document.spec,
        dataDependencies: document.spec.dataDependencies.map((dependency) => ({
          ...dependency,
          sizeBytes: 1,
        })),
      },
    })
    expect(withoutSizes(workflow)).toEqual(declared)
    for (const { producerActivity, logicalName, sizeBytes } of workflow.spec.dataDependencies) {
      const written = statSync(path.join(folder, producerActivity, logicalName)).size
      // Text depends on how the last digits are printed; images do not.
      if (logicalName.endsWith('.fits')) expect([logicalName, written]).toEqual([logicalName, sizeBytes])
      else expect(Math.abs(written / sizeBytes - 1)).toBeLessThan(0.1)
    }
  })

  test('environment, scope and topology refer to each other', () => {
    const environment = documentNamed('environment.yaml') as {
      version: { id: string }
      resources: { id: string }[]
      resourceRuntimeBindings: { resourceId: string }[]
    }
    const scope = documentNamed('scope.yaml') as {
      id: string
      networkTopologyId: string
      environmentVersionIds: string[]
    }
    expect(scope.environmentVersionIds).toEqual([environment.version.id])
    expect(documentNamed('topology.yaml')).toMatchObject({
      id: scope.networkTopologyId,
      executionScopeId: scope.id,
    })
    expect(environment.resourceRuntimeBindings.map(({ resourceId }) => resourceId)).toEqual([
      environment.resources[0]!.id,
      environment.resources[0]!.id,
    ])
  })
})
