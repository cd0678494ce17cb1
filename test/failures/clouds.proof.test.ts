import { afterAll, beforeAll, expect, jest, test } from '@jest/globals'
import type { Failures } from '../../bench/tally.ts'
import { needs } from '../support/needs.ts'
import { openCloudCrashes } from './cloud-crashes.ts'
import { openCloudTexts } from './cloud-texts.ts'

/**
 * Small counts of what `bench/failures.ts` counts: machines under the sudden death of the daemon
 * between the provider's answer and the record, and hostile texts.
 */

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

const configured = needs('ansible-core', 'bubblewrap')
configured.test(
  'metacharacters in ids, names, accounts and variables of machines: none executed, each whole or refused',
  async () => {
    const texts = await openCloudTexts()
    try {
      expect(await texts.play(0)).toEqual({ counted: 50, violations: [] })
    } finally {
      await texts.close()
    }
  },
  600_000,
)
