import { hash } from 'node:crypto'
import { z } from 'zod'
import { readPage } from '../../db/rows.ts'
import { sql, where, type Db, type Sql } from '../../db/sql.ts'
import type { Page } from '../../http/paging.ts'
import type { Verification } from '../../drivers/build/verify.ts'
import { Artifact, ArtifactLocation, type artifactScopes } from './schemas.ts'

const selectableOnly = sql`exists (select from artifact_variants n join artifact_locations l
  on l.variant_id = n.id where n.artifact_version_id = v.id and l.available)`

/** Versions by name, artifact and version; `selectable`: only those whose bytes are stored now. */
export const listArtifacts = (db: Db, { page, selectable }: { page: Page; selectable: boolean }) =>
  readPage(db, Artifact, {
    select: sql`v.artifact_id as id, v.name, v.version, v.id as artifact_version_id, v.scope,
      nullif(v.scope_id, '') as scope_id,
      array(select distinct n.format from artifact_variants n where n.artifact_version_id = v.id order by 1)
        as formats`,
    from: sql`artifact_versions v ${where(selectable && selectableOnly)}`,
    order: sql`v.name collate "C", v.artifact_id, v.version collate "C", v.id`,
    page,
  })

export const versionIdOf = (
  given: Pick<NewArtifactVersion, 'artifactId' | 'version' | 'scope' | 'scopeId'>,
): string => `artifact-version:${given.artifactId}:${given.version}:${given.scope}:${given.scopeId}`

/** Records a version without bytes; a build makes them later. @returns its id */
export const addVersion = async (
  db: Db,
  given: Pick<NewArtifactVersion, 'artifactId' | 'name' | 'version' | 'scope' | 'scopeId'>,
): Promise<string> => {
  const id = versionIdOf(given)
  await db.run(
    sql`insert into artifact_versions (id, artifact_id, name, version, scope, scope_id)
        values (${id}, ${given.artifactId}, ${given.name}, ${given.version}, ${given.scope}, ${given.scopeId})`,
  )
  return id
}

/** Keeps bytes of the store from a removal until the transaction ends. */
export const holdBytes = async (tx: Db, digest: string): Promise<void> => {
  await tx.run(sql`select pg_advisory_xact_lock(hashtextextended(${`artifact bytes ${digest}`}, 0))`)
}

/**
 * Records the output of a build as a variant of its version, with the place of its bytes, once.
 * @returns the variant's id
 */
export const addVariant = async (
  tx: Db,
  given: Pick<NewArtifactVersion, 'format' | 'architecture' | 'digest' | 'sizeBytes' | 'uri'> & {
    artifactVersionId: string
    endpointId: string
    verification: Verification | undefined
  },
): Promise<string> => {
  const { artifactVersionId, digest, uri } = given
  const variantId = `artifact-variant-${short(artifactVersionId, digest)}`
  await tx.run(
    sql`insert into artifact_variants (id, artifact_version_id, digest, format, architecture, size_bytes,
          verification)
        values (${variantId}, ${artifactVersionId}, ${digest}, ${given.format}, ${given.architecture},
          ${given.sizeBytes}, ${given.verification ?? null})
        on conflict on constraint artifact_variants_content do update set verification =
          coalesce(nullif(excluded.verification, 'structural'), artifact_variants.verification,
            excluded.verification)`,
  )
  const { id } = await tx.one(
    IdRow,
    sql`select id from artifact_variants where artifact_version_id = ${artifactVersionId} and digest = ${digest}`,
  )
  await tx.run(
    sql`insert into artifact_locations (id, variant_id, scope, scope_id, endpoint_id, uri, digest, available)
        select ${`artifact-location-${short(id, uri)}`}, ${id}, v.scope, v.scope_id, ${given.endpointId}, ${uri},
          ${digest}, true from artifact_versions v where v.id = ${artifactVersionId}
        on conflict on constraint artifact_locations_place do update set available = true`,
  )
  return id
}

/** Places where the bytes of artifacts were found and compared with their digest, oldest first. */
export const listLocations = (db: Db, page: Page) =>
  readPage(db, ArtifactLocation, {
    select: sql`id, variant_id, scope, nullif(scope_id, '') as scope_id, endpoint_id, uri, digest, available`,
    from: sql`artifact_locations`,
    order: sql`created_at, id`,
    page,
  })

export interface NewArtifactVersion {
  artifactId: string
  name: string
  version: string
  scope: (typeof artifactScopes)[number]
  scopeId: string
  format: string
  architecture: string | undefined
  /** `sha256:…` */
  digest: string
  sizeBytes: number
  /** The storage that holds the bytes, and their place in it. */
  storageId: string
  uri: string
}

const IdRow = z.object({ id: z.string() })
const KnownRow = IdRow.extend({ locationId: z.string() })
const short = (...parts: readonly string[]): string => hash('sha256', parts.join('\n')).slice(0, 40)

type VersionName = Pick<NewArtifactVersion, 'artifactId' | 'name' | 'version' | 'scope' | 'scopeId'>

/**
 * Records an artifact version with its bytes and their place, in one transaction. A version of the
 * same bytes at the same place that has all that is `asked` for is the answer: its id, and `isNew`
 * false. Another version of that name violates `artifact_versions_number`.
 */
export const addArtifactVersion = (
  db: Db,
  given: NewArtifactVersion,
  asked: { [Member in keyof VersionName]?: VersionName[Member] | undefined },
): Promise<{ id: string; isNew: boolean }> =>
  db.transaction(async (tx) => {
    // The lock orders two promotions of one file: the second one sees the record of the first.
    await tx.run(sql`select pg_advisory_xact_lock(hashtextextended(${`artifact ${given.uri}`}, 0))`)
    const known = await tx.maybe(
      KnownRow,
      sql`select v.id, l.id as location_id from artifact_locations l join artifact_variants n on n.id = l.variant_id
          join artifact_versions v on v.id = n.artifact_version_id
        ${where(
          sql`l.uri = ${given.uri} and l.digest = ${given.digest}`,
          asked.artifactId !== undefined && sql`v.artifact_id = ${asked.artifactId}`,
          asked.name !== undefined && sql`v.name = ${asked.name}`,
          asked.version !== undefined && sql`v.version = ${asked.version}`,
          asked.scope !== undefined && sql`v.scope = ${asked.scope}`,
          asked.scopeId !== undefined && sql`v.scope_id = ${asked.scopeId}`,
        )}
        order by l.created_at, l.id limit 1`,
    )
    if (known !== undefined) {
      // The bytes may have been gone meanwhile.
      await tx.run(
        sql`update artifact_locations set available = true where id = ${known.locationId} and not available`,
      )
      return { id: known.id, isNew: false }
    }
    const id = versionIdOf(given)
    await tx.run(
      sql`insert into artifact_versions (id, artifact_id, name, version, scope, scope_id)
          values (${id}, ${given.artifactId}, ${given.name}, ${given.version}, ${given.scope}, ${given.scopeId})`,
    )
    const variantId = `artifact-variant-${short(id, given.digest)}`
    await tx.run(
      sql`insert into artifact_variants (id, artifact_version_id, digest, format, architecture, size_bytes)
          values (${variantId}, ${id}, ${given.digest}, ${given.format}, ${given.architecture}, ${given.sizeBytes})`,
    )
    await tx.run(
      sql`insert into artifact_locations (id, variant_id, scope, scope_id, endpoint_id, uri, digest, available)
          values (${`artifact-location-${short(variantId, given.uri)}`}, ${variantId}, ${given.scope},
            ${given.scopeId}, ${given.storageId}, ${given.uri}, ${given.digest}, true)`,
    )
    return { id, isNew: true }
  })

/** Ids of the artifact versions whose bytes are stored at a place. */
export const versionsAt = async (db: Db, uri: string): Promise<string[]> => {
  const rows = await db.many(
    IdRow,
    sql`select distinct n.artifact_version_id as id from artifact_locations l join artifact_variants n
      on n.id = l.variant_id
        where l.uri = ${uri} and l.available order by 1 limit 100`,
  )
  return rows.map(({ id }) => id)
}

/** A place in a storage that no longer holds the promoted bytes. */
export interface LostPlace {
  uri: string
  /** Nothing has the name any more, so nothing is below it. */
  below?: boolean | undefined
  /** The digest of the bytes that are there now, `sha256:…`: what has it is not lost. */
  digest?: string | undefined
  /** Only files are lost: a directory may have the name, and what was promoted as one stays. */
  fileOnly?: boolean | undefined
}

/** Whether the column `uri` names a lost place. */
export const isLost = ({ uri, below = false }: LostPlace): Sql =>
  below ? sql`(uri = ${uri} or starts_with(uri, ${`${uri.replace(/\/$/, '')}/`}))` : sql`uri = ${uri}`

/** Places in a storage whose bytes are recorded as those of artifacts, at a place and below it. */
export const artifactPlaces = (db: Db, place: LostPlace): Promise<string[]> =>
  db.values(z.string(), sql`select distinct uri from artifact_locations where ${isLost(place)} and available`)

/** Records that the bytes at a place are gone. */
export const markGone = async (db: Db, place: LostPlace): Promise<void> => {
  await db.run(sql`update artifact_locations set available = false where ${isLost(place)} and available
    and digest is distinct from ${place.digest ?? null}`)
}
