import { describe, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import {
  choose,
  directFrom,
  sharedPath,
  transferStrategies,
  type EdgeFacts,
  type TransferStrategy,
} from '../../src/drivers/transfer/strategy.ts'

const large = directFrom
const facts = (known: Partial<EdgeFacts> = {}): EdgeFacts => ({
  shared: undefined,
  sameMachine: false,
  mayPush: false,
  mayPull: false,
  bytes: large,
  ...known,
})
const none: ReadonlyMap<TransferStrategy, string> = new Map([['use-existing', 'nothing is there']])

describe('how the files of an edge come to their consumer', () => {
  const shared = { storageId: 'scratch', path: '/scratch/p' }
  test.each<[what: string, known: Partial<EdgeFacts>, expected: TransferStrategy]>([
    ['nothing is known of the two sites', {}, 'gateway'],
    ['a storage is shared', { shared }, 'shared-storage'],
    [
      'a storage is shared, and all else is possible too',
      { shared, sameMachine: true, mayPush: true, mayPull: true },
      'shared-storage',
    ],
    ['both are one machine', { sameMachine: true, mayPush: true }, 'runtime-local'],
    ['the source may reach the target', { mayPush: true, mayPull: true }, 'source-push'],
    ['the target may reach the source', { mayPull: true }, 'destination-pull'],
    ['a direct way is not worth its login', { mayPush: true, mayPull: true, bytes: large - 1 }, 'gateway'],
  ])('%s', (_what, known, expected) => {
    expect(choose(facts(known), none).strategy).toBe(expected)
  })

  test('files that are there are used, whatever else is possible', () => {
    expect(choose(facts({ shared, mayPush: true }), new Map()).strategy).toBe('use-existing')
  })

  test('what has failed is not tried again, and the reason tells its words', () => {
    const failed = new Map([
      ...none,
      ['source-push', 'ssh: connect to host b port 22: Connection refused'] as const,
    ])
    const { strategy, reason } = choose(facts({ mayPush: true }), failed)
    expect(strategy).toBe('gateway')
    expect(reason).toContain('source-push: ssh: connect to host b port 22: Connection refused')
  })

  const anyFacts = fc.record<EdgeFacts>({
    shared: fc.constantFrom(undefined, shared),
    sameMachine: fc.boolean(),
    mayPush: fc.boolean(),
    mayPull: fc.boolean(),
    bytes: fc.constantFrom(0, large - 1, large, 1e12),
  })

  test('whatever fails, there is an end: each strategy at most once, in their order, the gateway last; each reason names all better ones', () => {
    fc.assert(
      fc.property(anyFacts, (known) => {
        const failed = new Map<TransferStrategy, string>()
        for (;;) {
          const { strategy, reason } = choose(known, failed)
          const better = transferStrategies.slice(0, transferStrategies.indexOf(strategy))
          expect(failed.has(strategy)).toBe(false)
          for (const other of better) expect(reason).toContain(`not ${other}: `)
          if (strategy === 'gateway') break
          failed.set(strategy, 'it failed')
        }
        expect(failed.size).toBeLessThan(transferStrategies.length)
      }),
    )
  })
})

describe('where the other site sees a directory', () => {
  test.each<[directory: string, from: [string, string][], to: [string, string][], path: string | undefined]>([
    ['/scratch/ada/p', [['s', '/scratch']], [['s', '/mnt/s']], '/mnt/s/ada/p'],
    ['/scratch', [['s', '/scratch']], [['s', '/mnt/s']], '/mnt/s'],
    ['/scratch2/p', [['s', '/scratch']], [['s', '/mnt/s']], undefined],
    ['/scratch/..p', [['s', '/scratch']], [['s', '/mnt/s']], '/mnt/s/..p'],
    ['/scratch/p', [['s', '/scratch']], [['other', '/scratch']], undefined],
    [
      '/data/deep/p',
      [
        ['d', '/data'],
        ['e', '/data/deep'],
      ],
      [
        ['d', '/d'],
        ['e', '/e'],
      ],
      '/e/p',
    ],
    [
      '/data/deep/p',
      [
        ['d', '/data'],
        ['e', '/data/deep'],
      ],
      [['d', '/d']],
      '/d/deep/p',
    ],
    ['/p', [['root', '/']], [['root', '/host']], '/host/p'],
  ])('%s with %j here and %j there: %s', (directory, from, to, path) => {
    const mounts = (pairs: [string, string][]) => pairs.map(([storageId, at]) => ({ storageId, path: at }))
    expect(sharedPath(directory, mounts(from), mounts(to))?.path).toBe(path)
  })
})
