import { expect, test } from '@jest/globals'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { follow, type ChangeWatch } from '../../src/http/followed-stream.ts'

/** A text that grows, and announces it. */
const openText = (begin = '') => {
  let text = begin
  const waiting = new Set<() => void>()
  const watch = (): ChangeWatch => ({
    wait: (ms, signal) => {
      const { promise, resolve } = Promise.withResolvers<'changed' | 'quiet' | 'left'>()
      const timer = setTimeout(resolve, ms, 'quiet')
      const wake = (): void => resolve('changed')
      waiting.add(wake)
      signal.addEventListener('abort', () => resolve('left'), { once: true })
      void promise.then(() => {
        clearTimeout(timer)
        waiting.delete(wake)
      })
      return { over: promise, leave: () => resolve('left') }
    },
    leave: () => undefined,
  })
  const read = (after: number) =>
    Promise.resolve({ bytes: Buffer.from(text.slice(after)), last: text.length, full: false })
  return {
    grow: (more: string): void => {
      text += more
      for (const wake of [...waiting]) wake()
    },
    followed: follow({ from: 0, read, watch, keepAlive: Buffer.from('.') }),
  }
}

test('a change while a comment waits for its reader is read after it', async () => {
  const text = openText()
  const stream = text.followed({ keepAliveMs: 30 })
  await once(stream, 'readable')
  text.grow('data')
  let taken = ''
  for await (const chunk of stream) if ((taken += String(chunk)).endsWith('data')) break
  expect(taken).toMatch(/^\.+data$/)
})

test('a reader that takes a long piece part by part has the time of a stall for each', async () => {
  const text = openText('x'.repeat(500_000))
  const cuts: boolean[] = []
  const stream = text.followed({ stallMs: 2_000, opened: () => (cut) => void cuts.push(cut) })
  let taken = 0
  for await (const chunk of stream) {
    if ((taken += (chunk as Buffer).length) === 500_000) break
    await sleep(300)
  }
  expect([taken, cuts]).toEqual([500_000, [false]])
})

test('a burst cuts the reader that leaves it, not the one that takes it', async () => {
  const cuts: string[] = []
  const open = (name: string) => {
    const text = openText('begin')
    const opened = () => (cut: boolean) => void cuts.push(`${name} ${String(cut)}`)
    return { text, stream: text.followed({ mostBehind: 1_000, opened }) }
  }
  const [prompt, deaf] = [open('prompt'), open('deaf')]
  let taken = ''
  prompt.stream.on('data', (chunk) => (taken += String(chunk)))
  deaf.stream.once('data', () => deaf.stream.pause())
  for (let burst = 0; burst < 20; burst++) {
    await sleep(20)
    for (const { text } of [prompt, deaf]) text.grow('x'.repeat(2_000))
  }
  if (!deaf.stream.closed) await once(deaf.stream, 'close')
  expect(cuts).toEqual(['deaf true'])
  while (taken.length < 40_005) await sleep(10)
  expect(taken).toBe(`begin${'x'.repeat(40_000)}`)
  prompt.stream.destroy()
})
