import { expect } from '@jest/globals'
import { openCancelRaces } from './cancel-races.ts'
import { openCutLinks } from './cut-links.ts'
import { openEvictions } from './evictions.ts'
import { openHostileTexts } from './hostile-texts.ts'
import { openSilentScheduler } from './silent-scheduler.ts'
import type { Failures } from '../../bench/tally.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { test } = needs(...sites.slurm, ...sites.kubernetes)

/** Small counts of what `bench/failures.ts` counts for as long as there is time. */
const kinds: [string, () => Promise<Failures>, number[]][] = [
  [
    'a link over SSH that is cut at a message: one job, re-attached',
    () => openCutLinks('ssh', 1),
    [3, 77, 150, 223, 320],
  ],
  [
    'a link to Slurm that is cut at a message: one job, re-attached',
    () => openCutLinks('slurm', 1),
    [90, 220, 350, 500],
  ],
  ['metacharacters in every value that reaches a shell or sbatch: none executed', openHostileTexts, [5100]],
  [
    'Slurm’s commands fail, hang and babble for hours: every task runs once and ends well',
    () => openSilentScheduler(1),
    [8],
  ],
  ['cancelled at any moment: what is over stays so, and nothing of it starts any more', openCancelRaces, [0]],
  [
    'evicted while they run: a failure of the site, and completed by the next attempt though none may fail twice',
    openEvictions,
    [0],
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
  400_000,
)
