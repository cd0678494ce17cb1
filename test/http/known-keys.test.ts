import { expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { z } from 'zod'
import { RunRequest } from '../../src/domains/execution-runs/schemas.ts'
import { WorkflowVersionDocument } from '../../src/domains/workflow-definitions/schemas.ts'
import { createShapes } from '../../src/http/keys.ts'
import { keyHint } from '../../src/http/known-keys.ts'

const shapeOf = createShapes()
const hintOf = (schema: z.ZodType, path: readonly PropertyKey[], key: string) =>
  keyHint(shapeOf(schema), path, key)

const Document = z.strictObject({
  id: z.string(),
  policy: z
    .strictObject({ maxAttempts: z.int().optional(), retryDelaySeconds: z.number().optional() })
    .optional(),
  activities: z
    .array(
      z.strictObject({
        name: z.string(),
        environment: z.record(z.string(), z.strictObject({ value: z.string() })),
      }),
    )
    .nullable(),
})

test('a key spelled almost as a known one is answered with that, one that stands elsewhere with its place', () => {
  expect(hintOf(Document, [], 'polcy')).toBe('did you mean "policy"?')
  expect(hintOf(Document, ['policy'], 'maxattempts')).toBe('did you mean "maxAttempts"?')
  expect(hintOf(Document, [], 'maxAttempts')).toBe('it belongs to "policy"')
  expect(hintOf(Document, ['activities', 0], 'nam')).toBe('did you mean "name"?')
  expect(hintOf(Document, ['activities', 0, 'environment', 'A'], 'vlaue')).toBeUndefined()
  expect(hintOf(Document, ['activities', 0, 'environment', 'A'], 'valu')).toBe('did you mean "value"?')
  expect(hintOf(Document, ['policy'], 'id')).toBe('it belongs to the top of the document')
  expect(hintOf(Document, [], 'colour')).toBeUndefined()
  expect(hintOf(Document, [], 'x'.repeat(100_000))).toBeUndefined()
})

test('the documents of runs and workflows have hints as well', () => {
  expect(hintOf(RunRequest, [], 'schedulePlanID')).toBe('did you mean "schedulePlanId"?')
  expect(hintOf(RunRequest, ['run'], 'onfailure')).toBe('did you mean "onFailure"?')
  expect(hintOf(WorkflowVersionDocument, ['activities', 0], 'maxAttempts')).toMatch(
    /^it belongs to ".*policy"$/,
  )
})

test('a path of a name that every object has is no place', () => {
  for (const name of ['valueOf', 'constructor', '__proto__'])
    expect(hintOf(RunRequest, [name], 'mode')).toBe(hintOf(RunRequest, ['elsewhere'], 'mode'))
})

test('any key at any place has an answer, quickly', () => {
  fc.assert(
    fc.property(fc.string(), fc.array(fc.oneof(fc.string(), fc.nat()), { maxLength: 8 }), (key, path) => {
      const hint = hintOf(RunRequest, path, key)
      expect(hint === undefined || /^(did you mean "|it belongs to )/.test(hint)).toBe(true)
    }),
    { numRuns: 200 },
  )
})
