import { createHash, generateKeyPairSync } from 'node:crypto'
import { mkdirSync, mkdtempSync, realpathSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { eventually } from '../support/reach.ts'
import { runFolder } from '../support/run-folder.ts'
import type { TestService } from '../support/service.ts'

/**
 * For every route that takes a document one that is accepted, with as many of its fields as can
 * stand together. `key` makes the ids of the records that it creates; what it refers to is the
 * world that `makeBaseWorld` makes.
 */
export interface Example {
  /** Distinguishes several examples of one route. */
  form?: string
  method: 'POST' | 'PUT'
  /** As the API's document has it. */
  template: string
  /** As it is sent. */
  path: (key: string) => string
  body: (key: string) => Record<string, unknown>
  /** The key by which the form is told: without it the document is taken for another one. */
  discriminator?: string
}

const environment = (key: string): Record<string, unknown> => ({
  environment: { id: key, name: key, description: 'two machines', status: 'ready' },
  version: {
    id: `${key}-v1`,
    environmentId: key,
    version: 1,
    status: 'published',
    networkModel: 'static-links',
    interferenceModel: 'none',
    costModel: 'per-second',
    configurationHash: 'abc',
  },
  runtimes: [
    {
      id: `${key}-simulator`,
      environmentVersionId: '',
      name: 'simulator',
      driver: 'simgrid',
      mode: 'simulation',
      role: 'simulation',
      configuration: { a: { b: 1 } },
      capabilities: { batch: true, interactive: false, container: true, simulation: true },
    },
    {
      id: `${key}-nothing`,
      name: 'nothing',
      driver: 'local',
      mode: 'execution',
      configuration: { launch: 'none' },
    },
  ],
  resources: [1, 2].map((n) => ({
    id: `${key}-${String(n)}`,
    environmentVersionId: '',
    type: 'cloud_vm',
    name: `machine ${String(n)}`,
    providerId: `${key}-${String(n)}`,
    executionTarget: 'direct',
    parentResourceId: '',
    tier: 'cloud',
    region: 'r',
    zone: 'z',
    architecture: 'x86_64',
    cpuCores: 2,
    cpuCapacity: 2,
    memoryBytes: 2 ** 31,
    storageBytes: 2 ** 33,
    computeSpeedup: 1,
    pricePerSecond: 0.5,
    bootOverheadSeconds: 1,
    containerOverheadSeconds: 0.5,
    schedulable: true,
    metadata: { rack: 1 },
  })),
  resourceRuntimeBindings: [1, 2].flatMap((n) =>
    ['simulator', 'nothing'].map((runtime) => ({
      resourceId: `${key}-${String(n)}`,
      runtimeId: `${key}-${runtime}`,
      enabled: true,
      configuration: { queue: 'a' },
    })),
  ),
  resourceRelations: [
    {
      environmentVersionId: '',
      sourceResourceId: `${key}-1`,
      targetResourceId: `${key}-2`,
      type: 'contains',
      metadata: {},
    },
  ],
  storages: [
    {
      id: `${key}-disk`,
      environmentVersionId: '',
      name: 'disk',
      type: 'local',
      endpoint: '/data',
      capacityBytes: 100,
      shared: true,
      readOnly: false,
      credentialReference: '',
      configuration: { browseRoots: [{ path: '/data' }] },
      metadata: {},
      runtimeBindings: [
        {
          runtimeId: `${key}-simulator`,
          containerPath: '/data',
          default: true,
          readOnly: false,
          hostPath: '/data',
          configuration: {},
        },
      ],
    },
  ],
  activityResourceProfiles: [],
  connections: [
    {
      id: `${key}-connection`,
      environmentId: '',
      name: 'door',
      type: 'ssh',
      // Not allowed without a setting, so that it is refused at once and no name server is asked.
      endpoint: '127.0.0.1:22',
      username: 'u',
      credentialRef: 'c',
      configuration: { port: 22 },
    },
  ],
})

const passphrase = 'a test, not a secret'
const importedKey = {
  privateKey: generateKeyPairSync('ec', { namedCurve: 'prime256v1' })
    .privateKey.export({ type: 'pkcs8', format: 'pem', cipher: 'aes-256-cbc', passphrase })
    .toString(),
  passphrase,
}
const token = { token: 'the-token-of-a-cluster' }
const accessKey = {
  provider: 'aws',
  credential: { accessKeyId: 'AKIAIOSFODNN7EXAMPLE', secretAccessKey: 'wJalrXUtnFEMI-EXAMPLEKEY' },
}
const registryLogin = { registry: 'registry.example.org', username: 'ada', password: 'of-the-tests' }

const connection = {
  id: 'base-connection',
  environmentId: 'base',
  name: 'door',
  type: 'ssh',
  endpoint: '127.0.0.1:22',
  username: 'u',
  credentialRef: 'vault:ssh-key/base',
  configuration: { port: 22, hostKeyPolicy: 'accept-new' },
}

const scope = (key: string): Record<string, unknown> => ({
  id: key,
  name: key,
  networkTopologyId: '',
  environmentVersionIds: ['base-v1'],
  metadata: { a: 1 },
})

const topology = (key: string, executionScopeId = 'base-scope'): Record<string, unknown> => ({
  id: key,
  name: key,
  version: 1,
  executionScopeId,
  links: [
    {
      id: `${key}-link`,
      topologyId: '',
      sourceResourceId: 'base-1',
      targetResourceId: 'base-2',
      bandwidthBitsPerSecond: 1e9,
      latencySeconds: 0.001,
      pricePerByte: 1e-9,
      bidirectional: true,
      sharingPolicy: 'shared',
      maxConcurrentTransfers: 4,
      metadata: { a: 1 },
    },
  ],
  metadata: { a: 1 },
})

const authored = (key: string): Record<string, unknown> => ({
  name: key,
  spec: {
    namespace: 'tests',
    image: 'debian:12-slim',
    storageClassName: 'standard',
    storageSize: '1Gi',
    storagePolicy: { type: 'standalone' },
    mountPath: '/data',
    metadata: { a: 1 },
    activities: [
      {
        name: 'first',
        command: {
          entrypoint: 'sh',
          arguments: ['-c', 'true'],
          environment: { A: 'b' },
          workingDirectory: 'sub',
          executable: {
            source: { type: 'oci', reference: 'debian:12-slim' },
            delivery: { strategy: 'auto' },
          },
        },
        runtime: 'local',
        cpuLimit: '1',
        memoryLimit: '64Mi',
        keepDisk: false,
        mountPath: '/data',
        expectedOutputs: ['out.txt'],
        simulation: { model: 'deterministic', durationSeconds: 2, flops: 10, parameters: { a: 1 } },
        activityType: 'kind',
        policy: { timeoutSeconds: 60, maxAttempts: 2, retryDelaySeconds: 1 },
        priority: 1,
        stage: 'all',
        metadata: { a: 1 },
      },
      {
        name: 'second',
        run: 'true',
        image: 'debian:12-slim',
        cpuLimit: 1,
        memoryLimit: '64Mi',
        dependsOn: ['first'],
        resourceSelector: 'base-1',
        simulation: { durationSeconds: 1 },
      },
    ],
    dataDependencies: [
      { producerActivity: 'first', consumerActivity: 'second', logicalName: 'out.txt', sizeBytes: 1000 },
    ],
  },
})

const activity = (version: string, name: string): Record<string, unknown> => ({
  id: `${version}-${name}`,
  workflowVersionId: version,
  activityTypeId: `${version}-type`,
  externalId: name,
  name,
  kind: 'task',
  capabilities: ['simulation'],
  command: {},
  resources: { cpu: 1, memoryBytes: 1024, storageBytes: 0 },
  simulation: { durationSeconds: 1 },
  policy: { timeoutSeconds: 60, maxAttempts: 1, retryDelaySeconds: 0 },
  priority: 0,
  metadata: { a: 1 },
})

const normalised = (key: string): Record<string, unknown> => ({
  id: key,
  externalId: key,
  name: key,
  namespace: 'tests',
  version: {
    id: `${key}-v1`,
    workflowId: key,
    version: 1,
    status: 'published',
    metadata: { a: 1 },
    activities: ['first', 'second'].map((name) => activity(`${key}-v1`, name)),
    dependencies: [
      {
        workflowVersionId: `${key}-v1`,
        activityId: `${key}-v1-second`,
        dependsOnActivityId: `${key}-v1-first`,
        type: 'control',
      },
    ],
    dataDependencies: [
      {
        workflowVersionId: `${key}-v1`,
        producerActivityId: `${key}-v1-first`,
        consumerActivityId: `${key}-v1-second`,
        logicalName: 'out',
        sizeBytes: 10,
      },
    ],
  },
  activityTypes: [
    {
      id: `${key}-v1-type`,
      name: 'kind',
      application: 'a',
      defaultImage: 'b',
      cpuIntensity: 1,
      memoryIntensity: 1,
      ioIntensity: 1,
      networkIntensity: 1,
      metadata: { a: 1 },
    },
  ],
})

const trace = (key: string): Record<string, unknown> => ({
  name: key,
  description: 'two tasks',
  schemaVersion: '1.5',
  workflow: {
    specification: {
      tasks: [
        { id: 'a', name: 'a', parents: [], children: ['b'], inputFiles: [], outputFiles: ['f'] },
        { id: 'b', name: 'b', parents: ['a'], children: [], inputFiles: ['f'], outputFiles: [] },
      ],
      files: [{ id: 'f', sizeInBytes: 10 }],
    },
    execution: {
      makespanInSeconds: 3,
      tasks: ['a', 'b'].map((id) => ({
        id,
        runtimeInSeconds: 1,
        coreCount: 1,
        memoryInBytes: 1024,
        command: { program: 'p', arguments: ['x'] },
      })),
    },
  },
})

const plan = (key: string): Record<string, unknown> => ({
  id: key,
  workflowVersionId: 'base-flow-v1',
  executionScopeId: 'base-scope',
  networkTopologyId: 'base-network',
  source: 'manual',
  algorithm: 'manual',
  algorithmVersion: '1',
  objective: 'time',
  deadlineSeconds: 100,
  budget: 100,
  predicted: { makespanSeconds: 4, cost: 1, feasible: true },
  assignments: ['first', 'second'].map((name, i) => ({
    id: `${key}-${name}`,
    planId: key,
    activityId: name,
    externalId: name,
    resourceId: 'base-1',
    coreId: 'core-0',
    slotId: 'default',
    orderOnResource: i + 1,
    priority: 1,
    predictedReadyAt: i * 4,
    predictedStartAt: i * 4,
    predictedFinishAt: i * 4 + 2,
    predictedRuntimeSeconds: 2,
    predictedTransferSeconds: 0,
    predictedCost: 1,
    metadata: { runtimeId: 'base-simulator' },
  })),
  metadata: { a: 1 },
})

const workflowVersion = (): Record<string, unknown> => ({
  id: 'base-flow-v1',
  workflowId: 'base-flow',
  version: 1,
  status: 'published',
  activities: ['first', 'second'].map((name) => ({
    ...activity('base-flow-v1', name),
    id: `base-flow-${name}`,
    activityTypeId: 'base-flow-kind',
  })),
  dependencies: [
    {
      workflowVersionId: 'base-flow-v1',
      activityId: 'base-flow-second',
      dependsOnActivityId: 'base-flow-first',
      type: 'control',
    },
  ],
  dataDependencies: [
    {
      workflowVersionId: 'base-flow-v1',
      producerActivityId: 'base-flow-first',
      consumerActivityId: 'base-flow-second',
      logicalName: 'out.txt',
      sizeBytes: 1000,
    },
  ],
})

const baseEnvironment = environment('base')
const companions = () => ({
  workflow: workflowVersion(),
  resources: baseEnvironment['resources'],
  executionScope: { ...scope('base-scope') },
  networkTopology: topology('base-network'),
})

/** What the examples refer to, in the order in which it is created. */
/** A folder of this machine with the files that examples name. */
const storageFolder = realpathSync(mkdtempSync(join(runFolder(), 'storage-')))
writeFileSync(join(storageFolder, 'file'), 'content')
mkdirSync(join(storageFolder, 'folder'))
writeFileSync(
  join(storageFolder, 'tool.sif'),
  `#!/usr/bin/env run-singularity\n\0SIF_MAGIC\x0001\x0002\0${'x'.repeat(100)}`,
)
/** Bytes that no example promotes: where they lie is a variant of the world. */
const baseImage = `#!/usr/bin/env run-singularity\n\0SIF_MAGIC\x0001\x0002\0${'y'.repeat(100)}`
writeFileSync(join(storageFolder, 'base.sif'), baseImage)
const hexOf = (text: string): string => createHash('sha256').update(text).digest('hex')
const baseDigest = `sha256:${hexOf(baseImage)}`
const versionId = 'artifact-version:base-artifact:1:environment:files'
const variantId = `artifact-variant-${hexOf(`${versionId}\n${baseDigest}`).slice(0, 40)}`
/** A context that the store has. */
const contextText = 'a context'
const contextHex = hexOf(contextText)
const artifactRoot = realpathSync(mkdtempSync(join(runFolder(), 'artifacts-')))
mkdirSync(join(artifactRoot, 'contexts', contextHex.slice(0, 2)), { recursive: true })
writeFileSync(join(artifactRoot, 'contexts', contextHex.slice(0, 2), contextHex), contextText)
/** What a service needs for the examples. */
export const worldVariables = {
  SERVICE_LOCAL_STORAGE_ROOT: storageFolder,
  SERVICE_ARTIFACT_ROOT: artifactRoot,
}

const files = {
  environment: { id: 'files', name: 'files' },
  version: { id: 'files-v1', version: 1, status: 'published' },
  storages: [
    {
      ...{ id: 'base-files', name: 'files', type: 'local', endpoint: storageFolder },
      configuration: { browseRoots: [{ path: storageFolder }] },
    },
  ],
}

export const cloudConfiguration = { sshSourceRanges: ['192.0.2.0/24'] }
const clouds = {
  environment: { id: 'clouds', name: 'clouds' },
  version: { id: 'clouds-v1', version: 1, status: 'published' },
  runtimes: [{ id: 'clouds-vm', name: 'vm', driver: 'cloud', mode: 'execution' }],
  connections: [
    // Nothing listens there: operations are accepted and wait.
    {
      ...{ id: 'clouds-account', name: 'account', type: 'cloud', endpoint: 'http://127.0.0.1:9' },
      ...{
        credentialRef: 'vault:cloud-credential/base',
        configuration: { provider: 'aws', region: 'us-east-1' },
      },
    },
  ],
}
const capacityTarget = (key: string): Record<string, unknown> => ({
  ...{ id: key, name: key, provider: 'aws', providerMachineType: 'm5.large', imageReference: 'ami-1' },
  ...{ region: 'us-east-1', fixedZone: 'us-east-1a', zonePolicy: 'fixed', architecture: 'amd64' },
  ...{ vcpu: 2, memoryMiB: 8_192, provisioningMode: 'spot', maximumInstances: 3 },
  lifecyclePolicy: 'destroy-after-run',
  configuration: {
    ...{ connectionId: 'c', diskType: 'gp3', diskSizeGiB: 20, network: 'n', projectId: 'p' },
    ...{ sshSourceRanges: ['192.0.2.0/24'], allowPublicSsh: false },
    ...{ sshAddress: 'public', sshPort: 22, sshUsername: 'akoflow' },
    ...{ pricePerHour: 0.1, priceCurrency: 'USD', priceSource: 'list', diskPricePerGiBMonth: 0.08 },
  },
  machineConfigurations: [
    {
      ...{ configurationVersionId: 'akoflow-scientific-worker-v7', executionOrder: 0 },
      ...{ variables: { akoflow_workspace_path: '/w' }, required: true, enabled: true },
    },
  ],
})

const baseWorld: readonly [path: string, body: Record<string, unknown>][] = [
  ['/ssh-keys/', { id: 'base' }],
  ['/kubernetes-tokens/', { id: 'base', ...token }],
  ['/cloud-credentials/', { id: 'base', ...accessKey }],
  ['/registry-credentials/', { id: 'base', ...registryLogin }],
  ['/machine-configurations/', { id: 'base-configuration', name: 'base-configuration' }],
  ['/environments/', baseEnvironment],
  ['/environments/', environment('spare')],
  ['/environments/', files],
  ['/environments/', clouds],
  [
    '/environments/clouds/cloud-capacity-targets/',
    { ...capacityTarget('base-target'), maximumInstances: 10_000, configuration: cloudConfiguration },
  ],
  ['/execution-scopes/', scope('base-scope')],
  ['/network-topologies/', topology('base-network')],
  ['/workflow-definitions/', authored('base-flow')],
  ['/schedule-plans/import/', { plan: plan('base-plan') }],
  ['/execution-runs/', { id: 'base-run', schedulePlanId: 'base-plan', mode: 'simulation', seed: 1 }],
  ['/storages/base-files/promote-artifact/', { path: 'base.sif', id: 'base-artifact', version: '1' }],
]

/** Makes the world in a service. Its run is over then, so that the rows of all tables stay. */
export const makeBaseWorld = async (service: Pick<TestService, 'get' | 'post'>): Promise<void> => {
  for (const [path, body] of baseWorld) await service.post(path, body)
  await eventually('the end of the run of the world', 60, async () =>
    ['completed', 'failed'].includes((await service.get('/execution-runs/base-run/')).run.status),
  )
}

const playbook = '- hosts: all\n  tasks:\n    - ansible.builtin.command: id\n'

const created =
  (template: string) =>
  (form: string | undefined, body: (key: string) => Record<string, unknown>): Example => ({
    ...(form === undefined ? {} : { form }),
    method: 'POST',
    template,
    path: () => template,
    body,
  })

/** Of the record `base` of a kind. */
const replaced = (folder: string, body: Record<string, unknown>): Example => ({
  method: 'PUT',
  template: `${folder}{credentialId}/`,
  path: () => `${folder}base/`,
  body: () => ({ id: 'base', ...body }),
})

export const examples: readonly Example[] = [
  {
    method: 'PUT',
    template: '/instance/',
    path: () => '/instance/',
    body: () => ({
      id: 'default',
      name: 'here',
      description: 'd',
      organization: 'o',
      location: 'l',
      transferBufferBytes: 8 * 1024 * 1024,
    }),
  },
  {
    method: 'PUT',
    template: '/user-preferences/{clientId}/',
    path: (key) => `/user-preferences/client-${key}/`,
    body: () => ({ clientId: 'client-0', theme: 'dark', animationsEnabled: true }),
  },
  created('/environments/')(undefined, environment),
  {
    method: 'PUT',
    template: '/environments/{environmentId}/',
    path: () => '/environments/spare/',
    body: () => environment('spare'),
  },
  created('/ssh-keys/')(undefined, (key) => ({ id: key, comment: 'of the tests' })),
  created('/ssh-keys/import/')(undefined, (key) => ({ id: key, ...importedKey })),
  replaced('/ssh-keys/', importedKey),
  created('/kubernetes-tokens/')(undefined, (key) => ({ id: key, ...token })),
  replaced('/kubernetes-tokens/', token),
  created('/cloud-credentials/')(undefined, (key) => ({ id: key, ...accessKey })),
  replaced('/cloud-credentials/', accessKey),
  created('/registry-credentials/')(undefined, (key) => ({ id: key, ...registryLogin })),
  replaced('/registry-credentials/', registryLogin),
  // This version asks azure nothing: the others are asked.
  created('/cloud-credentials/validate/')(undefined, () => ({
    ...{ provider: 'azure', projectId: 'p', region: 'r' },
    credential: {
      ...{ tenantId: 'tenant', clientSecret: 'a-secret-of-the-tests' },
      clientId: '01234567-89ab-cdef-0123-456789abcdef',
    },
  })),
  {
    method: 'POST',
    template: '/environments/{environmentId}/cloud-capacity-targets/',
    path: () => '/environments/clouds/cloud-capacity-targets/',
    body: capacityTarget,
  },
  ...['cloud-instances', 'cloud-provisioning'].map((folder): Example => ({
    method: 'POST',
    template: `/environments/{environmentId}/${folder}/`,
    path: () => `/environments/clouds/${folder}/`,
    body: (key) => ({
      ...{ capacityTargetId: 'base-target', name: key, sshUsername: 'akoflow', instanceId: key },
    }),
  })),
  created('/machine-configurations/')(undefined, (key) => ({ id: key, name: key, description: 'd' })),
  {
    method: 'POST',
    template: '/machine-configurations/{configurationId}/versions/',
    path: () => '/machine-configurations/base-configuration/versions/',
    body: (key) => ({
      ...{ id: key, status: 'published', playbookYaml: playbook, compatibility: { providers: ['aws'] } },
      variablesSchema: { type: 'object', properties: { size: { type: 'integer' } } },
      validationChecks: [{ name: 'here', command: 'true', capability: 'none' }],
    }),
  },
  created('/machine-configuration-validations/')(undefined, () => ({ playbookYaml: playbook })),
  created('/connection-tests/')(undefined, () => connection),
  {
    method: 'PUT',
    template: '/environment-connections/{connectionId}/',
    path: () => '/environment-connections/base-connection/',
    body: () => connection,
  },
  {
    method: 'POST',
    template: '/environment-connections/{connectionId}/login/',
    path: () => '/environment-connections/base-connection/login/',
    // Nothing is asked here, so the login is tried, and its state, refused, is the answer.
    body: () => ({ answers: ['123456'] }),
  },
  {
    method: 'PUT',
    template: '/storages/{storageId}/roots/',
    path: () => '/storages/base-files/roots/',
    body: () => ({
      browseRoots: [{ path: '/', label: 'all', readOnly: false }],
      indexPolicy: {
        enabled: true,
        roots: ['/'],
        maxDepth: 5,
        maxEntries: 100,
        include: ['*'],
        exclude: ['tmp'],
        timeoutSeconds: 60,
      },
    }),
  },
  {
    method: 'POST',
    template: '/storages/{storageId}/checksum/',
    path: () => '/storages/base-files/checksum/',
    body: () => ({ path: 'file' }),
  },
  {
    method: 'POST',
    template: '/storages/{storageId}/downloads/',
    path: () => '/storages/base-files/downloads/',
    body: (key) => ({ path: 'file', id: key }),
  },
  {
    method: 'POST',
    template: '/storages/{storageId}/copies/',
    path: () => '/storages/base-files/copies/',
    body: (key) => ({
      ...{ path: 'file', id: key, destinationStorageId: 'base-files', destinationPath: `copies/${key}` },
      ...{ onConflict: 'overwrite', bytesPerSecond: 1_000_000 },
    }),
  },
  {
    method: 'POST',
    template: '/storages/{storageId}/archives/',
    path: () => '/storages/base-files/archives/',
    body: (key) => ({ path: 'folder', id: key, onConflict: 'overwrite' }),
  },
  {
    method: 'POST',
    template: '/storages/{storageId}/index-runs/',
    path: () => '/storages/base-files/index-runs/',
    body: (key) => ({ id: key, checksums: true }),
  },
  {
    method: 'POST',
    template: '/storages/{storageId}/promote-data/',
    path: () => '/storages/base-files/promote-data/',
    body: (key) => ({ path: 'file', id: key }),
  },
  {
    method: 'POST',
    template: '/storages/{storageId}/promote-artifact/',
    path: () => '/storages/base-files/promote-artifact/',
    body: (key) => ({
      path: 'tool.sif',
      id: key,
      name: 'tool',
      version: '1',
      scope: 'environment',
      scopeId: 'files',
    }),
  },
  created('/resources/')(undefined, (key) => ({
    ...(environment(key)['resources'] as Record<string, unknown>[])[0],
    environmentVersionId: 'base-v1',
  })),
  created('/network-topologies/')(undefined, (key) => ({ ...topology(key), name: key })),
  created('/execution-scopes/')(undefined, scope),
  created('/workflow-definitions/')('as authors write it', authored),
  created('/workflow-definitions/')('as it is answered', normalised),
  { ...created('/workflow-definitions/')('WfFormat', trace), discriminator: 'workflow' },
  created('/workflow-definitions/import/')(undefined, authored),
  {
    method: 'POST',
    template: '/workflow-definition-actions/duplicate/{workflowId}/',
    path: () => '/workflow-definition-actions/duplicate/base-flow/',
    body: (key) => ({ name: key, namespace: 'tests' }),
  },
  created('/schedule-plans/')(undefined, (key) => ({ plan: plan(key), ...companions() })),
  created('/schedule-plans/import/')(undefined, (key) => ({ plan: plan(key) })),
  created('/planning-sessions/')(undefined, (key) => ({
    id: key,
    workflowVersionId: 'base-flow-v1',
    executionScopeId: 'base-scope',
    networkTopologyId: 'base-network',
    algorithms: [{ id: 'heft', configuration: { beamWidth: 1, optionCount: 1, readyBranchLimit: 1 } }],
    deadlineSeconds: 10,
    budget: 10,
    configuration: {
      interferenceMatrix: {
        schemaVersion: '4',
        model: 'pairwise-slowdown',
        aggregation: 'maximum',
        priorityWeight: 1,
        rules: [{ affectedActivityTypeId: 'a', interferingActivityTypeId: 'b', slowdownFactor: 1.5 }],
      },
    },
  })),
  created('/execution-runs/')('bare', (key) => ({
    id: key,
    schedulePlanId: 'base-plan',
    mode: 'simulation',
    seed: 1,
    title: 't',
    networkModel: 'max-min',
    simulator: 'built-in',
    onFailure: 'stop',
  })),
  created('/execution-runs/')('with its snapshot', (key) => ({
    run: { id: key, schedulePlanId: 'base-plan', mode: 'simulation', seed: 1, status: 'created' },
    plan: plan('base-plan'),
    ...companions(),
    runtimes: baseEnvironment['runtimes'],
    runtimeBindings: baseEnvironment['resourceRuntimeBindings'],
    activityProfiles: [
      {
        id: 'profile',
        activityTypeId: 'base-flow-kind',
        resourceId: 'base-1',
        runtimeSeconds: 2,
        runtimeStdDevSeconds: 0,
        cpuUtilization: 1,
        peakMemoryBytes: 10,
        source: 'measured',
        sampleSize: 1,
      },
    ],
    preparationRequirementsByActivity: { first: [] },
  })),
  created('/artifacts/')(undefined, (key) => ({
    ...{ artifactId: key, name: key, version: '1', scope: 'project', scopeId: 'p' },
  })),
  created('/artifacts/docker/')(undefined, (key) => ({
    ...{ artifactId: key, version: '1', image: 'example.org/tools/a:1', architecture: 'amd64' },
  })),
  created('/build-contexts/')(undefined, () => ({
    digest: `sha256:${contextHex}`,
    storageUri: `artifact://contexts/${contextHex}`,
    sizeBytes: contextText.length,
    mediaType: 'application/vnd.akoflow.build-context+tar+gzip',
  })),
  created('/artifact-builds/')(undefined, (key) => ({
    ...{ id: key, artifactVersionId: versionId, sourceType: 'docker-image', image: 'example.org/tools/a:1' },
    contextDigest: `sha256:${hexOf('docker://example.org/tools/a:1\n')}`,
    recipeDigest: `sha256:${hexOf('docker://example.org/tools/a:1\n')}`,
    ...{ cacheKey: key, targetFormat: 'oci', targetOs: 'linux', targetArchitecture: 'amd64' },
    ...{ buildArguments: '{}', network: false },
  })),
  created('/artifact-materializations/')(undefined, (key) => ({
    ...{ id: key, runId: 'base-run', activityId: 'base-flow-v1-first', variantId, digest: baseDigest },
    resourceId: 'base-1',
    ...{
      environmentId: 'base-v1',
      destinationPath: '/srv/a.sif',
      status: 'committed',
      verifiedDigest: baseDigest,
    },
  })),
  created('/provenance/sql/')(undefined, () => ({
    statement: 'select id from resources where id = ?',
    params: ['one'],
  })),
  created('/provenance/sql/explain/')(undefined, () => ({
    statement: 'select id from resources where id = ?',
    params: ['one'],
  })),
]
