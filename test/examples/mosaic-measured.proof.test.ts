import { expect, test } from '@jest/globals'
import path from 'node:path'
import { mosaicWorkflow, smallShape } from '../../examples/mosaic/generate-workflow.ts'
import { measureMosaic, profilesOf } from '../../examples/mosaic/measure.ts'

const examples = path.resolve(import.meta.dirname, '../../examples')
const small = mosaicWorkflow(smallShape)

test('is measured by tasks of each type, pass by pass until they are steady, and the full-size steps get full-size input', async () => {
  const order: string[] = []
  const times = await measureMosaic(small, examples, 2, {
    onType: ({ activityType }) => order.push(activityType),
  })
  expect(times.map(({ activityType }) => activityType)).toEqual([
    'observe',
    'project',
    'overlap',
    'background',
    'correct',
    'coadd',
    'picture',
  ])
  for (const { runtimeSeconds, lowestSeconds, highestSeconds, sampleSize, passes } of times) {
    expect(lowestSeconds).toBeGreaterThan(0)
    expect(runtimeSeconds).toBeGreaterThanOrEqual(lowestSeconds)
    expect(highestSeconds).toBeGreaterThanOrEqual(runtimeSeconds)
    expect(passes).toBeGreaterThanOrEqual(3)
    expect(sampleSize).toBeGreaterThanOrEqual(2 * passes)
  }
  // Interleaved: each type was measured once before the first was measured again.
  const types = times.map(({ activityType }) => activityType)
  expect(order.slice(0, 3 * types.length)).toEqual([...types, ...types, ...types])
  const [profile] = profilesOf(small, 'some-host', times)
  expect(profile).toMatchObject({
    activityTypeId: 'mosaic-small-observe',
    resourceId: 'some-host',
    source: 'measured',
  })
  expect(profile!['metadata']).toEqual({
    lowestSeconds: times[0]!.lowestSeconds,
    highestSeconds: times[0]!.highestSeconds,
    passes: times[0]!.passes,
  })
}, 300_000)
