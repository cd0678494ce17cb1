import type { Reporter, Test, TestResult } from '@jest/reporters'
import { record } from './events.ts'

/** The longest message of a failure that is recorded, in characters. */
const longestMessage = 4_000

/** Records the begin and the result of each file, so that no result is lost where Jest ends early. */
export default class Progress implements Pick<Reporter, 'onTestFileStart' | 'onTestFileResult'> {
  onTestFileStart({ path }: Test): void {
    record({ kind: 'began', file: path })
  }

  onTestFileResult({ path }: Test, result: TestResult): void {
    const failures = result.testResults
      .filter(({ status }) => status === 'failed')
      .map(({ fullName, failureMessages }) => ({
        test: fullName,
        message: failureMessages.join('\n').slice(0, longestMessage),
      }))
    const isBroken = result.testExecError !== undefined || (result.failureMessage && failures.length === 0)
    record({
      kind: 'ended',
      file: path,
      seconds: (result.perfStats.end - result.perfStats.start) / 1_000,
      passed: result.numPassingTests,
      failures,
      ...(isBroken
        ? {
            broken: (result.testExecError?.message || result.failureMessage || 'failed').slice(
              0,
              longestMessage,
            ),
          }
        : {}),
    })
  }
}
