import { existing } from '../../refusal.ts'
import type { Db } from '../../db/sql.ts'
import { listRoute } from '../../http/list-route.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { masked } from '../environments/secrets.ts'
import { requireEnvironment } from '../environments/store.ts'
import { CapacityTarget, NewCapacityTarget } from './schemas.ts'
import { createTarget, deleteTarget, listTargets, readTarget, type TargetParts } from './store.ts'

const tag = 'cloud'

/** A target as answers show it: variables whose names say that they are secret are masked. */
const shown = (target: CapacityTarget): CapacityTarget => ({
  ...target,
  machineConfigurations: target.machineConfigurations.map((one) =>
    one.variables === undefined ? one : { ...one, variables: masked(one.variables) },
  ),
})

const idOf = (newId: string): string => `cloud-capacity-${newId}`

const made = async (db: Db, id: string) => {
  const target = existing(await readTarget(db, id), 'cloud capacity target', id)
  const headers = { location: `/cloud-capacity-targets/${encodeURIComponent(id)}/` }
  return { createdAt: target.createdAt, answer: new Reply({ body: shown(target), headers }) }
}

/** Capacity that plans may use before the machine exists. */
export const targetRoutes = ({ db, vault }: TargetParts): Route[] => [
  listRoute('listCapacityTargets', 'GET /environments/{environmentId}/cloud-capacity-targets/', {
    tag,
    summary: 'Capacity targets of an environment that are enabled, by name',
    item: CapacityTarget,
    read: async (page, { params }) => {
      await requireEnvironment(db, params.environmentId)
      const { rows, total } = await listTargets(db, params.environmentId, page)
      return { rows: rows.map(shown), total }
    },
  }),
  route('createCapacityTarget', 'POST /environments/{environmentId}/cloud-capacity-targets/', {
    tag,
    summary: 'Describe machines that a provider makes when a plan needs them; they become a resource',
    body: NewCapacityTarget,
    response: CapacityTarget,
    status: 201,
    refuses: [503],
    audit: { eventType: 'cloud.target.created', summary: 'capacity target {name} created' },
    made: ({ newId }) => made(db, idOf(newId)),
    handle: async ({ params, body, newId }) => {
      const id = body.id ?? idOf(newId)
      await createTarget({ db, vault }, params.environmentId, { ...body, id })
      return (await made(db, id)).answer
    },
  }),
  route('deleteCapacityTarget', 'DELETE /cloud-capacity-targets/{targetId}/', {
    tag,
    summary: 'Take a capacity target out of plans, once no instance of it may cost money',
    refuses: [409],
    audit: { eventType: 'cloud.target.deleted', summary: 'capacity target {targetId} deleted' },
    handle: ({ params }) => deleteTarget(db, params.targetId),
  }),
]
