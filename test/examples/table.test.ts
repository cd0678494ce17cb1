import { expect, test } from '@jest/globals'
import { siteTable } from '../../examples/demo/report.ts'
import { table } from '../../examples/demo/table.ts'

test('names are aligned to the left, numbers to the right', () => {
  expect(table(['left', 'right'], [['type', 's'], [], ['observe', '10.5']])).toEqual([
    'type        s',
    '───────  ────',
    'observe  10.5',
  ])
})

test('a name that is too long for a terminal has a line of its own', () => {
  const site = `local@${'compute-node.'.repeat(5)}example.org`
  const lines = siteTable([
    {
      site,
      activityId: 'a',
      queueSeconds: 12_345.6,
      runtimeSeconds: 2,
      transferSeconds: 3,
      peakMemoryBytes: 2 ** 40,
    },
  ])
  expect(lines.filter((line) => line !== site && line.length > 74)).toEqual([])
  expect(lines.at(-2)).toBe(site)
  expect(lines.at(-1)?.trim().split(/\s+/)).toEqual(['1', '1', '12345.6', '2.00', '3.00', '1048576'])
})
