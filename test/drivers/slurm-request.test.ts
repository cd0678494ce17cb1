import { describe, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import type { Intent } from '../../src/drivers/runtime/contract/driver.ts'
import { parseDuration, parseLimits } from '../../src/drivers/runtime/slurm/limits.ts'
import { arraysOf } from '../../src/drivers/runtime/batch/arrays.ts'
import { jobRequest, leaveOutHint, requestOptions } from '../../src/drivers/runtime/slurm/request.ts'
import { plainIntent } from './intent.ts'

const limits = parseLimits(`== now
1795267000
== partitions
main*|infinite|n/a|4|4000|(null)
main*|infinite|n/a|16|64000|gpu:a100:2(S:0-1)
short|5:00|1:00|4|4000|(null)
== config
MaxArraySize            = 1001
AccountingStorageType   = accounting_storage/none
SelectTypeParameters    = CR_CORE_MEMORY
DefMemPerNode           = UNLIMITED
== reservations
ReservationName=school StartTime=1795260000 EndTime=1795267600 Duration=02:06:40
`)
const intent = (more: Partial<Intent> = {}): Intent => ({ ...plainIntent('task', '/w', ['true']), ...more })
const minutes = (more: Partial<Intent>): number | undefined =>
  jobRequest(intent(more), {}, limits).walltimeMinutes
const short = { site: { partition: 'short' } }

test('limits are read as the cluster prints them', () => {
  expect(limits.arraySize).toBe(1000)
  expect(limits.accounting).toBe(false)
  expect(limits.reservations.get('school')).toBe(600)
  expect(limits.partitions.find(({ name }) => name === 'short')).toMatchObject({
    maxSeconds: 300,
    defaultSeconds: 60,
    isDefault: false,
  })
  expect(['infinite', '5:00', '1:00:00', '2-00:00:00', '1-6', '30', 'n/a'].map(parseDuration)).toEqual([
    Infinity,
    300,
    3600,
    172_800,
    108_000,
    1800,
    undefined,
  ])
})

describe('time limit', () => {
  test('covers the activity’s own limit and a polite end after it', () =>
    expect(minutes({ timeoutSeconds: 600 })).toBe(11))
  test('is twice what the plan expects, and a minute at least', () => {
    expect(minutes({ expectedSeconds: 600 })).toBe(20)
    expect(minutes({ expectedSeconds: 3 })).toBe(1)
    expect(jobRequest(intent({ expectedSeconds: 600 }), { walltimeFactor: 3 }, limits).walltimeMinutes).toBe(
      30,
    )
  })
  test('is left to the partition where nobody knows', () => expect(minutes({})).toBeUndefined())
  test('doubles with each end at the site’s limit', () => {
    expect(minutes({ expectedSeconds: 600, walltimeExtensions: 1 })).toBe(40)
    expect(minutes({ expectedSeconds: 600, walltimeExtensions: 3 })).toBe(160)
    expect(minutes({ ...short, walltimeExtensions: 1 })).toBe(2)
  })
  test('is never more than the partition or the reservation gives', () => {
    expect(minutes({ ...short, expectedSeconds: 200 })).toBe(5)
    expect(minutes({ ...short, timeoutSeconds: 3600 })).toBe(5)
    expect(minutes({ site: { reservation: 'school' } })).toBe(10)
  })
  test('a task that cannot end before it is refused with both numbers', () => {
    expect(() => minutes({ ...short, expectedSeconds: 7200 })).toThrow(
      /needs 7200 s.*partition short ends it after 300 s/,
    )
    expect(() => minutes({ site: { reservation: 'school' }, expectedSeconds: 700 })).toThrow(
      /needs 700 s.*reservation school.* 600 s/,
    )
    expect(() => minutes({ ...short, expectedSeconds: 200, walltimeExtensions: 1 })).toThrow(
      /needs 800 s.* 300 s/,
    )
  })
})

test('what no node has is refused before it waits for ever', () => {
  expect(() => jobRequest(intent({ cores: 64 }), {}, limits)).toThrow(/asks for 64 cores.*at most 16 cores/)
  expect(() => jobRequest(intent({ gpus: 1, ...short }), {}, limits)).toThrow(/1 GPUs.*0 GPUs/)
  expect(jobRequest(intent({ gpus: 2, cores: 8 }), {}, limits)).toMatchObject({ gpus: 2, cores: 8 })
})

test('no memory and no time limit are asked for where there is no figure, or the configuration says so', () => {
  const options = (more: Partial<Intent>, requests?: unknown) =>
    requestOptions(jobRequest(intent(more), requests === undefined ? {} : { requests }, limits))
      .filter((word) => /^--(mem|time)=/.test(word))
      .join(' ')
  const task = { memoryBytes: 1_000_000_000, expectedSeconds: 600 }
  expect(options(task)).toBe('--mem=954M --time=20')
  expect(options({ memoryBytes: 0 })).toBe('')
  expect(options(task, { memory: false })).toBe('--time=20')
  expect(options(task, { time: false, memory: true })).toBe('--mem=954M')
  // No node has that, and nobody is asked for it.
  expect(options({ memoryBytes: 1e15 }, { memory: false })).toBe('')
  for (const wrong of [{ memory: 'no' }, { cores: false }, 'memory', 7, null, ['memory']])
    expect(() => options(task, wrong)).toThrow(/requests .* must have memory, time or both/)
})

test('a refusal about an option that was sent names how to leave it out', () => {
  const request = jobRequest(intent({ memoryBytes: 1e9, expectedSeconds: 60 }), {}, limits)
  expect(leaveOutHint(request, 'sbatch: Memory specification can not be satisfied')).toContain(
    'memory: false',
  )
  expect(leaveOutHint(request, 'sbatch: --mem is not allowed here')).toContain('memory: false')
  expect(leaveOutHint(request, 'sbatch: Requested time limit is invalid')).toContain('time: false')
  expect(leaveOutHint(request, 'sbatch: Invalid account')).toBe('')
  expect(leaveOutHint({ cores: 1, gpus: 0 }, 'sbatch: Memory specification')).toBe('')
})

test('the intent’s words go before the runtime’s; what is no line of text is refused by its name', () => {
  const request = jobRequest(
    intent({ site: { account: 'lab', qos: 'high' } }),
    { account: 'other', partition: 'main', workDirectory: '/x' },
    limits,
  )
  expect(request).toMatchObject({ account: 'lab', qos: 'high', partition: 'main' })
  for (const value of ['a\nb', 7, 'x'.repeat(256), ['main']])
    expect(() => jobRequest(intent({ site: { constraint: value } }), {}, limits)).toThrow(/constraint/)
})

test('equal requests share arrays, in any number, each name once; an array’s name is that of its tasks', () => {
  fc.assert(
    fc.property(
      fc.array(fc.integer({ min: 1, max: 3 }), { maxLength: 60 }),
      fc.integer({ min: 1, max: 20 }),
      (cores, size) => {
        const requests = new Map(
          cores.map((count, position) => [`t${position}`, jobRequest(intent({ cores: count }), {}, limits)]),
        )
        const arrays = arraysOf(requests, { arraySize: size })
        expect(arrays.flatMap(({ tasks }) => tasks).sort()).toEqual([...requests.keys()].sort())
        for (const { tasks, request } of arrays) {
          expect(tasks.length).toBeLessThanOrEqual(size)
          for (const task of tasks) expect(requests.get(task)).toEqual(request)
        }
        expect(new Set(arrays.map(({ name }) => name)).size).toBe(arrays.length)
        expect(arraysOf(requests, { arraySize: size })).toEqual(arrays)
      },
    ),
  )
})

test('each option is one word, whatever it holds', () => {
  fc.assert(
    fc.property(fc.string({ minLength: 1, maxLength: 50 }), (text) => {
      fc.pre(!/\p{Cc}/u.test(text))
      const request = jobRequest(intent({ site: { account: text, constraint: text } }), {}, limits)
      expect(requestOptions(request)).toContain(`--account=${text}`)
      expect(requestOptions(request).filter((word) => !word.startsWith('--'))).toEqual([])
    }),
  )
})
