import { describe, expect, test } from '@jest/globals'
import {
  placeOf,
  placesOf,
  schedulingOf,
  siteProblems,
  taskQueueOf,
  type SiteFacts,
} from '../../src/executor/sites.ts'

const resource = (id: string, more: object = {}) => ({
  id,
  pricePerSecond: 0,
  providerId: id,
  type: '',
  executionTarget: 'batch',
  cpuCores: 2,
  ...more,
})

const facts: SiteFacts = {
  hostId: 'here',
  runtimes: [
    { id: 'laptop', driver: 'local', capabilities: { container: true } },
    { id: 'other', driver: 'local', configuration: { hostId: 'there' } },
    { id: 'stub', driver: 'local', configuration: { launch: 'none' } },
    { id: 'hosts', driver: 'ssh', configuration: { connectionId: 'a' }, capabilities: { batch: true } },
    { id: 'nowhere', driver: 'ssh' },
    {
      id: 'queue',
      driver: 'slurm',
      configuration: { connectionId: 'login', partition: 'main', account: 'lab' },
      capabilities: {},
    },
    { id: 'own-queue', driver: 'slurm', configuration: {}, capabilities: { gpu: true } },
  ],
  resources: [resource('r1'), resource('r2'), resource('cpu', { type: 'hpc_partition', providerId: 'cpu' })],
  runtimeBindings: [
    { resourceId: 'r1', runtimeId: 'hosts' },
    { resourceId: 'r2', runtimeId: 'hosts', configuration: { connectionId: 'b' } },
    { resourceId: 'cpu', runtimeId: 'queue' },
  ],
}
const need = (runtimeId: string, resourceId = 'r1', more: object = {}) => ({
  activityId: 'act',
  runtimeId,
  resourceId,
  gpus: 0,
  image: undefined,
  timeoutSeconds: 0,
  memoryBytes: 0,
  ...more,
})
const connections = new Map([
  ['a', 'ssh'],
  ['b', 'ssh'],
  ['login', 'ssh'],
])

describe('the site of a task', () => {
  test.each([
    ['laptop', 'r1', 'local@here'],
    ['other', 'r1', 'local@there'],
    ['stub', 'r1', 'rehearsal'],
    ['hosts', 'r1', 'ssh/a'],
    ['hosts', 'r2', 'ssh/b'],
    ['queue', 'cpu', 'slurm/queue'],
    ['own-queue', 'cpu', 'slurm/own-queue'],
  ])('of runtime %s and resource %s is %s', (runtimeId, resourceId, site) => {
    expect(placeOf(facts, runtimeId, resourceId).site).toBe(site)
  })

  test('a connection of the binding stands over the one of the runtime', () => {
    expect(placeOf(facts, 'hosts', 'r2').connectionId).toBe('b')
  })

  test('what uses the files of a machine is polled for by that machine, and so is every other site of the run', () => {
    const places = placesOf(facts, [
      { runtimeId: 'laptop', resourceId: 'r1' },
      { runtimeId: 'hosts', resourceId: 'r1' },
    ])
    expect([...places.values()].map((place) => taskQueueOf(place, places.values(), 'q'))).toEqual([
      'q@here',
      'q@here',
    ])
    const remote = placesOf(facts, [{ runtimeId: 'hosts', resourceId: 'r1' }])
    expect([...remote.values()].map((place) => taskQueueOf(place, remote.values(), 'q'))).toEqual(['q'])
  })
})

test('the scheduler is told the words of the runtime, over them the partition that the resource is, over both the activity', () => {
  const place = placeOf(facts, 'queue', 'cpu')
  expect(schedulingOf(place, facts.resources[2], {})).toMatchObject({ partition: 'cpu', account: 'lab' })
  expect(
    schedulingOf(place, facts.resources[2], { scheduling: { partition: 'long', qos: 'high' } }),
  ).toMatchObject({
    partition: 'long',
    qos: 'high',
    account: 'lab',
  })
})

describe('what a site cannot do is said before the run is stored', () => {
  test('nothing against sites that can', () => {
    expect(
      siteProblems(
        facts,
        [need('hosts'), need('hosts', 'r2'), need('laptop'), need('queue', 'cpu')],
        connections,
      ),
    ).toEqual([])
  })

  test.each([
    [
      'a runtime without connection',
      need('nowhere'),
      'runtimes.nowhere.configuration.connectionId',
      /is missing/,
    ],
    [
      'a connection that is not there',
      need('hosts', 'r2'),
      'runtimes.hosts.configuration.connectionId',
      /"b", which is no connection/,
    ],
    [
      'a driver without graphics processors',
      need('hosts', 'r1', { gpus: 1 }),
      'runtimes.hosts.capabilities.gpu',
      /does not have it/,
    ],
    [
      'a site that declares none',
      need('queue', 'cpu', { gpus: 1 }),
      'runtimes.queue.capabilities.gpu',
      /is not declared/,
    ],
  ])('%s', (_what, demand, path, message) => {
    const known = path.includes('connectionId') ? new Map([['a', 'ssh']]) : connections
    expect(siteProblems(facts, [demand], known)).toEqual([{ path, message: expect.stringMatching(message) }])
  })

  test('a connection of another type', () => {
    expect(siteProblems(facts, [need('hosts')], new Map([['a', 'kubernetes']]))).toEqual([
      {
        path: 'runtimes.hosts.configuration.connectionId',
        message: expect.stringMatching(/of type kubernetes.*needs one of type ssh/),
      },
    ])
  })

  test('files of two machines that no connection joins', () => {
    expect(siteProblems(facts, [need('laptop'), need('other')], connections)).toEqual([
      { path: 'runtimes', message: expect.stringMatching(/here, there/) },
    ])
  })
})
