import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { openService, type TestService } from '../support/service.ts'
import { makeWorld, type World } from '../support/worlds.ts'

type Json = Record<string, any>

let service: TestService
let world: World
let document: Json
/**
 * Runs of one workflow whose plans and embedded workflows write activity ids in each way that there
 * is.
 */
const runs: string[] = []

const forms = ['both-make', 'make']

beforeAll(async () => {
  service = await openService()
  world = await makeWorld(service, {
    name: 'both',
    tasks: [
      { name: 'make', run: 'echo made; echo file > out.txt' },
      { name: 'after', after: ['make'] },
    ],
  })
  document = (await (await fetch(new URL('/openapi.json', service.baseUrl))).json()) as Json
})
afterAll(() => service[Symbol.asyncDispose]())

const short = (id: string): string => id.replace(/^both-/, '')
const planned = async (id: string, form: (activityId: string) => string): Promise<Json> => {
  const { workflowVersionId, executionScopeId } = await service.get(`/schedule-plans/${world.planId}/`)
  const assignments = world.assignments.map((assignment) => ({
    ...assignment,
    activityId: form(assignment.activityId),
  }))
  return { id, workflowVersionId, executionScopeId, assignments }
}
/** The workflow as older documents embed it: with ids that are the external ids. */
const olderWorkflow = async (): Promise<Json> => {
  const { version } = await service.get('/workflow-definitions/both/')
  return {
    id: version.id,
    workflowId: 'both',
    activities: version.activities.map((activity: Json) => ({ ...activity, id: activity['externalId'] })),
    dependencies: version.dependencies.map((edge: Json) => ({
      activityId: short(edge['activityId']),
      dependsOnActivityId: short(edge['dependsOnActivityId']),
    })),
  }
}

const envelope = async (id: string, form: (activityId: string) => string, workflow: Json): Promise<Json> => {
  const plan = await planned(id, form)
  const scopes: Json[] = await service.get('/execution-scopes/')
  const resources: Json[] = await service.get('/resources/')
  return {
    plan,
    workflow,
    resources,
    executionScope: scopes.find((scope) => scope['id'] === plan['executionScopeId']),
  }
}

const bodies: Record<string, (id: string, form: (activityId: string) => string) => Promise<Json>> = {
  'POST /schedule-plans/': async (id, form) => envelope(id, form, await olderWorkflow()),
  'POST /schedule-plans/import/': async (id, form) => ({ plan: await planned(id, form) }),
  'POST /execution-runs/': async (id, form) => ({
    run: { id, schedulePlanId: world.planId, mode: 'real' },
    plan: await planned(world.planId, form),
  }),
}

/** Operations of the API document, with the request's schema where there is one. */
const operations = (): { name: string; path: string; parameters: Json[]; body: string }[] =>
  Object.entries(document['paths'] as Json).flatMap(([path, methods]) =>
    Object.entries(methods as Json).map(([method, operation]) => ({
      name: `${method.toUpperCase()} ${path.replace(/^\/api/, '')}`,
      path: path.replace(/^\/api/, ''),
      parameters: (operation as Json)['parameters'] ?? [],
      body: JSON.stringify(resolved((operation as Json)['requestBody'] ?? {})),
    })),
  )
const resolved = (schema: any, depth = 0): unknown => {
  if (typeof schema !== 'object' || schema === null || depth > 40) return schema
  if (Array.isArray(schema)) return schema.map((one) => resolved(one, depth + 1))
  if (typeof schema['$ref'] === 'string')
    return resolved(
      schema['$ref']
        .split('/')
        .slice(1)
        .reduce<any>((at, part) => at[part], document),
      depth + 1,
    )
  return Object.fromEntries(Object.entries(schema).map(([key, value]) => [key, resolved(value, depth + 1)]))
}

test('every route with assignments in its body takes both forms of the ids', async () => {
  const taking = operations().filter(({ body }) => body.includes('"assignments"'))
  expect(taking.map(({ name }) => name).toSorted()).toEqual(Object.keys(bodies).toSorted())
  for (const { name, path } of taking) {
    for (const [i, form] of [(id: string) => id, short].entries()) {
      const id = `${path.replaceAll('/', '-')}${String(i)}`
      const answer = await service.call(
        'POST',
        path,
        await (bodies[name] as (typeof bodies)[string])(id, form),
      )
      expect([name, i, answer.status, answer.body.details]).toEqual([
        name,
        i,
        path.includes('runs') ? 202 : 201,
        undefined,
      ])
      if (path.includes('plans')) {
        const { assignments } = await service.get(`/schedule-plans/${id}/`)
        expect(
          assignments.map((assignment: Json) => [assignment['activityId'], assignment['externalId']]),
        ).toEqual(world.assignments.map(({ activityId }) => [form(activityId), short(activityId)]))
        await service.post('/execution-runs/', { id: `run${id}`, schedulePlanId: id, mode: 'real' })
      }
      runs.push(path.includes('runs') ? id : `run${id}`)
    }
  }
  for (const run of runs) expect((await service.finished(run)).run.status).toBe('completed')
})

test('every route with an activity in its path takes both forms, whichever the plan and the workflow have', async () => {
  const taking = operations().filter(({ path }) => path.includes('{activityId}'))
  expect(taking.length).toBeGreaterThan(3)
  // An id of an activity comes in the path or in a document; a query that took one would have to be
  // asked here too.
  expect(
    operations().flatMap(({ parameters }) =>
      parameters.filter((one) => one['in'] === 'query' && /activity/i.test(one['name'])),
    ),
  ).toEqual([])
  expect(runs.length).toBe(6)
  for (const { name, path } of taking)
    for (const run of runs) {
      const answers = []
      for (const activity of forms) {
        const url = path
          .replace('{runId}', encodeURIComponent(run))
          .replace('{activityId}', activity)
          .replace('{path}', 'out.txt')
        expect(url).not.toContain('{')
        answers.push(await service.call(name.slice(0, name.indexOf(' ')), url))
      }
      expect([name, run, answers.map(({ status }) => status)]).toEqual([name, run, [200, 200]])
      expect(answers[0]?.text).toBe(answers[1]?.text)
      if (!name.startsWith('HEAD ')) expect(answers[0]?.text).toMatch(/made|file|out\.txt/)
    }
  const unknown = await service.call(
    'GET',
    `/execution-runs/${encodeURIComponent(runs[0] as string)}/activities/both-both-make/logs/`,
  )
  expect(unknown.status).toBe(404)
})
