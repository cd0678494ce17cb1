import { describe, expect, test } from '@jest/globals'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { parse } from 'yaml'
import { profilesOf } from '../../examples/mosaic/measure.ts'
import type { WorkflowDocument } from '../../examples/workflow-document.ts'
import { documentProblems } from '../../src/domains/environments/rules.ts'
import { EnvironmentDefinition } from '../../src/domains/environments/schemas.ts'
import { readWorkflow } from '../../src/domains/workflow-definitions/document.ts'

const documentOf = (example: string, name: string): Record<string, unknown> =>
  parse(readFileSync(path.resolve(import.meta.dirname, '../../examples', example, name), 'utf8')) as Record<
    string,
    unknown
  >

describe.each(['mosaic', 'mosaic-montage'])('the documents of %s, as the service reads them', (example) => {
  test('the workflow is accepted without a warning, with a type for each kind of task and its programs and staging kept', async () => {
    const document = documentOf(example, 'workflow.yaml')
    const { workflow, warnings } = await readWorkflow(document, {}, async () => false)
    const { spec } = document as unknown as WorkflowDocument
    expect(warnings).toEqual([])
    expect(workflow.id).toBe(example)
    expect(workflow.content.activities).toHaveLength(spec.activities.length)
    expect(workflow.activityTypes.map(({ id }) => id).toSorted()).toEqual(
      [...new Set(spec.activities.map(({ activityType }) => `${example}-${activityType}`))].toSorted(),
    )
    for (const { capabilities, metadata } of workflow.content.activities) {
      expect(capabilities).toEqual(['real'])
      expect(metadata).toMatchObject({ stage: 'declared', workspaceSeedPath: `${example}/bin` })
    }
  })

  test('the environment is accepted, also with measured profiles', () => {
    const environment = documentOf(example, 'environment.yaml')
    const workflow = documentOf(example, 'workflow.yaml') as unknown as WorkflowDocument
    const [resource] = (environment as { resources: { id: string }[] }).resources
    const types = [...new Set(workflow.spec.activities.map(({ activityType }) => activityType))]
    const spread = { runtimeSeconds: 1.5, lowestSeconds: 1.4, highestSeconds: 1.7, runtimeStdDevSeconds: 0.1 }
    const times = types.map((activityType) => ({ activityType, ...spread, sampleSize: 6, passes: 3 }))
    for (const activityResourceProfiles of [[], profilesOf(workflow, resource!.id, times)]) {
      const definition = { ...environment, activityResourceProfiles }
      expect(EnvironmentDefinition.safeParse(definition).error?.issues ?? []).toEqual([])
      expect(documentProblems(definition)).toEqual([])
    }
  })
})
