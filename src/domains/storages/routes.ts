import { z } from 'zod'
import { StorageError } from '../../drivers/storage/contract.ts'
import { parseRoot } from '../../drivers/storage/paths.ts'
import { reasonText } from '../../outside-text.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { unacceptable, type Problem } from '../../refusal.ts'
import { StorageProjection } from '../environments/schemas.ts'
import { maskedUrls } from '../environments/secrets.ts'
import { readStorage, recordProbe, setBrowseRoots, storagesOfEnvironment } from '../environments/storages.ts'
import { downloadRoutes } from './download-routes.ts'
import { startsOf } from './connection.ts'
import { browseRootsOf } from './endpoint.ts'
import { entryRoutes } from './entry-routes.ts'
import { promoteArtifact, promoteData } from './promote.ts'
import type { StorageRouteParts } from './promoted.ts'
import { Health, NewArtifact, NewData, NewRoots, Promoted, Roots } from './schemas.ts'
import { pathOf } from './view.ts'

/** Problems of roots that no path can be below. */
const rootProblems = (roots: readonly { path: string }[], starts: readonly string[]): Problem[] =>
  roots.flatMap(({ path }, at) => {
    try {
      parseRoot(path, ...starts)
      return []
    } catch (error) {
      if (!(error instanceof StorageError)) throw error
      return [{ path: `browseRoots.${at}.path`, message: error.message }]
    }
  })

/** Storages of environments: their entries, uploads and downloads. */
export const storageRoutes = ({ db, storages, promoted }: StorageRouteParts): Route[] => [
  route('listStorages', 'GET /environments/{environmentId}/storages/', {
    summary: 'Storages of the newest version of an environment',
    response: z.array(StorageProjection),
    raw: ['application/json'],
    handle: async ({ params }) =>
      new Reply({ body: `[${(await storagesOfEnvironment(db, params.environmentId)).join(',')}]` }),
  }),
  route('listStorageRoots', 'GET /storages/{storageId}/roots/', {
    summary: 'What of a storage may be looked into',
    response: Roots,
    handle: async ({ params }) => browseRootsOf(await readStorage(db, params.storageId)),
  }),
  route('updateStorageRoots', 'PUT /storages/{storageId}/roots/', {
    summary: 'Approve roots in place of those that were approved, also of a storage that is in use',
    body: NewRoots,
    response: Roots,
    audit: {
      eventType: 'storage.roots.replaced',
      summary: 'roots of storage {storageId} replaced',
    },
    handle: async ({ params, body }) => {
      const starts = startsOf(await readStorage(db, params.storageId))
      const problems = rootProblems(body.browseRoots, starts)
      if (problems.length > 0) throw unacceptable(problems)
      await setBrowseRoots(db, params.storageId, body.browseRoots, body.indexPolicy)
      return browseRootsOf(await readStorage(db, params.storageId))
    },
  }),
  route('checkStorage', 'POST /storages/{storageId}/health/', {
    summary: 'Ask the storage itself whether it can be reached now',
    response: Health,
    status: 200,
    refuses: [422, 503],
    audit: false,
    handle: async ({ params, signal }) => {
      const { driver } = await storages.whole(params.storageId)
      const began = performance.now()
      const ask = async () => {
        try {
          const { availableBytes } = await driver.space({ signal })
          return {
            status: 'healthy' as const,
            ...(availableBytes === undefined ? {} : { availableBytes }),
          }
        } catch (error) {
          if (!(error instanceof StorageError)) throw error
          return {
            status: error.passes ? ('unavailable' as const) : ('degraded' as const),
            message: maskedUrls(reasonText(error.message)),
          }
        }
      }
      const probe = {
        ...(await ask()),
        checkedAt: new Date().toISOString(),
        latencyMs: Math.round((performance.now() - began) * 10) / 10,
      }
      // A closed request aborts the probe, so its result does not show the state of the storage.
      if (!signal.aborted) await recordProbe(db, params.storageId, probe)
      return probe
    },
  }),
  ...entryRoutes({ db, storages, promoted }),
  ...downloadRoutes({ db, storages }),
  route('promoteData', 'POST /storages/{storageId}/promote-data/', {
    summary:
      'Record a file or a directory as scientific data; 200 with the first record of the same bytes at the ' +
      'same place that has all that is asked for',
    body: NewData,
    response: Promoted,
    status: 201,
    alsoStatus: [200],
    refuses: [503],
    audit: {
      eventType: 'storage.data.promoted',
      summary: 'data promoted from storage {storageId}',
    },
    handle: async ({ params, body, signal }) => {
      const opened = await storages.open(params.storageId)
      const path = await pathOf(body, opened.facts, 'body', true)
      const { id, workflowVersionId, runId, activityId } = body
      const made = await promoteData(
        { db, promoted },
        opened,
        path,
        { id, workflowVersionId, runId, activityId },
        signal,
      )
      return new Reply({ status: made.isNew ? 201 : 200, body: { id: made.id } })
    },
  }),
  route('promoteArtifact', 'POST /storages/{storageId}/promote-artifact/', {
    summary:
      'Record a SIF image as a version of an artifact; 200 with the first record of the same bytes at the ' +
      'same place that has all that is asked for',
    body: NewArtifact,
    response: Promoted,
    status: 201,
    alsoStatus: [200],
    refuses: [503],
    audit: {
      eventType: 'storage.artifact.promoted',
      summary: 'artifact promoted from storage {storageId}',
    },
    handle: async ({ params, body, signal }) => {
      const opened = await storages.open(params.storageId)
      const path = await pathOf(body, opened.facts, 'body', true)
      const { id, isNew } = await promoteArtifact(db, opened, path, body, signal)
      return new Reply({ status: isNew ? 201 : 200, body: { id } })
    },
  }),
]
