import { z } from 'zod'
import type { Database } from '../../../db/pool.ts'
import { Reply, route, type Route } from '../../../http/route.ts'
import type { ArtifactStore } from '../../../drivers/build/store.ts'
import { exportInstance } from './export.ts'
import { importInstance } from './import.ts'
import { removeArchiveFolder } from './files.ts'
import type { InstanceSelection } from './selection.ts'
import { activate, InstanceProjection, listSystemInstances, readArchive, removeArchive } from './store.ts'

export interface ArchiveParts {
  /** The database of this installation, whichever instance is read. */
  ownDb: Database
  instanceSpool: string
  instanceSecrets: () => Promise<string[]>
  /** The artifacts of this installation, whichever instance is read. */
  ownArtifactStore: ArtifactStore
  selection: Pick<InstanceSelection, 'changed'>
}

const ExportQuery = z.strictObject({
  includeArtifacts: z
    .enum(['true', 'false'])
    .optional()
    .describe('true: with the bytes of artifacts that this service holds'),
})
const Activation = z.strictObject({ instance: InstanceProjection, restarting: z.literal(false) })
/**
 * Above any size that needs a refusal here: a body that is too large is 422 on this route, not 413.
 */
const anySize = Number.MAX_SAFE_INTEGER

const exportRoute = ({ ownDb, instanceSpool, instanceSecrets, ownArtifactStore }: ArchiveParts): Route =>
  route('exportInstance', 'GET /instances/default/export/', {
    summary: 'The default instance as a ZIP archive, without credentials',
    query: ExportQuery,
    raw: ['application/zip'],
    streams: true,
    refuses: [422, 503],
    handle: async ({ query }) => {
      const { stream, size, fileName } = await exportInstance(
        { db: ownDb, spool: instanceSpool, secrets: instanceSecrets, artifactStore: ownArtifactStore },
        { includeArtifacts: query.includeArtifacts === 'true' },
      )
      return new Reply({
        stream,
        headers: {
          'content-length': String(size),
          'content-disposition': `attachment; filename="${fileName}"`,
        },
      })
    },
  })

const importRoute = ({ ownDb, instanceSpool }: ArchiveParts): Route =>
  route('importInstance', 'POST /instances/import/', {
    summary: 'Import an archive that an export made, beside the default instance',
    upload: { types: ['application/zip'], limitBytes: anySize },
    response: InstanceProjection,
    status: 201,
    refuses: [422, 503],
    audit: { eventType: 'instance.imported', summary: 'instance archive imported' },
    handle: async ({ upload }) => {
      const id = await importInstance({ db: ownDb, spool: instanceSpool }, upload)
      return new Reply({ body: await readArchive(ownDb, id), location: `/instances/${id}/` })
    },
  })

const activationRoute = ({ ownDb, selection }: ArchiveParts): Route =>
  route('activateInstance', 'POST /instance-activations/{instanceId}/', {
    summary: 'Make the API read an archived instance, or `default` again; what runs goes on',
    whileActivated: true,
    response: Activation,
    status: 202,
    refuses: [409],
    audit: { eventType: 'instance.activated', summary: 'instance {instanceId} activated' },
    handle: async ({ params }) => {
      const instance = await activate(ownDb, params.instanceId)
      selection.changed()
      return { instance, restarting: false as const }
    },
  })

/** Archives of instances: list, export, import, read, delete, activate. */
export const archiveRoutes = (parts: ArchiveParts): Route[] => [
  route('listInstances', 'GET /instances/', {
    summary: 'The default instance, then imported ones, the newest first',
    response: z.array(InstanceProjection),
    handle: () => listSystemInstances(parts.ownDb),
  }),
  exportRoute(parts),
  importRoute(parts),
  route('getArchivedInstance', 'GET /instances/{instanceId}/', {
    summary: 'One instance',
    response: InstanceProjection,
    handle: ({ params }) => readArchive(parts.ownDb, params.instanceId),
  }),
  route('deleteArchivedInstance', 'DELETE /instances/{instanceId}/', {
    summary: 'Delete an imported instance that is not activated',
    refuses: [409],
    audit: { eventType: 'instance.deleted', summary: 'instance {instanceId} deleted' },
    handle: async ({ params }) => {
      await removeArchive(parts.ownDb, params.instanceId)
      await removeArchiveFolder(parts.instanceSpool, params.instanceId)
    },
  }),
  activationRoute(parts),
]
