import { expect, test } from '@jest/globals'
import { eachRecord } from '../../src/db/each-record.ts'

const away = Object.assign(new Error('refused'), { code: 'ECONNREFUSED' })

/** The records that were worked at, and those whose failure was told. */
const round = async (work: (record: number) => unknown, signal?: AbortSignal) => {
  const begun: number[] = []
  const failed: number[] = []
  const whole = await eachRecord(
    [1, 2, 3, 4],
    async (record) => {
      begun.push(record)
      return work(record)
    },
    (_error, record) => void failed.push(record),
    signal,
  )
  return { whole, begun, failed }
}

test('one failure is told, and the rest goes on', async () => {
  const fails = (record: number): void => {
    if (record === 2) throw new Error('it cannot be read')
  }
  expect(await round(fails)).toEqual({ whole: true, begun: [1, 2, 3, 4], failed: [2] })
})

test('what no record can do without ends the round: its own word, a stop, a database that is away', async () => {
  expect(await round((record) => record !== 2)).toEqual({ whole: false, begun: [1, 2], failed: [] })
  const stop = new AbortController()
  const stops = (record: number): void => {
    if (record === 3) stop.abort()
  }
  expect(await round(stops, stop.signal)).toEqual({ whole: false, begun: [1, 2, 3], failed: [] })
  await expect(
    round(() => {
      throw away
    }),
  ).rejects.toBe(away)
})
