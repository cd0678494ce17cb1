import { expect, test } from '@jest/globals'
import { mkdirSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setImmediate as turn } from 'node:timers/promises'
import { inPlaces } from '../../src/drivers/transfer/places.ts'
import { transfer } from '../../src/drivers/transfer/transfer.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import { until } from '../failures/programs.ts'
import { scratch } from './trees.ts'

/** Work in a place of a connection, until it is ended. */
const started = (link: string, options: Parameters<typeof inPlaces>[2] = {}) => {
  const { promise, resolve } = Promise.withResolvers<undefined>()
  let isInside = false
  const over = inPlaces(
    [link],
    async () => {
      isInside = true
      await promise
      isInside = false
    },
    options,
  )
  over.catch(() => undefined)
  return { end: () => resolve(undefined), over, isInside: () => isInside }
}

test('what yields takes three of four places, and waits behind transfers that came later', async () => {
  const copies = Array.from({ length: 5 }, () => started('busy', { yields: true }))
  await turn()
  expect(copies.map(({ isInside }) => isInside())).toEqual([true, true, true, false, false])
  const [first, second] = [started('busy'), started('busy')]
  await turn()
  expect([first.isInside(), second.isInside()]).toEqual([true, false])
  copies[0]!.end()
  await turn()
  expect([second.isInside(), copies[3]!.isInside()]).toEqual([true, false])
  for (const each of [first, second, ...copies]) each.end()
  await Promise.all([first, second, ...copies].map(({ over }) => over))
})

test('a wait that is given up ends at once, and takes no place', async () => {
  const stop = new AbortController()
  const copies = Array.from({ length: 3 }, () => started('left', { yields: true }))
  const waiting = started('left', { yields: true, signal: stop.signal })
  const next = started('left', { yields: true })
  await turn()
  stop.abort(new Error('the copy was cancelled'))
  await expect(waiting.over).rejects.toThrow('the copy was cancelled')
  copies[0]!.end()
  await turn()
  expect([waiting.isInside(), next.isInside()]).toEqual([false, true])
  await expect(inPlaces(['left'], async () => 1, { signal: stop.signal })).rejects.toThrow('cancelled')
  for (const each of [next, ...copies]) each.end()
  await Promise.all([next, ...copies].map(({ over }) => over))
})

test('a transfer that is given up while it waits for a place ends at once', async () => {
  using folder = scratch()
  const [made, incoming] = [join(folder.path, 'made'), join(folder.path, 'incoming')]
  for (const path of [made, incoming]) mkdirSync(path)
  writeFileSync(join(made, 'file'), 'content')
  const shell = { ...openLocalShell(), link: 'full' }
  const others = Array.from({ length: 4 }, () => started('full'))
  const stop = new AbortController()
  const moving = transfer({
    from: { site: 'there', shell, mounts: [] },
    to: { site: 'here', shell, mounts: [] },
    ...{ source: { directory: made }, directory: join(incoming, 'copy'), label: 'maker' },
    signal: stop.signal,
  })
  moving.catch(() => undefined)
  await until('the target is prepared', 120, () => readdirSync(incoming).length > 0)
  stop.abort(new Error('the task was cancelled'))
  await expect(moving).rejects.toThrow('the task was cancelled')
  for (const each of others) each.end()
  await Promise.all(others.map(({ over }) => over))
  await shell.close()
})
