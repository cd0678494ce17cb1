import { expect, test } from '@jest/globals'
import { sumOf, withRun } from './proof-record.ts'

const document = `# Proofs

## Groups

| group | holds | needs |
| --- | --- | --- |
| \`kills\` | kills | root |

## Runs

| group | commit | rounds |
| --- | --- | --- |
| \`kills\` | old | 1 |
| \`ssh\` | old | 1 |

## Known faults
`
const run = {
  ...{ group: 'kills', commit: 'abc', date: '2030-01-02', machine: '2 cores', rounds: 3 },
  ...{ passed: 5, failed: 1, unsteady: 2, leftOut: 4, minutes: 7 },
}

test('a recorded run takes the place of the row of its group, and of nothing else', () => {
  const row = '| `kills` | abc | 2030-01-02 | 2 cores | 3 | 5 | 1 | 2 | 4 | 7 |'
  expect(withRun(document, run)).toBe(document.replace('| `kills` | old | 1 |', row))
  expect(withRun(withRun(document, run), run)).toBe(withRun(document, run))
  expect(
    withRun(document, { ...run, group: 'records' })
      .split('\n')
      .slice(10, 16),
  ).toEqual([
    '| group | commit | rounds |',
    '| --- | --- | --- |',
    '| `kills` | old | 1 |',
    row.replace('kills', 'records'),
    '| `ssh` | old | 1 |',
    '',
  ])
  expect(() => withRun('# Proofs', run)).toThrow('"## Runs" is missing')
})

test('the counts of a group are the sums over its runs', () => {
  const leftOut = { need: 'root', tests: 2, files: ['a'] }
  const unsteady = { file: 'a', tests: [], message: '', failures: 1 }
  const files = (seconds: number) => ({ a: { passed: 1, failed: 0, seconds } })
  expect(
    sumOf([
      { passed: 3, failed: 1, unsteady: [unsteady], leftOut: [leftOut, leftOut], files: files(100) },
      { passed: 4, failed: 0, unsteady: [], leftOut: [], files: files(90) },
    ]),
  ).toEqual({ passed: 7, failed: 1, unsteady: 1, leftOut: 4, minutes: 3 })
})
