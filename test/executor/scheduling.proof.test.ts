import { describe, expect, test } from '@jest/globals'
import { execFile } from 'node:child_process'
import { mkdtempSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import fc from '../support/fast-check.ts'
import { decide } from '../../src/executor/scheduling.ts'
import { openScheduling } from '../../src/executor/scheduling-state.ts'
import { runFolder } from '../support/run-folder.ts'
import { mutated } from '../support/mutation.ts'
import { playScenario } from './model.ts'
import { mutatedScheduling, mutations } from './mutations.ts'
import { moveOf, move, scenarios, type Kind, type Scenario, type ScenarioTask } from './scenario.ts'

const run = promisify(execFile)

test('2,000 random runs with kills, frozen holders, lost answers, pauses and cancels break no law', () => {
  let takeOvers = 0
  fc.assert(
    fc.property(scenarios({ moves: 80 }), (scenario) => {
      takeOvers += playScenario({ decide, openScheduling }, scenario).takeOvers
    }),
    { seed: 20_261_123, numRuns: 2_000 },
  )
  expect(takeOvers).toBeGreaterThan(2_000)
}, 600_000)

describe('each mutation of the scheduling breaks a law within as many runs', () => {
  test.each(mutations.map((mutation) => [mutation.name, mutation] as const))(
    '%s',
    async (_name, mutation) => {
      const file = mutatedScheduling(mutation, mkdtempSync(join(runFolder(), 'orrery-mutated-')))
      const check = join(import.meta.dirname, 'model-check.ts')
      const found = run(process.execPath, [
        check,
        '--scheduling',
        file,
        '--sequences',
        '2000',
        '--seed',
        '20261123',
        '--raw',
      ])
      await expect(found).rejects.toMatchObject({
        code: 1,
        stdout: expect.stringMatching(/^seed 20261123, sequence \d+/),
      })
    },
    600_000,
  )

  test('a mutation names its function, and text that is there once', () => {
    const text = 'const a = () => {\n  x()\n}\nfunction b() {\n  x()\n  x()\n}\n'
    const mutation = { file: 'f.ts', function: 'a', replace: '  x()\n', by: '' }
    expect(mutated(text, mutation)).toBe('const a = () => {\n}\nfunction b() {\n  x()\n  x()\n}\n')
    expect(() => mutated(text, { ...mutation, function: 'c' })).toThrow('f.ts has 0 functions named c')
    expect(() => mutated(text, { ...mutation, function: 'b' })).toThrow('b of f.ts does not hold once')
  })
})

/** Tasks of one lane, position by position. */
const row = (...fates: ScenarioTask['fates'][]): Scenario => ({
  tasks: fates.map((own) => ({ site: 0, lanes: [0], free: false, cpu: 1, fates: own })),
  edges: [],
  orders: [...fates.keys()],
  hostCores: undefined,
  aheadPerLane: 2,
  onFailure: 'finish-independent',
  maxAttempts: 2,
  moves: [],
})
const free = (task: Partial<ScenarioTask> = {}): ScenarioTask => ({
  site: 0,
  lanes: [0],
  free: true,
  cpu: 1,
  fates: [],
  ...task,
})
const moved = (...kinds: (Kind | readonly [Kind, number])[]): number[] =>
  kinds.map((kind) => (typeof kind === 'string' ? move(kind, 0) : move(...kind)))

describe('runs that broke a law once', () => {
  test('a failed attempt does not hand its lanes to what is intended behind its next attempt in the same step', () => {
    // The run is paused before that step: the lane stayed with a task that had no intent, and
    // nothing started any more.
    playScenario(
      { decide, openScheduling },
      {
        ...row([], [], [], ['user']),
        tasks: [
          free(),
          { ...free(), free: false },
          { ...free(), free: false },
          { ...free(), free: false, fates: ['user'] },
          free(),
          free(),
        ],
        edges: [[4, 0]],
        orders: [5, 4, 2, 1, 0, 3],
        aheadPerLane: 1,
        onFailure: 'stop',
        moves: moved(
          ...(['go', 'go', 'go', 'go', 'go'] as const),
          ['endHeard', 17],
          ...(['go', 'go', 'go', 'go', 'go'] as const),
          ['endHeard', 12],
          ['pass', 23],
          'go',
          ['pause', 22],
          'go',
        ),
      },
    )
  })
  test('what is intended ahead and hidden by a lost answer and a pause is taken back', () => {
    const story = moved('go', 'go', 'go', 'go', 'go', 'endHeard', 'go', 'go', 'pause', 'lose', 'go')
    playScenario({ decide, openScheduling }, { ...row([], [], []), moves: story })
  })
  test('cores that a lost answer and a pause hide are asked for again', () => {
    playScenario(
      { decide, openScheduling },
      {
        ...row([], [], [], [], []),
        tasks: [0, 1, 0, 0, 0].map((core, i) => ({
          ...free(),
          free: false,
          site: i === 4 ? 1 : 0,
          lanes: [core],
        })),
        orders: [3, 0, 1, 4, 2],
        hostCores: 3,
        moves: moved(
          ['freeze', 1],
          'go',
          'go',
          ['freeze', 23],
          'go',
          'go',
          ['lose', 20],
          ['pause', 15],
          'go',
        ),
      },
    )
  })
  test('a task that a lost answer and a pause hide keeps its lanes while others ask for its cores', () => {
    playScenario(
      { decide, openScheduling },
      {
        ...row([], [], [], [], [], []),
        tasks: [0, 0, 1, 0, 0, 0].map((core, i) => ({
          ...free(),
          free: i === 0 || i === 3 || i === 4,
          lanes: [core],
          cpu: i === 4 ? 2 : 1,
        })),
        edges: [[3, 0]],
        orders: [5, 3, 4, 0, 1, 2],
        hostCores: 3,
        onFailure: 'stop',
        maxAttempts: 1,
        moves: moved('go', 'go', 'go', 'go', ['lose', 1], 'pause', 'go'),
      },
    )
  })
  test('a drained site with a task ahead whose turn has come does not rest', () => {
    const ahead = moved('go', 'go', 'go', 'go', 'go', 'endHeard', 'go', 'go', 'go', 'go', 'go')
    playScenario(
      { decide, openScheduling },
      {
        ...row([], [], []),
        orders: [1, 2, 0],
        onFailure: 'stop',
        moves: [...ahead, ...moved(['pass', 23], 'drain', ['pass', 7])],
      },
    )
  })
  test('adopted tasks of a lane are recorded in the order of the lane, whatever their positions', () => {
    const ahead = moved(
      'go',
      'go',
      'go',
      'go',
      'go',
      'endHeard',
      'go',
      'go',
      'go',
      'endHeard',
      'endHeard',
      'kill',
    )
    for (const orders of [
      [0, 1, 2, 3, 4],
      [4, 3, 2, 1, 0],
      [2, 4, 0, 3, 1],
    ])
      playScenario(
        { decide, openScheduling },
        {
          ...row([], [], [], [], []),
          aheadPerLane: 8,
          orders,
          moves: [...ahead, ...moved(['pass', 6], 'takeLane', 'go', 'go', 'takeLane')],
        },
      )
  })
})

test('a move is a kind and what it is about', () => {
  expect(moveOf(move('kill', 7))).toEqual({ kind: 'kill', pick: 7 })
})
