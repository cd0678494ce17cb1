import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { DriverError } from '../../src/drivers/runtime/contract/driver.ts'
import { openHttp } from '../../src/clients/http.ts'
import type { SlurmScheduler } from '../../src/drivers/runtime/slurm/scheduler.ts'
import {
  openSlurmRest,
  parseRestJobs,
  parseRestLimits,
  parseRestRecords,
} from '../../src/drivers/runtime/slurm/rest.ts'
import type { SiteShell } from '../../src/shell/site-shell.ts'

const number = (value: number): unknown => ({ set: true, infinite: false, number: value })
const unset = { set: false, infinite: false, number: 0 }
const infinite = { set: true, infinite: true, number: 0 }

/** As slurmrestd of Slurm 24.11 tells them (data_parser/v0.0.42). */
const later = {
  partitions: {
    partitions: [
      {
        name: 'main',
        nodes: { allowed_allocation: '', configured: 'n[1-2]', total: 2 },
        defaults: {
          memory_per_cpu: 0,
          partition_memory_per_cpu: unset,
          partition_memory_per_node: unset,
          time: number(30),
          job: '',
        },
        maximums: { nodes: infinite, time: number(120), over_time_limit: unset },
        partition: { state: ['UP'] },
      },
    ],
    last_update: number(1_795_000_000),
    errors: [],
    warnings: [],
  },
  nodes: {
    nodes: [
      {
        name: 'n1',
        cpus: 8,
        real_memory: 32_000,
        partitions: ['main'],
        gres: 'gpu:a100:2(S:0-1)',
        state: ['IDLE'],
      },
      {
        name: 'n2',
        cpus: 4,
        real_memory: 16_000,
        partitions: ['main'],
        gres: '',
        state: ['MIXED', 'PLANNED'],
      },
    ],
  },
  reservations: { reservations: [{ name: 'course', start_time: number(900), end_time: number(4600) }] },
}

/** The same cluster as Slurm 22.05 tells it (openapi/v0.0.38). */
const earlier = {
  partitions: {
    partitions: [
      {
        name: 'main',
        flags: ['default'],
        default_time_limit: 30,
        max_time_limit: 120,
        default_memory_per_node: null,
        default_memory_per_cpu: null,
      },
    ],
  },
  nodes: later.nodes,
  reservations: { reservations: [{ name: 'course', start_time: 900, end_time: 4600 }] },
}

describe('limits', () => {
  test.each([
    ['0.0.38', earlier],
    ['0.0.42', later],
  ])('of version %s are those of the cluster', (_version, { partitions, nodes, reservations }) => {
    expect(parseRestLimits(partitions, nodes, reservations, 1000)).toEqual({
      partitions: [
        {
          name: 'main',
          isDefault: true,
          maxSeconds: 7200,
          defaultSeconds: 1800,
          nodes: [
            { cores: 8, megabytes: 32_000, gpus: 2 },
            { cores: 4, megabytes: 16_000, gpus: 0 },
          ],
        },
      ],
      arraySize: 1000,
      accounting: false,
      killsInJobs: false,
      reservations: new Map([['course', 3600]]),
    })
  })

  test('no time limit, in both shapes', () => {
    for (const partition of [
      { name: 'a', max_time_limit: -1 },
      { name: 'a', maximums: { time: infinite } },
      { name: 'a', maximums: { time: unset } },
    ])
      expect(parseRestLimits({ partitions: [partition] }, {}, {}, 0).partitions[0]?.maxSeconds).toBe(Infinity)
  })

  test('of several partitions none is taken for the default where the interface does not tell', () => {
    const two = {
      partitions: [...later.partitions.partitions, { ...later.partitions.partitions[0], name: 'long' }],
    }
    expect(parseRestLimits(two, later.nodes, {}, 0).partitions.map(({ isDefault }) => isDefault)).toEqual([
      false,
      false,
    ])
  })
})

test('jobs of 0.0.38 and of 0.0.42 read alike', () => {
  const common = { name: 'orrery-x', array_task_string: '', state_reason: 'None', nodes: 'n1' }
  const before = {
    ...common,
    job_id: 12,
    array_job_id: 10,
    array_task_id: 2,
    job_state: 'RUNNING',
    start_time: 1000,
    end_time: 0,
  }
  const after = {
    ...common,
    job_id: 12,
    array_job_id: number(10),
    array_task_id: number(2),
    job_state: ['RUNNING'],
    start_time: number(1000),
    end_time: number(0),
  }
  const read = {
    job: '10',
    indexes: [2],
    name: 'orrery-x',
    state: 'RUNNING',
    reason: undefined,
    startedAt: 1000,
    endedAt: undefined,
    node: 'n1',
  }
  expect(parseRestJobs({ jobs: [before] })).toEqual([read])
  expect(parseRestJobs({ jobs: [after] })).toEqual([read])
  const waiting = {
    ...after,
    array_task_id: unset,
    array_task_string: '0-1,3',
    job_state: ['PENDING'],
    start_time: unset,
    nodes: '',
  }
  expect(parseRestJobs({ jobs: [waiting] })).toMatchObject([
    { indexes: [0, 1, 3], state: 'PENDING', startedAt: undefined, node: undefined },
  ])
  // Another account's job may have the name of one of our arrays.
  const theirs = { ...waiting, user_name: 'eve' }
  expect(parseRestJobs({ jobs: [theirs, { ...after, user_name: 'ada' }] }, 'ada')).toEqual([read])
  expect(parseRestJobs({ jobs: [{ ...after, job_state: ['COMPLETED', 'COMPLETING'] }] })).toMatchObject([
    { state: 'COMPLETING' },
  ])
  expect(parseRestJobs({ jobs: [{ ...after, job_state: ['PENDING', 'REQUEUE_HOLD'] }] })).toMatchObject([
    { state: 'REQUEUE_HOLD' },
  ])
  for (const job of [
    { ...before, job_state: 'OUT_OF_MEMORY' },
    { ...after, job_state: ['OUT_OF_MEMORY'] },
  ])
    expect(parseRestJobs({ jobs: [job] })).toMatchObject([{ state: 'OUT_OF_MEMORY' }])
})

describe('accounting', () => {
  const usage = (count: number) => ({
    requested: {
      max: [
        { type: 'cpu', id: 1, count: 150 },
        { type: 'mem', name: null, id: 2, count },
      ],
    },
    consumed: { max: [{ type: 'energy', id: 3, count: 0 }] },
  })
  /** As slurmdbd of Slurm 22.05 tells it (openapi/dbv0.0.38). */
  const before = {
    ...{ name: 'orrery-x', job_id: 12, nodes: 'n1' },
    array: { job_id: 10, limits: { max: { running: { tasks: 0 } } }, task: null, task_id: 2 },
    time: { elapsed: 6, eligible: 1000, start: 1001, end: 1007, limit: null },
    state: { current: 'COMPLETED', reason: 'None' },
    steps: [{ state: 'COMPLETED', step: { id: 'batch', name: 'batch' }, tres: usage(206_036_992) }],
  }
  /** As slurmdbd of Slurm 24.11 does (data_parser/v0.0.42). */
  const after = {
    ...before,
    array: { ...before.array, task: '', task_id: number(2) },
    time: { ...before.time, limit: number(60) },
    state: { current: ['COMPLETED'], reason: 'None' },
    steps: [{ ...before.steps[0], state: ['COMPLETED'] }],
  }
  const read = {
    ...{ job: '10', indexes: [2], name: 'orrery-x', state: 'COMPLETED', reason: undefined },
    ...{ startedAt: 1001, endedAt: 1007, node: 'n1', peakMemoryBytes: 206_036_992 },
  }
  const stateOf = (job: object): string | undefined => parseRestRecords({ jobs: [job] })[0]?.state

  test('of 0.0.38 and of 0.0.42 reads alike', () => {
    expect(parseRestRecords({ jobs: [before] })).toEqual([read])
    expect(parseRestRecords({ jobs: [after] })).toEqual([read])
    expect(parseRestRecords({ jobs: [{ ...before, name: 'own' }] })).toEqual([])
    const waiting = {
      ...after,
      ...{ array: { job_id: 10, task: '0-1,3', task_id: unset }, nodes: 'None assigned', steps: [] },
      ...{ time: { start: 0, end: 0 }, state: { current: ['PENDING'], reason: 'Priority' } },
    }
    expect(parseRestRecords({ jobs: [waiting] })).toEqual([
      {
        ...{ ...read, indexes: [0, 1, 3], state: 'PENDING', reason: 'Priority' },
        ...{ startedAt: undefined, endedAt: undefined, node: undefined, peakMemoryBytes: undefined },
      },
    ])
  })

  test('a want of memory of the job, or of a step of it, counts in both shapes', () => {
    expect(stateOf({ ...before, state: { current: 'OUT_OF_MEMORY' } })).toBe('OUT_OF_MEMORY')
    expect(stateOf({ ...after, state: { current: ['OUT_OF_MEMORY'] } })).toBe('OUT_OF_MEMORY')
    expect(stateOf({ ...before, steps: [{ state: 'OUT_OF_MEMORY' }] })).toBe('OUT_OF_MEMORY')
    const failed = { ...after, state: { current: ['FAILED'] } }
    expect(stateOf({ ...failed, steps: [{ state: ['COMPLETED'] }, { state: ['OUT_OF_MEMORY'] }] })).toBe(
      'OUT_OF_MEMORY',
    )
    expect(stateOf(failed)).toBe('FAILED')
    expect(
      stateOf({ ...after, state: { current: ['NODE_FAIL'] }, steps: [{ state: ['OUT_OF_MEMORY'] }] }),
    ).toBe('NODE_FAIL')
  })
})

describe('the version', () => {
  const http = openHttp({ addressAllowed: () => true })
  let server: Server
  let url: string
  let versions: string[]
  let asked: { method: string; path: string; body: unknown }[]
  let errors: object[] = []
  /** Where the paths begin whose answers have the errors. */
  let errorsOf = ''
  let hasRecords = false
  beforeAll(async () => {
    server = createServer((request, response) => {
      let text = ''
      request.on('data', (chunk: Buffer) => (text += chunk.toString()))
      request.on('end', () => {
        const path = request.url ?? ''
        asked.push({
          method: request.method ?? '',
          path,
          body: text === '' ? undefined : (JSON.parse(text) as unknown),
        })
        const answer = path.startsWith('/openapi')
          ? {
              openapi: '3.0.3',
              paths: Object.fromEntries(
                versions.flatMap((one) => [
                  [`/slurm/${one}/jobs/`, {}],
                  [`/slurm/${one}/job/submit`, {}],
                  ...(hasRecords ? [[`/slurmdb/${one}/job/{job_id}`, {}]] : []),
                ]),
              ),
            }
          : {
              ...{ job_id: 4711, step_id: 'batch', job_submit_user_msg: '', jobs: [], warnings: [] },
              errors: path.startsWith(errorsOf) ? errors : [],
            }
        response.setHeader('content-type', 'application/json')
        response.end(JSON.stringify(answer))
      })
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  })
  afterAll(() => {
    http.close()
    return new Promise<void>((resolve) => void server.close(() => resolve()))
  })

  const shell: SiteShell = {
    run: (script) =>
      Promise.resolve({
        code: 0,
        signal: null,
        stdout: Buffer.from(script.startsWith('cat ') ? '#!/bin/sh\n' : ''),
        stderr: '',
      }),
    open: () => Promise.reject(new Error('nothing is opened')),
    close: () => Promise.resolve(),
  }
  let accountingAwayMs: number | undefined
  const open = (...served: string[]) => {
    versions = served
    asked = []
    return openSlurmRest({
      http,
      url,
      user: 'ada',
      token: () => Promise.resolve('token'),
      shell,
      root: () => Promise.resolve('/srv'),
      requeue: false,
      deadlineSeconds: 5,
      ...(accountingAwayMs === undefined ? {} : { accountingAwayMs }),
    })
  }

  test.each([
    [['v0.0.36', 'v0.0.37', 'v0.0.38'], 'v0.0.38'],
    [['v0.0.42', 'v0.0.40', 'v0.0.41'], 'v0.0.42'],
    [['v0.0.43', 'v0.0.44', 'v0.0.45'], 'v0.0.44'],
    [['v0.0.46', 'v0.0.45'], 'v0.0.45'],
  ])('of %j is %s', async (served, chosen) => {
    const slurm = open(...served)
    await slurm.queue()
    expect(await slurm.jobs(['4711'])).toEqual([])
    expect(asked.pop()?.path).toBe(`/slurm/${chosen}/job/4711`)
    expect(asked.map(({ path }) => path)).toEqual(['/openapi/v3', `/slurm/${chosen}/jobs`])
  })

  test.each([
    [
      { error_number: 2017, error: 'Invalid job id specified', description: 'unable to query JobId=4711' },
      true,
    ],
    [{ error: '_handle_job_get: unknown job', description: 'Invalid job id specified' }, true],
    [{ error_number: 1, error: 'Unspecified', description: 'unable to query JobId=4711' }, false],
    [{ error: 'Unable to find plugin', description: 'not found' }, false],
  ])('%j about a job is an answer: %p', async (error, isAnswer) => {
    const slurm = open('v0.0.42')
    errors = [error]
    const answer = await slurm.jobs(['4711']).catch((trouble: unknown) => trouble)
    errors = []
    if (isAnswer) expect(answer).toEqual([])
    else expect(answer).toBeInstanceOf(DriverError)
  })

  test('serves accounting or does not; one that is away is silent, and a job without a record has none', async () => {
    expect(await open('v0.0.38').limits()).toMatchObject({ accounting: false })
    hasRecords = true
    const accountingAt = async (slurm: SlurmScheduler, error: string): Promise<boolean> => {
      errorsOf = '/slurmdb/'
      errors = [{ error }]
      const { accounting } = await slurm.limits()
      ;[errors, errorsOf] = [[], '']
      return accounting
    }
    const [away, none] = ['Connection refused', 'Unable to connect to database']
    expect(await accountingAt(open('v0.0.38'), away)).toBe(true)
    // A refusal is that of a database which is away, until it lasts.
    expect(await accountingAt(open('v0.0.38'), none)).toBe(true)
    accountingAwayMs = 0
    const slurm = open('v0.0.38')
    accountingAwayMs = undefined
    expect(await accountingAt(slurm, none)).toBe(false)
    expect(await slurm.limits()).toMatchObject({ accounting: true })
    expect(asked.at(-1)?.path).toBe('/slurmdb/v0.0.38/clusters')
    expect(await accountingAt(slurm, none)).toBe(true)
    errors = [{ description: 'Nothing found', error_number: 9003, error: 'Nothing found with query' }]
    expect(await slurm.history(['5'], 60)).toEqual([])
    expect(asked.at(-1)?.path).toBe('/slurmdb/v0.0.38/job/5')
    errors = [{ error_number: 7000, error: 'Unable to connect to database' }]
    await expect(slurm.history(['5'], 60)).rejects.toBeInstanceOf(DriverError)
    errors = []
    hasRecords = false
  })

  test('that submits nothing is refused with what to start', async () => {
    await expect(open().queue()).rejects.toMatchObject({
      trouble: 'refused',
      message: expect.stringContaining('openapi/slurmctld') as unknown,
    })
  })

  test('decides how a job is written: plain before 0.0.39, numbers and lists as objects and arrays from then on', async () => {
    const request = { cores: 2, gpus: 1, memoryMegabytes: 500, walltimeMinutes: 10, partition: 'main' }
    const array = { name: 'orrery-x', request } as Parameters<ReturnType<typeof open>['submit']>[0]
    expect(await open('v0.0.38').submit(array, [0, 1, 2])).toBe('4711')
    expect(asked.at(-1)).toMatchObject({
      path: '/slurm/v0.0.38/job/submit',
      body: {
        script: '#!/bin/sh\n',
        job: {
          array: '0-2',
          nodes: [1, 1],
          memory_per_node: 500,
          time_limit: 10,
          gres: 'gpu:1',
          environment: { PATH: expect.any(String) as unknown },
        },
      },
    })
    expect(await open('v0.0.41', 'v0.0.42').submit(array, [0, 1, 2])).toBe('4711')
    expect(asked.at(-1)).toMatchObject({
      path: '/slurm/v0.0.42/job/submit',
      body: {
        script: '#!/bin/sh\n',
        job: {
          array: '0-2',
          nodes: '1',
          memory_per_node: number(500),
          time_limit: number(10),
          tres_per_node: 'gres/gpu:1',
          environment: [expect.stringContaining('PATH=') as unknown],
        },
      },
    })
  })
})
