import { textsAt, type ConstraintTexts } from '../../db/errors.ts'

export const artifactConstraints: ConstraintTexts = {
  ...textsAt('version', {
    artifact_versions_pkey: 'this version of the artifact exists already; choose another version',
    artifact_versions_number: 'this version of the artifact exists already; choose another version',
  }),
  ...textsAt('scope', {
    artifact_versions_scope: 'must be system, organization, project, workflow, run or environment',
  }),
  ...textsAt('path', {
    artifact_variants_pkey: 'these bytes are a variant of the version already',
    artifact_variants_content: 'these bytes are a variant of the version already',
    artifact_locations_pkey: 'the variant is recorded at this place already',
    artifact_locations_place: 'the variant is recorded at this place already',
  }),
  ...textsAt('id', {
    artifact_variants_version: 'the artifact version was deleted meanwhile; try again',
    artifact_locations_variant: 'the artifact version was deleted meanwhile; try again',
    artifact_builds_pkey: 'this build exists already; choose another id',
    build_runs_pkey: 'this build run exists already; try again',
    build_runs_build: 'the build was deleted meanwhile; try again',
    build_runs_open_once: 'a run of the build is open already; try again',
    artifact_materializations_pkey: 'this materialization exists already; choose another id',
    artifact_transfer_runs_pkey: 'this transfer is recorded already; try again',
  }),
  ...textsAt('digest', {
    build_contexts_pkey: 'the context is registered already',
  }),
  ...textsAt('sizeBytes', {
    build_contexts_size: 'must be greater than 0',
  }),
  ...textsAt('artifactVersionId', {
    artifact_builds_version: 'the artifact version was deleted meanwhile; try again',
  }),
  ...textsAt('cacheKey', {
    artifact_builds_cache_key: 'a build of this key exists already; try again',
  }),
  ...textsAt('status', {
    build_runs_step: 'must be a state of a build run',
    build_runs_status: 'must be a state of a build run',
    artifact_materializations_status:
      'must be planned, reconciling, transferring, verifying, committed or failed',
    artifact_transfer_runs_status: 'must be running, completed or failed',
  }),
  ...textsAt('variantId', {
    artifact_materializations_variant:
      'names no variant of an artifact; GET /artifact-versions/{id}/ lists them',
  }),
  ...textsAt('verifiedDigest', {
    artifact_materializations_verified: 'must be equal to digest where status is committed',
  }),
  ...textsAt('materializationId', {
    artifact_transfer_runs_materialization: 'the materialization was deleted meanwhile; try again',
  }),
}
