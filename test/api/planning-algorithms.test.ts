import { expect, test } from '@jest/globals'
import { startPlanning } from '../support/planning-app.ts'

test('the algorithms are listed by id with what a client needs to offer them', async () => {
  const app = await startPlanning()
  try {
    const { status, body } = await app.call('GET', '/planning-algorithms/')
    expect(status).toBe(200)
    expect(body.map(({ id }: { id: string }) => id)).toEqual(
      body.map(({ id }: { id: string }) => id).toSorted(),
    )
    expect(
      body.map(({ id, objective, multiple }: Record<string, unknown>) => [id, objective, multiple]),
    ).toEqual([
      ['heft', 'time', false],
      ['prism-cost', 'cost', true],
      ['prism-time', 'time', true],
    ])
    for (const { id, defaults } of body)
      if (id !== 'heft') expect(defaults).toEqual({ beamWidth: 120, optionCount: 25, readyBranchLimit: 3 })
    expect(body).toContainEqual({
      id: 'heft',
      name: 'HEFT',
      objective: 'time',
      multiple: false,
      description: expect.stringContaining('Earliest Finish Time'),
    })
  } finally {
    await app.close()
  }
})
