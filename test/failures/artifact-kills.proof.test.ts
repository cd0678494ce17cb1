import { expect } from '@jest/globals'
import { sites } from '../../sites/requirements.ts'
import { needs } from '../support/needs.ts'
import { openBuildKills, openDeliveryKills } from './artifact-kills.ts'

/** Some of the kills of `bench/failures.ts`: each phase of a build and each way of a delivery. */

const { test } = needs(
  ...([
    ...sites.ssh,
    'docker.io',
    'runc',
    'docker-registry',
    'skopeo',
    'squashfs-tools',
    'bubblewrap',
  ] as const),
)

test.each([
  [
    'a build: daemon, worker, PostgreSQL, Temporal and engine, in each phase',
    openBuildKills,
    [0, 5, 10, 15, 17],
  ],
  ['a delivery: daemon, worker, PostgreSQL and engine', openDeliveryKills, [1, 2, 5, 8]],
] as const)(
  'what dies in %s leaves one whole file and nothing half',
  async (_, open, numbers) => {
    const kills = await open()
    try {
      for (const number of numbers)
        expect([number, (await kills.play(number)).violations]).toEqual([number, []])
    } finally {
      await kills.close()
    }
  },
  1_200_000,
)
