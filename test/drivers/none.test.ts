import { expect, test } from '@jest/globals'
import type { Intent } from '../../src/drivers/runtime/contract/driver.ts'
import { openNoneDriver } from '../../src/drivers/runtime/none/driver.ts'

const intent = (name: string): Intent => ({
  name,
  directory: '/nowhere/at/all',
  argv: ['/no/such/program'],
  environment: {},
  stage: [{ from: '/nowhere', label: 'nobody' }],
  expectedOutputs: ['file'],
  cores: 1,
  memoryBytes: 0,
  timeoutSeconds: 1,
})

test('every task ends with exit 0 at once, and nothing is done', async () => {
  const driver = openNoneDriver({ runtime: 'rehearsal' })
  const intents = Array.from({ length: 1000 }, (_, position) => intent(`t-${position}`))
  const names = intents.map((one) => one.name)
  expect([...(await driver.find(names)).values()].every((state) => state.state === 'unknown')).toBe(true)
  const calls: string[] = []
  driver.watch(names, (name) => calls.push(name))
  expect((await driver.submit(intents)).every((outcome) => outcome.ok)).toBe(true)
  await driver.submit(intents)
  await new Promise(setImmediate)
  await new Promise(setImmediate)
  expect(calls).toEqual(names)
  const collected = await driver.collect('t-7')
  expect(collected).toMatchObject({
    state: { state: 'ended', exitCode: 0, reason: 'exited' },
    missingOutputs: [],
    wallSeconds: 0,
    cpuSeconds: null,
    measuredBy: 'none',
    manifest: { runtime: 'rehearsal', files: [] },
  })
  expect(await driver.collect('t-7')).toEqual(collected)
  expect((await driver.logs('t-7', 'stdout', { tail: 10 })).totalBytes).toBe(0)
  await driver.remove('t-7')
  expect((await driver.find(['t-7'])).get('t-7')).toEqual({ state: 'unknown' })
  await driver.close()
})

test('what was cancelled before it was submitted stays cancelled; what ended stays ended', async () => {
  const driver = openNoneDriver()
  await driver.submit([intent('first')])
  await driver.cancel(['first', 'second'], 1)
  await driver.submit([intent('second')])
  const states = await driver.find(['first', 'second'])
  expect(states.get('first')).toMatchObject({ state: 'ended', exitCode: 0, reason: 'exited' })
  expect(states.get('second')).toMatchObject({ state: 'ended', exitCode: null, reason: 'cancelled' })
  await expect(driver.collect('third')).rejects.toMatchObject({ trouble: 'unknown' })
})

test('a watch that was stopped, or whose name has ended before, is told accordingly', async () => {
  const driver = openNoneDriver()
  const calls: string[] = []
  driver.watch(['late'], () => calls.push('stopped'))()
  await driver.submit([intent('late')])
  driver.watch(['late'], (name) => calls.push(name))
  await new Promise(setImmediate)
  await new Promise(setImmediate)
  expect(calls).toEqual(['late'])
})
