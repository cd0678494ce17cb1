import { z } from 'zod'
import { listRoute } from '../../http/list-route.ts'
import type { Db } from '../../db/sql.ts'
import { preferred } from '../../http/accept.ts'
import { envelope, envelopeOf, pageOf, pageQueryOf, type Sizes } from '../../http/paging.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { Name } from '../../http/schema.ts'
import { missing, unacceptable, type Problem, existing } from '../../refusal.ts'
import { readAuthoring, type NewWorkflow } from './authoring.ts'
import { findExport, findWorkflow, listActivities, listWorkflows } from './definitions.ts'
import { furtherProblems, readWorkflow, type Override } from './document.ts'
import { draftOf } from './draft.ts'
import { exportDocument, exportYaml } from './export.ts'
import { foreignText } from './languages.ts'
import {
  Activity,
  AuthoringDocument,
  CreatedWorkflow,
  DuplicateRequest,
  WorkflowDefinition,
  WorkflowDocument,
} from './schemas.ts'
import { createWorkflow, deleteWorkflow, unknownRuntimes, workflowExists, type WorkflowUse } from './store.ts'

const noun = 'workflow'

/** Activities per page of the paged route. */
const activitySizes: Sizes = { usual: 100, largest: 1_000, beyond: 'largest' }

/**
 * `Content-Disposition` for a file name of any characters (RFC 6266: an ASCII substitute, and the
 * name itself percent-encoded).
 */
export const attachment = (name: string): string => {
  const ascii = name.replace(/[^\w.-]/g, '_')
  const encoded = encodeURIComponent(name).replace(
    /['()*]/g,
    (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`,
  )
  return `attachment; filename="${ascii}"; filename*=UTF-8''${encoded}`
}

/**
 * Warnings about runtimes that activities request and that do not exist yet. Admission of a run
 * decides, so this is no refusal.
 */
async function runtimeWarnings(db: Db, { content }: NewWorkflow): Promise<Problem[]> {
  const first = new Map<string, number>()
  content.activities.forEach(({ metadata }, i) => {
    const hint = metadata?.['runtime']
    if (typeof hint === 'string' && !first.has(hint)) first.set(hint, i)
  })
  const unknown = first.size === 0 ? [] : await unknownRuntimes(db, [...first.keys()])
  return unknown.map((hint) => ({
    path: `spec.activities.${first.get(hint) ?? 0}.runtime`,
    message: `${JSON.stringify(hint)} names no runtime and no driver known now; it is decided when a run is admitted`,
  }))
}

async function create(
  db: Db,
  body: Record<string, unknown>,
  override: Override,
): Promise<Reply<z.output<typeof CreatedWorkflow>>> {
  const { workflow, warnings } = await readWorkflow(body, override, (id) => workflowExists(db, id))
  return store(db, workflow, warnings)
}

async function store(
  db: Db,
  workflow: NewWorkflow,
  warnings: Problem[],
): Promise<Reply<z.output<typeof CreatedWorkflow>>> {
  const hints = await runtimeWarnings(db, workflow)
  const definition = await db.transaction((tx) => createWorkflow(tx, workflow))
  return new Reply({
    body: { ...definition, warnings: [...warnings, ...hints] },
    location: `/workflow-definitions/${encodeURIComponent(definition.id)}/`,
  })
}

/** A document of a stored workflow, which may be older than a bound of its numbers. @throws 422 */
const acceptable = (document: unknown): z.output<typeof AuthoringDocument> => {
  const { success, data, error } = AuthoringDocument.safeParse(document)
  if (success) return data
  throw unacceptable(error.issues.map(({ path, message }) => ({ path: path.map(String).join('.'), message })))
}

const bodyName = (body: unknown): string => {
  const name = (body as { name?: unknown } | undefined)?.name
  return typeof name === 'string' ? name : ''
}

/** The routes under `/workflow-definitions/` and `/workflow-definition-actions/`. */
export const workflowDefinitionRoutes = ({
  db,
  uses,
}: {
  db: Db
  uses: { workflow: readonly WorkflowUse[] }
}): Route[] => [
  listRoute('listWorkflows', 'GET /workflow-definitions/', {
    summary: 'List workflows by namespace and name',
    item: WorkflowDefinition,
    read: (page) => listWorkflows(db, page),
  }),
  route('createWorkflow', 'POST /workflow-definitions/', {
    summary: 'Create a workflow',
    body: WorkflowDocument,
    response: CreatedWorkflow,
    status: 201,
    alsoCheck: ({ document }) => furtherProblems(document, (id) => workflowExists(db, id)),
    foreignText,
    audit: {
      eventType: 'workflow.created',
      summary: ({ body }) => `workflow ${JSON.stringify(bodyName(body))} created`,
    },
    handle: ({ body }) => create(db, body, {}),
  }),
  route('importWorkflow', 'POST /workflow-definitions/import/', {
    summary: 'Import a workflow, optionally under another name or namespace',
    query: z.strictObject({
      name: Name.optional().describe('name of the workflow; that of the document by default'),
      namespace: Name.optional().describe('namespace of the workflow; that of the document by default'),
    }),
    body: WorkflowDocument,
    response: CreatedWorkflow,
    status: 201,
    alsoCheck: ({ document }) => furtherProblems(document, (id) => workflowExists(db, id)),
    foreignText,
    audit: {
      eventType: 'workflow.imported',
      summary: ({ body }) => `workflow ${JSON.stringify(bodyName(body))} imported`,
    },
    handle: ({ body, query }) => create(db, body, query),
  }),
  route('getWorkflow', 'GET /workflow-definitions/{workflowId}/', {
    summary: 'Read a workflow',
    response: WorkflowDefinition,
    handle: async ({ params }) =>
      existing(await findWorkflow(db, params.workflowId), noun, params.workflowId),
  }),
  route('deleteWorkflow', 'DELETE /workflow-definitions/{workflowId}/', {
    summary: 'Delete a workflow that nothing uses',
    refuses: [422],
    audit: {
      eventType: 'workflow.deleted',
      summary: ({ params }) => `workflow ${JSON.stringify(params['workflowId'])} deleted`,
    },
    handle: async ({ params }) => {
      if (!(await db.transaction((tx) => deleteWorkflow(tx, params.workflowId, uses.workflow))))
        throw missing(noun, params.workflowId)
    },
  }),
  route('listWorkflowActivities', 'GET /workflow-definitions/{workflowId}/activities/', {
    summary: 'Read a page of the activities of a workflow, in the order of its document',
    query: z.strictObject(pageQueryOf(activitySizes)),
    response: envelopeOf(Activity),
    handle: async ({ params, query }) => {
      const page = pageOf(query, activitySizes)
      const found = existing(await listActivities(db, params.workflowId, page), noun, params.workflowId)
      return envelope(found.rows, { page, total: found.total })
    },
  }),
  route('exportWorkflow', 'GET /workflow-definitions/{workflowId}/export/', {
    summary:
      'Export a workflow as its author would write it: YAML, or JSON for a client that accepts that rather',
    raw: ['application/yaml'],
    response: AuthoringDocument,
    handle: async ({ params, headers }) => {
      const found = existing(await findExport(db, params.workflowId), noun, params.workflowId)
      const json =
        preferred(headers['accept'], ['application/yaml', 'application/json']) === 'application/json'
      return new Reply<unknown>({
        ...(json ? { body: exportDocument(found) } : { body: exportYaml(found) }),
        headers: {
          'Content-Disposition': attachment(`${found.id}.${json ? 'json' : 'yaml'}`),
          Vary: 'Accept',
        },
      })
    },
  }),
  route('duplicateWorkflow', 'POST /workflow-definition-actions/duplicate/{workflowId}/', {
    summary: 'Store a copy of a workflow under another name',
    body: DuplicateRequest,
    response: CreatedWorkflow,
    status: 201,
    audit: {
      eventType: 'workflow.duplicated',
      summary: ({ params, body }) =>
        `workflow ${JSON.stringify(params['workflowId'])} duplicated as ${JSON.stringify(bodyName(body))}`,
    },
    handle: async ({ params, body }) => {
      const found = existing(await findExport(db, params.workflowId), noun, params.workflowId)
      const document = exportDocument({
        ...found,
        name: body.name,
        namespace: body.namespace ?? found.namespace,
      })
      const { workflow, problems, warnings, id } = readAuthoring(draftOf(acceptable(document)))
      const taken = id !== undefined && id !== '' && (await workflowExists(db, id))
      if (taken)
        problems.push({
          path: 'name',
          message: `${JSON.stringify(id)} is taken by another workflow; choose another name`,
        })
      if (workflow === undefined || taken) throw unacceptable(problems)
      return store(db, workflow, warnings)
    },
  }),
]
