import type { Db } from '../../db/sql.ts'
import { longListRoute } from '../../http/list-route.ts'
import { route, Reply, type Route } from '../../http/route.ts'
import { sharedReads } from '../../http/shared-reads.ts'
import { existing, unacceptableAt } from '../../refusal.ts'
import { EnvironmentDefinition, EnvironmentDocument } from './schemas.ts'
import {
  createEnvironment,
  definitionProblems,
  deleteEnvironment,
  environmentTexts,
  listEnvironments,
  readEnvironment,
  replaceEnvironment,
  requireEnvironment,
} from './store.ts'
import type { EnvironmentUsers } from './users.ts'

const idOf = ({ body }: { body: unknown }): string => (body as EnvironmentDefinition).environment.id
const json = ['application/json']

/**
 * The document without the service's own view of storages that a client sent. That view is not
 * saved, and the answer must not suggest otherwise.
 */
const withoutViews = (document: EnvironmentDefinition): EnvironmentDefinition => ({
  ...document,
  storages: document.storages.map(
    ({ browseRoots: _, capabilities: _1, health: _2, indexPolicy: _3, indexStatus: _4, ...storage }) =>
      storage,
  ),
})

const flat = String.raw`\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\}`
/** The members that the service writes at the end of each storage, in the order of `storageView`. */
const storageEnd = new RegExp(
  String.raw`,"health":\{(?:[^"{}]|"(?:[^"\\]|\\.)*"|${flat})*\}(,"indexPolicy":${flat}),"indexStatus":${flat}\}`,
  'g',
)

/**
 * The text of a document without what the service writes: the status of the environment, the states
 * of indexes, the answers of storages and the checks. Quotes inside strings are escaped, so the first
 * `"status":` is a key.
 */
const authored = (text: string): string =>
  text
    .slice(0, text.lastIndexOf(',"connectionChecks":'))
    .replace(/"status":"(?:[^"\\]|\\.)*"/, '')
    .replace(storageEnd, '$1}')

export interface EnvironmentParts {
  db: Db
  /** Makes a change of an environment, and ends the logins of the connections that it changes. */
  links: { changing: <T>(of: { environmentId: string }, change: () => Promise<T>) => Promise<T> }
  uses: EnvironmentUsers
}

export const environmentRoutes = ({ db, links, uses }: EnvironmentParts): Route[] => {
  /**
   * Answers with the document as PostgreSQL built it: to parse and serialise it again would cost
   * more than the read.
   */
  const document = sharedReads(db, (id) => readEnvironment(db, id))
  const read = async (id: string): Promise<Reply> => {
    const body = existing(await document(id), 'environment', id)
    return new Reply({ body })
  }

  return [
    longListRoute('listEnvironments', 'GET /environments/', {
      summary: 'Environments by name, each with its newest version',
      item: EnvironmentDocument,
      ids: (page) => listEnvironments(db, page),
      texts: (ids) => environmentTexts(db, ids),
    }),
    route('createEnvironment', 'POST /environments/', {
      summary: 'Register an environment with one version; answers the document as it was understood',
      body: EnvironmentDefinition,
      response: EnvironmentDefinition,
      status: 201,
      alsoCheck: ({ document }) => definitionProblems(db, document),
      audit: {
        eventType: 'environment.created',
        summary: (call) => `environment ${idOf(call)} created`,
        environmentId: idOf,
      },
      handle: async ({ body }) => {
        await createEnvironment(db, body)
        return new Reply({
          body: withoutViews(body),
          location: `/environments/${encodeURIComponent(body.environment.id)}/`,
        })
      },
    }),
    route('getEnvironment', 'GET /environments/{environmentId}/', {
      summary: 'One environment with the ids that were saved and the 20 newest checks of each connection',
      response: EnvironmentDocument,
      raw: json,
      authored,
      handle: ({ params }) => read(params.environmentId),
    }),
    route('updateEnvironment', 'PUT /environments/{environmentId}/', {
      summary: 'Replace an environment that nothing uses',
      body: EnvironmentDefinition,
      response: EnvironmentDocument,
      raw: json,
      alsoCheck: async ({ document, params }) => {
        await requireEnvironment(db, params['environmentId'] ?? '')
        return definitionProblems(db, document, params['environmentId'])
      },
      audit: {
        eventType: 'environment.replaced',
        summary: 'environment {environmentId} replaced',
        environmentId: ({ params }) => params['environmentId'],
      },
      handle: async ({ params, body }) => {
        const { id } = body.environment
        if (id !== params.environmentId) {
          await requireEnvironment(db, params.environmentId)
          throw unacceptableAt(
            'environment.id',
            `must be ${JSON.stringify(params.environmentId)}, the id in the path; an environment ` +
              'keeps its id',
          )
        }
        await links.changing({ environmentId: id }, () => replaceEnvironment(db, body, uses))
        return read(id)
      },
    }),
    route('deleteEnvironment', 'DELETE /environments/{environmentId}/', {
      summary: 'Delete an environment that nothing uses, with everything below it',
      refuses: [422],
      audit: {
        eventType: 'environment.deleted',
        summary: 'environment {environmentId} deleted',
        environmentId: ({ params }) => params['environmentId'],
      },
      handle: ({ params: { environmentId } }) =>
        links.changing({ environmentId }, () => deleteEnvironment(db, environmentId, uses.environment)),
    }),
  ]
}
