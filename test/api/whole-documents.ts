import { generateKeyPairSync } from 'node:crypto'

/**
 * For every route that takes a document one that is accepted, with as many of its fields as can stand together. `key` makes the ids of
 * the records that it creates; what it refers to is the world that `worldDocuments` of the same name gives.
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
    { id: `${key}-nothing`, name: 'nothing', driver: 'local', mode: 'execution', configuration: { launch: 'none' } },
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
    { environmentVersionId: '', sourceResourceId: `${key}-1`, targetResourceId: `${key}-2`, type: 'contains', metadata: {} },
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
        { runtimeId: `${key}-simulator`, containerPath: '/data', default: true, readOnly: false, hostPath: '/data', configuration: {} },
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
const accessKey = { provider: 'aws', credential: { accessKeyId: 'AKIAIOSFODNN7EXAMPLE', secretAccessKey: 'wJalrXUtnFEMI-EXAMPLEKEY' } }

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
          workingDirectory: '/',
          executable: { source: { type: 'oci', reference: 'debian:12-slim' }, delivery: { strategy: 'auto' } },
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
    dataDependencies: [{ producerActivity: 'first', consumerActivity: 'second', logicalName: 'out.txt', sizeBytes: 1000 }],
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
      { workflowVersionId: `${key}-v1`, activityId: `${key}-v1-second`, dependsOnActivityId: `${key}-v1-first`, type: 'control' },
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
    { workflowVersionId: 'base-flow-v1', activityId: 'base-flow-second', dependsOnActivityId: 'base-flow-first', type: 'control' },
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
export const baseWorld: readonly [path: string, body: Record<string, unknown>][] = [
  ['/ssh-keys/', { id: 'base' }],
  ['/kubernetes-tokens/', { id: 'base', ...token }],
  ['/cloud-credentials/', { id: 'base', ...accessKey }],
  ['/environments/', baseEnvironment],
  ['/environments/', environment('spare')],
  ['/execution-scopes/', scope('base-scope')],
  ['/network-topologies/', topology('base-network')],
  ['/workflow-definitions/', authored('base-flow')],
  ['/schedule-plans/import/', { plan: plan('base-plan') }],
]

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
    body: () => ({ id: 'default', name: 'here', description: 'd', organization: 'o', location: 'l', transferBufferBytes: 8 * 1024 * 1024 }),
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
  created('/cloud-credentials/validate/')(undefined, () => ({ ...accessKey, projectId: 'p', region: 'r' })),
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
  created('/provenance/sql/')(undefined, () => ({ statement: 'select id from resources where id = ?', params: ['one'] })),
  created('/provenance/sql/explain/')(undefined, () => ({ statement: 'select id from resources where id = ?', params: ['one'] })),
]
