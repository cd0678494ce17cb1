import { afterAll, beforeAll, expect, jest, test } from '@jest/globals'
import type { Failures } from '../../bench/tally.ts'
import { openCloudCrashes } from './cloud-crashes.ts'

/** Machines under the sudden death of the daemon between the provider's answer and the record. */

jest.setTimeout(180_000)
let crashes: Failures
beforeAll(async () => {
  crashes = await openCloudCrashes()
}, 600_000)
afterAll(() => crashes?.close(), 60_000)

test.each([0, 1, 2, 3])(
  'a daemon that dies around the creation of a machine makes one, which a cancel ends (%i)',
  async (number) => {
    expect(await crashes.play(number)).toEqual({ counted: 1, violations: [] })
  },
)
