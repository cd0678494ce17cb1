import type { z } from 'zod'
import { pathInAnswer } from '../../drivers/storage/paths.ts'
import { listRoute } from '../../http/list-route.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { present } from '../../json-object.ts'
import { isOpenState, requestCancel } from '../../operations/records.ts'
import { dispatchOperation } from '../../operations/routes.ts'
import { existing, Refusal, unacceptableAt } from '../../refusal.ts'
import { readStorage } from '../environments/storages.ts'
import { rootsOf } from './endpoint.ts'
import { refusing } from './errors.ts'
import { indexKind } from './index-kind.ts'
import { indexRulesOf, isIndexed } from './index-policy.ts'
import { readIndex } from './index-query.ts'
import { acceptIndexRun, lastIndexed, listIndexRuns, readIndexRun, type IndexRunRow } from './index-store.ts'
import type { StorageJobParts } from './job-routes.ts'
import { here } from './open.ts'
import { IndexPage, IndexQuery, IndexRun, NewIndexRun } from './schemas.ts'
import { pathOf } from './view.ts'

const usualPage = 100
const largestPage = 500

const runView = ({ status, live, ...row }: IndexRunRow): z.output<typeof IndexRun> =>
  present({
    ...{ ...row, status: status === 'queued' ? 'running' : status, truncated: row.truncatedBy !== undefined },
    live: status === 'queued' || status === 'running' ? live : undefined,
  })

/** Index runs of storages, and their results. */
export const indexRoutes = (parts: StorageJobParts): Route[] => {
  const { db, storages, engine, hostId } = parts
  const api = { db, engine, kind: indexKind }
  const runAt = async (storageId: string, id: string): Promise<IndexRunRow> =>
    existing(await readIndexRun(db, storageId, id), 'storage index run', id)
  const made = async (storageId: string, id: string) => {
    const body = runView(await runAt(storageId, id))
    const headers = { location: `/storages/${encodeURIComponent(storageId)}/index-runs/` }
    return { createdAt: body.createdAt, answer: new Reply({ body, headers }) }
  }

  return [
    listRoute('listIndexRuns', 'GET /storages/{storageId}/index-runs/', {
      summary: 'Index runs of a storage, newest first',
      item: IndexRun,
      read: async (page, { params }) => {
        await readStorage(db, params.storageId)
        const { rows, total } = await listIndexRuns(db, params.storageId, page)
        return { rows: rows.map(runView), total }
      },
    }),
    route('startIndexRun', 'POST /storages/{storageId}/index-runs/', {
      summary: 'Compare a storage with its index, within the index policy, and record the differences',
      body: NewIndexRun,
      response: IndexRun,
      status: 202,
      refuses: [503],
      audit: {
        eventType: 'storage.index.created',
        summary: 'an index run of storage {storageId} accepted',
      },
      made: ({ params, newId }) => made(params.storageId, `index-${newId}`),
      handle: async ({ params, body, newId }) => {
        const storage = await storages.open(params.storageId)
        if (!isIndexed(storage.facts))
          throw unacceptableAt(
            'storage.configuration.indexPolicy.enabled',
            'is false; allow it with PUT ' +
              `/storages/${encodeURIComponent(params.storageId)}/roots/ and indexPolicy`,
          )
        const id = body.id ?? `index-${newId}`
        await acceptIndexRun(db, {
          ...{ id, storageId: storage.facts.id, checksums: body.checksums === true },
          rules: await indexRulesOf(storage),
          ...(storage.place.at === here ? { hostId } : {}),
        })
        await dispatchOperation(api, { id, generation: 1 })
        return (await made(storage.facts.id, id)).answer
      },
    }),
    route('cancelIndexRun', 'POST /storages/{storageId}/index-runs/{runId}/cancel/', {
      summary: 'Ask for the end of an index run; the index stays as the run before has left it',
      response: IndexRun,
      status: 202,
      refuses: [409],
      audit: {
        eventType: 'storage.index.cancel',
        summary: 'cancel of index run {runId} asked for',
      },
      handle: async ({ params, actor }) => {
        const { storageId, runId } = params
        await runAt(storageId, runId)
        const asked = await requestCancel(db, indexKind, { id: runId }, { actorId: actor.id })
        const found = existing(asked, 'storage index run', runId)
        if (!isOpenState(indexKind, found.status) && found.status !== 'cancelled')
          throw new Refusal(
            'conflict',
            `the index run is ${found.status}: cancel is possible while it is running`,
            { extra: { state: found.status } },
          )
        // The record is what counts; the workflow ends as Canceled by this, or asks for it at its
        // end.
        await engine.cancel(indexKind, runId, found.generation)
        return (await made(storageId, runId)).answer
      },
    }),
    route('searchStorageIndex', 'GET /storages/{storageId}/index/', {
      summary:
        'What the index holds below a path, directory by directory; a page may hold fewer entries ' +
        'than its limit, so go on while there is nextCursor',
      query: IndexQuery,
      response: IndexPage,
      refuses: [422],
      handle: async ({ params, query }) => {
        const facts = await readStorage(db, params.storageId)
        const path = await pathOf(query, facts, 'query', false)
        const roots = await refusing('body', () =>
          Promise.resolve(rootsOf(facts).map(({ path: root }) => root)),
        )
        const asked = query.limit ?? usualPage
        const limit = asked < 1 || asked > largestPage ? usualPage : asked
        const [found, last] = await Promise.all([
          readIndex(db, facts.id, path, { roots, query, limit }),
          lastIndexed(db, facts.id),
        ])
        return {
          storageId: facts.id,
          ...pathInAnswer(path),
          ...found,
          ...(last === undefined ? {} : { indexedAt: last }),
        }
      },
    }),
  ]
}
