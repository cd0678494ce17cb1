import { expect, test } from '@jest/globals'
import { setImmediate as turn } from 'node:timers/promises'
import { inPlaces } from '../../src/drivers/transfer/places.ts'

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
