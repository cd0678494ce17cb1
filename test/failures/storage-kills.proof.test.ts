import { expect, test } from '@jest/globals'
import type { Failures } from '../../bench/tally.ts'
import { sites } from '../../sites/requirements.ts'
import { needs } from '../support/needs.ts'
import { openLinkSwaps } from './link-swaps.ts'
import { openStorageKills } from './storage-kills.ts'

/** Small counts of what `bench/failures.ts` counts of storages for as long as there is time. */

const play = async (open: Promise<Failures>, numbers: readonly number[]): Promise<number> => {
  const failures = await open
  let counted = 0
  try {
    for (const number of numbers) {
      const round = await failures.play(number)
      expect([number, round.violations]).toEqual([number, []])
      counted += round.counted
    }
  } finally {
    await failures.close()
  }
  return counted
}

test.each(['copies', 'archives', 'indexes'] as const)(
  'three %s of half a gibibyte under kills of the service are whole, with equal digests',
  async (kind) => {
    expect(await play(openStorageKills(kind, 0.5), [1, 2, 3])).toBeGreaterThan(0)
  },
  900_000,
)

needs(...sites.ssh, ...sites.kubernetes).test(
  'swaps of a link under every call lead nowhere outside, here, by SSH and in a Pod',
  async () => {
    expect(await play(openLinkSwaps(), [0, 500, 1_000])).toBeGreaterThanOrEqual(1_500)
  },
  900_000,
)
