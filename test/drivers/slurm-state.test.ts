import { describe, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { parseIndexes, renderIndexes } from '../../src/drivers/runtime/slurm/array.ts'
import {
  parseHistory,
  parseJobRecords,
  parseQueue,
  type SlurmJob,
} from '../../src/drivers/runtime/slurm/jobs.ts'
import { elementId, type QueuedElement } from '../../src/drivers/runtime/batch/scheduler.ts'
import { stateOfVerdict } from '../../src/drivers/runtime/batch/verdict.ts'
import { jobOf, judgeJob, type Evidence } from '../../src/drivers/runtime/slurm/state.ts'
import type { EndedSight, RemoteSight, StartedSight } from '../../src/drivers/runtime/remote/tasks.ts'

const patience = { settleSeconds: 30, historySeconds: 14_400 }
const place: QueuedElement = { array: 'orrery-1', index: 3, submittedAt: 1000, limitSeconds: 600, job: '77' }
const started: StartedSight = {
  form: 'started',
  pid: 1,
  node: 'n1',
  startedAt: 1010,
  submittedAt: 1000,
  supervised: undefined,
  marked: false,
  cancelAsked: false,
}
const ended: EndedSight = {
  form: 'ended',
  pid: 1,
  node: 'n1',
  submittedAt: 1000,
  startedAt: 1010,
  finishedAt: 1020,
  exitCode: 0,
  signal: null,
  reason: 'exited',
  wallSeconds: 10,
  cpuSeconds: 1,
  peakMemoryBytes: 1,
  measuredBy: 'time',
}
const stopped: EndedSight = { ...ended, exitCode: null, signal: 'SIGTERM', reason: 'stopped' }
const none: RemoteSight = { form: 'none' }
const row = (state: string, more: Partial<SlurmJob> = {}): SlurmJob => ({
  job: '77',
  indexes: [3],
  name: 'orrery-1',
  state,
  ...more,
})
const judged = (evidence: Partial<Evidence>) =>
  judgeJob(
    { sight: none, place, cancelAsked: false, queue: 'absent', history: 'none', overSeconds: 0, ...evidence },
    patience,
  )

describe('what the scheduler and the records say together', () => {
  test.each<[words: string, evidence: Partial<Evidence>, state: Record<string, unknown>]>([
    [
      'waits, with the reason',
      { queue: row('PENDING', { reason: 'Resources' }) },
      { state: 'queued', cause: 'Resources', externalId: '77_3' },
    ],
    ['is being set up', { queue: row('CONFIGURING') }, { state: 'queued', cause: 'CONFIGURING' }],
    [
      'runs before its record shows',
      { queue: row('RUNNING', { startedAt: 1005 }) },
      { state: 'running', startedAt: 1005 },
    ],
    ['runs', { sight: started, queue: row('RUNNING') }, { state: 'running', startedAt: 1010 }],
    ['is held up by an operator', { sight: started, queue: row('SUSPENDED') }, { state: 'running' }],
    ['cleans up', { sight: started, queue: row('COMPLETING') }, { state: 'running' }],
    [
      'was put back into the queue',
      { sight: stopped, queue: row('PENDING', { reason: 'BeginTime' }) },
      { state: 'queued', cause: 'BeginTime' },
    ],
    ['a state of a later version', { sight: started, queue: row('EXPEDITING') }, { state: 'running' }],
    [
      'ended by itself, whatever the scheduler says',
      { sight: ended, queue: row('RUNNING') },
      { state: 'ended', reason: 'exited', exitCode: 0 },
    ],
    [
      'exit 0, but a step was out of memory',
      { sight: ended, queue: row('OUT_OF_MEMORY') },
      { state: 'ended', reason: 'memory' },
    ],
    [
      'exit 0, out of memory by the accounting',
      { sight: ended, history: row('OUT_OF_MEMORY') },
      { state: 'ended', reason: 'memory' },
    ],
    [
      'out of memory, killed',
      { sight: started, queue: row('OUT_OF_MEMORY') },
      { state: 'ended', reason: 'memory', signal: 'SIGKILL' },
    ],
    [
      'time limit of the site',
      { sight: started, queue: row('TIMEOUT', { endedAt: 1700 }) },
      { state: 'ended', reason: 'walltime', finishedAt: 1700 },
    ],
    [
      'time limit, ended politely',
      { sight: stopped, queue: row('TIMEOUT') },
      { state: 'ended', reason: 'walltime', signal: 'SIGTERM' },
    ],
    [
      'node lost',
      { sight: started, queue: row('NODE_FAIL', { node: 'n1' }) },
      { state: 'lost', cause: 'NODE_FAIL on node n1' },
    ],
    ['displaced', { sight: stopped, queue: row('PREEMPTED') }, { state: 'lost', cause: 'PREEMPTED' }],
    ['node did not boot', { queue: row('BOOT_FAIL') }, { state: 'lost', cause: 'BOOT_FAIL' }],
    ['deadline', { sight: started, queue: row('DEADLINE') }, { state: 'lost', cause: 'DEADLINE' }],
    [
      'taken out by another',
      { sight: started, history: row('CANCELLED', { reason: 'by 0' }) },
      { state: 'lost', cause: 'CANCELLED by 0' },
    ],
    [
      'taken out by another while it waited',
      { queue: row('CANCELLED') },
      { state: 'lost', cause: 'CANCELLED' },
    ],
    [
      'we asked, it was killed before it could say so',
      { sight: { ...started, cancelAsked: true }, queue: row('CANCELLED') },
      { state: 'ended', reason: 'cancelled' },
    ],
    [
      'we asked, and the site stopped it',
      { sight: stopped, cancelAsked: true, queue: row('CANCELLED') },
      { state: 'ended', reason: 'cancelled' },
    ],
    [
      'cancelled before it started',
      { sight: { form: 'buried', at: 5 }, queue: row('RUNNING') },
      { state: 'ended', reason: 'cancelled', exitCode: null },
    ],
    [
      'failed, its record may be late',
      { sight: started, queue: row('FAILED'), overSeconds: 29 },
      { state: 'running' },
    ],
    [
      'completed, and no record came',
      { sight: started, queue: row('COMPLETED'), overSeconds: 30 },
      { state: 'lost' },
    ],
    [
      'failed before it started',
      { queue: row('FAILED', { reason: 'NonZeroExitCode', node: 'n2' }), overSeconds: 30 },
      { state: 'lost' },
    ],
    ['gone, accounting is late', { sight: started, history: 'absent', overSeconds: 5 }, { state: 'running' }],
    [
      'silent before the task has a record, and it ran',
      { queue: 'silent', ranSince: 1001 },
      { state: 'running', startedAt: 1001 },
    ],
    [
      'gone before the task has a record, and it ran',
      { ranSince: 1001, overSeconds: 5 },
      { state: 'running', startedAt: 1001 },
    ],
    ['put back into the queue after it ran', { queue: row('PENDING'), ranSince: 1001 }, { state: 'queued' }],
    [
      'nobody mentions it',
      { sight: started, overSeconds: 1e6 },
      { state: 'running', cause: expect.stringMatching(/does not mention job 77_3, there is no accounting/) },
    ],
    [
      'nobody mentions it, and it has not started',
      { history: 'absent', overSeconds: 1e6 },
      { state: 'queued', cause: expect.stringMatching(/accounting has no end of it, and it has no record/) },
    ],
    [
      'the controller does not mention it, accounting has it as alive',
      { sight: started, history: row('RUNNING'), overSeconds: 1e6 },
      { state: 'running', cause: expect.stringContaining('accounting has it as RUNNING') },
    ],
    [
      'nobody mentions it, and we asked for its end',
      { sight: { ...started, cancelAsked: true }, cancelAsked: true, overSeconds: 30 },
      { state: 'ended', reason: 'cancelled' },
    ],
    [
      'taken out of the queue, and nobody mentions it any more',
      { sight: started, removed: 'launch failed requeued held', overSeconds: 30 },
      { state: 'lost', cause: 'launch failed requeued held' },
    ],
    [
      'taken out of the queue, by the scheduler’s word',
      { sight: started, queue: row('CANCELLED', { reason: 'by 1000' }), removed: 'JobHeldAdmin' },
      { state: 'lost', cause: 'JobHeldAdmin' },
    ],
    ['another cluster of the federation runs it', { queue: row('REVOKED') }, { state: 'queued' }],
    [
      'held by its user',
      { queue: row('PENDING', { reason: 'JobHeldUser' }), overSeconds: 1e6 },
      { state: 'queued', cause: expect.stringMatching(/^JobHeldUser: .*scontrol release 77_3/) },
    ],
    [
      'gone, accounting silent for hours',
      { sight: started, history: 'silent', overSeconds: 14_000 },
      { state: 'running' },
    ],
    [
      'gone, accounting silent beyond patience',
      { sight: started, history: 'silent', overSeconds: 14_401 },
      { state: 'running' },
    ],
    [
      'stopped from outside, accounting silent beyond patience',
      { sight: stopped, history: 'silent', overSeconds: 14_401 },
      { state: 'lost', cause: 'stopped by a signal from outside' },
    ],
    [
      'gone after its whole time, no accounting',
      { sight: { ...stopped, finishedAt: 1611 }, overSeconds: 30 },
      { state: 'ended', reason: 'walltime' },
    ],
    ['stopped from outside, no accounting', { sight: stopped, overSeconds: 30 }, { state: 'lost' }],
  ])('%s', (_words, evidence, state) => {
    expect(judged(evidence).state).toMatchObject(state)
  })

  test('what the site holds is told in its words; what its user holds is not', () => {
    const held = (state: string, reason?: string) =>
      judged({ queue: row(state, reason === undefined ? {} : { reason }), sight: started }).held
    expect(held('PENDING', 'launch failed requeued held')).toBe('launch failed requeued held')
    expect(held('PENDING', 'launch_failed_requeued_held')).toBe('launch_failed_requeued_held')
    expect(held('PENDING', 'JobHeldAdmin')).toBe('JobHeldAdmin')
    expect(held('PENDING', 'JobHoldMaxRequeue')).toBe('JobHoldMaxRequeue')
    expect(held('PENDING', 'job requeued in held state')).toBe('job requeued in held state')
    expect(held('PENDING', 'job_requeued_in_special_exit_state')).toBe('job_requeued_in_special_exit_state')
    expect(held('REQUEUE_HOLD', 'JobHeldUser')).toBe('REQUEUE_HOLD (JobHeldUser)')
    expect(held('REQUEUE_HOLD')).toBe('REQUEUE_HOLD')
    expect(held('SPECIAL_EXIT', 'JobHeldAdmin')).toBe('SPECIAL_EXIT (JobHeldAdmin)')
    for (const [state, reason] of [
      ['PENDING', 'JobHeldUser'],
      ['PENDING', 'Resources'],
      ['PENDING', 'PreemptThreshold'],
      ['PENDING', 'BeginTime'],
      ['RUNNING', 'JobHeldAdmin'],
    ] as const)
      expect(held(state, reason)).toBeUndefined()
  })

  test('a reason that no time removes is told, others are not', () => {
    expect(judged({ queue: row('PENDING', { reason: 'PartitionTimeLimit' }) }).impossible).toBe(
      'PartitionTimeLimit',
    )
    expect(judged({ queue: row('PENDING', { reason: 'QOSMaxWallDurationPerJobLimit' }) }).impossible).toBe(
      'QOSMaxWallDurationPerJobLimit',
    )
    for (const reason of [
      'Resources',
      'Priority',
      'QOSMaxJobsPerUserLimit',
      'ReqNodeNotAvail',
      'JobHeldUser',
    ])
      expect(judged({ queue: row('PENDING', { reason }) }).impossible).toBeUndefined()
  })
})

const sights = fc.constantFrom<RemoteSight>(
  none,
  { form: 'claimed', ageSeconds: 1 },
  started,
  { ...started, cancelAsked: true },
  stopped,
  ended,
)
const live = fc.constantFrom(
  'PENDING',
  'CONFIGURING',
  'RUNNING',
  'COMPLETING',
  'SUSPENDED',
  'REQUEUED',
  'STAGE_OUT',
  'SOMETHING_NEW',
)
const over = fc.constantFrom(
  'COMPLETED',
  'FAILED',
  'CANCELLED',
  'TIMEOUT',
  'NODE_FAIL',
  'PREEMPTED',
  'OUT_OF_MEMORY',
  'BOOT_FAIL',
  'DEADLINE',
)
const anyRow = fc.oneof(live, over).map((state) => row(state))
const sources = fc.record({
  queue: fc.oneof(anyRow, fc.constantFrom('absent' as const, 'silent' as const)),
  history: fc.oneof(anyRow, fc.constantFrom('absent' as const, 'silent' as const, 'none' as const)),
  overSeconds: fc.integer({ min: 0, max: 100_000 }),
})
const isEnd = (state: string): boolean => state === 'ended' || state === 'lost'

describe('in any order and with any loss of sources', () => {
  test('a task that has no end of its own does not end while the controller is silent, or says that it lives', () => {
    const unended = fc.constantFrom<RemoteSight>(none, { form: 'claimed', ageSeconds: 1 }, started, stopped)
    fc.assert(
      fc.property(unended, sources, live, fc.boolean(), (sight, { history, overSeconds }, state, silent) => {
        const { state: found, verdict } = judged({
          sight,
          queue: silent ? 'silent' : row(state),
          history,
          overSeconds,
        })
        expect(isEnd(found.state)).toBe(false)
        expect(verdict).toBeUndefined()
      }),
    )
  })

  test('an end of its own is its end, whatever the others say', () => {
    fc.assert(
      fc.property(sources, (evidence) => {
        const { state, verdict } = judged({ sight: ended, ...evidence })
        expect(state).toMatchObject({ state: 'ended', exitCode: 0, finishedAt: 1020 })
        expect(verdict).toBeUndefined()
      }),
    )
  })

  test('an answer that does not mention it is no end, whatever the time', () => {
    const unended = fc.constantFrom<RemoteSight>(none, { form: 'claimed', ageSeconds: 1 }, started)
    const unmentioned = fc.constantFrom('absent' as const, 'silent' as const)
    const accounts = fc.oneof(
      live.map((state) => row(state)),
      fc.constantFrom('absent' as const, 'silent' as const, 'none' as const),
    )
    fc.assert(
      fc.property(unended, unmentioned, accounts, fc.nat(1e9), (sight, queue, history, overSeconds) => {
        const { state, verdict } = judged({ sight, queue, history, overSeconds })
        expect(isEnd(state.state)).toBe(false)
        expect(verdict).toBeUndefined()
      }),
    )
  })

  test('an end without a record comes with a verdict, which says the same for ever', () => {
    fc.assert(
      fc.property(sights, sources, (sight, evidence) => {
        const { state, verdict, over: isOver } = judged({ sight, ...evidence })
        if (sight.form === 'ended' && sight.reason !== 'stopped') return
        expect(isEnd(state.state)).toBe(verdict !== undefined)
        if (verdict === undefined) return
        expect(isOver).toBe(true)
        expect(stateOfVerdict(verdict, sight, elementId(place))).toEqual(state)
      }),
    )
  })

  test('time alone makes no end: what is not over now is not over later with the same answers', () => {
    fc.assert(
      fc.property(sights, sources, (sight, evidence) => {
        if (judged({ sight, ...evidence }).over) return
        expect(judged({ sight, ...evidence, overSeconds: 1e9 }).state).toEqual(
          judged({ sight, ...evidence, overSeconds: 0 }).state,
        )
      }),
    )
  })
})

describe('what Slurm prints', () => {
  test('indexes of arrays, there and back', () => {
    fc.assert(
      fc.property(fc.uniqueArray(fc.nat(1000)), (indexes) => {
        expect(parseIndexes(renderIndexes(indexes))).toEqual([...indexes].sort((a, b) => a - b))
      }),
    )
    expect(parseIndexes('[0-8:4,12%2]')).toEqual([0, 4, 8, 12])
    expect(parseIndexes('N/A')).toEqual([])
    expect(renderIndexes([7, 0, 1, 2, 9])).toBe('0-2,7,9')
  })

  test('squeue: elements that wait in one line, elements of their own, what is left of a cancelled array', () => {
    const jobs = parseQueue(
      [
        '1|0|orrery-a|FAILED|1795267909|1795267911|n1|NonZeroExitCode',
        '1|2-3,7|orrery-a|PENDING|1826803909|NONE||Resources',
        '18|N/A|orrery-b|CANCELLED|1795268241|1795268241||a | b',
        'slurm_load_jobs error: Unable to contact slurm controller',
      ].join('\n'),
    )
    expect(jobs).toHaveLength(3)
    expect(jobOf(jobs, { array: 'orrery-a', job: '1', index: 0 })).toMatchObject({
      state: 'FAILED',
      node: 'n1',
      endedAt: 1795267911,
    })
    expect(jobOf(jobs, { array: 'orrery-a', job: '1', index: 3 })).toMatchObject({
      state: 'PENDING',
      reason: 'Resources',
      endedAt: undefined,
    })
    expect(jobOf(jobs, { array: 'orrery-a', job: '1', index: 4 })).toBeUndefined()
    expect(jobOf(jobs, { array: 'orrery-of-before', job: '1', index: 0 })).toBeUndefined()
    expect(jobOf(jobs, { array: 'orrery-b', job: '18', index: 4 })).toMatchObject({
      state: 'CANCELLED',
      reason: 'a | b',
    })
  })

  test('several jobs of one name: one that runs counts, then one that waits, its own before another', () => {
    const own = { array: 'orrery-a', job: '1', index: 0 }
    const jobWith = (...states: string[]): string | undefined =>
      jobOf(parseQueue(states.map((state, at) => `${at + 1}|0|orrery-a|${state}|||n1|`).join('\n')), own)?.job
    expect(jobWith('PENDING', 'RUNNING')).toBe('2')
    expect(jobWith('RUNNING', 'RUNNING')).toBe('1')
    expect(jobWith('PENDING', 'PENDING')).toBe('1')
    expect(jobWith('COMPLETED', 'PENDING')).toBe('2')
    expect(jobWith('COMPLETED', 'CANCELLED')).toBe('1')
  })

  test('scontrol: one record a line, with the blanks of a reason as it writes them', () => {
    const jobs = parseJobRecords(
      [
        'JobId=12 ArrayJobId=10 ArrayTaskId=2 JobName=orrery-a UserId=ada(1000) JobState=RUNNING Reason=None ' +
          'StartTime=1795267909 EndTime=1795271509 ReqNodeList=(null) NodeList=n1 Command=/x y=z',
        'JobId=10 ArrayJobId=10 ArrayTaskId=4-6,9%1 JobName=orrery-a JobState=PENDING ' +
          'Reason=launch_failed_requeued_held StartTime=Unknown EndTime=Unknown NodeList=',
        'slurm_load_jobs error: Invalid job id specified',
      ].join('\n'),
    )
    expect(jobOf(jobs, { array: 'orrery-a', job: '10', index: 2 })).toMatchObject({
      state: 'RUNNING',
      startedAt: 1795267909,
      node: 'n1',
      reason: undefined,
    })
    expect(jobOf(jobs, { array: 'orrery-a', job: '10', index: 9 })).toMatchObject({
      state: 'PENDING',
      reason: 'launch_failed_requeued_held',
      startedAt: undefined,
    })
    expect(jobs).toHaveLength(2)
  })

  test('sacct: who cancelled, steps belong to their element', () => {
    const jobs = parseHistory(
      [
        '5_0|orrery-a|CANCELLED by 1000|1795267909|1795267911|n1|',
        '5_0.batch|batch|CANCELLED|1795267909|1795267911|n1|1520K',
        '5_[1-2]|orrery-a|PENDING|Unknown|Unknown|None assigned|',
        '6|other|COMPLETED|1795267909|1795267911|n1|',
      ].join('\n'),
    )
    expect(jobOf(jobs, { array: 'orrery-a', job: '5', index: 0 })).toMatchObject({
      state: 'CANCELLED',
      reason: 'by 1000',
      peakMemoryBytes: 1520 * 1024,
    })
    expect(jobOf(jobs, { array: 'orrery-a', job: '5', index: 2 })).toMatchObject({
      state: 'PENDING',
      startedAt: undefined,
      node: undefined,
    })
    // A step that ran out of memory counts for its job, whatever the script's exit code; a job's own
    // other end counts first.
    const states = (job: string, step: string): string | undefined =>
      jobOf(parseHistory(`5_0|orrery-a|${job}|1|2|n1|\n5_0.batch|batch|${step}|1|2|n1|1520K`), {
        array: 'orrery-a',
        job: '5',
        index: 0,
      })?.state
    expect(states('COMPLETED', 'OUT_OF_MEMORY')).toBe('OUT_OF_MEMORY')
    expect(states('FAILED', 'OUT_OF_MEMORY')).toBe('OUT_OF_MEMORY')
    expect(states('OUT_OF_MEMORY', 'COMPLETED')).toBe('OUT_OF_MEMORY')
    expect(states('TIMEOUT', 'OUT_OF_MEMORY')).toBe('TIMEOUT')
    expect(states('COMPLETED', 'COMPLETED')).toBe('COMPLETED')
  })
})
