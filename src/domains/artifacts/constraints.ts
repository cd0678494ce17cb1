import type { ConstraintTexts } from '../../db/errors.ts'

/** The meaning of violated constraints of this domain's tables for the caller. */
export const artifactConstraints: ConstraintTexts = {
  artifact_versions_pkey: {
    path: 'version',
    message: 'this version of the artifact exists already; choose another version',
  },
  artifact_versions_number: {
    path: 'version',
    message: 'this version of the artifact exists already; choose another version',
  },
  artifact_versions_scope: {
    path: 'scope',
    message: 'must be system, organization, project, workflow, run or environment',
  },
  artifact_variants_pkey: { path: 'path', message: 'these bytes are a variant of the version already' },
  artifact_variants_version: { path: 'id', message: 'the artifact version was deleted meanwhile; try again' },
  artifact_variants_content: { path: 'path', message: 'these bytes are a variant of the version already' },
  artifact_locations_pkey: { path: 'path', message: 'the variant is recorded at this place already' },
  artifact_locations_variant: {
    path: 'id',
    message: 'the artifact version was deleted meanwhile; try again',
  },
  artifact_locations_place: { path: 'path', message: 'the variant is recorded at this place already' },
  build_contexts_pkey: { path: 'digest', message: 'the context is registered already' },
  build_contexts_size: { path: 'sizeBytes', message: 'must be greater than 0' },
  artifact_builds_pkey: { path: 'id', message: 'this build exists already; choose another id' },
  artifact_builds_version: {
    path: 'artifactVersionId',
    message: 'the artifact version was deleted meanwhile; try again',
  },
  artifact_builds_cache_key: { path: 'cacheKey', message: 'a build of this key exists already; try again' },
  build_runs_pkey: { path: 'id', message: 'this build run exists already; try again' },
  build_runs_build: { path: 'id', message: 'the build was deleted meanwhile; try again' },
  build_runs_step: { path: 'status', message: 'must be a state of a build run' },
  build_runs_status: { path: 'status', message: 'must be a state of a build run' },
  build_runs_open_once: { path: 'id', message: 'a run of the build is open already; try again' },
  artifact_materializations_pkey: {
    path: 'id',
    message: 'this materialization exists already; choose another id',
  },
  artifact_materializations_variant: {
    path: 'variantId',
    message: 'names no variant of an artifact; GET /artifact-versions/{id}/ lists them',
  },
  artifact_materializations_status: {
    path: 'status',
    message: 'must be planned, reconciling, transferring, verifying, committed or failed',
  },
  artifact_materializations_verified: {
    path: 'verifiedDigest',
    message: 'must be equal to digest where status is committed',
  },
  artifact_transfer_runs_pkey: { path: 'id', message: 'this transfer is recorded already; try again' },
  artifact_transfer_runs_materialization: {
    path: 'materializationId',
    message: 'the materialization was deleted meanwhile; try again',
  },
  artifact_transfer_runs_status: { path: 'status', message: 'must be running, completed or failed' },
}
