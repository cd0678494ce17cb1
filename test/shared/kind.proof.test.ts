import { expect } from '@jest/globals'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { parse } from 'yaml'
import { toolImage } from '../drivers/kubernetes-image.ts'
import { namespaceRights, startKubernetes, type KubernetesSite } from '../../sites/kubernetes.ts'
import { makeVaultKeyFile } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterAll, beforeAll, test } = needs('shared', ...sites.kubernetes)

type Json = any

const samples = join(import.meta.dirname, '../../../shared/data/samples/kind')
const text = (path: string): string => readFileSync(join(samples, path), 'utf8')
const namespace = 'akoflow'

let site: KubernetesSite
let service: TestService
let token: string

/** The namespace, account, claim and image that the documents name. */
const furnish = async (): Promise<void> => {
  const at = `/api/v1/namespaces/${namespace}`
  const rbac = '/apis/rbac.authorization.k8s.io/v1'
  const metadata = { name: 'orrery', namespace }
  const v1 = { apiVersion: 'v1' }
  await site.call('POST', '/api/v1/namespaces', { ...v1, kind: 'Namespace', metadata: { name: namespace } })
  await site.call('POST', `${at}/serviceaccounts`, { ...v1, kind: 'ServiceAccount', metadata })
  const rights = { apiVersion: 'rbac.authorization.k8s.io/v1', metadata }
  await site.call('POST', `${rbac}/namespaces/${namespace}/roles`, {
    ...rights,
    kind: 'Role',
    rules: namespaceRights,
  })
  await site.call('POST', `${rbac}/namespaces/${namespace}/rolebindings`, {
    ...rights,
    kind: 'RoleBinding',
    roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'Role', name: 'orrery' },
    subjects: [{ kind: 'ServiceAccount', name: 'orrery', namespace }],
  })
  const spec = { accessModes: ['ReadWriteMany'], storageClassName: '', volumeName: 'akoflow-data' }
  await site.call('POST', '/api/v1/persistentvolumes', {
    ...v1,
    kind: 'PersistentVolume',
    metadata: { name: 'akoflow-data' },
    spec: {
      accessModes: ['ReadWriteMany'],
      storageClassName: '',
      capacity: { storage: '1Gi' },
      hostPath: { path: '/srv/akoflow-data', type: 'DirectoryOrCreate' },
    },
  })
  await site.call('POST', `${at}/persistentvolumeclaims`, {
    ...v1,
    kind: 'PersistentVolumeClaim',
    metadata: { name: 'akoflow-data', namespace },
    spec: { ...spec, resources: { requests: { storage: '1Gi' } } },
  })
  const asked = (await site.call('POST', `${at}/serviceaccounts/orrery/token`, {
    apiVersion: 'authentication.k8s.io/v1',
    kind: 'TokenRequest',
    spec: { expirationSeconds: 7_200 },
  })) as { status: { token: string } }
  token = asked.status.token
}

beforeAll(async () => {
  site = await startKubernetes({ nodeNames: ['kind-worker'] })
  await furnish()
  service = await openService({
    environment: {
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
      SERVICE_KUBERNETES_HELPER_IMAGE: await toolImage(site),
    },
  })
}, 1_800_000)
afterAll(async () => {
  await service?.[Symbol.asyncDispose]()
  await site?.stop()
}, 120_000)

test('the sample runs as it is once its connection has an address, a credential and a certificate', async () => {
  const node = site.nodes[0]!
  const socket = (
    await node.run('find /run /var/run -name containerd.sock -type s 2>/dev/null | head -1')
  ).stdout
    .toString()
    .trim()
  await node.run(
    `ctr -a ${socket} -n k8s.io images tag ${site.images.busybox} docker.io/library/busybox:1.36 ` +
      `|| ctr -a ${socket} -n k8s.io images tag docker.io/${site.images.busybox} docker.io/library/busybox:1.36`,
  )

  const envelope = parse(text('requests/execution-request.yaml')) as Json
  await service.post('/environments/', text('environment.yaml'))
  await service.post('/workflow-definitions/', text('dag.yaml'))
  await service.post('/execution-scopes/', envelope.executionScope)
  await service.post('/network-topologies/', envelope.networkTopology)
  const { plan, workflow, resources, executionScope, networkTopology } = envelope
  await service.post('/schedule-plans/', { plan, workflow, resources, executionScope, networkTopology })

  const { credentialRef } = await service.post('/kubernetes-tokens/', { id: 'kind', token })
  const connection = await service.get('/environment-connections/kind-akoflow-connection/')
  expect(connection.configuration).toEqual({ namespace, insecureSkipTLSVerify: true })
  await service.ok('PUT', '/environment-connections/kind-akoflow-connection/', {
    ...connection,
    endpoint: site.server,
    credentialRef,
    configuration: { ...connection.configuration, certificateAuthority: site.certificateAuthority },
  })
  expect(await service.post('/environment-connections/kind-akoflow-connection/health/')).toMatchObject({
    status: 'online',
  })

  const accepted = await service.call('POST', '/execution-runs/', text('requests/execution-request.yaml'))
  expect([accepted.status, accepted.text]).toEqual([202, expect.any(String)])
  const detail = await service.finished('kind-dag-run-v1', 600)
  expect([detail.run.status, detail.run.failureReason]).toEqual(['completed', undefined])
  for (const task of detail.activities) {
    expect(task).toMatchObject({
      status: 'completed',
      exitCode: 0,
      runtimeId: 'kubernetes',
      connectionId: 'kind-akoflow-connection',
    })
    expect(task.metadata.helperImage).toMatch(/tools:1@sha256:[0-9a-f]{64}$/)
  }
  const consumed = await service.call(
    'GET',
    '/execution-runs/kind-dag-run-v1/activities/process/outputs/consumed.txt',
  )
  expect(consumed.text).toBe('prepared\n')
  // The work files lie on the claim that the environment's storage names.
  expect(await site.kubectl('-n', namespace, 'get', 'pods', '-o', 'yaml')).toContain(
    'claimName: akoflow-data',
  )
}, 900_000)
