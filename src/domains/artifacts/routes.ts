import { z } from 'zod'
import type { Sql } from '../../db/sql.ts'
import { listRoute } from '../../http/list-route.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import {
  addBuild,
  addDockerArtifact,
  buildsOf,
  existingArtifact,
  readBuild,
  type BuildParts,
} from './builds.ts'
import { formBytes, registerStored, uploadContext } from './contexts.ts'
import { listMaterializations, putMaterialization } from './materializations.ts'
import {
  Artifact,
  ArtifactBuild,
  ArtifactLocation,
  ArtifactVersion,
  BuildContext,
  DockerArtifact,
  Materialization,
  NewBuild,
  NewContext,
  NewDockerArtifact,
  NewMaterialization,
  NewVersion,
} from './schemas.ts'
import { readSbom, sbomType, versionWithSboms } from './sboms.ts'
import { deleteBuild, deleteContext, deleteVersion, type ArtifactUse } from './versions.ts'
import { addVersion, listArtifacts, listLocations } from './store.ts'

export interface ArtifactParts extends BuildParts {
  uses: { artifact: readonly ArtifactUse[] }
  /** Whether a run of the id exists, as SQL. Runs belong to a domain below this one. */
  isRun: (id: string) => Sql
}

/** Versions of artifacts, and what is deleted with them. */
const versionRoutes = (parts: ArtifactParts): Route[] => [
  ...placeRoutes(parts),
  route('getArtifactVersion', 'GET /artifact-versions/{artifactVersionId}/', {
    summary: 'One version with its variants, their places and its builds',
    response: ArtifactVersion,
    handle: ({ params }) => versionWithSboms(parts, params.artifactVersionId),
  }),
  route('readArtifactSbom', 'GET /artifact-versions/{artifactVersionId}/sbom/', {
    summary: 'The packages in a variant of a version, in SPDX 2.3: the first one that has the list',
    query: z.strictObject({
      variantId: z.string().max(255).optional().describe('the first with a list by default'),
    }),
    raw: [sbomType],
    streams: true,
    handle: ({ params, query }) => readSbom(parts, params.artifactVersionId, query.variantId),
  }),
  route('deleteArtifactVersion', 'DELETE /artifact-versions/{artifactVersionId}/', {
    summary: 'Delete a version that no build and no run refers to, with its bytes',
    refuses: [422],
    audit: { eventType: 'artifact.deleted', summary: 'a version of an artifact deleted' },
    handle: ({ params }) => deleteVersion(parts, parts.uses.artifact, params.artifactVersionId),
  }),
  route('deleteArtifactBuild', 'DELETE /artifact-builds/{buildId}/', {
    summary: 'Delete a build that no run refers to, with its own runs and their logs',
    refuses: [422],
    audit: { eventType: 'artifact.build.deleted', summary: 'a build of an artifact deleted' },
    handle: ({ params }) => deleteBuild(parts, parts.uses.artifact, params.buildId),
  }),
  route('deleteBuildContext', 'DELETE /build-contexts/{digest}/', {
    summary: 'Delete a build context that no build refers to, with its bytes',
    refuses: [422],
    audit: { eventType: 'artifact.context.deleted', summary: 'a build context deleted' },
    handle: ({ params }) => deleteContext(parts, params.digest),
  }),
]

/** Lists of versions, and of the places of their bytes. */
const placeRoutes = ({ db, isRun }: ArtifactParts): Route[] => [
  listRoute('listArtifacts', 'GET /artifacts/', {
    summary: 'Versions of executable artifacts by name',
    filters: {
      selectable: z
        .enum(['true', 'false'])
        .optional()
        .describe('true: those alone whose bytes lie somewhere now'),
    },
    item: Artifact,
    read: (page, { query }) => listArtifacts(db, { page, selectable: query.selectable === 'true' }),
  }),
  route('createArtifact', 'POST /artifacts/', {
    summary: 'Add a version of an artifact, for builds to make its bytes',
    body: NewVersion,
    response: Artifact,
    status: 201,
    audit: { eventType: 'artifact.created', summary: 'a version of an artifact added' },
    handle: async ({ body }) => {
      const { artifactId, version, name = artifactId, scope, scopeId = '' } = body
      const artifactVersionId = await addVersion(db, { artifactId, name, version, scope, scopeId })
      return {
        ...{ id: artifactId, name, version, artifactVersionId, scope, formats: [] },
        ...(scopeId === '' ? {} : { scopeId }),
      }
    },
  }),
  listRoute('listArtifactLocations', 'GET /artifact-locations/', {
    summary: 'Places where the bytes of artifacts were found and compared with their digest',
    item: ArtifactLocation,
    read: (page) => listLocations(db, page),
  }),
  listRoute('listMaterializations', 'GET /artifact-materializations/', {
    summary: 'Where the bytes of artifacts were brought for runs',
    filters: { runId: z.string().max(255).optional().describe('those of this run') },
    item: Materialization,
    read: (page, { query: { runId } }) => listMaterializations(db, page, runId),
  }),
  route('createMaterialization', 'POST /artifact-materializations/', {
    summary: 'Record where bytes of an artifact were brought, or how far that is',
    body: NewMaterialization,
    response: Materialization,
    status: 201,
    audit: { eventType: 'artifact.materialized', summary: 'a materialization of an artifact recorded' },
    handle: ({ body }) => putMaterialization({ db, isRun }, body),
  }),
]

/** Specifications of builds, and their contexts. */
const specificationRoutes = (parts: BuildParts): Route[] => [
  route('createDockerArtifact', 'POST /artifacts/docker/', {
    summary: 'Add an image as a version of an artifact, with the build of its SIF file',
    body: NewDockerArtifact,
    response: DockerArtifact,
    status: 201,
    audit: { eventType: 'artifact.created', summary: 'an image added as a version of an artifact' },
    handle: ({ body }) => addDockerArtifact(parts, body),
  }),
  route('uploadBuildContext', 'POST /build-contexts/', {
    summary:
      'Upload a build context (tar with gzip) as the file field context of a form, or register a stored one',
    upload: {
      types: ['multipart/form-data'],
      fileField: 'context',
      limitBytes: parts.buildContextLimitBytes + formBytes,
    },
    body: NewContext,
    response: BuildContext,
    status: 201,
    audit: { eventType: 'artifact.context.created', summary: 'a build context stored' },
    handle: ({ body, upload }) => {
      if (upload !== undefined) return uploadContext(parts, upload)
      return registerStored(parts, NewContext.parse(body))
    },
  }),
  route('createArtifactBuild', 'POST /artifact-builds/', {
    summary: 'Describe a build; an equal cacheKey answers the build that is stored',
    body: NewBuild,
    response: ArtifactBuild,
    status: 201,
    alsoStatus: [200],
    refuses: [503],
    audit: { eventType: 'artifact.build.created', summary: 'a build of an artifact described' },
    handle: async ({ body }) => {
      const { build, isNew } = await addBuild(parts, body)
      return new Reply({
        body: build,
        status: isNew ? 201 : 200,
        location: `/artifact-builds/${encodeURIComponent(build.id)}/`,
      })
    },
  }),
  route('getArtifactBuild', 'GET /artifact-builds/{buildId}/', {
    summary: 'One build as it was described',
    response: ArtifactBuild,
    handle: ({ params }) => readBuild(parts.db, params.buildId),
  }),
  listRoute('listArtifactBuilds', 'GET /artifacts/{artifactId}/builds/', {
    summary: 'Builds of an artifact, newest first',
    item: ArtifactBuild,
    read: async (page, { params: { artifactId } }) => {
      await existingArtifact(parts.db, artifactId)
      return buildsOf(parts.db, artifactId, page)
    },
  }),
]

export const artifactRoutes = (parts: ArtifactParts): Route[] => [
  ...versionRoutes(parts),
  ...specificationRoutes(parts),
]
