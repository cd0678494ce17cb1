import { expect } from '@jest/globals'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { specifiedPairs } from '../api/specified-pairs.ts'
import { needs } from '../support/needs.ts'

const { test } = needs('shared')

test("the pairs that the tests demand are those of the specification's endpoint tables, in its order", () => {
  const specification = readFileSync(
    join(import.meta.dirname, '../../../shared/spec/api-specification.md'),
    'utf8',
  )
  const endpoints = specification.slice(
    specification.indexOf('## Endpoints'),
    specification.indexOf('## Authentication'),
  )
  const rows = [...endpoints.matchAll(/^\| ([A-Z]+(?:, [A-Z]+)*) \| (\/\S*) \|/gm)]
  expect(specifiedPairs).toEqual(
    rows.flatMap(([, methods = '', path = '']) => methods.split(', ').map((method) => ({ method, path }))),
  )
})
