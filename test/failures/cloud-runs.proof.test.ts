import { expect } from '@jest/globals'
import type { Failures } from '../../bench/tally.ts'
import { sites } from '../../sites/requirements.ts'
import { needs } from '../support/needs.ts'
import { openCloudKills, openSpots } from './cloud-runs.ts'

const { test } = needs(...sites.ssh, 'ansible-core', 'bubblewrap')

/** Small counts of what `bench/failures.ts spots` and `clouds` count for as long as there is time. */
const kinds: [string, () => Promise<Failures>, number[]][] = [
  [
    'spot machines that are taken back: every activity completes though none may fail twice',
    openSpots,
    [0, 1],
  ],
  [
    'what dies while a machine is made, configured, used or ended leaves nothing',
    openCloudKills,
    [0, 1, 3, 4, 8],
  ],
]

test.each(kinds)(
  '%s',
  async (_what, open, numbers) => {
    const failures = await open()
    try {
      for (const number of numbers) expect(await failures.play(number)).toMatchObject({ violations: [] })
    } finally {
      await failures.close()
    }
  },
  600_000,
)
