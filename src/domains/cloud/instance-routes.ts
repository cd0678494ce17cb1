import { z } from 'zod'
import type { Sql } from '../../db/sql.ts'
import { listRoute } from '../../http/list-route.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import type { Engine } from '../../engine.ts'
import type { Feed } from '../../operations/feed.ts'
import { dispatchOperation, operationRoutes, type OperationApi } from '../../operations/routes.ts'
import { readOperation } from '../../operations/records.ts'
import { Refusal, existing } from '../../refusal.ts'
import { requireEnvironment } from '../environments/store.ts'
import { acceptAction, acceptProvisioning, cloudOperationIdOf, type AcceptParts } from './accept.ts'
import {
  CloudEvent,
  CloudInstance,
  CloudOperation,
  instanceActions,
  instanceStates,
  NewProvisioning,
  ProvisioningLog,
} from './instance-schemas.ts'
import {
  cloudEvent,
  listCloudOperations,
  listInstances,
  provisioningLog,
  readCloudOperation,
  readInstance,
} from './instances.ts'
import { cloudKind } from './operation.ts'
import { retryCloudOperation } from './retry.ts'

export interface InstanceParts extends AcceptParts {
  unused: Sql
  engine: Pick<Engine, 'start' | 'cancel' | 'live'>
  feed: Feed
}

const tag = 'cloud'

const required = async (parts: InstanceParts, id: string): Promise<CloudOperation> =>
  existing(await readCloudOperation(parts.db, id), 'cloud operation', id)

const made = async (parts: InstanceParts, id: string) => {
  const body = await required(parts, id)
  const headers = { location: `/cloud-operations/${encodeURIComponent(id)}/` }
  return { createdAt: body.createdAt, answer: new Reply({ body, headers }) }
}

/** Starts the workflow of an accepted operation, and answers with the operation. */
const acceptedReply = async (parts: InstanceParts, id: string): Promise<Reply> => {
  if ((await required(parts, id)).status === 'queued')
    await dispatchOperation({ ...parts, kind: cloudKind }, { id, generation: 1 })
  return (await made(parts, id)).answer
}

const provisioning = (parts: InstanceParts, path: 'cloud-instances' | 'cloud-provisioning'): Route =>
  route(
    path === 'cloud-instances' ? 'createCloudInstance' : 'provisionCloud',
    `POST /environments/{environmentId}/${path}/`,
    {
      tag,
      summary:
        path === 'cloud-instances'
          ? 'Provision a machine of a capacity target; a stopped one is started'
          : 'Start a provisioning workflow; the same as POST …/cloud-instances/',
      body: NewProvisioning,
      response: CloudOperation,
      status: 202,
      refuses: [409, 503],
      audit: {
        eventType: 'cloud.instance.provision',
        summary: 'a machine of target {capacityTargetId} asked for',
      },
      made: ({ newId }) => made(parts, cloudOperationIdOf(newId)),
      handle: async ({ params, body, newId }) =>
        acceptedReply(parts, await acceptProvisioning(parts, params.environmentId, body, newId)),
    },
  )

/** Machines of capacity targets, and the actions on them. */
export const instanceRoutes = (parts: InstanceParts): Route[] => [
  listRoute('listCloudInstances', 'GET /environments/{environmentId}/cloud-instances/', {
    tag,
    summary: 'Cloud instances of an environment, newest first, destroyed ones included',
    filters: {
      status: z.enum(instanceStates).optional().describe('instances in this state; all by default'),
      capacityTargetId: z.string().max(255).optional().describe('instances of this capacity target'),
    },
    item: CloudInstance,
    read: async (page, { params, query }) => {
      await requireEnvironment(parts.db, params.environmentId)
      return listInstances(parts.db, params.environmentId, page, query)
    },
  }),
  provisioning(parts, 'cloud-instances'),
  provisioning(parts, 'cloud-provisioning'),
  route('getCloudInstance', 'GET /cloud-instances/{instanceId}/', {
    tag,
    summary: 'One cloud instance with its bill so far',
    response: CloudInstance,
    handle: ({ params }) => readInstance(parts.db, params.instanceId),
  }),
  route('getProvisioningLog', 'GET /cloud-instances/{instanceId}/provisioning-log/', {
    tag,
    summary: 'What happened to a cloud instance, a line an event',
    response: ProvisioningLog,
    handle: async ({ params }) => ({ log: await provisioningLog(parts.db, params.instanceId) }),
  }),
  route('steerCloudInstance', 'POST /cloud-instances/{instanceId}/{action}/', {
    tag,
    summary: `One of ${instanceActions.join(', ')}; an equal one that is under way is answered again`,
    response: CloudOperation,
    status: 202,
    refuses: [409, 422, 503],
    audit: {
      eventType: 'cloud.instance.action',
      summary: '{action} of cloud instance {instanceId} asked for',
    },
    made: ({ newId }) => made(parts, cloudOperationIdOf(newId)),
    handle: async ({ params, newId }) => {
      await readInstance(parts.db, params.instanceId)
      const action = instanceActions.find((one) => one === params.action)
      if (action === undefined)
        throw new Refusal(
          'missing',
          `the action ${JSON.stringify(params.action)} does not exist; there are ${instanceActions.join(', ')}`,
        )
      return acceptedReply(parts, await acceptAction(parts.db, params.instanceId, action, { newId }))
    },
  }),
]

/** Operations at providers. */
export const cloudOperationRoutes = (parts: InstanceParts): Route[] => {
  const api: OperationApi = {
    ...parts,
    kind: cloudKind,
    path: '/cloud-operations/',
    parameter: 'operationId',
    tag,
  }
  const of = operationRoutes(api)
  const filters = {
    status: z.string().max(32).optional().describe('operations in this state'),
    kind: z.string().max(32).optional().describe('operations of this kind, such as provision'),
    instanceId: z.string().max(255).optional().describe('operations of this instance'),
    environmentId: z.string().max(255).optional().describe('operations in this environment'),
  }
  return [
    listRoute('listCloudOperations', 'GET /cloud-operations/', {
      tag,
      summary: 'Cloud operations, newest first',
      filters,
      item: CloudOperation,
      read: (page, { query }) => listCloudOperations(parts.db, page, query),
    }),
    of.read({
      summary: 'One cloud operation',
      response: CloudOperation,
      read: async (id) => {
        const document = await readCloudOperation(parts.db, id)
        const state = await readOperation(parts.db, cloudKind, { id })
        return document && state && { document, state }
      },
    }),
    of.events(CloudEvent, cloudEvent),
    of.retry({
      summary: 'Reopen a failed cloud operation; a provisioning whose machine was ended makes another one',
      act: (id) => retryCloudOperation(parts, id),
      document: { schema: CloudOperation, read: (id) => required(parts, id) },
    }),
    of.cancel({
      summary: 'Ask for the end of a cloud operation; a machine that it was making is ended',
      document: { schema: CloudOperation, read: (id) => required(parts, id) },
    }),
  ]
}
