import { expect, test } from '@jest/globals'
import { openEndStream } from '../../src/drivers/runtime/remote/end-stream.ts'
import { until } from '../failures/programs.ts'

/** A stream of ends whose streams are counted, and stand when the test says so. */
const counted = () => {
  const opened: { stands: (now: boolean) => void; isStopped: boolean }[] = []
  const changes: boolean[] = []
  const awaited = { count: 0 }
  const stream = openEndStream({
    follow: (_, stands) => {
      const own = { stands, isStopped: false }
      opened.push(own)
      return () => {
        own.isStopped = true
      }
    },
    ended: () => undefined,
    changed: (now) => void changes.push(now),
    isIdle: () => awaited.count === 0,
  })
  return { opened, changes, awaited, stream }
}

test('callers wait until the only stream stands, and no longer than it takes to see that it does not', async () => {
  const { opened, changes, awaited, stream } = counted()
  awaited.count = 1
  await stream.ready()
  expect(stream.isStanding()).toBe(false)
  let ready = 0
  const both = [stream.ready(), stream.ready()].map((one) => one.then(() => ready++))
  await Promise.resolve()
  expect(ready).toBe(0)
  opened[0]?.stands(true)
  await Promise.all(both)
  expect([stream.isStanding(), changes, opened.length]).toEqual([true, [true], 1])
  opened[0]?.stands(false)
  expect([stream.isStanding(), changes, opened.length]).toEqual([false, [true, false], 1])
  stream.close()
})

test('a stream without awaited tasks is closed, what it says later counts no more, and the next caller opens another', async () => {
  const { opened, changes, awaited, stream } = counted()
  stream.open()
  opened[0]?.stands(true)
  await stream.ready()
  await until('the stream is closed', 120, () => opened[0]?.isStopped === true)
  expect([stream.isStanding(), changes]).toEqual([false, [true, false]])
  opened[0]?.stands(true)
  expect([stream.isStanding(), changes]).toEqual([false, [true, false]])
  awaited.count = 1
  stream.open()
  opened[1]?.stands(true)
  expect([stream.isStanding(), opened.length]).toEqual([true, 2])
  stream.close()
  expect([stream.isStanding(), opened[1]?.isStopped]).toEqual([false, true])
})

test('a close ends every wait, and nothing opens a stream behind it', async () => {
  const { opened, stream } = counted()
  const waiting = stream.ready()
  stream.close()
  await waiting
  await stream.ready()
  stream.open()
  expect([opened.length, stream.isStanding()]).toEqual([1, false])
})
