import { expect, test } from '@jest/globals'
import { foundKubernetes, quantity } from '../../../src/connections/discovery/kubernetes.ts'

test.each([
  ['1500m', 1.5],
  ['4', 4],
  ['16Gi', 16 * 2 ** 30],
  ['129e6', 129e6],
  ['1.5G', 1.5e9],
  ['100k', 1e5],
  ['250u', 0.00025],
  ['', 0],
  ['many', 0],
  ['1Qi', 0],
])('the quantity %s is %d', (text, value) => {
  expect(quantity(text)).toBeCloseTo(value, 9)
})

const node = (name: string, ready: boolean, more: object = {}) => ({
  metadata: { name, labels: {} },
  spec: {},
  status: {
    allocatable: { cpu: '3920m', memory: '16Gi', ...more },
    conditions: [{ type: 'Ready', status: ready ? 'True' : 'False' }],
    nodeInfo: { architecture: 'amd64', kubeletVersion: 'v1.31.0' },
  },
})
const list = (...items: unknown[]) => ({ items })

test('a cluster has nodes, and a namespace whose quota says how much of it may be used', () => {
  const found = foundKubernetes(
    {
      version: 'v1.31.0',
      namespace: 'lab',
      nodes: list(node('a', true, { 'nvidia.com/gpu': '2' }), node('b', false)),
      namespaces: list({ metadata: { name: 'lab' } }),
      quotas: list({
        metadata: { name: 'q' },
        status: { hard: { 'limits.cpu': '2', 'limits.memory': '4Gi' }, used: { 'limits.cpu': '500m' } },
      }),
      storageClasses: list({ metadata: { name: 'fast' }, provisioner: 'csi' }),
    },
    { connectionId: 'c', name: 'k8s.example.org' },
  )
  expect(found.warnings).toEqual([])
  expect(found.resources).toMatchObject([
    { key: 'cluster/k8s.example.org', cpuCores: 6, metadata: { storageClasses: [{ name: 'fast' }] } },
    {
      key: 'namespace/lab',
      cpuCores: 2,
      memoryBytes: 4 * 2 ** 30,
      schedulable: true,
      observed: { available: true, cpuUsed: 0.5 },
    },
    {
      key: 'node/a',
      type: 'kubernetes_machine',
      cpuCores: 3,
      metadata: { kubernetesNode: 'a', gpus: 2 },
      observed: { available: true },
    },
    { key: 'node/b', observed: { available: false } },
  ])
})

test('of several quotas the smallest of each measure counts, and a part of a core is a core', () => {
  const part = node('small', true)
  const quota = (hard: Record<string, string>, used: Record<string, string> = {}) => ({
    metadata: { name: 'q' },
    status: { hard, used },
  })
  const found = foundKubernetes(
    {
      version: 'v1.31.0',
      namespace: 'lab',
      nodes: list(
        { ...part, status: { ...part.status, allocatable: { cpu: '940m', memory: '1Gi' } } },
        node('other', true),
      ),
      namespaces: list({ metadata: { name: 'lab' } }),
      quotas: list(
        quota({ pods: '10' }),
        quota({ 'limits.cpu': '8', 'limits.memory': '2Gi' }, { 'limits.cpu': '7', 'limits.memory': '1Gi' }),
        quota({ 'limits.cpu': '2500m', 'limits.memory': '4Gi' }, { 'limits.cpu': '1' }),
      ),
      storageClasses: list(),
    },
    { connectionId: 'c', name: 'k' },
  )
  expect(found.resources).toMatchObject([
    { key: 'cluster/k', cpuCores: 4 },
    {
      key: 'namespace/lab',
      cpuCores: 2,
      memoryBytes: 2 * 2 ** 30,
      metadata: { quota: { hard: { pods: '10', 'limits.cpu': '2500m', 'limits.memory': '2Gi' } } },
      observed: { cpuUsed: 1, memoryUsedBytes: 2 ** 30 },
    },
    { key: 'node/small', cpuCores: 1 },
    { key: 'node/other', cpuCores: 3 },
  ])
})

test('a quota above what the nodes have gives a namespace no more than that, where they may be read', () => {
  const hard = { 'requests.cpu': '1000', 'requests.memory': '1Ti' }
  const lab = (nodes: unknown) =>
    foundKubernetes(
      {
        ...{ version: 'v1', namespace: 'lab', namespaces: list(), storageClasses: list(), nodes },
        quotas: list({ metadata: { name: 'q' }, status: { hard, used: {} } }),
      },
      { connectionId: 'c', name: 'k' },
    ).resources.find(({ key }) => key === 'namespace/lab')
  expect(lab(list(node('a', true), node('b', true)))).toMatchObject({
    ...{ cpuCores: 6, memoryBytes: 32 * 2 ** 30, metadata: { quota: { hard } } },
  })
  for (const nodes of [undefined, list()])
    expect(lab(nodes)).toMatchObject({ cpuCores: 1_000, memoryBytes: 2 ** 40 })
})

test('what the account may not read is a warning', () => {
  const found = foundKubernetes(
    {
      version: 'v1',
      namespace: 'lab',
      nodes: undefined,
      namespaces: undefined,
      quotas: undefined,
      storageClasses: undefined,
    },
    { connectionId: 'c', name: 'k' },
  )
  expect(found.resources.map(({ key }) => key)).toEqual(['cluster/k', 'namespace/lab'])
  expect(found.warnings).toHaveLength(4)
})
