import type { Reporter, Test } from '@jest/reporters'
import { record } from './events.ts'

/** Records when each file begins and ends, so that `test/run.ts` finds a file that never ends. */
export default class Progress implements Pick<Reporter, 'onTestFileStart' | 'onTestFileResult'> {
  onTestFileStart({ path }: Test): void {
    record({ kind: 'began', file: path })
  }

  onTestFileResult({ path }: Test): void {
    record({ kind: 'ended', file: path })
  }
}
