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
    // What is not built is not offered.
    for (const id of ['prism-cost', 'prism-time'])
      expect(body.map((one: { id: string }) => one.id)).not.toContain(id)
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
