import { expect, test } from '@jest/globals'
import { mkdtempSync } from 'node:fs'
import { join } from 'node:path'
import { mergeLayers } from '../../src/drivers/build/layers.ts'
import { growth } from '../support/growth.ts'
import { runFolder } from '../support/run-folder.ts'
import { storedLayers, type Planted } from './world.ts'

/** The time that layers of images take. */

test('layers with deep folders take time as their paths are long', async () => {
  const folder = mkdtempSync(join(runFolder(), 'layers-'))
  const files = new Map<number, Awaited<ReturnType<typeof storedLayers>>>()
  for (const depth of [500, 2_000]) {
    const paths = Array.from({ length: 200 }, (_, at) => `${String(at)}/${'a/'.repeat(depth)}`)
    const layer = (name: string): Planted[] => paths.map((path) => ({ name: path + name }))
    files.set(depth, await storedLayers(folder, [layer('lower'), layer('upper')]))
  }
  expect(await growth((depth) => mergeLayers(files.get(depth) ?? []), 500)).toBeLessThan(1.6)
})
